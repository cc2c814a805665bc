"""Limits of reads of features: the bytes in flight are bounded, and searches take turns.

An engine has two or three copies of the stored fields that it reads in its heap until they are sent. Reads of a few
hundred megabytes at the same time stop a node with a small heap. So reads are split into parts by the expected size of
a document, and a part waits until the bytes in flight allow it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from es_ttc.errors import EngineError
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.keys import dims_of
from es_ttc.serving.http import jsonio
from es_ttc.serving.logs import log

MIB = 2**20

_UNKNOWN_HEAP = 32 * MIB
"""Bytes in flight if the size of the engine's heap is unknown; safe for a node with 512 MB."""
_SHARE_OF_HEAP = 16
_MIN_BYTES, _MAX_BYTES = 4 * MIB, 512 * MIB
_PARTS = 4
"""Number of parts that may be in flight, so that several searches read at the same time."""
_HEAP_TIMEOUT_SECONDS = 2.0
_HEAP_SECONDS = 600.0
_HEAP_FAILURE_SECONDS = 30.0
"""Times after which the heaps are read again."""

_TOKENS_OF_UNKNOWN = 1024
_CHUNKS_OF_UNKNOWN = 128
_DIMS_OF_UNKNOWN = 1024
_FORGET = 0.2

_NODES = b"/_nodes/stats/jvm"
_HEAPS = b"filter_path=nodes.*.jvm.mem.heap_max_in_bytes"

Kind = tuple[str, tuple[Feature, ...]]
"""An index and the features that are read: documents of one kind have similar sizes."""


class DocumentSizes:
    """Expected sizes of documents' features, by kind, learned from reads."""

    _MAX_KINDS = 4096

    def __init__(self) -> None:
        self._learned: dict[Kind, float] = {}

    def known(self, kind: Kind) -> bool:
        """Return whether documents of a kind have been read."""
        return kind in self._learned

    def of(self, kind: Kind, unknown: float) -> float:
        """Return the expected size of a document in bytes."""
        return self._learned.get(kind, unknown)

    def learn(self, kind: Kind, nbytes: int, documents: int) -> None:
        """Learn from a read: a larger mean size is used at once, a smaller one gradually."""
        if not documents:
            return
        mean = max(1.0, nbytes / documents)
        if kind not in self._learned and len(self._learned) >= self._MAX_KINDS:
            self._learned.clear()
        known = self._learned.get(kind, mean)
        self._learned[kind] = max(mean, known + _FORGET * (mean - known))


def unknown_size(encoder: str, features: Sequence[Feature], *, as_text: bool) -> float:
    """Return the assumed size in bytes of a document of an unknown kind: that of 1,024 tokens in int8."""
    pooled, of_tokens = (dims or _DIMS_OF_UNKNOWN for dims in dims_of(encoder))
    bytes_of: Mapping[Feature, int] = {
        Feature.TOKENS: _TOKENS_OF_UNKNOWN * of_tokens * (10 if as_text else 1),
        Feature.NORMS: _TOKENS_OF_UNKNOWN * 8,
        Feature.OFFSETS: _TOKENS_OF_UNKNOWN * 2,
        Feature.CHUNKS: _CHUNKS_OF_UNKNOWN * pooled * 2,
        Feature.POOLED: pooled * 4,
        Feature.REVERSED: pooled * 4,
    }
    return float(sum(bytes_of.get(feature, 0) for feature in features) or 1)


