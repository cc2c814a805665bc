"""The search interface of retrievers in the gateway: the engine's own kNN, with the caller's credentials.

Every search contains the caller's filter and is sent to the caller's target, so that an alias's filter and rights hold.
Features are read only of documents that such a search has returned.

Of an attached index the side index knows which documents are near, and only the source decides whether the caller may
read one. So every document that a search of a side index finds is searched in the source, with the caller's credentials
and filter and in the caller's point in time. A document that the source does not return, or whose text has changed, is
skipped: it is not displayed or used, and its features are not read. If few documents match the filter, their ids are
read first, and only their vectors are searched.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from es_ttc.engine.versions import Product, oldest_versions
from es_ttc.errors import EngineError
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.queries import MAX_KNN_CANDIDATES
from es_ttc.index.mappings.spec import HASH
from es_ttc.rescorers.base import Feature, Window
from es_ttc.retrievers.base import Documents, KnownDocuments, NearestDocuments, Vectors, together
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features.attached import MARK_FIELDS, Mark, mark_of, own_key
from es_ttc.serving.features.columns import columns
from es_ttc.serving.features.decoding import Stored, consistent, features_from_hit
from es_ttc.serving.features.keys import MARKS, DocumentId, DocumentKey, RoutedId, marks_of, unreadable
from es_ttc.serving.features.reader import SideIndexUnreadable, WindowFeatures
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.searched_indices import SearchedIndices, SideIndex
from es_ttc.serving.knn.searches import Body, SearchClient, require_complete, search_body
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")

Hit = Mapping[str, Any]
"""A document's index, id and routing; if documents are identified by content, its index and content hash."""
MakeBody = Callable[[int, Sequence[Any]], Body]
"""Makes the search for a number of neighbours under some filters."""
Send = Callable[[Sequence[Body]], Awaitable[Sequence[Mapping[str, Any]]]]
"""Sends searches to the caller's target, and returns the engine's responses."""
Find = Callable[[int], Awaitable[tuple[NearestDocuments, bool]]]
"""Finds a number of neighbours, and tells whether there are no more."""

