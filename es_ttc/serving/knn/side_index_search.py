"""The same means to search where vectors stand beside the searched indices: in side indices that no caller searches.

The side index says which documents are near; whether a document may be given says the source alone. So whatever a
search of a side index finds is asked of the source, in the caller's name, through his own door, under his filter and
inside his point in time. What does not come back from there is passed over: not shown, not used, its features not
read. Nor are documents given whose text is another one now. More neighbours are asked for until there are enough;
where few documents match, those are asked for first, and only their vectors are searched.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from es_ttc.errors import EngineError
from es_ttc.index.mappings.queries import MOST_CANDIDATES
from es_ttc.rescorers.base import Feature
from es_ttc.retrievers.base import NearestDocuments, together
from es_ttc.serving.features.attached import MARK_FIELDS, AttachedFeatureLocator, Mark, identity_of, mark_of
from es_ttc.serving.features.attached import Identity as OfSource
from es_ttc.serving.features.keys import SEQ_NO, DocumentKey
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.features.store import FeatureStore, SideIndexUnreadable, WindowFeatures
from es_ttc.serving.knn.answers import Body, SearchClient, require_whole
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import EngineSearch, Hit, KnnOptions, SearchContext, enough, neighbours
from es_ttc.serving.knn.searched_indices import SearchedIndices, SideIndex
from es_ttc.serving.pool import BoundedPool
from es_ttc.vectors.tokens import Float32

_MARKS: Body = {"stored_fields": "_none_", "docvalue_fields": [*MARK_FIELDS]}
_OF_THE_DELETED = (404, 500, 503)
"""How a search ends whose index is deleted under way: its context is gone, its reader is closed, its shards are."""
_SEEN: Body = {"_source": False, "docvalue_fields": [SEQ_NO], "track_total_hits": False}


class SideIndexReplaced(EngineError):
    """Another side index has taken the place of the one that was searched."""

    status = 503


class SideIndexSearch(EngineSearch):
    """Finds documents of attached indices, and beside them those that hold vectors themselves.

    Args:
        clause: The caller's clause.
        frame: What belongs to every search of the request.
        ground: Which indices have their vectors beside them.
        asks: Send searches.
        features: The documents' features.
        attached: Tells whether they are of the text that a document has now.
        pool: Where computations run.
        details: Whether what can be shown about each document is asked for.
    """

    def __init__(
        self,
        clause: KnnClause,
        frame: SearchContext,
        ground: SearchedIndices,
        asks: SearchClient,
        features: FeatureStore,
        attached: AttachedFeatureLocator,
        pool: BoundedPool,
        *,
        details: bool = True,
    ) -> None:
        super().__init__(clause, frame, asks, features, attached, pool, details=details)
        self._ground = ground
        self._uuids: dict[str, str | None] = {}
        self._matching: dict[str, dict[OfSource, Hit]] = {}
        self._judged: dict[tuple[str, OfSource], int | None] = {}

    async def _nearest(self, vector: Float32, k: int, how: KnnOptions) -> NearestDocuments:
        searches = [
            enough(partial(self._beside, side, vector, how), k, first=side.first_count(k))
            for side in self._ground.sides
            if side.matching and side.documents
        ]
        if self._ground.own:
            searches.append(super()._nearest(vector, k, how))
        found = together(await asyncio.gather(*searches))
        return NearestDocuments(found.documents[:k], found.cosines[:k], found.complete)

    async def _beside(
        self, side: SideIndex, vector: Float32, how: KnnOptions, count: int
    ) -> tuple[NearestDocuments, bool]:
        """Search one side index; see :func:`enough`."""
        filters: list[Any] = []
        most = MOST_CANDIDATES
        if side.filter_first(count):
            matching = await self._all_matching(side)
            if not matching:
                return neighbours([], []), True
            filters = [{"ids": {"values": sorted({identifier for identifier, _ in matching})}}]
            most = len(matching)
        count = min(count, most)
        [answer] = await self._asks.beside([(side.name, {**self._body(vector, count, how, filters), **_MARKS})])
        if answer.get("status") in _OF_THE_DELETED if "error" in answer else not answer["_shards"]["total"]:
            raise SideIndexReplaced(f"the side index of [{side.source}] was removed or replaced while it was searched")
        require_whole(answer)
        hits = answer["hits"]["hits"]
        marked = [(hit, found) for hit in hits if (found := mark_of(hit)) is not None]
        await self._judge(side, dict(found for _, found in marked))
        judged = [(self._judged[side.source, document], hit["_score"]) for hit, (document, _) in marked]
        given = [(number, score) for number, score in judged if number is not None]
        exhausted = len(hits) < count or (bool(filters) and count == most)
        return neighbours([number for number, _ in given], [score for _, score in given]), exhausted

    async def _judge(self, side: SideIndex, marks: Mapping[OfSource, Mark]) -> None:
        """Give a number to each document that the caller may be given: the source has just returned it to him."""
        new = {document: mark for document, mark in marks.items() if (side.source, document) not in self._judged}
        if not new:
            return
        hits, uuid = await asyncio.gather(self._returned(side, new), self._uuid(side.source))
        keys = await self._attached.current(side.source, hits, new, uuid, self._frame.caller)
        for document in new:
            self._judged[side.source, document] = None
        for hit, key in zip(hits, keys, strict=True):
            document = identity_of(hit)
            if key is None:
                self._stale.add((side.source, *document))
            elif key.encoder != self._frame.encoder:
                self.skipped[(side.source, *document)] = SkipReason.ENCODER
            else:
                self._judged[side.source, document] = self._numbered((side.source, *document), key)

    async def _returned(self, side: SideIndex, marks: Mapping[OfSource, Mark]) -> list[Hit]:
        """Return the hits of documents that the source returns to the caller under his filter."""
        known = self._matching.get(side.source)
        if known is None:
            ids = sorted({identifier for identifier, _ in marks})
            routed = any(routing is not None for _, routing in marks)  # documents of one id are apart by their routing
            size = MOST_CANDIDATES if routed else len(ids)
            known = await self._ask_source(side, [{"ids": {"values": ids}}], size)
        return [known[document] for document in marks if document in known]

    async def _all_matching(self, side: SideIndex) -> dict[OfSource, Hit]:
        """Return the hits of all documents that the source returns to the caller under his filter; asked once."""
        if side.source not in self._matching:
            self._matching[side.source] = await self._ask_source(side, [], side.matching)
        return self._matching[side.source]

    async def _ask_source(self, side: SideIndex, queries: Sequence[Any], size: int) -> dict[OfSource, Hit]:
        filters = [*queries, {"term": {"_index": side.source}}, *self._clause.filters]
        body = {**self._frame.shared, **_SEEN, "query": {"bool": {"filter": filters}}, "size": size}
        [answer] = await self._asks.searched([body])
        return {identity_of(hit): hit for hit in answer["hits"]["hits"]}

    async def _uuid(self, index: str) -> str | None:
        if index not in self._uuids:
            self._uuids[index] = await self._attached.uuid(index, self._frame.caller)
        return self._uuids[index]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        try:
            found = await super()._read(keys, features)
        except SideIndexUnreadable as error:
            raise SideIndexReplaced(f"features beside an index could not be read: {error}") from error
        if any(
            key.side and not stored and key not in found.faults
            for key, stored in zip(keys, found.documents, strict=True)
        ):
            raise SideIndexReplaced("features beside an index were replaced while they were read")
        return found
