"""How much is read of an engine at a time: bytes of features in flight are bounded, and searches take turns.

An engine holds what it reads of stored fields two or three times until it is sent. A few hundred megabytes that are
asked for at once end a node of a small heap. So reads are cut into parts by what a document is expected to weigh, and
parts wait until there is room for them.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from es_ttc.errors import EngineError
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log

MIB = 2**20

_UNKNOWN_HEAP = 32 * MIB
"""Bytes in flight where nobody says how great the engine's heap is: enough for a node of 512 MB."""
_SHARE_OF_HEAP = 16
_LEAST, _MOST = 4 * MIB, 512 * MIB
_PARTS = 4
"""Parts that the bytes in flight are divided into, so that several searches have one at the same time."""
_LOOK_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 600.0
_LOOK_AFTER_FAILURE_SECONDS = 30.0

_TOKENS_OF_UNKNOWN = 1024
_CHUNKS_OF_UNKNOWN = 128
_DIMS_OF_UNKNOWN = 1024
_DIMS_IN_KEY = re.compile(r"@[^/]*/([0-9]{1,5})x[0-9]")
_FORGET = 0.2

_NODES = b"/_nodes/stats/jvm"
_HEAPS = b"filter_path=nodes.*.jvm.mem.heap_max_in_bytes"

Kind = tuple[str, tuple[Feature, ...]]
"""Documents that weigh about the same: those of an index, and the features that are read of them."""


class DocumentSizes:
    """What a document's features weigh: learned from what has been read, index by index."""

    _MOST_KINDS = 4096

    def __init__(self) -> None:
        self._learned: dict[Kind, float] = {}

    def known(self, kind: Kind) -> bool:
        """Whether any has been read."""
        return kind in self._learned

    def of(self, kind: Kind, unknown: float) -> float:
        """Return the bytes that a document is expected to weigh.

        Args:
            kind: The document's.
            unknown: What is returned where none has been read yet.
        """
        return self._learned.get(kind, unknown)

    def learn(self, kind: Kind, nbytes: int, documents: int) -> None:
        """Take in what a read of documents weighed: heavier ones count at once, lighter ones slowly."""
        if not documents:
            return
        mean = max(1.0, nbytes / documents)
        if kind not in self._learned and len(self._learned) >= self._MOST_KINDS:
            self._learned.clear()
        known = self._learned.get(kind, mean)
        self._learned[kind] = max(mean, known + _FORGET * (mean - known))


def unknown_size(encoder: str, features: Sequence[Feature], *, as_text: bool) -> float:
    """Return what a document may weigh of which nothing is known but its encoder: one of 1,024 tokens in int8.

    Args:
        encoder: Identity of its encoder.
        features: Those that are read.
        as_text: Whether vectors come as numbers in JSON.
    """
    dims = dims_of(encoder) or _DIMS_OF_UNKNOWN
    bytes_of: Mapping[Feature, int] = {
        Feature.TOKENS: _TOKENS_OF_UNKNOWN * dims * (10 if as_text else 1),
        Feature.NORMS: _TOKENS_OF_UNKNOWN * 32,
        Feature.OFFSETS: _TOKENS_OF_UNKNOWN * 12,
        Feature.CHUNKS: _CHUNKS_OF_UNKNOWN * dims * 2,
        Feature.POOLED: dims * 4,
    }
    return float(sum(bytes_of.get(feature, 0) for feature in features) or 1)


def dims_of(encoder: str) -> int | None:
    """Return the dimensions that an encoder's identity names."""
    found = _DIMS_IN_KEY.search(encoder)
    return int(found[1]) if found else None


