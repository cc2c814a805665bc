"""The side of the sandbox that holds the data: starts the process, answers what it asks, counts what that costs."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_ttc.discovery.sandbox import wire
from es_ttc.discovery.sandbox.shared import Shared, SharedTexts
from es_ttc.discovery.tasks import Task
from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.programs.interface import ADAPTERS, PASSAGE, TOPIC_LENGTH
from es_ttc.rescorers.programs.source import Reason, Refused
from es_ttc.vectors.chunks import GRANULARITIES
from es_ttc.vectors.tokens import Float32

_START_SECONDS = 60.0
_MOST_MESSAGES = 10_000
_MOST_TEXT = 20_000
_BATCH = 64
"""Texts encoded between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may take.

    Attributes:
        seconds: Time for one task, in seconds, without that of the encoder.
        memory_mb: Memory beside what the interpreter, numpy and the task's own arrays take, in MiB.
        cost: Greatest cost ratio c, of all tasks together.
        encoding: Seconds of the encoder, of all tasks together.
    """

    seconds: float = 20.0
    memory_mb: int = 1024
    cost: float = 50.0
    encoding: float = 900.0


@dataclass(slots=True)
class Usage:
    """What a program read of one task, as the paper counts it.

    Attributes:
        readings: What an index holds beside whole documents: granularities, views, texts.
        index_texts: Texts encoded that depend on documents alone.
        query_texts: Texts that it encoded itself.
    """

    readings: set[str] = field(default_factory=set)
    index_texts: int = 0
    query_texts: int = 0

    def count(self, reading: str, texts: int) -> None:
        """Count a reading, once."""
        if reading not in self.readings:
            self.readings.add(reading)
            self.index_texts += texts


@dataclass(slots=True)
class Bill:
    """What a program may still have encoded, on all tasks together.

    Attributes:
        base: Queries and documents of all tasks.
        limits: The cost and the encoder's time that it has.
        texts: Texts that it has had encoded.
        seconds: Time that the encoder has spent on it.
    """

    base: int
    limits: Limits
    texts: int = 0
    seconds: float = 0.0

    def add(self, texts: int) -> None:
        """Count texts.

        Raises:
            Refused: They are too many.
        """
        self.texts += texts
        if self.base + self.texts > self.limits.cost * self.base:
            raise Refused(Reason.COST, f"a cost ratio above {self.limits.cost:g}")

    def spend(self, seconds: float) -> None:
        """Count time of the encoder.

        Raises:
            Refused: It is too long.
        """
        self.seconds += seconds
        if self.seconds > self.limits.encoding:
            raise Refused(Reason.COST, f"more than {self.limits.encoding:g} seconds of the encoder")


@dataclass(frozen=True, slots=True)
class Ran:
    """One program on one task.

    Attributes:
        scores: ``(q, n)``, finite.
        usage: What it read.
        seconds: How long it took, without the encoder's time.
    """

    scores: Float32
    usage: Usage
    seconds: float


def run(
    source: str, tasks: Sequence[Task], limits: Limits, *, hash_seed: int = 0, restricted: bool = True
) -> list[Ran]:
    """Run a program on tasks, one after the other, in a process that has nothing else.

    Args:
        source: Its text.
        tasks: What it ranks.
        limits: What it may take.
        hash_seed: Decides the order of sets of texts; results must not depend on it.
        restricted: Whether the process refuses what :mod:`es_ttc.rescorers.programs.source` refuses. Tests take that
            wall away, to see the other one hold.

    Raises:
        Refused: It failed, took too much, or tried what it may not.
        ConfigurationError: The sandbox cannot be had on this machine.
    """
    with _Process(hash_seed) as process:
        process.begin(source, limits, len(tasks), restricted=restricted)
        bill = Bill(sum(sum(task.size) for task in tasks), limits)
        return [process.rank(task, limits, bill) for task in tasks]


class _Process:
    """One child.

    Args:
        hash_seed: Of its texts' hashes.
    """

    def __init__(self, hash_seed: int) -> None:
        self._channel, theirs = socket.socketpair()
        environment = {
            "PYTHONHASHSEED": str(hash_seed),
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        with theirs:
            command = [sys.executable, "-s", "-P", "-m", "es_ttc.discovery.sandbox.child", str(theirs.fileno())]
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._attempt = ""
        self._messages = 0

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._channel.close()
        if self._child.stderr is not None:
            self._child.stderr.close()

    def begin(self, source: str, limits: Limits, tasks: int, *, restricted: bool) -> None:
        """Wait until it is ready, lock it, give it the program."""
        ours = wire.edition()
        try:
            theirs = self._receive(_START_SECONDS).get("ready")
        except Refused as refused:
            self._kill()
            told = b"" if self._child.stderr is None else self._child.stderr.read()
            last = told.decode(errors="replace").strip().splitlines()[-1:] or [refused.detail]
            raise ConfigurationError(f"the sandbox did not start: {last[0]}") from refused
        if theirs != ours:
            raise ConfigurationError("the sandbox's code was changed while the search ran: run it again to go on")
        order = {
            "source": source,
            "memory": limits.memory_mb * 2**20,
            "cpu_seconds": int(limits.seconds * tasks) + 5,
            "restricted": restricted,
        }
        wire.send(self._channel, order)
        try:
            self._until("locked", _START_SECONDS, None)
        except Refused as refused:
            raise ConfigurationError(f"the sandbox could not lock its process: {refused.detail}") from refused
        self._until("defined", limits.seconds, None)

    def rank(self, task: Task, limits: Limits, bill: Bill) -> Ran:
        """Let it rank a task."""
        q, n = task.size
        result = Shared(bytes(4 * q * n), writable=True)
        try:
            return self._ranked(task, limits, bill, result)
        finally:
            result.close()

    def _ranked(self, task: Task, limits: Limits, bill: Bill, result: Shared) -> Ran:
        q, n = task.size
        usage = Usage()
        about = {"queries": q, "documents": n, "dims": task.queries.shape[1], "query_texts": list(task.query_texts)}
        about["sample"] = 0 if task.sample is None else len(task.sample)
        inputs = [task.shared_queries.descriptor, task.shared_documents.descriptor, result.descriptor]
        if task.shared_sample is not None:
            inputs.append(task.shared_sample.descriptor)
        try:
            wire.send(self._channel, about, inputs)
        except wire.Closed:
            self._ended()
        seconds = self._until("done", limits.seconds, _Server(task, usage, bill))
        scores = np.frombuffer(result.read()[: 4 * q * n], np.float32).reshape(q, n)
        if not np.isfinite(scores).all():
            raise Refused(Reason.NOT_FINITE, "a score that is not finite")
        return Ran(scores, usage, seconds)

    def _until(self, what: str, seconds: float, server: "_Server | None") -> float:
        """Answer questions until it says that it is through; return the time that was its own."""
        spent = 0.0
        while True:
            start = time.monotonic()
            message = self._receive(seconds - spent)
            spent += time.monotonic() - start
            if message.get(what) is True:
                return spent
            if "attempt" in message:
                self._attempt = _line(message["attempt"])
            elif "reason" in message:
                raise Refused(_reason(message["reason"]), _line(message.get("detail")))
            elif "ask" in message and server is not None:
                self._answer(server, message)
            else:
                raise Refused(Reason.CRASHED, "the sandbox sent what it never sends")

    def _answer(self, server: "_Server", message: dict[str, Any]) -> None:
        try:
            arrays = server.answer(message)
            about = [{"shape": list(shape), "dtype": dtype} for _, shape, dtype in arrays]
            wire.send(self._channel, {"arrays": about}, [shared.descriptor for shared, _, _ in arrays])
        except wire.Closed:
            self._ended()

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._messages += 1
        if self._messages > _MOST_MESSAGES:
            raise Refused(Reason.COST, f"more than {_MOST_MESSAGES:,} questions")
        self._channel.settimeout(max(0.01, seconds))
        try:
            message, _ = wire.receive(self._channel)
        except TimeoutError:
            self._kill()
            raise Refused(Reason.TIME, "longer than a program may take") from None
        except wire.Malformed as error:
            self._kill()
            raise Refused(Reason.CRASHED, f"the sandbox sent no message: {error}") from None
        except wire.Closed:
            self._ended()
        return message

    def _ended(self) -> "Any":
        """Say how it ended."""
        try:
            status = self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()
            status = self._child.returncode
        tried = f" (tried [{self._attempt}])" if self._attempt else ""
        if status == -signal.SIGSYS:
            raise Refused(Reason.ESCAPED, f"a system call that programs may not make{tried}")
        if status == -signal.SIGXCPU:
            raise Refused(Reason.TIME, "more processor time than a program may take")
        if status == -signal.SIGKILL:
            raise Refused(Reason.MEMORY, "killed by the system, which does so when memory runs out")
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise Refused(Reason.CRASHED, f"the process ended with {name}{tried}")

    def _kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()


Answer = list[tuple[Shared, tuple[int, ...], str]]


class _Server:
    """What one task gives a program, and what that costs.

    Args:
        task: The task.
        usage: Counts.
        bill: What may still be encoded.
    """

    def __init__(self, task: Task, usage: Usage, bill: Bill) -> None:
        self._task = task
        self._usage = usage
        self._bill = bill

    def answer(self, message: dict[str, Any]) -> Answer:
        """Return the arrays that were asked for.

        Raises:
            Refused: There are no such, or they cost too much.
        """
        match message:
            case {"ask": "chunks", "granularity": str(name)} if name in GRANULARITIES:
                pieces = self._task.chunks[name]
                self._count(name, pieces.count)
                dims = self._task.queries.shape[1]
                starts = (pieces.starts, (self._task.size[1] + 1,), "int64")
                return [(pieces.vectors, (pieces.count, dims), "float32"), starts]
            case {"ask": "chunk_texts", "granularity": str(name)} if name in GRANULARITIES:
                return _texts(self._task.chunks[name].texts)
            case {"ask": "doc_texts"}:
                self._count("texts", 0)
                return _texts(self._task.document_texts)
            case {"ask": "view", "adapter": str(adapter), "max_length": None | int() as length}:
                return self._view(adapter, length)
            case {"ask": "encode", "texts": list(texts), "adapter": str(adapter)} if adapter in ADAPTERS:
                return self._encode(texts, adapter, message.get("dimensions"), message.get("max_length"))
            case _:
                raise Refused(Reason.FAILED, f"asked for what there is not: {_line(message.get('ask'))}")

    def _view(self, adapter: str, length: int | None) -> Answer:
        shape = self._task.documents.shape
        if (adapter, length) == (PASSAGE, TOPIC_LENGTH):
            self._count("topic", shape[0])
            return [(self._task.topics, shape, "float32")]
        if adapter not in ADAPTERS or length is not None:
            raise Refused(Reason.FAILED, "asked for a view of documents that there is not")
        if adapter != PASSAGE:
            self._count("reversed" if adapter == ADAPTERS[0] else adapter, shape[0])
        return [(self._task.shared_documents, shape, "float32")]

    def _encode(self, texts: list[Any], adapter: str, dimensions: Any, length: Any) -> Answer:
        sizes = [one for one in (dimensions, length) if one is not None]
        if not all(isinstance(text, str) for text in texts) or any(
            not isinstance(one, int) or isinstance(one, bool) or one < 1 for one in sizes
        ):
            raise Refused(Reason.FAILED, "encode_fn takes a list of texts, and sizes of 1 or more")
        self._usage.query_texts += len(texts)
        self._bill.add(len(texts))
        dims = self._task.queries.shape[1]
        if not texts:
            return [(Shared(b""), (0, dims), "float32")]
        parts = []
        for start in range(0, len(texts), _BATCH):
            began = time.monotonic()
            batch = [text[:_MOST_TEXT] for text in texts[start : start + _BATCH]]
            parts.append(self._task.encode(batch, adapter, dimensions, length))
            self._bill.spend(time.monotonic() - began)
        finite = np.nan_to_num(np.concatenate(parts).astype(np.float32))
        return [(Shared.of(finite), finite.shape, "float32")]

    def _count(self, reading: str, texts: int) -> None:
        before = self._usage.index_texts
        self._usage.count(reading, texts)
        self._bill.add(self._usage.index_texts - before)


def _texts(shared: SharedTexts) -> Answer:
    return [(shared.blob, (shared.blob.size if shared.count else 0,), "uint8"), (shared.ends, (shared.count,), "int64")]


def _reason(given: Any) -> Reason:
    try:
        return Reason(given)
    except ValueError:
        return Reason.CRASHED


def _line(text: Any) -> str:
    """Return what an untrusted process said as one short line."""
    return "".join(char if char.isprintable() else " " for char in str(text))[:300]
