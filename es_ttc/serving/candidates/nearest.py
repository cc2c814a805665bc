"""The documents nearest to vectors: the engine's own kNN, with the caller's credentials.

Every search contains the caller's filters and is sent to the caller's target: an alias's filter and rights hold.

Of an attached index the side index knows which documents are near, and only the source decides whether the caller may
read one. So every document that a search of a side index finds is searched in the source, with the caller's credentials
and filters and in the caller's point in time. A document that the source does not return, or whose text has changed, is
skipped: it is not displayed or used, and its features are not read. If few documents match the filters, their ids are
read first, and only their vectors are searched.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from es_ttc.engine.versions import Product, oldest_versions
from es_ttc.errors import EngineError
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.queries import MAX_KNN_CANDIDATES
from es_ttc.index.mappings.spec import HASH, SPAN_VECTOR, SPANS, TOKEN_VECTOR, TOKENS, VECTOR
from es_ttc.rescorers.base import Feature
from es_ttc.retrievers.base import Vectors
from es_ttc.serving.candidates.batches import SearchAnswer, SearchBody, TargetSearches, require_whole_answer
from es_ttc.serving.candidates.targets import SearchedIndices, SideIndex
from es_ttc.serving.features.keys import IDENTIFYING_FIELDS, DocumentId, DocumentKey, RoutedId
from es_ttc.serving.features.known_marks import Attachment, FeatureMark
from es_ttc.serving.features.locations import own_keys
from es_ttc.serving.features.side_index import DOCUMENT_FIELDS, MARK_FIELDS, document_of
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.vectors.tokens import Float32

Hit = Mapping[str, Any]
MakeBody = Callable[[int, Sequence[Any]], SearchBody]
"""Makes the search for a number of neighbours under some filters."""

_ANYWHERE = {"ignore_unmapped": True}  # in queries over several indices, some of which may have no such vectors
_PATHS: Mapping[Vectors, tuple[str, str | None]] = {
    Vectors.POOLED: (VECTOR, None),
    Vectors.SPANS: (SPAN_VECTOR, SPANS),
    Vectors.TOKENS: (TOKEN_VECTOR, TOKENS),
}
"""For each kind of vectors their field, and the nested object that contains it."""
FIELDS: Mapping[Vectors, str] = {among: field for among, (field, _) in _PATHS.items()}
_GREATEST_COSINE = 1.2
"""Maximum cosine in an engine's answer: engines round, most of all with quantised vectors."""
_FURTHER = 4
"""Factor of the number of requested neighbours if too many of the first ones may not be returned."""
_INDEX_DELETED = (404, 500, 503)
"""Statuses of a search whose index is deleted while it runs: no context, closed reader, no shards."""


class SideIndexReplaced(EngineError):
    """The searched side index was replaced by another one."""

    status = 503


@dataclass(frozen=True, slots=True)
class KnnOptions:
    """How vectors are searched; see :meth:`es_ttc.retrievers.base.Search.nearest`. `keys` are those of each query."""

    among: Vectors = Vectors.POOLED
    num_candidates: int = 0
    exact: bool = False
    features: frozenset[Feature] = frozenset()
    keys: Mapping[str, Any] = field(default_factory=dict)


POOLED_VECTORS = KnnOptions()
"""The approximate search of pooled vectors."""


@dataclass(frozen=True, slots=True)
class KnnTarget:
    """What is searched for nearest documents, with whose rights, and under which filters.

    Attributes:
        searches: Sends searches to the target and to side indices.
        shared: Parts of the caller's body that the filters may depend on.
        fields: Parts of a body that say what is read of each hit, so that it tells its document and features.
        with_ids: Whether hits of documents with vectors of their own have ids.
        send: Sends searches to the target in place of `searches`.
        assume: Whether UUIDs of sources are used that earlier searches have read; see :attr:`NearestSearch.assumed`.
    """

    caller: Caller
    indices: SearchedIndices
    searches: TargetSearches
    filters: Sequence[Any] = ()
    shared: SearchBody = field(default_factory=dict)
    fields: SearchBody = field(default_factory=lambda: {"_source": False, "docvalue_fields": IDENTIFYING_FIELDS})
    with_ids: bool = True
    send: Callable[[Sequence[SearchBody]], Awaitable[Sequence[SearchAnswer]]] | None = None
    assume: bool = False

    async def search(self, body: SearchBody) -> list[Hit]:
        """Return the hits of one search of the target."""
        [answer] = await (self.send or self.searches.send)([{**self.shared, **body}])
        hits: list[Hit] = answer["hits"]["hits"]
        return hits


class Neighbour(NamedTuple):
    """A document near to a vector: its hit in the searched index, the key of its features, and its cosine."""

    hit: Hit
    key: DocumentKey
    cosine: float