_GREATEST_COSINE = 1.2
"""Maximum cosine in an engine's answer: engines round, most of all with quantised vectors."""
_FURTHER = 4
"""Factor of the number of requested neighbours if too many of the first ones may not be returned."""
_INDEX_DELETED = (404, 500, 503)
"""Statuses of a search whose index is deleted while it runs: no context, closed reader, no shards."""


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The values that all searches of a request share."""

    product: Product
    caller: Caller
    encoder: str  # of the searched vectors
    shared: Mapping[str, Any]  # parts of the caller's body that the filter may depend on
    deadline: Deadline


class AmbiguousContent(Exception):
    """Documents cannot be identified by their contents: two are equal, or one may have changed."""


class SideIndexReplaced(EngineError):
    """The searched side index was replaced by another one."""

    status = 503


class EngineSearch:
    """Finds documents by the engine's kNN; see :class:`es_ttc.retrievers.base.Search`.

    Attributes:
        named: Whether documents are identified by their ids, or by their contents.
        ids: By number the index and id of each document found; its content hash in place of the id if `named` is false.
        hits: By number the hit of each document, of the searched index.
        keys: By number the key of each document's features.
        fields: By number the field names for the ordinals in a document's offsets, if these were read.
        feature_ms: Time of reading features, in ms.
        skipped: Documents whose features are of another encoder or cannot be used, with the reason.
        stale: Documents that were skipped because their vectors are of an earlier text.
    """

    def __init__(
        self,
        clause: KnnClause,
        context: SearchContext,
        client: SearchClient,
        gateway: Gateway,
        *,
        named: bool = True,
        details: bool = True,
        fields: Body | None = None,
        send: Send | None = None,
    ) -> None:
        self.named = named
        self.details = details
        self.deadline = context.deadline
        self.ids: list[tuple[str, str]] = []
        self.hits: dict[int, Hit] = {}
        self.keys: list[DocumentKey] = []
        self.fields: dict[int, tuple[str, ...]] = {}
        self.feature_ms = 0.0
        self.skipped: dict[DocumentId, SkipReason] = {}
        self.stale: set[DocumentId] = set()
        self._clause = clause
        self._context = context
        self._client = client
        self._gateway = gateway
        self._fields = fields or {"_source": False, "docvalue_fields": MARKS}
        self._send = send or client.search
        self._hit_features: dict[int, Stored] = {}
        self._numbers: dict[DocumentId, int] = {}
        self._dims = 0

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline.left

    async def nearest(
        self,
        vectors: Float32,
        k: int,
        *,
        among: Vectors = Vectors.POOLED,
        num_candidates: int | None = None,
        exact: bool = False,
        features: frozenset[Feature] = frozenset(),
    ) -> list[NearestDocuments]:
        """Find the documents nearest to each of some vectors; see :class:`es_ttc.retrievers.base.Search`."""
        self._dims = vectors.shape[1]
        k = min(k, MAX_KNN_CANDIDATES)
        clause, product = self._clause, self._context.product
        requested = max(num_candidates or 0, clause.num_candidates or 0)

        def body(vector: Float32, count: int, filters: Sequence[Any]) -> Body:
            candidates = min(MAX_KNN_CANDIDATES, max(count, requested)) if requested else None
            return search_body(
                product, vector, count, filters, options=clause.of_each_search(product), among=among,
                num_candidates=candidates, exact=exact,
            )  # fmt: skip

        found = await asyncio.gather(*(self._nearest(partial(body, vector), k, features) for vector in vectors))
        return [self._in_order(one, k) for one in found]

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents that were found; see :class:`es_ttc.retrievers.base.Search`."""
        began = time.perf_counter()
        read = [self._hit_features.get(document, {}) for document in documents.tolist()]
        if not all(needs | wants <= stored.keys() for stored in read):
            read = await self._read_all(documents.tolist(), needs, wants)
        read = [consistent(stored) for stored in read]
        self.feature_ms += (time.perf_counter() - began) * 1000
        places = [place for place, stored in enumerate(read) if needs <= stored.keys()]
        complete = documents[places]
        features = [read[place] for place in places]
        for document, stored in zip(complete.tolist(), features, strict=True):
            if Feature.OFFSETS in stored:
                self.fields[document] = stored[Feature.OFFSETS][1]
        nothing = np.zeros(len(complete), np.float32)
        if not features:
            return KnownDocuments(complete, Window([], nothing, np.empty((0, self._dims), np.float32), tokens=()))
        ids = [self.ids[document][1] for document in complete]
        return KnownDocuments(complete, Window(ids, nothing, **columns(features, needs | wants)))

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Run a function off the event loop."""
        return await self._gateway.scoring.run(function, *args, **kwargs)

    async def _nearest(self, body: MakeBody, k: int, features: frozenset[Feature]) -> NearestDocuments:
        """Return the documents nearest to one vector, k or more if there are as many, in the order of their arrival."""
        return await until_k(partial(self._in_documents, body, features), k, first=k)

    def _in_order(self, found: NearestDocuments, k: int) -> NearestDocuments:
        """Return the k nearest documents; equal cosines in the order of index, id and routing, as on every page."""

        def name(place: int) -> tuple[float, str, str, str]:
            number = int(found.documents[place])
            return -float(found.cosines[place]), *self.ids[number], self.hits[number].get("_routing") or ""

        order = sorted(range(len(found.documents)), key=name)[:k]
        return NearestDocuments(found.documents[order], found.cosines[order], found.complete)

    async def _in_documents(
        self, body: MakeBody, features: frozenset[Feature], count: int
    ) -> tuple[NearestDocuments, bool]:
        """Search the vectors in the documents themselves; see :func:`until_k`."""
        stored = [FEATURES[feature].name for feature in sorted(features)]
        search: Body = {
            **self._context.shared,
            **body(count, self._clause.filters),
            **self._fields,
            **({"stored_fields": stored or "_none_"} if stored or not self.named else {}),
        }
        [answer] = await self._send([search])
        found = answer["hits"]["hits"]
        if not self.named:
            _require_distinct(found)
        numbered = [(number, hit) for hit in found if (number := self._number(hit)) is not None]
        if features:
            for number, hit in numbered:
                self._hit_features[number] = features_from_hit(self.keys[number], hit, features)
        scores = [hit.get("_score") for _, hit in numbered]
        return neighbours([number for number, _ in numbered], scores), len(found) < count

    async def _read_all(
        self, documents: Sequence[int], needs: frozenset[Feature], wants: frozenset[Feature]
    ) -> list[Stored]:
        """Return stored features of documents; none for one that has changed, or whose layout is unknown."""
        keys = {document: self.keys[document] for document in documents if unreadable(self.keys[document]) is None}
        read = await self._read(list(keys.values()), needs | wants)
        stored = dict(zip(keys, read.documents, strict=True))
        complete = len(keys) == len(documents) and not read.faults
        named = {} if complete else {number: document for document, number in self._numbers.items()}
        for document in documents:
            if document not in keys:
                self.skipped[named[document]] = SkipReason.LAYOUT
            elif faults := read.faults.get(keys[document]):
                fault = next((faults[feature] for feature in sorted(faults) if feature in needs), None)
                if fault is not None:
                    self.skipped[named[document]] = fault
        return [stored.get(document, {}) for document in documents]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        return await self._gateway.features.window(keys, features, self._context.caller)

    def _number(self, hit: Hit) -> int | None:
        """Return the number of a document with its own features; None if they are of another encoder."""
        key = own_key(hit)
        if key is not None and key.encoder == self._context.encoder:
            return self._numbered(
                DocumentId.of(hit) if self.named else DocumentId(key.index, RoutedId(key.hash, None)), key, hit
            )
        shown = str(hit.get("_id", hit.get("fields", {}).get(HASH, [""])[0]))
        reason = SkipReason.MARKS if key is None else SkipReason.ENCODER
        self.skipped[DocumentId(str(hit["_index"]), RoutedId(shown, hit.get("_routing")))] = reason
        return None

    def _numbered(self, document: DocumentId, key: DocumentKey, hit: Hit) -> int:
        """Return a document's number; a new document gets the next one."""
        number = self._numbers.setdefault(document, len(self.ids))
        if number == len(self.ids):
            self.ids.append((document.index, document.routed.id))
            self.keys.append(key)
        self.hits[number] = hit
        return number


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
        fields: Body | None = None,
        send: Send | None = None,
    ) -> None:
        super().__init__(clause, context, client, gateway, details=details, fields=fields, send=send)
        self._indices = indices
        self._uuids: dict[str, asyncio.Task[str | None]] = {}
        self._matching: dict[str, dict[RoutedId, Hit]] = {}
        self._numbers_of_source: dict[DocumentId, int | None] = {}

    async def _nearest(self, body: MakeBody, k: int, features: frozenset[Feature]) -> NearestDocuments:
        searches = [
            until_k(partial(self._in_side_index, side, body), k, first=side.first_count(k))
            for side in self._indices.sides
            if side.matching and side.documents
        ]
        if self._indices.own:
            searches.append(super()._nearest(body, k, features))
        return together(await asyncio.gather(*searches))

    async def _in_side_index(self, side: SideIndex, body: MakeBody, count: int) -> tuple[NearestDocuments, bool]:
        """Search one side index; see :func:`until_k`."""
        filters: list[Any] = []
        most = MAX_KNN_CANDIDATES
        if side.filter_first(count):
            matching = await self._all_matching(side)
            if not matching:
                return neighbours([], []), True
            filters = [{"ids": {"values": sorted({identifier for identifier, _ in matching})}}]
            most = len(matching)
        count = min(count, most)
        search = {**body(count, filters), "stored_fields": "_none_", "docvalue_fields": [*MARK_FIELDS]}
        [answer] = await self._client.search_side_indices([(side.name, search)])
        if answer.get("status") in _INDEX_DELETED if "error" in answer else not answer["_shards"]["total"]:
            raise SideIndexReplaced(f"the side index of [{side.source}] was removed or replaced while it was searched")
        require_complete(answer)
        hits = answer["hits"]["hits"]
        marked = [(hit, mark) for hit in hits if (mark := mark_of(hit)) is not None]
        await self._number_permitted(side, dict(mark for _, mark in marked))
        known = self._numbers_of_source
        scored = [(known[DocumentId(side.source, routed)], hit.get("_score")) for hit, (routed, _) in marked]
        permitted = [(number, score) for number, score in scored if number is not None]
        exhausted = len(hits) < count or (bool(filters) and count == most)
        return neighbours([number for number, _ in permitted], [score for _, score in permitted]), exhausted

    async def _number_permitted(self, side: SideIndex, marks: Mapping[RoutedId, Mark]) -> None:
        """Give a number to each new document that the source returns to the caller; None to the others."""
        known = self._numbers_of_source
        new = {routed: mark for routed, mark in marks.items() if DocumentId(side.source, routed) not in known}
        if not new:
            return
        hits, uuid = await asyncio.gather(self._source_hits(side, new), self._uuid(side.source))
        keys = await self._gateway.attached.current(hits, new, uuid, self._context.caller)
        for routed in new:
            known[DocumentId(side.source, routed)] = None
        for hit, key in zip(hits, keys, strict=True):
            document = DocumentId(side.source, RoutedId.of(hit))
            if key is None:
                self.stale.add(document)
            elif key.encoder != self._context.encoder:
                self.skipped[document] = SkipReason.ENCODER
            else:
                known[document] = self._numbered(document, key, hit)

    async def _source_hits(self, side: SideIndex, marks: Mapping[RoutedId, Mark]) -> list[Hit]:
        """Return the hits of those documents that the source returns to the caller under the clause's filter."""
        found = self._matching.get(side.source)
        if found is None:
            ids = sorted({identifier for identifier, _ in marks})
            routed = any(routing is not None for _, routing in marks)  # then several documents may have one id
            size = MAX_KNN_CANDIDATES if routed else len(ids)
            found = await self._search_source(side, [{"ids": {"values": ids}}], size)
        return [found[document] for document in marks if document in found]

    async def _all_matching(self, side: SideIndex) -> dict[RoutedId, Hit]:
        """Return the hits of all documents that the source returns to the caller under the filter; searched once."""
        if side.source not in self._matching:
            self._matching[side.source] = await self._search_source(side, [], side.matching)
        return self._matching[side.source]

    async def _search_source(self, side: SideIndex, queries: Sequence[Any], size: int) -> dict[RoutedId, Hit]:
        filters = [*queries, {"term": {"_index": side.source}}, *self._clause.filters]
        body = {**self._context.shared, "query": {"bool": {"filter": filters}}, "size": size, "track_total_hits": False}
        [answer] = await self._send([body | self._fields])
        return {RoutedId.of(hit): hit for hit in answer["hits"]["hits"]}

    async def _uuid(self, index: str) -> str | None:
        if index not in self._uuids:  # searches of several vectors ask once
            self._uuids[index] = asyncio.create_task(self._gateway.attached.uuid(index, self._context.caller))
        return await self._uuids[index]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        try:
            read = await super()._read(keys, features)
        except SideIndexUnreadable as error:
            raise SideIndexReplaced(f"features in a side index could not be read: {error}") from error
        pairs = zip(keys, read.documents, strict=True)
        if any(key.side and not stored and key not in read.faults for key, stored in pairs):
            raise SideIndexReplaced("features in a side index were replaced while they were read")
        return read


