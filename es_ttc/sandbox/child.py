"""The code in the sandbox: ``python -m es_ttc.sandbox.child DESCRIPTOR``.

All modules that a program may import are loaded first; then the process is locked, and only then it receives the
program. A task's data other than the matrices (chunks, views, texts, encodings) are requested when they are used, so
their cost is counted by the parent, which the program cannot change.
"""

import importlib
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from es_ttc.rescorers.programs.interface import (
    ADAPTERS,
    PASSAGE,
    TOPIC_LENGTH,
    Chunks,
    Context,
    Program,
    ProgramError,
    run,
)
from es_ttc.rescorers.programs.source import ENTRY, RefusalReason, Refused, allowed_modules, compiled
from es_ttc.sandbox import confinement, shared, wire
from es_ttc.vectors.chunks import GRANULARITIES, Granularity
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32

_MAX_DETAIL = 300
_WATCHED = ("open", "os.", "subprocess.", "shutil.", "tempfile.", "ctypes.dlopen", "resource.", "_thread.start")
_SOCKETS = frozenset({"socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo"})


class _Parent:
    """The connection to the parent process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def tell(self, message: dict[str, Any], payload: bytes = b"") -> None:
        wire.send(self._channel, message, payload=payload)

    def next(self) -> tuple[dict[str, Any], list[int]]:
        message = wire.receive(self._channel, wire.FROM_PARENT, descriptors=True)
        return message.about, message.descriptors

    def ask(self, what: str, payload: bytes = b"", **about: Any) -> list[Any]:
        """Request arrays; the answer contains the shape and type of each."""
        self.tell({"ask": what, **about}, payload)
        answer, descriptors = self.next()
        return [
            shared.mapped(descriptor, one["shape"], one["dtype"])
            for descriptor, one in zip(descriptors, answer["arrays"], strict=True)
        ]


class _Texts(Sequence[str]):
    """Texts that are requested at the first use."""

    def __init__(self, size: int, parent: _Parent, what: str, **about: Any) -> None:
        self._size = size
        self._parent = parent
        self._kind = what
        self._about = about
        self._texts: list[str] | None = None

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if self._texts is None:
            self._texts = shared.decoded_texts(*self._parent.ask(self._kind, **self._about))
        return self._texts[place]


class _SharedChunksView(Mapping[Granularity, Chunks]):
    """The documents' chunks; each granularity is counted when it is used."""

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self._received: dict[Granularity, Chunks] = {}

    def __getitem__(self, name: Granularity) -> Chunks:
        if name not in GRANULARITIES:
            raise KeyError(name)
        if name not in self._received:
            vectors, starts = self._parent.ask("chunks", granularity=name)
            texts = _Texts(len(vectors), self._parent, "chunk_texts", granularity=name)
            self._received[name] = Chunks(vectors, starts, texts)
        return self._received[name]

    def __iter__(self) -> Iterator[Granularity]:
        return iter(GRANULARITIES)

    def __len__(self) -> int:
        return len(GRANULARITIES)


class _AdapterViews(Mapping[tuple[str, int | None], Float32]):
    """Whole documents encoded under other adapters; each is counted when it is used."""

    KEYS = (*((adapter, None) for adapter in ADAPTERS), (PASSAGE, TOPIC_LENGTH))

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self._received: dict[tuple[str, int | None], Float32] = {}

    def __getitem__(self, key: tuple[str, int | None]) -> Float32:
        if key not in self.KEYS:
            raise KeyError(key)
        if key not in self._received:
            (self._received[key],) = self._parent.ask("view", adapter=key[0], max_length=key[1])
        return self._received[key]

    def __iter__(self) -> Iterator[tuple[str, int | None]]:
        return iter(self.KEYS)

    def __len__(self) -> int:
        return len(self.KEYS)


