"""The search interface of retrievers for attached indices: vectors in side indices, documents in their sources.

The side index knows which documents are near. Only the source decides whether the caller may read a document. So every
document that a search of a side index finds is searched in the source, with the caller's credentials and filter and in
the caller's point in time. A document that the source does not return is skipped: it is not displayed or used, and its
features are not read. A document whose text has changed is skipped too. More neighbours are requested until there are k
documents. If few documents match the filter, their ids are read first, and only their vectors are searched.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from es_ttc.errors import EngineError
from es_ttc.index.mappings.queries import MOST_CANDIDATES
from es_ttc.rescorers.base import Feature
from es_ttc.retrievers.base import NearestDocuments, together
from es_ttc.serving.features.attached import MARK_FIELDS, Mark, identity_of, mark_of
from es_ttc.serving.features.attached import Identity as SourceIdentity
from es_ttc.serving.features.keys import SEQ_NO, DocumentKey
from es_ttc.serving.features.reader import SideIndexUnreadable
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.features.store import WindowFeatures
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.knn.bodies import Body
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import EngineSearch, Hit, KnnOptions, SearchContext, neighbours, until_k
from es_ttc.serving.knn.msearch import SearchClient, require_complete
from es_ttc.serving.knn.searched_indices import SearchedIndices, SideIndex
from es_ttc.vectors.tokens import Float32

_MARKS: Body = {"stored_fields": "_none_", "docvalue_fields": [*MARK_FIELDS]}
_INDEX_DELETED = (404, 500, 503)
"""Statuses of a search whose index is deleted while it runs: no context, closed reader, no shards."""
_SOURCE_FIELDS: Body = {"_source": False, "docvalue_fields": [SEQ_NO], "track_total_hits": False}


class SideIndexReplaced(EngineError):
    """The searched side index was replaced by another one."""

    status = 503


class SideIndexSearch(EngineSearch):
    """Finds documents by vectors in side indices, and by vectors of their own."""

    def __init__(
        self,
        clause: KnnClause,
        context: SearchContext,
        indices: SearchedIndices,
        client: SearchClient,
        gateway: Gateway,
        *,
        details: bool = True,
    ) -> None:
        super().__init__(clause, context, client, gateway, details=details)
        self._indices = indices
        self._uuids: dict[str, asyncio.Task[str | None]] = {}
        self._matching: dict[str, dict[SourceIdentity, Hit]] = {}
        self._numbers_of_source: dict[tuple[str, SourceIdentity], int | None] = {}

    async def _nearest(self, vector: Float32, k: int, options: KnnOptions) -> NearestDocuments:
        searches = [
            until_k(partial(self._in_side_index, side, vector, options), k, first=side.first_count(k))
            for side in self._indices.sides
            if side.matching and side.documents
        ]
        if self._indices.own:
            searches.append(super()._nearest(vector, k, options))
        found = together(await asyncio.gather(*searches))
        return NearestDocuments(found.documents[:k], found.cosines[:k], found.complete)

    async def _in_side_index(
        self, side: SideIndex, vector: Float32, options: KnnOptions, count: int
    ) -> tuple[NearestDocuments, bool]:
        """Search one side index; see :func:`~es_ttc.serving.knn.engine_search.until_k`."""
        filters: list[Any] = []
        most = MOST_CANDIDATES
        if side.filter_first(count):
            matching = await self._all_matching(side)
            if not matching:
                return neighbours([], []), True
            filters = [{"ids": {"values": sorted({identifier for identifier, _ in matching})}}]
            most = len(matching)
        count = min(count, most)
        body = {**self._body(vector, count, options, filters), **_MARKS}
        [answer] = await self._client.search_side_indices([(side.name, body)])
        if answer.get("status") in _INDEX_DELETED if "error" in answer else not answer["_shards"]["total"]:
            raise SideIndexReplaced(f"the side index of [{side.source}] was removed or replaced while it was searched")
        require_complete(answer)
        hits = answer["hits"]["hits"]
        marked = [(hit, found) for hit in hits if (found := mark_of(hit)) is not None]
        await self._number_permitted(side, dict(found for _, found in marked))
        numbered = [(self._numbers_of_source[side.source, document], hit["_score"]) for hit, (document, _) in marked]
        permitted = [(number, score) for number, score in numbered if number is not None]
        exhausted = len(hits) < count or (bool(filters) and count == most)
        return neighbours([number for number, _ in permitted], [score for _, score in permitted]), exhausted

    async def _number_permitted(self, side: SideIndex, marks: Mapping[SourceIdentity, Mark]) -> None:
        """Give a number to each new document that the source returns to the caller; None to the others."""
        new = {
            document: mark for document, mark in marks.items() if (side.source, document) not in self._numbers_of_source
        }
        if not new:
            return
        hits, uuid = await asyncio.gather(self._source_hits(side, new), self._uuid(side.source))
        keys = await self._gateway.attached.current(hits, new, uuid, self._context.caller)
        for document in new:
            self._numbers_of_source[side.source, document] = None
        for hit, key in zip(hits, keys, strict=True):
            document = identity_of(hit)
            if key is None:
                self._stale.add((side.source, *document))
            elif key.encoder != self._context.encoder:
                self.skipped[(side.source, *document)] = SkipReason.ENCODER
            else:
                self._numbers_of_source[side.source, document] = self._numbered((side.source, *document), key)

    async def _source_hits(self, side: SideIndex, marks: Mapping[SourceIdentity, Mark]) -> list[Hit]:
        """Return the hits of those documents that the source returns to the caller under the clause's filter."""
        found = self._matching.get(side.source)
        if found is None:
            ids = sorted({identifier for identifier, _ in marks})
            routed = any(routing is not None for _, routing in marks)  # then several documents may have one id
            size = MOST_CANDIDATES if routed else len(ids)
            found = await self._search_source(side, [{"ids": {"values": ids}}], size)
        return [found[document] for document in marks if document in found]

    async def _all_matching(self, side: SideIndex) -> dict[SourceIdentity, Hit]:
        """Return the hits of all documents that the source returns to the caller under the filter; searched once."""
        if side.source not in self._matching:
            self._matching[side.source] = await self._search_source(side, [], side.matching)
        return self._matching[side.source]

    async def _search_source(self, side: SideIndex, queries: Sequence[Any], size: int) -> dict[SourceIdentity, Hit]:
        filters = [*queries, {"term": {"_index": side.source}}, *self._clause.filters]
        body = {**self._context.shared, **_SOURCE_FIELDS, "query": {"bool": {"filter": filters}}, "size": size}
        [answer] = await self._client.search([body])
        return {identity_of(hit): hit for hit in answer["hits"]["hits"]}

    async def _uuid(self, index: str) -> str | None:
        if index not in self._uuids:  # searches of several vectors ask once
            self._uuids[index] = asyncio.create_task(self._gateway.attached.uuid(index, self._context.caller))
        return await self._uuids[index]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        try:
            found = await super()._read(keys, features)
        except SideIndexUnreadable as error:
            raise SideIndexReplaced(f"features in a side index could not be read: {error}") from error
        if any(
            key.side and not stored and key not in found.faults
            for key, stored in zip(keys, found.documents, strict=True)
        ):
            raise SideIndexReplaced("features in a side index were replaced while they were read")
        return found