class NearestHits(NamedTuple):
    """Documents near to a vector; `complete` if there are no others, should there be fewer than requested."""

    documents: Sequence[Neighbour]
    complete: bool


def _order(document: Neighbour) -> tuple[float, str, str, str]:
    """Order documents nearest first; equal cosines by index, id and routing, as on every page."""
    hit, key, cosine = document
    return -cosine, str(hit["_index"]), str(hit.get("_id", key.hash)), hit.get("_routing") or ""


class NearestSearch:
    """Searches one target. What its source says of the documents of a side index is asked once.

    Attributes:
        skipped: Documents whose features are of another encoder or cannot be used, with the reason.
        stale: Documents that were skipped because their vectors are of an earlier text.
        assumed: What is to be confirmed before the keys of documents are used: see :meth:`FeatureLocator.confirmed`.
    """

    def __init__(self, gateway: Gateway, target: KnnTarget) -> None:
        self.skipped: dict[DocumentId, SkipReason] = {}
        self.stale: set[DocumentId] = set()
        self._gateway = gateway
        self._target = target
        sides = [side for side in target.indices.sides if side.matching and side.documents]
        self._sides = [_SideSearch(gateway, target, side, self.skipped, self.stale) for side in sides]
        self.assumed = frozenset(side.assumed for side in self._sides if side.assumed is not None)

    async def nearest(
        self, queries: Sequence[Float32], k: int, options: KnnOptions = POOLED_VECTORS
    ) -> list[NearestHits]:
        """Return for each query the k documents nearest to one of its vectors, ``(t, d)``, nearest first."""
        product, k = await self._gateway.upstream.product(), min(k, MAX_KNN_CANDIDATES)
        bodies = [partial(search_body, product, vectors, options=options) for vectors in queries]
        return await asyncio.gather(*(self._nearest(body, k, options.features) for body in bodies))

    async def _nearest(self, body: MakeBody, k: int, features: frozenset[Feature]) -> NearestHits:
        finds = [until_k(partial(side.find, body), k, first=side.first_count(k)) for side in self._sides]
        if self._target.indices.own:
            finds.append(until_k(partial(self._find_own, body, features), k, first=k))
        parts = [await finds[0]] if len(finds) == 1 else await asyncio.gather(*finds)
        documents = sorted((document for part in parts for document in part.documents), key=_order)
        if len(parts) > 1:  # a document may have vectors of its own and in a side index: the nearest one counts
            documents = [*{DocumentId.of(document.hit): document for document in documents[::-1]}.values()][::-1]
        return NearestHits(documents[:k], all(part.complete for part in parts))

    async def _find_own(self, body: MakeBody, features: frozenset[Feature], count: int) -> NearestHits:
        """Search the vectors in the documents themselves; see :func:`until_k`."""
        target = self._target
        stored = [FEATURES[feature].name for feature in sorted(features)]
        only = {"stored_fields": stored or "_none_"} if stored or not target.with_ids else {}
        hits = await target.search({**body(count, target.filters), **target.fields, **only})
        documents: list[Neighbour] = []
        cosines = cosines_of([hit.get("_score") for hit in hits])
        for hit, key, cosine in zip(hits, own_keys(hits).keys, cosines, strict=True):
            if key is not None and key.encoder == target.indices.encoder:
                documents.append(Neighbour(hit, key, cosine))
                continue
            shown = str(hit.get("_id", hit.get("fields", {}).get(HASH, [""])[0]))
            reason = SkipReason.MARKS if key is None else SkipReason.ENCODER
            self.skipped[DocumentId(str(hit["_index"]), RoutedId(shown, hit.get("_routing")))] = reason
        return NearestHits(documents, len(hits) < count)