@dataclass(slots=True, eq=False)
class _Waiting:
    search: int
    left: float
    nbytes: int
    granted: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class ReadQueue:
    """Grants bytes in flight to parts of searches.

    Turns alternate between the oldest search and the search with the least bytes left. So no search waits forever,
    small searches do not wait for large ones, and started searches end before others start.

    Attributes:
        capacity: Maximum number of bytes in flight; a larger part is granted if no other is in flight.
        in_flight: Bytes that are granted now.
    """

    capacity: int
    in_flight: int = 0
    _waiting: list[_Waiting] = field(default_factory=list)
    _oldest_next: bool = True
    _searches: "count[int]" = field(default_factory=count)

    @property
    def part(self) -> int:
        """The maximum size of a part in bytes."""
        return max(1, self.capacity // _PARTS)

    @property
    def waiting(self) -> int:
        """The number of waiting parts."""
        return len(self._waiting)

    def search(self) -> int:
        """Return a number for a new search."""
        return next(self._searches)

    async def take(self, search: int, left: float, nbytes: int) -> None:
        """Wait for a turn; a cancelled task leaves the queue."""
        one = _Waiting(search, left, nbytes, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._grant()
        try:
            await one.granted
        except asyncio.CancelledError:
            if one.granted.cancelled():
                self._waiting.remove(one)
                self._grant()  # a smaller part may fit
            else:
                self.give_back(nbytes)
            raise

    def give_back(self, nbytes: int) -> None:
        """Release the bytes of a part."""
        self.in_flight -= nbytes
        self._grant()

    def resize(self, capacity: int) -> None:
        """Change the maximum number of bytes in flight; granted parts are not affected."""
        self.capacity = capacity
        self._grant()

    def _grant(self) -> None:
        while waiting := [one for one in self._waiting if not one.granted.done()]:  # cancelled ones leave the queue
            oldest = min(waiting, key=lambda one: one.search)
            one = oldest if self._oldest_next else min(waiting, key=lambda one: one.left)
            if self.in_flight and self.in_flight + one.nbytes > self.capacity:
                return
            self._oldest_next = not self._oldest_next
            self._waiting.remove(one)
            self.in_flight += one.nbytes
            one.granted.set_result(None)


class ReadBudget:
    """Bounds the bytes in flight by the smallest heap of the engine's nodes, if the gateway may read it."""

    def __init__(self, engine: EngineClient, megabytes: int | None, processes: int = 1) -> None:
        self._processes = processes
        self.turns = ReadQueue(self._own(_UNKNOWN_HEAP if megabytes is None else megabytes * MIB))
        self.sizes = DocumentSizes()
        self._engine = engine
        self._is_set = megabytes is not None
        self._next_read = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def known(self) -> None:
        """Read the heaps of the engine's nodes if that is due; wait for the first answer, not for later ones."""
        if self._is_set or time.monotonic() < self._next_read:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_heaps())
        if not self._next_read:
            await asyncio.shield(self._reading)

    async def _read_heaps(self) -> None:
        heap = None
        try:
            async with asyncio.timeout(_HEAP_TIMEOUT_SECONDS):
                engine = self._engine.as_gateway()
                heap = smallest_heap(await engine.read("GET", _NODES, _HEAPS, failing="heaps could not be read"))
        except (EngineError, TimeoutError):
            pass
        self._next_read = time.monotonic() + (_HEAP_FAILURE_SECONDS if heap is None else _HEAP_SECONDS)
        if heap is not None:
            capacity = self._own(in_flight_of(heap))
            if capacity != self.turns.capacity:
                log.info("reads of features bounded", mib=capacity // MIB, smallest_heap_mib=heap // MIB)
                self.turns.resize(capacity)

    def _own(self, capacity: int) -> int:
        """Return this process's part of the bound."""
        return max(MIB, capacity // self._processes)


def in_flight_of(heap: int) -> int:
    """Return the maximum number of bytes in flight for a node with this heap."""
    return min(_MAX_BYTES, max(_MIN_BYTES, heap // _SHARE_OF_HEAP))


def smallest_heap(raw: bytes) -> int | None:
    """Return the smallest heap in an answer of `_nodes/stats/jvm`, or None if it contains none."""
    try:
        nodes = jsonio.loads_json(raw)["nodes"].values()
        heaps = [int(node["jvm"]["mem"]["heap_max_in_bytes"]) for node in nodes]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return min((heap for heap in heaps if heap > 0), default=None)
