"""Candidates: documents that join a window, the nearest to the query under the search's filters.

They are found by the engine's own kNN on pooled vectors, in a search with the caller's headers, on the same path, with
the same URL parameters and the same point in time. So an alias's filter and the caller's rights hold for them; the
filters and exclusions of the query and a `post_filter` are added. If a part of the search has an unknown meaning for
such documents, none join, and the response contains the reason.

The search names the caller's query beside its kNN clause, so the engine says which of the documents match the query,
and with which score: a document that joins has the engine's own first-pass score, and 0 if it does not match.

If an earlier search of the target has found where its vectors are, the search runs at the same time as the first pass,
as soon as the query is encoded. If the vectors are in a side index, that finds documents, and the source decides which
of them the caller may read.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import compress, zip_longest
from typing import Any

from es_ttc.engine.versions import Product
from es_ttc.errors import EncoderMismatch, EngineError, MissingFeature
from es_ttc.index.mappings.spec import VECTOR
from es_ttc.retrievers.base import NearestDocuments
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.engine import EngineRefusal
from es_ttc.serving.features.attached import FeatureLocations, own_keys
from es_ttc.serving.features.encoding import EncodedQuery, ignore_failure
from es_ttc.serving.features.keys import MARKS, DocumentId, DocumentKey, content_ids
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import SearchContext, SideIndexReplaced, SideIndexSearch
from es_ttc.serving.knn.searched_indices import KnownTargets, SearchedIndices, matched_again, searched_indices_of
from es_ttc.serving.knn.searches import Body, SearchClient, require_complete, search_body, single_client
from es_ttc.serving.plan.bodies import NAMED_SCORES, OF_HITS, OF_THE_SEARCH, PARAMS_OF_HITS, params_of_matching
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.plan.query_parts import QueryParts, boost_of
from es_ttc.serving.request.body import body_number
from es_ttc.serving.request.query import without_inner_hits
from es_ttc.serving.request.request import SHARED_PARTS, SearchItem, SearchRequest, shared_parts
from es_ttc.serving.rescore.demands import UndecidedDemands, required_filters, text_fields
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import Float32

_UNDERSTOOD = frozenset(
    {
        "explain", "ext", "from", "include_named_queries_score", "indices_boost", "post_filter", "query", "rescore",
        "size", "sort", "stats", "stored_fields", "track_scores", *OF_HITS, *OF_THE_SEARCH, *SHARED_PARTS,
    }
)  # fmt: skip
"""Parts of a body that do not affect which documents are found, or whose meaning for candidates is known."""
_NOT_SENT = PARAMS_OF_HITS | {NAMED_SCORES, "search_type"}
_QUERY = "ttc-query"
"""Name of the caller's query in the search for candidates."""


def obstacle(plan: SearchPlan) -> str | None:
    """Return why a search can have no candidates, or None if it can."""
    for key in plan.body:
        if key not in _UNDERSTOOD:
            return f"[{key}] of the search is not known to hold for documents that kNN finds"
    for name in params_of_matching(plan.params):
        return f"the URL parameter [{name}] is not known to hold for documents that kNN finds"
    query = plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        return "a [hybrid] query brings candidates of its own"
    return None


