"""One child process: start it, lock it, send it a program, answer its requests, and end it after any violation.

The child's messages are untrusted. They result in scores or :class:`Refused`, and nothing else.
"""

import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.programs.interface import ADAPTERS, PASSAGE, TOPIC_LENGTH
from es_ttc.rescorers.programs.source import RefusalReason, Refused
from es_ttc.sandbox import wire
from es_ttc.sandbox.shared import Shared, SharedChunks, SharedTexts
from es_ttc.vectors.chunks import GRANULARITIES, Granularity
from es_ttc.vectors.tokens import Float32

_START_SECONDS = 60.0
_END_SECONDS = 1.0
_MAX_MESSAGES = 10_000  # messages of a child for one task
_MAX_NOTES = 256
_CHILD = "es_ttc.sandbox.child"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Resource limits of a process: memory beyond that of the interpreter and numpy, and processor time."""

    memory_mb: int
    cpu_seconds: int


@dataclass(frozen=True, slots=True)
class SharedMoments:
    """The moments of a sample of queries, shared: ``(d,)`` mean and ``(directions, d)`` factor, float32."""

    mean: Shared
    factor: Shared
    directions: int
    size: int


@dataclass(frozen=True, slots=True)
class ProgramInputs:
    """The inputs of a program: q queries, n documents, the sizes (q, n, d), a sample for statistics along queries."""

    query_texts: Sequence[str]
    queries: Shared
    documents: Shared
    size: tuple[int, int, int]
    sample: SharedMoments | None = None


class ProgramSource(Protocol):
    """A task's data for a program in addition to its inputs. A method may raise :class:`Refused` to end the program."""

    def chunks(self, granularity: Granularity) -> SharedChunks:
        """Return the documents' chunks."""

    def chunk_texts(self, granularity: Granularity) -> SharedTexts:
        """Return the chunks' texts."""

    def document_texts(self) -> SharedTexts:
        """Return the documents' texts."""

    def view(self, adapter: str, max_length: int | None) -> Shared:
        """Return the documents under another adapter, or their openings, ``(n, d)`` float32."""

    def encode(self, texts: list[str], adapter: str, dimensions: int | None, max_length: int | None) -> Float32:
        """Return the texts' vectors, one row each."""


Note = Callable[[str, Float32], None]
_Array = tuple[Shared, tuple[int, ...], str]


