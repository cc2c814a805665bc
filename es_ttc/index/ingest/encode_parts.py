"""Parts of the input to lines of a bulk: encoded and packed by two threads of this process, or by several processes.

The two threads take turns at the encoder: one encodes a part while the other packs the part before. Each of several
processes has an encoder of its own.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import NamedTuple, Protocol, Self

from es_ttc.common.parent_process import end_with_parent
from es_ttc.encoders.base import Encoder
from es_ttc.errors import EncoderError, EncoderMismatch
from es_ttc.index.ingest.encode import action_lines, encode_apart, features_of
from es_ttc.index.ingest.prepare import Prepared
from es_ttc.index.mappings.spec import IndexSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """How documents are written.

    Attributes:
        spec: The spec of the index.
        key: The key with which the index's pipeline lets features pass; empty if it has none.
    """

    spec: IndexSpec
    key: str = ""


class DocumentLines(NamedTuple):
    """One encoded document.

    Attributes:
        lines: Its action line and source line.
        empty: Whether it has no text.
        truncated: Whether its text was cut at the index's ``max_tokens``.
    """

    lines: tuple[bytes, bytes]
    empty: bool
    truncated: bool


class EncodedPart(NamedTuple):
    """What became of a part.

    Attributes:
        documents: For each document its lines, or why it cannot be encoded.
        seconds: Time that the encoder was busy.
    """

    documents: list[DocumentLines | EncoderError]
    seconds: float


class LoadEncoder(Protocol):
    """Loads the encoder of the index in a process; it can be pickled."""

    def __call__(self, *, threads: int) -> Encoder:
        """Load the encoder, for a number of threads."""
        ...


@dataclass(frozen=True, slots=True)
class EncodeProcesses:
    """Several processes that encode.

    Attributes:
        number: Number of processes.
        load: Loads each one's encoder.
    """

    number: int
    load: LoadEncoder


@dataclass(frozen=True, slots=True)
class PartEncoders:
    """Encoders at work on parts; call :meth:`close` at the end.

    Attributes:
        executor: Runs them.
        at_once: Number of parts that it works on at once.
        encode: Encodes a part in the executor.
    """

    executor: Executor
    at_once: int
    encode: Callable[[Sequence[Prepared]], EncodedPart]

    @classmethod
    def in_threads(cls, layout: Layout, encoder: Encoder) -> Self:
        """Return encoders in this process."""
        executor = ThreadPoolExecutor(2, thread_name_prefix="ingest-encode")
        return cls(executor, 2, partial(encode_part, layout, encoder, Lock()))

    @classmethod
    def in_processes(cls, layout: Layout, processes: EncodeProcesses) -> Self:
        """Return encoders in processes, which share this machine's processors."""
        spawn = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(processes.number, spawn, _start, (layout, processes))
        return cls(executor, processes.number, _encode_part_here)

    async def encoded(self, part: Sequence[Prepared]) -> EncodedPart:
        """Encode a part.

        Raises:
            EncoderError: A process has ended.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, self.encode, part)
        except BrokenProcessPool as error:
            raise EncoderError(
                "a process that encodes has ended unexpectedly (was it killed, or is there too little memory for "
                "--processes?)"
            ) from error

    def close(self) -> None:
        """Drop parts that wait."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def encode_part(layout: Layout, encoder: Encoder, turn: Lock, part: Sequence[Prepared]) -> EncodedPart:
    """Encode and pack a part.

    Args:
        layout: How documents are written.
        encoder: The encoder of the index.
        turn: Is held while the encoder is busy.
        part: The documents.
    """
    spec = layout.spec
    with turn:
        begun = time.monotonic()
        done, refused = encode_apart([(each.text, each.spans) for each in part], spec, encoder)
        seconds = time.monotonic() - begun
    documents: dict[int, DocumentLines | EncoderError] = dict(refused)
    for positions, encoded in done:
        some = part[positions.start : positions.stop]
        features = features_of(encoded, [each.spans for each in some], [each.hash for each in some], spec)
        for position, each, own in zip(positions, some, features, strict=True):
            lines = action_lines(each.id, each.source, each.digest, own, spec, layout.key)
            documents[position] = DocumentLines(lines, own.pooled is None, own.truncated)
    return EncodedPart([documents[position] for position in range(len(part))], seconds)


class _Here(NamedTuple):
    layout: Layout
    processes: EncodeProcesses


_here: list[_Here] = []
"""What a process that encodes was started with."""


def _start(layout: Layout, processes: EncodeProcesses) -> None:
    """Prepare a process; its encoder is loaded with the first part, whose failure then tells why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    end_with_parent()
    _here.append(_Here(layout, processes))


def _encode_part_here(part: Sequence[Prepared]) -> EncodedPart:
    return _encode_function()(part)


@cache
def _encode_function() -> Callable[[Sequence[Prepared]], EncodedPart]:
    layout, processes = _here[0]
    threads = max(1, (os.cpu_count() or 1) // processes.number)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is imported
    encoder = processes.load(threads=threads)
    if encoder.identity.key != layout.spec.encoder.key:
        raise EncoderMismatch(
            f"a process loaded the encoder [{encoder.identity.key}] for an index of [{layout.spec.encoder.key}]: were "
            "the model's files replaced meanwhile?"
        )
    return partial(encode_part, layout, encoder, Lock())