@dataclass(frozen=True, slots=True)
class JoinedCandidates:
    """The candidates of a window.

    Attributes:
        hits: Hits of documents that are not in the window, nearest first, with the engine's score of the query, 0 for a
            document that the query does not match.
        matches: For each of them whether the query matches it.
        requested: Number of requested documents.
        filters: Queries that each of them matches, apart from the query's text.
        located: Where the features of the hits are.
        reason: Why there are none; None if the search succeeded.
    """

    hits: Sequence[dict[str, Any]] = ()
    matches: Sequence[bool] = ()
    requested: int = 0
    filters: Sequence[Any] = ()
    located: FeatureLocations = field(default_factory=FeatureLocations)
    reason: str | None = None

    @property
    def added(self) -> list[dict[str, Any]]:
        """The hits that the query does not match: the search finds as many documents more."""
        return [hit for hit, matches in zip(self.hits, self.matches, strict=True) if not matches]

    def only(self, kept: Sequence[bool]) -> "JoinedCandidates":
        """Return some of the candidates."""
        hits, matches = list(compress(self.hits, kept)), list(compress(self.matches, kept))
        return replace(self, hits=hits, matches=matches)

    def among(self, page: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the candidates' hits among those of a page."""
        joined = {id(hit) for hit in self.hits}
        return [hit for hit in page if id(hit) in joined]

    def places_left(self, hits: Sequence[Mapping[str, Any]], start: int) -> list[int]:
        """Return the places of those hits of the first pass from ``start`` on that are not candidates."""
        return [start + place for place in _places_of_others(hits[start:], self.hits)] if start < len(hits) else []

    def as_dict(self) -> dict[str, Any]:
        """Return their part of the summary."""
        summary: dict[str, Any] = {"knn": self.requested, "joined": len(self.hits)}
        return summary if self.reason is None else {**summary, "reason": self.reason}


NONE_JOINED = JoinedCandidates()


class CandidateSearch:
    """The search for the candidates of one window; it is sent at once if its target is known and the query is encoded.

    Attributes:
        obstacle: Why no documents can join; None if they can.
    """

    def __init__(
        self,
        gateway: Gateway,
        known: KnownTargets,
        request: SearchRequest,
        item: SearchItem,
        plan: SearchPlan,
        count: int,
        begun: asyncio.Task[EncodedQuery] | None,
        *,
        tokens: bool,
    ) -> None:
        self._gateway = gateway
        self._known = known
        self._request = request
        self._item = item
        self._plan = plan
        self._count = count
        self._begun = begun
        self._tokens = tokens
        self._caller = request.caller(item)
        self._filters: list[Any] | None = None
        self._keys: dict[DocumentId, DocumentKey] = {}  # of documents found in side indices
        self._mapped_fields: frozenset[str] = frozenset()
        self.obstacle = obstacle(plan)
        if self.obstacle is None:
            try:
                self._mapped_fields = text_fields(plan.body, plan.texts)
            except UndecidedDemands as error:
                self.obstacle = str(error)
        self._early: asyncio.Task[list[dict[str, Any]] | None] | None = None
        self._target = known.key_of(request, item)
        indices = known.of(self._target)
        if begun is not None and indices is not None and self.obstacle is None and not request.is_template:
            self._early = early = asyncio.create_task(self._found_early(indices, begun))
            early.add_done_callback(ignore_failure)
            if (owner := asyncio.current_task()) is not None:  # a search whose client has left needs no candidates
                owner.add_done_callback(lambda _: early.cancel())

    async def find(self, hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the candidates that join a window."""
        if self.obstacle is not None:
            return JoinedCandidates(requested=self._count, reason=self.obstacle)
        indices = self._known.of(self._target)
        if indices is not None and any(hit["_index"] not in indices.counts for hit in hits):
            indices, self._early = None, None  # an alias has moved, or there is a new index
        found: list[dict[str, Any]] = []
        try:
            if indices is not None:
                with suppress(EngineRefusal, SideIndexReplaced):  # what is known is of another index
                    found = await self._found(indices)
            if not found:
                self._known.put(self._target, None)
                self._early = None
                found = await self._found()
        except EngineRefusal:
            return JoinedCandidates(requested=self._count, reason="the engine refused the kNN search for candidates")
        except (UndecidedDemands, EngineError, EncoderMismatch, MissingFeature) as error:
            return JoinedCandidates(requested=self._count, reason=str(error))
        if not found:
            reason = "kNN finds no document: none with a vector that the engine can search matches the filters"
            return JoinedCandidates(requested=self._count, reason=reason)
        return await self._joined(outside(hits, found))

    async def _joined(self, found: Sequence[dict[str, Any]]) -> JoinedCandidates:
        """Return documents from outside a window with the engine's scores of the query."""
        least, boosts = body_number(self._plan.body.get("min_score")), self._plan.body.get("indices_boost")
        hits, matches = [], []
        for hit in found:
            score = hit.get("matched_queries", {}).get(_QUERY)
            boosted = (score or 0.0) * boost_of(hit["_index"], boosts)
            if score is not None and not self._plan.page.fetch:
                continue  # nothing is fetched but counts, and the engine counts what the query matches
            if least is None or (score is not None and boosted >= least):
                hits.append({**hit, "_score": boosted})
                matches.append(score is not None)
        located = await self._located(hits)
        return JoinedCandidates(hits, matches, self._count, await self._required(), located)

    async def _located(self, hits: Sequence[Mapping[str, Any]]) -> FeatureLocations:
        """Return where the features of hits are; the search of side indices has found that out already."""
        if self._keys:
            return FeatureLocations([self._keys.get(DocumentId.of(hit)) for hit in hits])
        return await self._gateway.attached.locate(hits, self._caller)

    async def _required(self) -> list[Any]:
        """Return the queries that every candidate must match."""
        if self._filters is None:
            names = self._mapped_fields
            analysed = await self._gateway.numbers.analysed(names, self._caller) if names else frozenset[str]()
            self._filters = required_filters(self._plan.body, self._plan.texts, analysed.__contains__)
        return self._filters

    async def _found_early(
        self, indices: SearchedIndices, begun: asyncio.Task[EncodedQuery]
    ) -> list[dict[str, Any]] | None:
        if (await self._gateway.encoders.first()).identity.key != indices.encoder:
            return None
        await asyncio.shield(begun)
        return await self._nearest(indices)

    async def _found(self, known: SearchedIndices | None = None) -> list[dict[str, Any]]:
        """Return the hits of the nearest documents."""
        found = None if self._early is None else await asyncio.shield(self._early)  # the window may be ranked twice
        if found is not None:
            return found
        indices = known or await self._searched_indices()
        if known is None and indices.encoder is not None:
            self._known.put(self._target, indices)
        return [] if indices.encoder is None else await self._nearest(indices)

    async def _nearest(self, indices: SearchedIndices) -> list[dict[str, Any]]:
        """Return the hits of the nearest documents of some indices."""
        assert indices.encoder is not None  # noqa: S101 - asked before
        self._keys = {}  # of an earlier search, which the target's move has made wrong
        with span("candidates"):
            filters, vectors = await self._required(), await self._vectors(indices.encoder)
            if indices.sides:
                return await self._in_side_indices(indices, indices.encoder, vectors, filters)
            return await self._own_vectors(indices.encoder, vectors, filters)

    async def _own_vectors(self, encoder: str, vectors: Float32, filters: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the hits that the engine finds by the documents' own vectors."""
        body = _nearest_to_any(await self._gateway.upstream.product(), vectors, self._count, filters)
        answer = await self._send({**body, **self._marks, "stored_fields": "_none_"})
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        keys = own_keys(hits).keys
        return [hit for hit, key in zip(hits, keys, strict=True) if key is not None and key.encoder == encoder]

    async def _vectors(self, encoder: str) -> Float32:
        encoders, target = self._gateway.encoders, self._caller.indices
        serving = await encoders.serving(encoder, target or "searched")
        encoded = await encoders.finish(serving, self._plan.texts, target, self._begun, tokens=self._tokens)
        return encoded.query.vectors

    async def _searched_indices(self) -> SearchedIndices:
        async with self._client() as client:
            return await searched_indices_of(client, [], shared_parts(self._plan.body))

    async def _in_side_indices(
        self, indices: SearchedIndices, encoder: str, vectors: Float32, filters: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Return the sources' hits of the documents that are found by vectors in side indices."""
        product, shared = await self._gateway.upstream.product(), shared_parts(self._plan.body)
        deadline = Deadline()  # the scoring timeout ends the search
        context = SearchContext(product, self._caller, encoder, shared, deadline)

        async def send(bodies: Sequence[Body]) -> list[Mapping[str, Any]]:
            return [await self._send(body) for body in bodies]

        async with self._client() as client:
            indices = await matched_again(client, indices, filters, shared)
            clause, fields = any_clause(product, filters), self._marks
            search = SideIndexSearch(
                clause, context, indices, client, self._gateway, details=False, fields=fields, send=send
            )
            nearest = await search.nearest(vectors, self._count)
        numbers = in_turn(nearest)[: self._count]
        self._keys = {DocumentId.of(search.hits[number]): search.keys[number] for number in numbers}
        return [dict(search.hits[number]) for number in numbers]

    def _client(self) -> AbstractAsyncContextManager[SearchClient]:
        """Open a client that sends several searches in one `_msearch`."""
        side_caller = self._gateway.attached.side_caller(self._caller)
        path, query_string = self._request.msearch_target()
        header = self._request.msearch_header(self._item)
        return single_client(self._gateway.engine, self._caller, side_caller, path, query_string, header)

    @property
    def _marks(self) -> Body:
        """The parts of a search by which its hits identify documents and features, and tell the query's scores."""
        fields = [*MARKS, *self._plan.numbers, *self._plan.group_fields]
        parts = self._plan.parts or QueryParts(None)
        query = without_inner_hits(parts.query or self._plan.body.get("query")) or {"match_all": {}}
        named = parts.named(further=[{"bool": {"must": [query], "_name": _QUERY}}])
        return {
            **shared_parts(self._plan.body), "_source": False, "docvalue_fields": fields, "post_filter": named,
        }  # fmt: skip

    async def _send(self, body: Body) -> dict[str, Any]:
        """Send a body as the caller's search, and return the engine's response.

        Parameters that affect only the contents of hits, or how words are scored, are left out: engines refuse some.
        """
        path, params = self._request.search_target(self._item)
        params = [(name, value) for name, value in params if name not in _NOT_SENT]
        params.append((NAMED_SCORES, "true"))
        response, _ = await self._gateway.engine.search_for(self._request.incoming, path, params, body)
        require_complete(response)
        return response


def _nearest_to_any(product: Product, vectors: Float32, count: int, filters: Sequence[Any]) -> Body:
    """Return the part of a search that finds the documents nearest to one of the query's vectors, ``(t, d)``."""
    bodies = [search_body(product, vector, count, filters) for vector in vectors]
    if len(bodies) == 1:
        return bodies[0]
    queries = [
        {"knn": {name: value for name, value in body["knn"].items() if name != "k"}} if "knn" in body else body["query"]
        for body in bodies
    ]
    return {"query": {"dis_max": {"queries": queries}}, "size": count, "track_total_hits": False}


def outside(hits: Sequence[Mapping[str, Any]], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of those hits whose documents are not in a window, with score 0."""
    return [{**found[place], "_score": 0.0} for place in _places_of_others(found, hits)]


def _places_of_others(hits: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the places of hits whose documents are not among those of others."""
    left, places = Counter(content_ids(held)), []
    for place, identity in enumerate(content_ids(hits)):
        if left[identity]:
            left[identity] -= 1
        else:
            places.append(place)
    return places


def in_turn(nearest: Sequence[NearestDocuments]) -> list[int]:
    """Return the documents nearest to some vectors, the nearest of each first, each document once."""
    rows = zip_longest(*(one.documents.tolist() for one in nearest))
    return [*dict.fromkeys(document for row in rows for document in row if document is not None)]


def any_clause(product: Product, filters: Sequence[Any] = ()) -> KnnClause:
    """Return a kNN clause with filters, as if it came from a request."""
    return KnnClause((), "top", product, VECTOR, {"filter": [*filters]}, (), None, None)