class Process:
    """One child process."""

    def __init__(self, allowance: ProcessLimits, hash_seed: int = 0) -> None:
        self._allowance = allowance
        self._channel, theirs = socket.socketpair()
        environment = {
            "PYTHONHASHSEED": str(hash_seed),
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            **_checkout(),
        }
        command = [sys.executable, "-s", "-P", "-m", _CHILD, str(theirs.fileno())]
        try:
            with theirs:
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
        except OSError as error:
            self._channel.close()
            raise ConfigurationError(f"the sandbox could not start a process: {error.strerror}") from error
        self._attempt = ""
        self._killed = ""
        self._messages = 0
        self.spent = 0.0  # seconds that the program has used, on all tasks together

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self.kill("")
        self._child.wait()
        self._channel.close()
        if self._child.stderr is not None:
            self._child.stderr.close()

    def kill(self, why: str) -> None:
        """Kill it, from any thread; a waiting caller gets the reason."""
        self._killed = self._killed or why
        if self._child.poll() is None:
            self._child.kill()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def await_ready(self) -> None:
        """Wait until it has loaded the modules for programs."""
        try:
            theirs = self._receive(time.monotonic() + _START_SECONDS).about.get("ready")
        except Refused as refused:
            self.kill("")
            output = b"" if self._child.stderr is None else self._child.stderr.read()
            last = output.decode(errors="replace").strip().splitlines()[-1:] or [refused.detail]
            raise ConfigurationError(f"the sandbox did not start: {last[0]}") from refused
        if theirs != wire.edition():
            raise ConfigurationError("the sandbox's code was changed while this process ran: run it again to go on")

    def begin(self, source: str, seconds: float, *, restricted: bool = True) -> None:
        """Lock it, and send it its program."""
        self._messages = 0
        order = {
            "source": source,
            "memory": self._allowance.memory_mb * 2**20,
            "cpu_seconds": self._allowance.cpu_seconds,
            "restricted": restricted,
        }
        self._send(order, (), time.monotonic() + _START_SECONDS)
        try:
            self._until("locked", _START_SECONDS)
        except Refused as refused:
            raise ConfigurationError(f"the sandbox could not lock its process: {refused.detail}") from refused
        self._until("defined", seconds)

    def rank(
        self, inputs: ProgramInputs, source: ProgramSource, seconds: float, note: Note | None = None
    ) -> tuple[Float32, float]:
        """Return the program's scores, ``(q, n)`` and finite, and its seconds, without those of answers."""
        q, n, d = inputs.size
        self._messages = 0
        result = Shared(bytes(4 * q * n), writable=True)
        try:
            about = {"queries": q, "documents": n, "dims": d, "query_texts": list(inputs.query_texts)}
            about |= {"sample": 0, "noted": note is not None}
            given = [inputs.queries.descriptor, inputs.documents.descriptor, result.descriptor]
            if inputs.sample is not None:
                about |= {"sample": inputs.sample.size, "directions": inputs.sample.directions}
                given += [inputs.sample.mean.descriptor, inputs.sample.factor.descriptor]
            self._send(about, given, time.monotonic() + seconds)
            own = self._until("done", seconds, _Answers(source, inputs.size, note))
            self.spent += own
            scores = np.frombuffer(result.read()[: 4 * q * n], np.float32).reshape(q, n)
        finally:
            result.close()
        if not np.isfinite(scores).all():
            raise Refused(RefusalReason.NOT_FINITE, "a score that is not finite")
        return scores, own

    def _until(self, what: str, seconds: float, answers: "_Answers | None" = None) -> float:
        """Answer requests until it has finished; return its own time, which has one limit in total."""
        spent = 0.0
        while True:
            start = time.monotonic()
            message = self._receive(start + seconds - spent)
            spent += time.monotonic() - start
            if message.about.get(what) is True:
                return spent
            if "attempt" in message.about:
                self._attempt = line(message.about["attempt"])
            elif "reason" in message.about:
                raise Refused(_reason(message.about["reason"]), line(message.about.get("detail")))
            elif answers is not None and "note" in message.about:
                self._guarded(answers.note, message)
            elif answers is not None and "ask" in message.about:
                arrays = self._guarded(answers.to, message)
                about = [{"shape": list(shape), "dtype": dtype} for _, shape, dtype in arrays]
                start = time.monotonic()
                self._send({"arrays": about}, [shared.descriptor for shared, _, _ in arrays], start + seconds - spent)
                spent += time.monotonic() - start
            else:
                raise Refused(RefusalReason.CRASHED, "the sandbox sent what it never sends")

    def _guarded(self, answer: Callable[[wire.WireMessage], T], message: wire.WireMessage) -> T:
        try:
            return answer(message)
        except wire.MalformedMessage as error:
            raise Refused(RefusalReason.CRASHED, f"the sandbox sent no message: {error}") from None

    def _send(self, about: dict[str, Any], descriptors: Sequence[int], deadline: float) -> None:
        try:
            wire.send(self._channel, about, descriptors=descriptors, deadline=deadline)
        except TimeoutError:
            self._late()
        except wire.PeerClosed:
            self._ended()

    def _receive(self, deadline: float) -> wire.WireMessage:
        self._messages += 1
        if self._messages > _MAX_MESSAGES:
            raise Refused(RefusalReason.COST, f"more than {_MAX_MESSAGES:,} questions")
        try:
            return wire.require_flat(wire.receive(self._channel, wire.FROM_CHILD, deadline=deadline))
        except TimeoutError:
            self._late()
        except wire.MalformedMessage as error:
            self.kill("")
            raise Refused(RefusalReason.CRASHED, f"the sandbox sent no message: {error}") from None
        except wire.PeerClosed:
            self._ended()

    def _late(self) -> NoReturn:
        self.kill("")
        raise Refused(RefusalReason.TIME, "longer than a program may take") from None

    def _ended(self) -> NoReturn:
        """Return the reason why it ended."""
        try:
            status = self._child.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill("it closed its socket, and went on")
            status = self._child.wait()
        if self._killed:
            raise Refused(RefusalReason.CRASHED, self._killed)
        tried = f" (tried [{self._attempt}])" if self._attempt else ""
        if status == -signal.SIGSYS:
            raise Refused(RefusalReason.ESCAPED, f"a system call that programs may not make{tried}")
        if status == -signal.SIGXCPU:
            raise Refused(RefusalReason.TIME, "more processor time than a program may take")
        if status == -signal.SIGKILL:
            raise Refused(RefusalReason.MEMORY, "killed by the system, which does so when memory runs out")
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise Refused(RefusalReason.CRASHED, f"the process ended with {name}{tried}")


