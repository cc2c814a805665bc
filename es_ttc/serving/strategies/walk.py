"""The documents of a search with a strategy, and their neighbours in the graph: all of them the caller may read.

Each document outside the first pass is searched on the caller's target, with the caller's credentials and the
conditions of the search. A document that the caller may not read never gets a number, so the graph traversal cannot
pass through it.

The ids of neighbours are read from the graph's index, a few kilobytes for a hundred documents. Each neighbour is then
searched on the caller's target. Both run ahead, while the reranker works: the ids for every document found so far, and
the searches for those that are likely to be next. If a graph is unfinished or cannot be read in time, its documents
have no neighbours: the search continues in the first pass, and the response contains the reason. If no searched index
has a graph, finished or not, the method lacks a required feature, which is an error before the reranker is called.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError, InvalidRequest, MissingFeature
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.graph import NEIGHBOURS, graph_alias, graph_pattern
from es_ttc.index.mappings.spec import ROOT
from es_ttc.reranking.rerankers import Passage
from es_ttc.reranking.strategies import StepLimit
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.engine import EngineClient, NotForCaller, NotThere
from es_ttc.serving.features.keys import MARKS

T = TypeVar("T")

_LEAF = NEIGHBOURS.partition(".")[2]
_HOW_TO_SEE = "give the caller the right to read [ttc-graph-*], or let the gateway read it (side_index_auth)"
_UNFINISHED = b"size=0&expand_wildcards=all&ignore_unavailable=true&allow_no_indices=true"
_FAILING = "neighbours could not be read"
_OTHERS_DATA = (LookupError, TypeError, ValueError)
"""Raised by a graph's index that holds something else."""
_AT_ONCE = 1000
"""Number of documents per search."""

Node = tuple[str, str]
"""Concrete index and id."""
Body = dict[str, Any]


