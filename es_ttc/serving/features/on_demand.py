"""Documents of windows that wait for their features, in attached indices that are encoded on demand.

A window's documents without features of their present text are queued, in microseconds; `serving.writes.on_demand`
encodes them after the response. The queue is lost with its process: later searches fill it again.
"""

import asyncio
import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.errors import EsTtcError
from es_ttc.index.attach.feature_locations import FeatureLocation
from es_ttc.index.mappings.indices import Index
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.keys import SEQ_NO_FIELD, DocumentId
from es_ttc.serving.features.locations import FeatureLocations
from es_ttc.serving.logs import log

_MAX_INDICES = 1000
_LOOK_SECONDS = 5.0
"""Time for which what is known of an index is used; then it is read again, beside searches."""
_LOOK_TIMEOUT = 2.0
_MAX_SETTLED = 100_000
_SETTLED_SECONDS = 600.0
_RECENT_WINDOWS = 1000


class WaitingDocument(NamedTuple):
    """A document that waits; of two, the greater one is encoded first.

    Attributes:
        priority: See :func:`priority`.
        chance: A random number, the same for documents that came with one window.
        seen: Number of windows that contained it.
        lacking: Number of documents without features in that of them which lacks fewest.
    """

    priority: int
    chance: float
    seen: int
    lacking: int