def _checkout() -> dict[str, str]:
    """Return the folder of this code for the child, if it is not among installed packages."""
    root = str(Path(wire.__file__).parents[2])
    return {} if root in sysconfig.get_paths().values() else {"PYTHONPATH": root}


class _Answers:
    """Answers a child's requests, as arrays."""

    def __init__(self, source: ProgramSource, size: tuple[int, int, int], note: Note | None) -> None:
        self._source = source
        self._size = size
        self._note = note
        self._notes = 0

    def to(self, message: wire.WireMessage) -> list[_Array]:
        """Return the requested arrays."""
        _, n, d = self._size
        match message.about:
            case {"ask": "chunks", "granularity": str(name)} if name in GRANULARITIES:
                pieces = self._source.chunks(name)
                return [(pieces.vectors, (pieces.count, d), "float32"), (pieces.starts, (n + 1,), "int64")]
            case {"ask": "chunk_texts", "granularity": str(name)} if name in GRANULARITIES:
                return _texts(self._source.chunk_texts(name))
            case {"ask": "doc_texts"}:
                return _texts(self._source.document_texts())
            case {"ask": "view", "adapter": str(adapter), "max_length": None | int() as length}:
                if adapter not in ADAPTERS or (length is not None and (adapter, length) != (PASSAGE, TOPIC_LENGTH)):
                    raise Refused(RefusalReason.FAILED, "asked for a view of documents that there is not")
                return [(self._source.view(adapter, length), (n, d), "float32")]
            case {"ask": "encode", "adapter": str(adapter), "count": int(count)} if adapter in ADAPTERS:
                sizes = [_size(message.about.get(name)) for name in ("dimensions", "max_length")]
                vectors = self._source.encode(wire.unpack_message(message.payload, count), adapter, *sizes)
                finite = np.nan_to_num(vectors.astype(np.float32))
                return [(Shared.of(finite), finite.shape, "float32")]
            case _:
                raise Refused(RefusalReason.FAILED, f"asked for what there is not: {line(message.about.get('ask'))}")

    def note(self, message: wire.WireMessage) -> None:
        """Pass on a channel."""
        q, n, _ = self._size
        self._notes += 1
        if self._note is None or self._notes > _MAX_NOTES or len(message.payload) != 4 * q * n:
            raise wire.MalformedMessage("channels that nobody asked for")
        channel = np.nan_to_num(np.frombuffer(message.payload, np.float32).reshape(q, n))
        self._note(line(message.about["note"]), channel)


def _size(given: Any) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 1):
        return given
    raise Refused(RefusalReason.FAILED, "encode_fn takes a list of texts, and sizes of 1 or more")


def _texts(shared: SharedTexts) -> list[_Array]:
    return [(shared.blob, (shared.blob.size if shared.count else 0,), "uint8"), (shared.ends, (shared.count,), "int64")]


def _reason(given: Any) -> RefusalReason:
    try:
        return RefusalReason(given)
    except ValueError:
        return RefusalReason.CRASHED


def line(text: Any) -> str:
    """Return the text of an untrusted process as one short line."""
    return "".join(char if char.isprintable() else " " for char in str(text)[:300])
