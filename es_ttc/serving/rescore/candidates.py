"""Candidates: documents that join a window, the nearest to the query under the search's filters.

They are found by the engine's own kNN on pooled vectors, in a search with the caller's headers, on the same path, with
the same URL parameters and the same point in time. So an alias's filter and the caller's rights hold for them; the
filters and exclusions of the query and a `post_filter` are added. If a part of the search has an unknown meaning for
such documents, none join, and the response contains the reason.

If the documents contain their own vectors, the search runs at the same time as the first pass, as soon as the query is
encoded. If the vectors are in a side index, that finds documents, and the source decides which of them the caller may
read.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_ttc.common.caches import ExpiringCache
from es_ttc.engine.versions import Product
from es_ttc.errors import EncoderMismatch, EngineError, MissingFeature
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH, VECTOR
from es_ttc.serving.features.attached import changed_inside, own_keys
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.keys import SEQ_NO, identity_mark
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.knn.bodies import Body, search_body
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import SearchContext
from es_ttc.serving.knn.msearch import (
    BatchedMsearch,
    BatchedSearches,
    MsearchSender,
    SearchClient,
    require_complete,
    search_client,
)
from es_ttc.serving.knn.searched_indices import SearchedIndices, searched_indices_of
from es_ttc.serving.knn.side_index_search import SideIndexReplaced, SideIndexSearch
from es_ttc.serving.request.engine import EngineRefusal, ItemRefusal
from es_ttc.serving.request.request import SHARED_PARTS, shared_parts
from es_ttc.serving.rescore.demands import UndecidedDemands, required_filters, text_fields
from es_ttc.serving.rescore.plan import OF_HITS, OF_THE_SEARCH, SearchPlan, unsafe_params
from es_ttc.serving.rescore.response import CandidateRequest, JoinedCandidates
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import Float32

_UNDERSTOOD = frozenset(
    {
        "explain", "ext", "from", "indices_boost", "post_filter", "query", "rescore", "size", "sort", "stats",
        "stored_fields", "track_scores", *OF_HITS, *OF_THE_SEARCH, *SHARED_PARTS,
    }
)  # fmt: skip
"""Parts of a body that do not affect which documents are found, or whose meaning for candidates is known."""
Send = Callable[[Sequence[Body]], Awaitable[Sequence[Mapping[str, Any]]]]
"""Sends searches to the caller's target, and returns the engine's responses."""

_MOST_REMEMBERED = 10_000
_REMEMBERED_SECONDS = 60.0


def obstacle(plan: SearchPlan) -> str | None:
    """Return why a search can have no candidates, or None if it can."""
    for key in plan.body:
        if key not in _UNDERSTOOD:
            return f"[{key}] of the search is not known to hold for documents that kNN finds"
    for name in unsafe_params(plan.params, of_hits=True):
        return f"the URL parameter [{name}] is not known to hold for documents that kNN finds"
    query = plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        return "a [hybrid] query brings candidates of its own"
    return None


class NearestDocuments:
    """Finds candidates."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.engine = gateway.engine
        self._types = gateway.numbers
        self._own: ExpiringCache[str, str] = ExpiringCache(_MOST_REMEMBERED, _REMEMBERED_SECONDS)
        """By target, the encoder of documents that contain their own vectors."""

    def begin(self, request: CandidateRequest) -> "CandidateSearch":
        """Return a search for candidates; it is sent at once if the query is being encoded and the target is known."""
        search = CandidateSearch(self, request)
        begun, encoder = request.begun, self._known(search.caller)
        if begun is not None and encoder is not None and not request.request.is_template and search.reason is None:
            search.early = asyncio.create_task(self._early(search, encoder, begun))
            search.early.add_done_callback(_ignore_failure)
        return search

    async def find(self, search: "CandidateSearch", hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the candidates that join a window.

        Raises:
            EncoderError: The query could not be encoded.
            EncoderBusy: The encoder is not loaded now.
            TooManyRequests: Too many texts are waiting for the encoder.
        """
        if search.reason is not None:
            return JoinedCandidates(requested=search.request.count, reason=search.reason)
        target, identified = search.caller.indices, all("_id" in hit for hit in hits)
        if self._known(search.caller) is not None and _lacks_own_features(hits):
            self._own.put(target, "")  # an alias has moved to an index with features elsewhere
            search.early = None
        try:
            try:
                found, named = await self._found(search, identified=identified)
            except (EngineRefusal, ItemRefusal):
                if self._known(search.caller) is None:
                    raise
                found, named = [], False
            if not found and self._known(search.caller) is not None:
                self._own.put(target, "")
                search.early = None
                found, named = await self._found(search, identified=identified)
        except (EngineRefusal, ItemRefusal):
            reason = "the engine refused the kNN search for candidates"
            return JoinedCandidates(requested=search.request.count, reason=reason)
        except (
            UndecidedDemands,
            EngineError,
            EncoderMismatch,
            MissingFeature,
        ) as error:
            return JoinedCandidates(requested=search.request.count, reason=str(error))
        if not found:
            reason = "kNN finds no document: none with a vector that the engine can search matches the filters"
            return JoinedCandidates(requested=search.request.count, reason=reason)
        return JoinedCandidates(outside(hits, found, named=named), search.request.count, named, search.filters)

    async def _found(self, search: "CandidateSearch", *, identified: bool) -> tuple[list[dict[str, Any]], bool]:
        """Return the nearest documents, and whether they have ids."""

        def need_ids(hits: Sequence[Mapping[str, Any]]) -> bool:
            return any(map(changed_inside, hits)) or (identified and has_twins(hits))

        found = None if search.early is None else await asyncio.shield(search.early)  # the window may be ranked twice
        if found is not None and not need_ids(found):
            return found, False
        with span("candidates"):
            return await self._found_now(search, need_ids, with_ids=found is not None)

    async def _found_now(
        self, search: "CandidateSearch", need_ids: Callable[[Sequence[Mapping[str, Any]]], bool], *, with_ids: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return the nearest documents, and whether they have ids."""
        await self._decide(search)
        encoder = self._known(search.caller)
        if encoder is None:
            indices = await self._searched_indices(search)
            if indices.sides:
                return await self._in_side_indices(search, indices), True
            if indices.encoder is None:
                return [], False
            encoder = indices.encoder
            self._own.put(search.caller.indices, encoder)
        vector = await self._vector(search, encoder)
        if not with_ids:
            found = await self._own_vectors(search, encoder, vector, named=False)
            if not need_ids(found):
                return found, False
        return await self._own_vectors(search, encoder, vector, named=True), True

    async def _decide(self, search: "CandidateSearch") -> None:
        """Set the queries that every candidate must match."""
        if search.decided:
            return
        plan = search.request.plan
        names = search.mapped_fields
        analysed = await self._types.analysed(names, search.caller) if names else frozenset()
        search.filters = required_filters(plan.body, plan.texts, analysed.__contains__)
        search.decided = True

    def _known(self, caller: Caller) -> str | None:
        """Return the encoder of a target whose documents are known to contain their own vectors, or None."""
        known = self._own.get(caller.indices) if caller.indices else None  # a point in time names no target
        return None if known is None else known.value or None

    async def _early(
        self, search: "CandidateSearch", encoder: str, begun: asyncio.Task[EncodedQuery]
    ) -> list[dict[str, Any]] | None:
        encoded = await asyncio.shield(begun)
        if encoded.key != encoder:
            return None
        await self._decide(search)
        with span("candidates"):
            return await self._own_vectors(search, encoder, encoded.query.vectors[0], named=False)

    async def _own_vectors(
        self, search: "CandidateSearch", encoder: str, vector: Float32, *, named: bool
    ) -> list[dict[str, Any]]:
        """Return the hits that the engine finds by the documents' own vectors."""
        product = await self._gateway.upstream.product()
        body = search_body(product, vector, search.request.count, search.filters)
        answer = await search.send({**body, **search.marks, **({} if named else {"stored_fields": "_none_"})})
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        keys = own_keys(hits).keys
        return [hit for hit, key in zip(hits, keys, strict=True) if key is not None and key.encoder == encoder]

    async def _vector(self, search: "CandidateSearch", encoder: str) -> Float32:
        serving = await self._gateway.encoders.serving(encoder, search.caller.indices or "searched")
        tokens = search.request.method.query_tokens
        encoded = await self._gateway.encoders.finish(
            serving, search.request.plan.texts, search.request.begun, tokens=tokens
        )
        vector: Float32 = encoded.query.vectors[0]
        return vector

    async def _searched_indices(self, search: "CandidateSearch") -> SearchedIndices:
        async with self._client(search) as client:
            product = await self._gateway.upstream.product()
            unsearchable = product == "opensearch"
            indices = await searched_indices_of(client, search.filters, search.shared, unsearchable=unsearchable)
            indices.require_searchable()
            return indices

    @asynccontextmanager
    async def _client(self, search: "CandidateSearch") -> AsyncIterator[SearchClient]:
        """Open a client that sends several searches in one `_msearch`."""
        path, query_string = search.request.request.msearch_target()
        side_caller = self._gateway.attached.side_caller(search.caller)
        sender = MsearchSender(self._gateway.upstream, search.caller, side_caller, path, query_string)
        batches: BatchedMsearch = BatchedSearches(sender.send)
        [member] = batches.join(1)
        async with batches.active(member):
            yield search_client(batches, member, search.request.request.msearch_header(search.request.item))

    async def _in_side_indices(self, search: "CandidateSearch", indices: SearchedIndices) -> list[dict[str, Any]]:
        """Return the sources' hits of the documents that are found by vectors in side indices."""
        assert indices.encoder is not None  # noqa: S101 - a side index has one
        vector = await self._vector(search, indices.encoder)
        product = await self._gateway.upstream.product()
        clause = any_clause(product, search.filters)
        never = float("inf")  # the scoring timeout ends the search
        context = SearchContext(product, search.caller, indices.encoder, search.shared, never)
        async with self._client(search) as client:
            in_side_indices = SideIndexSearch(clause, context, indices, client, self._gateway, details=False)
            vectors, count = vector[np.newaxis], search.request.count
            [found] = await nearest_in_side_indices(in_side_indices, vectors, count, search.body_of, search.send_all)
        return found


@dataclass(slots=True)
class CandidateSearch:
    """The search for the candidates of one window."""

    service: NearestDocuments
    request: CandidateRequest
    early: asyncio.Task[list[dict[str, Any]] | None] | None = None
    caller: Caller = field(init=False)
    mapped_fields: frozenset[str] = frozenset()
    filters: list[Any] = field(default_factory=list)
    decided: bool = False
    reason: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.caller = self.request.request.caller(self.request.item)
        plan = self.request.plan
        self.reason = obstacle(plan)
        if self.reason is None:
            try:
                self.mapped_fields = text_fields(plan.body, plan.texts)
            except UndecidedDemands as error:
                self.reason = str(error)

    @property
    def shared(self) -> Body:
        """Parts of the caller's body that the filters may depend on."""
        return shared_parts(self.request.plan.body)

    @property
    def marks(self) -> Body:
        """The parts of a search that make its hits contain what identifies features, with the shared parts."""
        plan = self.request.plan
        fields = [HASH, ENCODER, VERSION, SEQ_NO, *plan.numbers, *plan.group_fields]
        return {**self.shared, "_source": False, "docvalue_fields": fields, "version": True}

    async def find(self, hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the candidates that join a window; see :meth:`NearestDocuments.find`."""
        return await self.service.find(self, hits)

    async def send(self, body: Body) -> dict[str, Any]:
        """Send a body with the headers, path and parameters of the search, and return the engine's response.

        Raises:
            EngineRefusal: The engine returned an error for a `_search`.
            ItemRefusal: The engine returned an error for a search of an `_msearch`.
            EngineError: Only a part of the documents was searched.
        """
        response, _ = await self.service.engine.again(self.request.request, self.request.item, body)
        require_complete(response)
        return response

    def body_of(self, ids: Sequence[str]) -> Body:
        """Return the search for candidates with some ids, among the documents that match the filters."""
        found = {"bool": {"filter": [{"ids": {"values": [*ids]}}, *self.filters]}}
        return {"query": found, **self.marks, "track_total_hits": False}

    async def send_all(self, bodies: Sequence[Body]) -> list[dict[str, Any]]:
        """Send several bodies; see :meth:`send`."""
        return [await self.send(body) for body in bodies]


def _lacks_own_features(hits: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no hit of one of the indices has features of its own."""
    having: dict[str, bool] = {}
    for hit, key in zip(hits, own_keys(hits).keys, strict=True):
        having[hit["_index"]] = having.get(hit["_index"], False) or key is not None
    return not all(having.values())


def outside(hits: Sequence[Mapping[str, Any]], found: Sequence[dict[str, Any]], *, named: bool) -> list[dict[str, Any]]:
    """Return copies of those hits whose documents are not in a window, with score 0."""
    held = Counter(identity_mark(hit, named=named) for hit in hits)
    joined = []
    for hit in found:
        mark = identity_mark(hit, named=named)
        if held[mark]:
            held[mark] -= 1
        else:
            joined.append({**hit, "_score": 0.0})
    return joined


def has_twins(hits: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two hits have the same content, so that their content does not identify them."""
    return len({identity_mark(hit, named=False) for hit in hits}) < len(hits)


def _ignore_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved; a task that awaits it gets it too


async def nearest_in_side_indices(
    search: SideIndexSearch, vectors: Float32, count: int, body: Callable[[Sequence[str]], Body], send: Send
) -> list[list[dict[str, Any]]]:
    """Return for each vector the sources' hits of the nearest documents, nearest first; none without a right to it.

    Args:
        search: Finds documents by vectors in side indices.
        vectors: ``(r, d)``.
        count: Number of requested documents.
        body: Returns the search of the sources for some ids, with the filters that documents must match.
        send: Sends searches to the sources.

    Raises:
        EngineError: The engine failed, or a side index was replaced.
    """
    try:
        nearest = await search.nearest(vectors, count)
    except SideIndexReplaced as error:
        raise EngineError(str(error)) from error
    named = [[search.ids[number] for number in one.documents.tolist()] for one in nearest]
    some = [ids for ids in named if ids]
    bodies = [body(sorted({identifier for _, identifier in ids})) | {"size": len(ids)} for ids in some]
    answers = iter(await send(bodies) if bodies else ())
    return [_in_order(ids, next(answers)) if ids else [] for ids in named]


def _in_order(ids: Sequence[tuple[str, str]], answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hits of documents in the order of their ids, without documents that have none."""
    found = {(str(hit["_index"]), str(hit["_id"])): hit for hit in answer["hits"]["hits"]}
    return [found[one] for one in ids if one in found]


def any_clause(product: Product, filters: Sequence[Any] = ()) -> KnnClause:
    """Return a kNN clause with filters, as if it came from a request."""
    return KnnClause((), "top", product, VECTOR, {"filter": [*filters]}, (), None, None)