class _SideSearch:
    """Searches one side index."""

    def __init__(
        self,
        gateway: Gateway,
        target: KnnTarget,
        side: SideIndex,
        skipped: dict[DocumentId, SkipReason],
        stale: set[DocumentId],
    ) -> None:
        self.first_count = side.first_count
        self._attached = gateway.attached
        self._target = target
        self._side = side
        self._skipped = skipped
        self._stale = stale
        known = gateway.attached.known(side.source, target.caller)
        self._known = known if known is not None and known.side == side.name else None
        self.assumed: Attachment | None = self._known if target.assume else None
        self._uuid: asyncio.Task[str | None] | None = None
        self._matching: Sequence[str] | None = None
        self._hits: dict[RoutedId, Hit | None] = {}
        self._permitted: dict[RoutedId, tuple[Hit, DocumentKey] | None] = {}

    async def find(self, body: MakeBody, count: int) -> NearestHits:
        """Search the side index; see :func:`until_k`."""
        side = self._side
        filters: list[Any] = []
        most = MAX_KNN_CANDIDATES
        if side.filter_first(count):
            if self._matching is None:
                self._hits = {**_by_document(await self._search_source(side.matching, {}))}
                self._matching = sorted({identifier for identifier, _ in self._hits})
            if not self._matching:
                return NearestHits((), complete=True)
            filters = [{"ids": {"values": self._matching}}]
            most = len(self._hits)
        count = min(count, most)
        fields = MARK_FIELDS if self._known is None else DOCUMENT_FIELDS
        search = {**body(count, filters), "stored_fields": "_none_", "docvalue_fields": [*fields]}
        [answer], _ = await asyncio.gather(
            self._target.searches.send_to_sides([(side.name, search)]),
            self._search_documents(self._attached.last_nearest(side.name, search)),
        )
        if answer.get("status") in _INDEX_DELETED if "error" in answer else not answer["_shards"]["total"]:
            raise _replaced(side)
        require_whole_answer(answer)
        hits = answer["hits"]["hits"]
        by_document = {document: hit for hit in hits if (document := document_of(hit)) is not None}
        if not filters:
            self._attached.put_nearest(side.name, search, [*by_document])
        await self._read_permitted(
            {document: hit for document, hit in by_document.items() if document not in self._permitted}
        )
        cosines = cosines_of([hit.get("_score") for hit in by_document.values()])
        permitted = [self._permitted[document] for document in by_document]
        documents = [
            Neighbour(*document, cosine) for document, cosine in zip(permitted, cosines, strict=True) if document
        ]
        return NearestHits(documents, len(hits) < count or (bool(filters) and count == most))

    async def _read_permitted(self, new: Mapping[RoutedId, Hit]) -> None:
        """Note of each new document its hit and key, None if the source does not return it to the caller."""
        if not new:
            return
        _, marks, uuid = await asyncio.gather(self._search_documents(new), self._marks(new), self._source_uuid())
        hits = [hit for document in marks if document in new and (hit := self._hits.get(document)) is not None]
        keys = await self._attached.current(hits, marks, uuid, self._target.caller)
        self._permitted |= dict.fromkeys(new)
        for hit, key in zip(hits, keys, strict=True):
            document = RoutedId.of(hit)
            if key is None:
                self._stale.add(DocumentId(self._side.source, document))
            elif key.encoder != self._target.indices.encoder:
                self._skipped[DocumentId(self._side.source, document)] = SkipReason.ENCODER
            else:
                self._permitted[document] = hit, key

    async def _marks(self, hits: Mapping[RoutedId, Hit]) -> Mapping[RoutedId, FeatureMark]:
        """Return the marks of documents, by their hits in the side index."""
        if self._known is None:
            return self._attached.marks_in_hits(hits.values())
        side = self._side
        marks = await self._attached.marks_of_hits(hits, side.name, side.source, self._target.caller)
        if marks is None:
            raise _replaced(side)
        return marks

    async def _source_uuid(self) -> str | None:
        if self.assumed is not None:
            return self.assumed.uuid
        if self._uuid is None:  # searches of several vectors ask once
            self._uuid = asyncio.create_task(self._attached.uuid(self._side.source, self._target.caller))
        return await self._uuid

    async def _search_documents(self, documents: Iterable[RoutedId]) -> None:
        """Note of each document the hit that the source returns to the caller under the filters, None without one."""
        new = [document for document in documents if document not in self._hits]
        if not new or self._matching is not None:
            return
        ids = sorted({document.id for document in new})
        routed = any(document.routing is not None for document in new)  # then several may have one id
        hits = None if routed else await self._search_by_ids(ids)
        if hits is None:
            size = MAX_KNN_CANDIDATES if routed else len(ids)
            hits = _by_document(await self._search_source(size, {"filter": [{"ids": {"values": ids}}]}))
        self._hits |= {**dict.fromkeys(new), **hits}

    async def _search_by_ids(self, ids: Sequence[str]) -> dict[RoutedId, Hit] | None:
        """Return the hits of documents without a routing; None if the scores do not tell which is which.

        To read an `_id` an engine decompresses the documents around it, so the hits have none. The score of each is its
        place among the ids, from 1 on: the sum of the scores of clauses, one for each bit of a place.
        """
        by_score = {float(place): name for place, name in enumerate(ids, 1)}
        clauses = []
        for bit in range(len(ids).bit_length()):
            part = [name for place, name in enumerate(ids, 1) if place >> bit & 1]
            clauses.append({"constant_score": {"filter": {"ids": {"values": part}}, "boost": 1 << bit}})
        query = {"should": clauses, "minimum_should_match": 1, "must_not": [{"exists": {"field": "_routing"}}]}
        hits = await self._search_source(len(ids), query, stored_fields="_none_")
        scores = {hit.get("_score") for hit in hits}
        if len(scores) < len(hits) or not scores <= by_score.keys():
            return None
        return _by_document([{**hit, "_id": by_score[hit["_score"]]} for hit in hits])

    async def _search_source(self, size: int, query: SearchBody, **fields: Any) -> list[Hit]:
        """Return the hits of the source's documents that match the clauses of a `bool` query, and the filters."""
        target = self._target
        filters = [*query.get("filter", ()), {"term": {"_index": self._side.source}}, *target.filters]
        body = {"query": {"bool": {**query, "filter": filters}}, "size": size, "track_total_hits": False}
        return await target.search({**body, **target.fields, **fields})