def main(descriptor: int) -> None:
    """Run one program on any number of tasks."""
    parent = _Parent(socket.socket(fileno=descriptor))
    for name in allowed_modules():
        importlib.import_module(name)
    _warm()
    confinement.seccomp()
    parent.tell({"ready": wire.edition()})
    try:
        order, _ = parent.next()
        confinement.lock(order["memory"], order["cpu_seconds"])
        parent.tell({"locked": True})
        sys.addaudithook(_watch(parent))
        program = _program(order["source"], restricted=order["restricted"])
        parent.tell({"defined": True})
        while True:
            _run(program, parent)
    except wire.PeerClosed:
        os._exit(0)
    except Refused as refused:
        _end(parent, refused.reason, refused.detail)
    except MemoryError:
        _end(parent, RefusalReason.MEMORY, "more memory than a program may have")
    except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is its outcome
        _end(parent, RefusalReason.FAILED, _sentence(error))


def _run(program: Program, parent: _Parent) -> None:
    task, descriptors = parent.next()
    q, n, d = task["queries"], task["documents"], task["dims"]
    queries = shared.mapped(descriptors[0], (q, d), "float32")
    documents = shared.mapped(descriptors[1], (n, d), "float32")
    result = shared.mapped(descriptors[2], (q, n), "float32", writable=True)
    calibration = None
    if task["sample"]:
        mean = shared.mapped(descriptors[3], (d,), "float32")
        calibration = Moments(mean, shared.mapped(descriptors[4], (task["directions"], d), "float32"), task["sample"])

    def encode(
        texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        whole = list(texts)
        if not all(isinstance(text, str) for text in whole):
            raise TypeError("encode_fn takes a list of texts")
        about = {"adapter": adapter, "dimensions": dimensions, "max_length": max_length}
        parts = [
            parent.ask("encode", wire.packed(run), count=len(run), **about)[0] for run in wire.batches(whole) or [[]]
        ]
        encoded: Float32 = np.concatenate(parts)
        return encoded

    def send_channel(name: str, channel: Float32) -> None:
        parent.tell({"note": str(name)}, np.ascontiguousarray(channel, np.float32).tobytes())

    context = Context(
        task["query_texts"],
        _Texts(n, parent, "doc_texts"),
        [str(place) for place in range(q)],
        [str(place) for place in range(n)],
        encode,
        stored=_SharedChunksView(parent),
        views=_AdapterViews(parent),
        calibration=calibration,
        record=send_channel if task["noted"] else None,
    )
    made: list[Any] = []

    def kept(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        made.append(np.asarray(program(Q, D, S, ctx)))
        scores: Float32 = made[0]
        return scores

    kept.__name__ = ENTRY
    try:
        with np.errstate(all="ignore"):
            result[:] = run(kept, queries, documents, context)
    except ProgramError as error:
        right = made and made[0].shape == (q, n) and np.issubdtype(made[0].dtype, np.floating)
        raise Refused(RefusalReason.NOT_FINITE if right else RefusalReason.SHAPE, str(error)) from error
    parent.tell({"done": True})


def _program(source: str, *, restricted: bool) -> Program:
    if restricted:
        return compiled(source)
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "<program>", "exec"), namespace)  # noqa: S102 - this process can do no harm
    program: Program = namespace[ENTRY]
    return program


def _warm() -> None:
    """Run code that loads parts of libraries at its first use."""
    warnings.simplefilter("ignore")
    np.linalg.svd(np.eye(2))
    np.median(np.ones((2, 2)), axis=1)
    np.einsum("ij,ij->i", np.ones((2, 2)), np.ones((2, 2)))
    str(np.float32(0.5))
    "\u00e9".casefold()


def _watch(parent: _Parent) -> Any:
    """Return an audit hook that reports a program's forbidden action before the filter kills the process."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SOCKETS or event.startswith(_WATCHED):
            about = str(arguments[0])[:80] if arguments and isinstance(arguments[0], str | bytes) else ""
            parent.tell({"attempt": f"{event} {about}".strip()})

    return watch


def _end(parent: _Parent, reason: RefusalReason, detail: str) -> None:
    try:
        parent.tell({"reason": str(reason), "detail": detail[:_MAX_DETAIL].encode(errors="replace").decode()})
    finally:  # a program may have closed the socket: the parent notices the end
        os._exit(0)


def _sentence(error: BaseException) -> str:
    """Return an exception and the program's line as one sentence, without reading a file."""
    line, place = None, error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == "<program>":
            line = place.tb_lineno
        place = place.tb_next
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - anything may be raised with anything in it
        message = "without a text"
    return f"{f'line {line}: ' if line else ''}{type(error).__name__}: {message}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