@dataclass(slots=True)
class Coverage:
    """How many documents of a window in indices that are encoded on demand need no encoding, and how many others wait.

    It receives the counts of one item of a search; without such indices they are 0.
    """

    documents: int = 0
    encoded: int = 0
    queued: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return its part of the summary."""
        return {"encoded": self.encoded, "queued": self.queued} if self.documents else {}


def priority(seen: int, lacking: int) -> int:
    """Return the priority of a document that was seen so often, in a window that lacks so many documents.

    Often seen ones are first, and those of windows that are soon complete. Counts below the same power of two are
    equal, and chance decides between windows: gateways that do not know of each other then rarely encode the same ones.
    """
    return seen.bit_length() - lacking.bit_length()


def next_documents(waiting: Mapping[DocumentId, WaitingDocument], most: int) -> list[DocumentId]:
    """Return documents of one index to encode next."""
    first, *others = heapq.nlargest(most, waiting, key=waiting.__getitem__)
    return [first, *(document for document in others if document.index == first.index)]


class OnDemandIndices:
    """Which indices are encoded on demand, and where their features are, as the gateway's own account reads it."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._fresh: ExpiringCache[str, FeatureLocation | None] = ExpiringCache(_MAX_INDICES, _LOOK_SECONDS)
        self._last: LruCache[str, FeatureLocation | bool] = LruCache(_MAX_INDICES)
        self._looks: dict[str, asyncio.Task[FeatureLocation | None]] = {}

    @property
    def known(self) -> list[FeatureLocation]:
        """The indices that were on demand at the last look."""
        return [location for location in self._last.values() if isinstance(location, FeatureLocation)]

    async def location(self, index: str) -> FeatureLocation | None:
        """Return where the features of an index are; None if it is not encoded on demand."""
        fresh = self._fresh.get(index)
        return await asyncio.shield(self._look(index)) if fresh is None else fresh.value

    async def contains(self, index: str, *, look: bool) -> bool:
        """Return whether an index is encoded on demand, by the last look; with `look` by one, if there was none."""
        last = self._last.get(index)
        if last is None:
            return look and await self.location(index) is not None
        if look and index not in self._fresh:
            self._look(index)
        return last is not False

    def exclude(self, index: str) -> None:
        """Encode nothing of an index until it is read again."""
        self._put(index, None)

    def _look(self, index: str) -> asyncio.Task[FeatureLocation | None]:
        task = self._looks.get(index)
        if task is None:
            task = self._looks[index] = asyncio.create_task(self._read(index))
            task.add_done_callback(lambda _: self._looks.pop(index, None))
        return task

    async def _read(self, index: str) -> FeatureLocation | None:
        location, problem = None, ""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT):
                engine = self._engine.as_gateway().protocol()
                location = await FeatureLocation.of(engine, await Index.only(engine, index))
        except (EsTtcError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
        except Exception as error:  # noqa: BLE001 - someone may have put anything into `_meta`
            problem = f"{type(error).__name__}: {error}"
        if problem and self._last.peek(index) is not False:  # once: most indices are none of these
            log.warning("it is not known whether an index is encoded on demand", index=index, problem=problem)
        if location is not None and not location.on_demand:
            location = None
        self._put(index, location)
        return location

    def _put(self, index: str, location: FeatureLocation | None) -> None:
        self._fresh.put(index, location)
        self._last.put(index, location or False)


class OnDemandQueue:
    """Documents that wait to be encoded; of more than `capacity`, those that were seen longest ago are dropped.

    Attributes:
        indices: The indices that are encoded on demand.
    """

    def __init__(self, engine: EngineClient, capacity: int) -> None:
        self.indices = OnDemandIndices(engine)
        self._capacity = capacity
        self._waiting: OrderedDict[DocumentId, WaitingDocument] = OrderedDict()
        self._taken: frozenset[DocumentId] = frozenset()
        self._settled: ExpiringCache[tuple[DocumentId, int], None] = ExpiringCache(_MAX_SETTLED, _SETTLED_SECONDS)
        self._windows: deque[bool] = deque(maxlen=_RECENT_WINDOWS)
        self._may_start = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def recent_windows(self) -> int:
        """Number of the last windows in indices that are encoded on demand, at most 1,000."""
        return len(self._windows)

    @property
    def complete_windows(self) -> int:
        """Number of those in which no document had to be encoded."""
        return sum(self._windows)

    async def add(self, hits: Sequence[Mapping[str, Any]], located: FeatureLocations, coverage: Coverage) -> None:
        """Queue the documents of a window that lack features of their present text, and count them."""
        if not self._capacity or not located.sides:
            return
        places = [place for place in located.without if str(hits[place]["_index"]) in located.sides]
        lacking = [place for place in places if located.keys[place] is None and place not in located.skipped]
        looks = {index: await self.indices.contains(index, look=bool(lacking)) for index in located.sides}
        documents = sum(looks[str(hits[place]["_index"])] for place in places)
        if not documents:
            return
        missing = [
            document
            for place in lacking
            if looks[str(hits[place]["_index"])] and (document := self._unsettled(hits[place])) is not None
        ]
        self._put([document for document in missing if document not in self._taken], len(missing))
        self._windows.append(not missing)
        coverage.documents += documents
        coverage.encoded += documents - len(missing)
        coverage.queued += sum(document in self._waiting or document in self._taken for document in missing)

    def start(self) -> None:
        """Let what waits be encoded: a response was sent."""
        if self._waiting:
            self._may_start.set()

    async def take(self, most: int) -> tuple[str, list[DocumentId]]:
        """Return an index and documents of it to encode next, when there are some; those taken before are done."""
        self._taken = frozenset()
        while not self._waiting:
            self._may_start.clear()
            await self._may_start.wait()
        documents = next_documents(self._waiting, most)
        for document in documents:
            del self._waiting[document]
        self._taken = frozenset(documents)
        return documents[0].index, documents

    def settle(self, document: DocumentId, seq_no: int) -> None:
        """Queue a version of a document no more: it has no text, or cannot be encoded."""
        self._settled.put((document, seq_no), None)

    def _put(self, documents: Sequence[DocumentId], lacking: int) -> None:
        """Add documents of a window that lacks a number of them, or count them once more."""
        new = WaitingDocument(0, random.random(), 0, lacking)  # noqa: S311 - no secret
        for document in documents:
            before = self._waiting.pop(document, new)
            seen, fewest = before.seen + 1, min(before.lacking, lacking)
            self._waiting[document] = WaitingDocument(priority(seen, fewest), before.chance, seen, fewest)
        while len(self._waiting) > self._capacity:
            self._waiting.popitem(last=False)

    def _unsettled(self, hit: Mapping[str, Any]) -> DocumentId | None:
        """Return a hit's document, None if this version needs no encoding."""
        document = DocumentId.of(hit)
        seq_no = ((hit.get("fields") or {}).get(SEQ_NO_FIELD) or [None])[0]
        return None if (document, seq_no) in self._settled else document
