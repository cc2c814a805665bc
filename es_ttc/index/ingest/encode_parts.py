"""Parts of the input to lines of a bulk: encoded and packed by two threads, which take turns, or by child processes."""

import asyncio
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import Generic, NamedTuple, Self, TypeAlias, TypeVar, cast

from es_ttc.common.parent_process import end_with_parent
from es_ttc.common.processors import processor_count
from es_ttc.encoders.base import Encoder
from es_ttc.errors import EncoderError, EncoderMismatch
from es_ttc.index.ingest.encode import action_lines, encode_apart, features_apart
from es_ttc.index.ingest.prepare import Prepared
from es_ttc.index.mappings.spec import IndexSpec

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


class ChildProcessEnded(Exception):
    """A child process ended before it answered."""


class ChildProcess(Generic[Argument, Answer]):
    """A child process, started when it is made; it makes the function that answers calls for the first of them."""

    def __init__(self, make: Callable[[], Callable[[Argument], Answer]]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_answer_calls, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def call(self, argument: Argument) -> Answer:
        """Return the child's answer, or raise its error; one thread may call at a time."""
        try:
            self._connection.send(argument)
            answer, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            raise ChildProcessEnded(f"process {self.pid}") from ended
        if error is not None:
            raise error
        return cast("Answer", answer)

    def kill(self) -> None:
        """End the child, whatever it does; a call that waits raises :class:`ChildProcessEnded`."""
        self._process.kill()
        self._process.join()


def _answer_calls(connection: Connection, make: Callable[[], Callable[[Argument], Answer]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    end_with_parent()
    function: Callable[[Argument], Answer] | None = None
    while True:
        try:
            argument = connection.recv()
        except EOFError:
            return
        try:
            function = function or make()
            reply: tuple[Answer | None, Exception | None] = (function(argument), None)
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the call's outcome
            error.add_note(f"in a child process:\n{traceback.format_exc()}")
            reply = (None, error)
        try:
            connection.send(reply)
        except OSError:  # the parent has ended
            return


@dataclass(frozen=True, slots=True)
class PartLayout:
    """How documents are written, with the key of the index's pipeline, if it has one."""

    spec: IndexSpec
    key: str = ""


class DocumentLines(NamedTuple):
    """One encoded document."""

    lines: tuple[bytes, bytes]
    empty: bool
    truncated: bool


class EncodedPart(NamedTuple):
    """What became of a part."""

    documents: list[DocumentLines | EncoderError]
    seconds: float


@dataclass(frozen=True, slots=True)
class EncodeProcesses:
    """Several processes that encode; in each of them ``load(threads=…)``, which can be pickled, loads the encoder."""

    number: int
    load: Callable[..., Encoder]


EncodeProcess: TypeAlias = ChildProcess[Sequence[Prepared], EncodedPart]


@dataclass(frozen=True, slots=True)
class PartEncoders:
    """Encoders at work on parts; call :meth:`close` at the end."""

    executor: Executor
    at_once: int
    encode: Callable[[Sequence[Prepared]], EncodedPart]
    children: Sequence[EncodeProcess] = ()

    @classmethod
    def in_threads(cls, layout: PartLayout, encoder: Encoder) -> Self:
        """Return encoders in this process."""
        executor = ThreadPoolExecutor(2, thread_name_prefix="ingest-encode")
        return cls(executor, 2, partial(encode_part, layout, encoder, Lock()))

    @classmethod
    def in_processes(cls, layout: PartLayout, processes: EncodeProcesses) -> Self:
        """Return encoders in processes, which share this machine's processors."""
        make = partial(_encode_function, layout, processes)
        children = [EncodeProcess(make) for _ in range(processes.number)]
        idle: SimpleQueue[EncodeProcess] = SimpleQueue()
        for child in children:
            idle.put(child)
        executor = ThreadPoolExecutor(processes.number, thread_name_prefix="ingest-process")
        return cls(executor, processes.number, partial(_encode_in_child, idle), children)

    async def encoded(self, part: Sequence[Prepared]) -> EncodedPart:
        """Encode a part."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, self.encode, part)

    def close(self) -> None:
        """Drop parts that wait, and end the processes."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        for child in self.children:
            child.kill()


def encode_part(layout: PartLayout, encoder: Encoder, turn: Lock, part: Sequence[Prepared]) -> EncodedPart:
    """Encode and pack a part."""
    spec, composed = layout.spec, [(each.text, each.spans) for each in part]
    with turn:
        begun = time.monotonic()
        apart = encode_apart(composed, spec, encoder)
        seconds = time.monotonic() - begun
    documents: list[DocumentLines | EncoderError] = []
    for each, own in zip(part, features_apart(apart, composed, [each.hash for each in part], spec), strict=True):
        if isinstance(own, EncoderError):
            documents.append(own)
            continue
        lines = action_lines(each.id, each.source, each.digest, own, spec, layout.key)
        documents.append(DocumentLines(lines, own.pooled is None, own.truncated))
    return EncodedPart(documents, seconds)


def _encode_in_child(idle: SimpleQueue[EncodeProcess], part: Sequence[Prepared]) -> EncodedPart:
    child = idle.get()
    try:
        return child.call(part)
    except ChildProcessEnded as error:
        raise EncoderError(
            "a process that encodes has ended unexpectedly (was it killed, or is there too little memory for "
            "--processes?)"
        ) from error
    finally:
        idle.put(child)


def _encode_function(layout: PartLayout, processes: EncodeProcesses) -> Callable[[Sequence[Prepared]], EncodedPart]:
    """Return what a child process encodes with."""
    threads = max(1, processor_count() // processes.number)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is imported
    encoder = processes.load(threads=threads)
    if encoder.identity.key != layout.spec.encoder.key:
        raise EncoderMismatch(
            f"a process loaded the encoder [{encoder.identity.key}] for an index of [{layout.spec.encoder.key}]: were "
            "the model's files replaced meanwhile?"
        )
    return partial(encode_part, layout, encoder, Lock())
