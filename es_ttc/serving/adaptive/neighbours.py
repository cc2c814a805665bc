"""The neighbour graph of the searched indices, as far as the caller may see its documents.

Ids of neighbours are read from the graph's index, a few kilobytes for a hundred documents; each of them is then looked
at through the caller's door. Both run ahead of the walk, beside the reranker: ids of the neighbours of every document
that has come into sight, and what they stand for of those that are likely to be next. A graph that is not finished, or
cannot be read in time, has no neighbours: the walk goes on in the first pass, and the answer says so. Where no searched
index has a graph, or one being built, the method lacks what it needs, and that is an error before anyone judges.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError, MissingFeature
from es_ttc.index.mappings.graph import NEIGHBOURS, graph_alias, graph_pattern
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.adaptive.candidates import CandidateDocuments, Identity
from es_ttc.serving.engine_requests import EngineRequests, NotForCaller, NotThere
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream

T = TypeVar("T")

_LEAF = NEIGHBOURS.partition(".")[2]
_HOW_TO_SEE = "give him the right to read [ttc-graph-*], or let the gateway read it (side_credentials)"
_UNFINISHED = b"size=0&expand_wildcards=all&ignore_unavailable=true&allow_no_indices=true&filter_path=_shards.total"
_FAILING = "neighbours could not be read"


class CallerNeighbours:
    """Reads neighbours for one walk.

    Args:
        upstream: The engine.
        door: In whose name graphs are read.
        documents: The walk's documents.
        end: `time.monotonic` when the walk's time is over.
        depth: Steps from the first pass at most.
        fan_out: Neighbours of a document at most.
    """

    def __init__(
        self, upstream: Upstream, door: Caller, documents: CandidateDocuments, end: float, *, depth: int, fan_out: int
    ) -> None:
        self.without: dict[str, str] = {}
        self.absent: set[str] = set()
        self.present: set[str] = set()
        self.problem: EsTtcError | None = None
        self.seconds = 0.0
        self.waited = 0.0
        self.reads = 0
        self._engine = EngineRequests(upstream, door)
        self._documents = documents
        self._end = end
        self._most_steps = depth
        self._fan_out = fan_out
        self._steps: dict[int, int] = {}
        self._read: dict[int, asyncio.Task[list[int]]] = {}
        self._ahead: dict[int, asyncio.Task[dict[Identity, list[str]]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        """Return each document's neighbours that the caller may see, nearest first."""
        began = time.perf_counter()
        self.expect(documents)
        found = [await self._read[document] for document in documents]
        self.waited += time.perf_counter() - began
        for document, neighbours in zip(documents, found, strict=True):
            steps = self._steps.setdefault(document, 0) + 1
            for neighbour in neighbours:
                self._steps[neighbour] = min(steps, self._steps.get(neighbour, steps))
        return [
            neighbours if self._steps[document] < self._most_steps else []
            for document, neighbours in zip(documents, found, strict=True)
        ]

    def expect(self, documents: Sequence[int]) -> None:
        """Begin to read the neighbours of documents, all in one go."""
        wanted = [document for document in documents if document not in self._read]
        if not wanted:
            return
        reading = self._started(self._neighbours(wanted))
        for place, document in enumerate(wanted):
            self._read[document] = self._started(_at(reading, place))

    def begin(self, documents: Sequence[int]) -> None:
        """Begin to read the ids of the neighbours of documents that have come into sight."""
        new = [document for document in documents if document not in self._ahead]
        if new and not self._closed:
            self._ahead.update(dict.fromkeys(new, self._started(self._edges_of(new))))

    async def require(self, window: Sequence[int], first: int) -> None:
        """Wait until it is known whether there is a graph at all.

        Args:
            window: The documents that the walk begins with.
            first: How many of them are asked about.

        Raises:
            MissingFeature: No index of the window has one, nor one that is being built.
        """
        began = time.perf_counter()
        self.begin(window[:first])
        reading = {self._ahead[document] for document in window[:first]}
        with suppress(EsTtcError, TimeoutError, LookupError, TypeError, ValueError):  # told by whoever reads neighbours
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                await asyncio.gather(*map(asyncio.shield, reading))
        self.waited += time.perf_counter() - began
        indices = {self._documents.identity(document)[0] for document in window}
        if indices and indices <= self.absent:
            raise MissingFeature(missing_graph(min(indices)))

    async def close(self) -> None:
        """Leave what is still read ahead."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _neighbours(self, documents: Sequence[int]) -> list[list[int]]:
        """Read neighbours; what goes wrong is kept, and means that there are none."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                return await self._visible(documents)
        except TimeoutError:
            self.problem = self.problem or EngineError("neighbours were not read in time")
        except EsTtcError as error:
            self.problem = self.problem or error
        except (LookupError, TypeError, ValueError) as error:
            self.problem = self.problem or EngineError(f"neighbours could not be read: {type(error).__name__}")
        finally:
            self.seconds += time.perf_counter() - began
        return [[] for _ in documents]

    async def _visible(self, documents: Sequence[int]) -> list[list[int]]:
        self.begin(documents)
        edges: dict[Identity, list[str]] = {}
        for reading in dict.fromkeys(self._ahead[document] for document in documents):
            edges |= await asyncio.shield(reading)
        identities = [self._documents.identity(document) for document in documents]
        wanted = [
            [(identity[0], one) for one in edges.get(identity, ())[: self._fan_out] if one != identity[1]]
            for identity in identities
        ]
        numbers = await self._documents.seen([one for row in wanted for one in row])
        self.begin(sorted(numbers.values()))
        return [[numbers[one] for one in row if one in numbers] for row in wanted]

    async def _edges_of(self, documents: Sequence[int]) -> dict[Identity, list[str]]:
        by_index: dict[str, list[str]] = {}
        for document in documents:
            index, identifier = self._documents.identity(document)
            by_index.setdefault(index, []).append(identifier)
        parts = await asyncio.gather(*(self._edges(index, ids) for index, ids in by_index.items()))
        return {identity: ids for part in parts for identity, ids in part.items()}

    async def _edges(self, index: str, ids: Sequence[str]) -> dict[Identity, list[str]]:
        """Return neighbours' ids by document, as the graph has them."""
        if index in self.without or ":" in index:  # another cluster's graphs are not ours to find
            self.without.setdefault(index, missing_graph(index))
            return {}
        self.reads += 1
        body = {
            "query": {"ids": {"values": [*ids]}},
            "size": len(ids),
            "_source": [NEIGHBOURS],
            "track_total_hits": False,
        }
        try:
            answer = await self._engine.search([graph_alias(index)], body, b"", failing=_FAILING)
        except NotForCaller:
            self.without[index] = f"the caller may not read the neighbour graph of index [{index}]: {_HOW_TO_SEE}"
            return {}
        except NotThere:
            self.without[index] = missing_graph(index)
            if not await self._is_being_built(index):
                self.absent.add(index)
            return {}
        self.present.add(index)
        return {(index, hit["_id"]): _ids(hit) for hit in answer["hits"]["hits"]}

    async def _is_being_built(self, index: str) -> bool:
        """Whether there is a graph that its alias does not lead to yet, as far as the caller may know."""
        try:
            answer = await self._engine.search([graph_pattern(index)], {}, _UNFINISHED, failing=_FAILING)
        except EngineUnavailable:
            raise
        except EngineError:
            return True
        return bool(answer["_shards"]["total"])


def missing_graph(index: str) -> str:
    """Return the sentence about an index that has no graph to walk through."""
    return f"index [{index}] has no finished neighbour graph to be read: build one with `es-ttc graph build {index}`"


async def _at(reading: "asyncio.Task[list[list[int]]]", place: int) -> list[int]:
    return (await asyncio.shield(reading))[place]


def _ids(hit: Mapping[str, Any]) -> list[str]:
    found = hit.get("_source", {}).get(ROOT, {}).get(_LEAF, [])
    return [str(one) for one in (found if isinstance(found, list) else [found])]