def _by_document(hits: Sequence[Hit]) -> dict[RoutedId, Hit]:
    return {RoutedId.of(hit): hit for hit in hits}


def _replaced(side: SideIndex) -> SideIndexReplaced:
    return SideIndexReplaced(f"the side index of [{side.source}] was removed or replaced while it was searched")


async def until_k(find: Callable[[int], Awaitable[NearestHits]], k: int, *, first: int) -> NearestHits:
    """Return neighbours that may be returned to the caller; request more until there are k, at most 10,000.

    ``find`` returns those among a number of neighbours, and whether there are no others.
    """
    count = min(first, MAX_KNN_CANDIDATES)
    while True:
        documents, no_others = await find(count)
        complete = len(documents) >= k or no_others
        if complete or count >= MAX_KNN_CANDIDATES:
            return NearestHits(documents, complete)
        count = min(_FURTHER * count, MAX_KNN_CANDIDATES)


def cosines_of(scores: Sequence[float | None]) -> list[float]:
    """Return the cosines that correspond to an engine's scores, (1 + cosine) / 2.

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
    clipped: list[float] = np.clip(cosines, -1, 1).tolist()
    return clipped


def search_body(product: Product, vectors: Float32, k: int, filters: Sequence[Any], options: KnnOptions) -> SearchBody:
    """Return the part of a `_search` body that finds the documents nearest to one of some vectors, ``(t, d)``."""
    queries = [_query(product, vector.tolist(), k, filters, options) for vector in vectors]
    if len(queries) > 1:
        for query in queries:
            query.get("knn", {}).pop("k", None)  # Elasticsearch has none in a query; OpenSearch's is below the field
        search: SearchBody = {"query": {"dis_max": {"queries": queries}}}
    else:
        [search] = queries if product == "elasticsearch" and not options.exact else [{"query": queries[0]}]
    return {**search, "size": k, "track_total_hits": False}


def _query(product: Product, vector: list[float], k: int, filters: Sequence[Any], options: KnnOptions) -> SearchBody:
    """Return the search for the documents nearest to one vector, in the product's syntax."""
    field, nested = _PATHS[options.among]
    if options.exact:
        scored = {"script_score": {"query": {"exists": {"field": field}}, "script": _exact(product, field, vector)}}
        return {"bool": {"must": [_below(nested, scored)], "filter": [*filters]}}
    candidates = min(MAX_KNN_CANDIDATES, max(k, options.num_candidates)) if options.num_candidates else None
    if product == "elasticsearch":
        knn: SearchBody = {"field": field, "query_vector": vector, "k": k, **options.keys}
        knn |= {} if candidates is None else {"num_candidates": candidates}
        return {"knn": {**knn, "filter": [*filters]} if filters else knn}
    # k applies to each shard's index, `size` to the whole result
    knn = {"vector": vector, "k": candidates or k, **options.keys, **_ANYWHERE}
    knn |= {"filter": all_filters(filters)} if filters else {}
    return _below(nested, {"knn": {field: knn}})


def _exact(product: Product, field: str, vector: list[float]) -> SearchBody:
    if product == "elasticsearch":
        source = f"(1.0 + cosineSimilarity(params.vector, '{field}')) / 2.0"
        return {"source": source, "params": {"vector": vector}}
    params = {"field": field, "query_value": vector, "space_type": "cosinesimil"}
    return {"lang": "knn", "source": "knn_score", "params": params}


def _below(nested: str | None, query: SearchBody) -> SearchBody:
    if nested is None:
        return query
    return {"nested": {"path": nested, "score_mode": "max", "query": query, **_ANYWHERE}}


def all_filters(filters: Sequence[Any]) -> Any:
    """Return one query that matches the documents that all filters match."""
    return filters[0] if len(filters) == 1 else {"bool": {"filter": [*filters]}}