async def until_k(find: Find, k: int, *, first: int) -> NearestDocuments:
    """Return neighbours that may be returned to the caller; request more until there are k, at most 10,000."""
    count = min(first, MAX_KNN_CANDIDATES)
    while True:
        found, exhausted = await find(count)
        complete = len(found.documents) >= k or exhausted
        if complete or count >= MAX_KNN_CANDIDATES:
            return replace(found, complete=complete)
        count = min(_FURTHER * count, MAX_KNN_CANDIDATES)


def neighbours(numbers: Sequence[int], scores: Sequence[float | None]) -> NearestDocuments:
    """Return documents with the cosines that correspond to an engine's scores, (1 + cosine) / 2.

    A score may correspond to none: OpenSearch before 2.19 returns 1 + cosine for exact searches.
    """
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        raise EngineError("a kNN search failed: [_score] of a hit of the engine's answer is missing")
    cosines = np.array([2 * score - 1 for score in known], np.float32)
    if len(cosines) and cosines.max() > _GREATEST_COSINE:
        raise EngineError(
            f"the engine gave a vector the score {(cosines.max() + 1) / 2:.3f}, and (1 + cosine) / 2 is at most 1: its "
            f"scores cannot be used; {oldest_versions()} or newer is needed"
        )
    return NearestDocuments(np.array(numbers, np.intp), np.clip(cosines, -1, 1))


def _require_distinct(hits: Sequence[Hit]) -> None:
    if any(mark is None or mark[2] for mark in marks_of(hits)):
        raise AmbiguousContent