@dataclass(slots=True, eq=False)
class _Waiting:
    search: int
    left: float
    nbytes: int
    granted: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class ReadQueue:
    """Grants bytes in flight to searches.

    Every other turn is that of the search that began first, the others that of the one with the least left to read: so
    none waits for ever, small ones wait for no great ones, and what has begun is finished before more is begun.

    Attributes:
        capacity: Bytes in flight at most; a part that is greater goes alone.
        in_flight: Bytes that are granted now.
    """

    capacity: int
    in_flight: int = 0
    _waiting: list[_Waiting] = field(default_factory=list)
    _oldest_next: bool = True
    _searches: "count[int]" = field(default_factory=count)

    @property
    def part(self) -> int:
        """Bytes that one part should have at most."""
        return max(1, self.capacity // _PARTS)

    @property
    def waiting(self) -> int:
        """Parts that wait."""
        return len(self._waiting)

    def search(self) -> int:
        """Return a new search's number."""
        return next(self._searches)

    async def take(self, search: int, left: float, nbytes: int) -> None:
        """Wait for a turn; who is cancelled meanwhile gives up his place.

        Args:
            search: Whose part it is.
            left: Bytes that this search has still to read, these ones included.
            nbytes: What this part is expected to weigh. They are to be given back.
        """
        one = _Waiting(search, left, nbytes, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._grant()
        try:
            await one.granted
        except asyncio.CancelledError:
            if one.granted.cancelled():
                self._waiting.remove(one)
                self._grant()  # others may fit where this one did not
            else:
                self.give_back(nbytes)
            raise

    def give_back(self, nbytes: int) -> None:
        """Say that a part has been read."""
        self.in_flight -= nbytes
        self._grant()

    def resize(self, capacity: int) -> None:
        """Change the bound; what is in flight stays."""
        self.capacity = capacity
        self._grant()

    def _grant(self) -> None:
        while waiting := [one for one in self._waiting if not one.granted.done()]:  # others are leaving
            oldest = min(waiting, key=lambda one: one.search)
            one = oldest if self._oldest_next else min(waiting, key=lambda one: one.left)
            if self.in_flight and self.in_flight + one.nbytes > self.capacity:
                return
            self._oldest_next = not self._oldest_next
            self._waiting.remove(one)
            self.in_flight += one.nbytes
            one.granted.set_result(None)


class ReadBudget:
    """Bounds the bytes in flight by the smallest heap of the engine's nodes, as far as the gateway may see it.

    Args:
        upstream: The engine.
        megabytes: The bound in MiB, where it is set; else the engine is asked.

    Attributes:
        turns: The bound, and who waits.
        sizes: What documents weigh.
    """

    def __init__(self, upstream: Upstream, megabytes: int | None) -> None:
        self.turns = ReadQueue(_UNKNOWN_HEAP if megabytes is None else megabytes * MIB)
        self.sizes = DocumentSizes()
        self._engine = EngineRequests(upstream)
        self._is_set = megabytes is not None
        self._look_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def known(self) -> None:
        """Ask the engine for its nodes' heaps, unless that has just been done; a first answer is waited for."""
        if self._is_set or time.monotonic() < self._look_at:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        if not self._look_at:
            await asyncio.shield(self._looking)

    async def _look(self) -> None:
        heap = None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                engine = self._engine.as_gateway()
                heap = smallest_heap(await engine.read("GET", _NODES, _HEAPS, failing="heaps could not be read"))
        except (EngineError, TimeoutError):
            pass
        again = _LOOK_AFTER_FAILURE_SECONDS if heap is None else _LOOK_AGAIN_SECONDS
        self._look_at = time.monotonic() + again
        if heap is not None:
            capacity = in_flight_of(heap)
            if capacity != self.turns.capacity:
                log.info("reads of features bounded", mib=capacity // MIB, smallest_heap_mib=heap // MIB)
                self.turns.resize(capacity)


def in_flight_of(heap: int) -> int:
    """Return the bytes of features in flight that a node of this heap bears."""
    return min(_MOST, max(_LEAST, heap // _SHARE_OF_HEAP))


def smallest_heap(raw: bytes) -> int | None:
    """Return the smallest heap in an answer of `_nodes/stats/jvm`, or None where it names none."""
    try:
        nodes = jsonio.loads(raw)["nodes"].values()
        heaps = [int(node["jvm"]["mem"]["heap_max_in_bytes"]) for node in nodes]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return min((heap for heap in heaps if heap > 0), default=None)