class WalkDocuments:
    """Numbers documents, those of the first pass first, and reads their fields.

    Each search has the URL parameters `params` and the body parts `shared`, and each document matches `conditions`.
    """

    def __init__(
        self,
        engine: EngineClient,
        params: bytes,
        shared: Mapping[str, Any],
        conditions: Sequence[Any],
        hits: Sequence[dict[str, Any]],
        marks: Sequence[Any] = (),
    ) -> None:
        self.hits = list(hits)
        self.first_pass = list(hits)
        self._engine = engine
        self._params = params
        self._shared = shared
        self._conditions = conditions
        self._marks = [*MARKS, *marks]
        self._numbers = {_node_of(hit): number for number, hit in enumerate(self.hits)}
        self._hidden: set[Node] = set()
        self._passages: dict[int, Passage] = {}

    def identity(self, document: int) -> Node:
        """Return a document's index and id."""
        return _node_of(self.hits[document])

    async def seen(self, identities: Sequence[Node]) -> dict[Node, int]:
        """Return the numbers of those documents that exist and that the caller may read; new ones get a number."""
        unknown: dict[str, list[str]] = {}
        for index, identifier in dict.fromkeys(identities):
            if (index, identifier) not in self._numbers and (index, identifier) not in self._hidden:
                unknown.setdefault(index, []).append(identifier)
        for index, ids in unknown.items():
            marks = {"_source": False, "docvalue_fields": self._marks}
            for start in range(0, len(ids), _AT_ONCE):
                for hit in await self._search(index, ids[start : start + _AT_ONCE], marks):
                    hit["_score"] = None
                    if self._numbers.setdefault(_node_of(hit), len(self.hits)) == len(self.hits):
                        self.hits.append(hit)
            self._hidden.update((index, one) for one in ids if (index, one) not in self._numbers)
        return {one: self._numbers[one] for one in identities if one in self._numbers}

    async def passages(
        self, documents: Sequence[int], fields: Callable[[str], Awaitable[Sequence[str]]]
    ) -> list[Passage]:
        """Return the texts of documents for a reranker, from the text fields of each index; none of a deleted one."""
        unread: dict[str, list[int]] = {}
        for document in documents:
            if document not in self._passages:
                unread.setdefault(self.identity(document)[0], []).append(document)
        for index, numbers in unread.items():
            names = await fields(index)
            by_id = {self.identity(number)[1]: number for number in numbers}
            for hit in await self._search(index, list(by_id), {"_source": list(names)}):
                number = by_id.get(hit["_id"])
                if number is not None:
                    self._passages[number] = passage_of(hit.get("_source") or {}, names)
        return [self._passages.get(document, passage_of({}, ())) for document in documents]

    async def search(self, index: str, body: Body, params: bytes) -> list[dict[str, Any]]:
        """Run one search on the caller's target and return its hits."""
        answer = await self._engine.search([index], body, params, failing="documents could not be read")
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        return hits

    def matching(self, index: str, ids: Sequence[str], query: Any = None) -> Body:
        """Return the search for some documents under the conditions of the search."""
        must: list[Any] = [{"ids": {"values": [*ids]}}, {"term": {"_index": index}}, *self._conditions]
        scored = {"should": [query]} if query else {}
        return {"query": {"bool": {"filter": must, **scored}}, "size": len(ids), "track_total_hits": False}

    async def _search(self, index: str, ids: Sequence[str], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        return await self.search(index, {**self._shared, **self.matching(index, ids), **fields}, self._params)


class CallerNeighbours:
    """Reads neighbours for one search.

    Attributes:
        without: For each index without a graph that can be read, the reason.
        present: Indices that have a graph.
        problem: The first failure of a read.
        waited: Seconds that the strategy has waited.
    """

    def __init__(
        self, engine: EngineClient, documents: WalkDocuments, deadline: Deadline, *, depth: int, fan_out: int
    ) -> None:
        self.without: dict[str, str] = {}
        self.present: set[str] = set()
        self.problem: EsTtcError | None = None
        self.waited = 0.0
        self._absent: set[str] = set()
        self._engine = engine
        self._documents = documents
        self._deadline = deadline
        self._fan_out = fan_out
        self._steps = StepLimit(depth)
        self._read: dict[int, asyncio.Task[list[int]]] = {}
        self._ahead: dict[int, asyncio.Task[dict[Node, list[str]]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        """Return each document's neighbours that the caller may read, nearest first."""
        began = time.perf_counter()
        self.expect(documents)
        found = [await self._read[document] for document in documents]
        self.waited += time.perf_counter() - began
        return self._steps.within(documents, found)

    def expect(self, documents: Sequence[int]) -> None:
        """Begin to read the neighbours of documents, in one batch."""
        unread = [document for document in documents if document not in self._read]
        if not unread:
            return
        reading = self._started(self._neighbours(unread))
        for place, document in enumerate(unread):
            self._read[document] = self._started(_at(reading, place))

    def begin(self, documents: Sequence[int]) -> None:
        """Begin to read the neighbours' ids of documents just found."""
        new = [document for document in documents if document not in self._ahead]
        if new and not self._closed:
            self._ahead.update(dict.fromkeys(new, self._started(self._edges_of(new))))

    async def require(self, window: Sequence[int], first: int) -> None:
        """Wait until it is known whether there is a graph."""
        began = time.perf_counter()
        self.begin(window[:first])
        reading = {self._ahead[document] for document in window[:first]}
        with suppress(EsTtcError, TimeoutError, *_OTHERS_DATA):  # reported when they are read
            async with asyncio.timeout(self._deadline.left):
                await asyncio.gather(*map(asyncio.shield, reading))
        self.waited += time.perf_counter() - began
        indices = {self._documents.identity(document)[0] for document in window}
        if indices and indices <= self._absent:
            raise MissingFeature(_missing_graph(min(indices)))

    async def close(self) -> None:
        """Cancel reads that are still running."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def _neighbours(self, documents: Sequence[int]) -> list[list[int]]:
        """Read neighbours; a failure is recorded, and means that there are none."""
        try:
            async with asyncio.timeout(self._deadline.left):
                return await self._visible(documents)
        except TimeoutError:
            self.problem = self.problem or EngineError("neighbours were not read in time")
        except EsTtcError as error:
            self.problem = self.problem or error
        except _OTHERS_DATA as error:
            self.problem = self.problem or EngineError(f"{_FAILING}: {type(error).__name__}")
        return [[] for _ in documents]

    async def _visible(self, documents: Sequence[int]) -> list[list[int]]:
        self.begin(documents)
        edges: dict[Node, list[str]] = {}
        for reading in dict.fromkeys(self._ahead[document] for document in documents):
            edges |= await asyncio.shield(reading)
        identities = [self._documents.identity(document) for document in documents]
        unread = [
            [(identity[0], one) for one in edges.get(identity, ())[: self._fan_out] if one != identity[1]]
            for identity in identities
        ]
        numbers = await self._documents.seen([one for row in unread for one in row])
        self.begin(sorted(numbers.values()))
        return [[numbers[one] for one in row if one in numbers] for row in unread]

    async def _edges_of(self, documents: Sequence[int]) -> dict[Node, list[str]]:
        by_index: dict[str, list[str]] = {}
        for document in documents:
            index, identifier = self._documents.identity(document)
            by_index.setdefault(index, []).append(identifier)
        parts = await asyncio.gather(*(self._edges(index, ids) for index, ids in by_index.items()))
        return {identity: ids for part in parts for identity, ids in part.items()}

    async def _edges(self, index: str, ids: Sequence[str]) -> dict[Node, list[str]]:
        """Return neighbours' ids by document, as stored in the graph."""
        if index in self.without or ":" in index:  # graphs of another cluster are not searched
            self.without.setdefault(index, _missing_graph(index))
            return {}
        query = {"ids": {"values": [*ids]}}
        body = {"query": query, "size": len(ids), "_source": [NEIGHBOURS], "track_total_hits": False}
        try:
            answer = await self._engine.search([graph_alias(index)], body, b"", failing=_FAILING)
        except NotForCaller:
            self.without[index] = f"the caller may not read the neighbour graph of index [{index}]: {_HOW_TO_SEE}"
            return {}
        except NotThere:
            self.without[index] = _missing_graph(index)
            if not await self._is_being_built(index):
                self._absent.add(index)
            return {}
        self.present.add(index)
        return {(index, hit["_id"]): _ids(hit) for hit in answer["hits"]["hits"]}

    async def _is_being_built(self, index: str) -> bool:
        """Return whether there is an unfinished graph that the caller may see."""
        try:
            answer = await self._engine.search([graph_pattern(index)], {}, _UNFINISHED, failing=_FAILING)
        except EngineUnavailable:
            raise
        except EngineError:
            return True
        return bool(answer["_shards"]["total"])


def _node_of(hit: Mapping[str, Any]) -> Node:
    return str(hit["_index"]), str(hit.get("_id", ""))


def passage_of(source: Mapping[str, Any], names: Sequence[str]) -> Passage:
    """Return the text fields of a document for a reranker."""
    try:
        text, _ = compose(source, names)
    except InvalidRequest:  # an object in place of a text counts as no text
        text = ""
    return Passage(sha256(text.encode(errors="replace")).hexdigest()[:32], text)


def _missing_graph(index: str) -> str:
    return f"index [{index}] has no finished neighbour graph to be read: build one with `es-ttc graph build {index}`"


async def _at(reading: "asyncio.Task[list[list[int]]]", place: int) -> list[int]:
    return (await asyncio.shield(reading))[place]


def _ids(hit: Mapping[str, Any]) -> list[str]:
    ids = hit.get("_source", {}).get(ROOT, {}).get(_LEAF, [])
    return [str(one) for one in (ids if isinstance(ids, list) else [ids])]
