"""Documents that join a window: the nearest to the query by pooled vector, under everything that the search demands.

They are found by the engine's own kNN, asked for as the search itself was: with the caller's headers, by the same path
and parameters, inside the same point in time. What the query demands beside its words (filters, exclusions) and a
`post_filter` hold for them, as an alias's filter and the caller's rights do by the path. Where a search has a part
whose meaning for such documents is not known, none join, and the response says why.

On a target whose documents hold their own vectors the search goes out beside the first pass, as soon as the query is
encoded. Where vectors are in a side index, that proposes documents, and the source says which of them the caller may
see.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_ttc.common.caches import ExpiringCache
from es_ttc.engine.versions import Product
from es_ttc.errors import EncoderMismatch, EngineError, MissingFeature
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH, VECTOR
from es_ttc.serving.adaptive.filters import required_filters
from es_ttc.serving.features.attached import AttachedFeatureLocator, changed_inside, own_key
from es_ttc.serving.features.encoding import EncodedQuery, Encoders
from es_ttc.serving.features.keys import SEQ_NO, identity_mark
from es_ttc.serving.features.scoring import Method
from es_ttc.serving.features.store import FeatureStore
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.knn.answers import Body, SearchClient, require_whole
from es_ttc.serving.knn.batched_searches import BatchedSearches
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import SearchContext, search_body
from es_ttc.serving.knn.search_client import BatchedMsearch, SearchClients, search_client_of
from es_ttc.serving.knn.searched_indices import SearchedIndices, searched_indices_of
from es_ttc.serving.knn.side_index_search import SideIndexReplaced, SideIndexSearch
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.two_requests import OF_HITS, OF_THE_SEARCH, SAFE_PARAMS
from es_ttc.serving.search.engine import EngineRefusal, EngineSearches, ItemRefusal
from es_ttc.serving.search.msearch import SHARED_PARTS, msearch_target, search_header, shared_parts
from es_ttc.serving.search.request import SearchItem, SearchRequest
from es_ttc.vectors.tokens import Float32

_UNDERSTOOD = frozenset(
    {
        "explain", "ext", "from", "indices_boost", "post_filter", "query", "rescore", "size", "sort", "stats",
        "stored_fields", "track_scores", *OF_HITS, *OF_THE_SEARCH, *SHARED_PARTS,
    }
)  # fmt: skip
"""Parts of a body that say nothing about which documents are found, or whose meaning for further ones is known."""
_PARAMS_UNDERSTOOD = SAFE_PARAMS | {"_source", "_source_excludes", "_source_includes", "explain", "version"}
_MOST_REMEMBERED = 10_000
_REMEMBERED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JoinedCandidates:
    """What joins a window.

    Attributes:
        hits: Hits of documents that the window does not hold, nearest first, with `_score` 0: with their content hash,
            and with an `_id` only where `named`.
        asked: How many documents were looked for.
        named: Whether documents are told apart by their ids.
        filters: What each of them was asked to match, beside the words of the query.
        reason: Why none could join; None where they could.
    """

    hits: Sequence[dict[str, Any]] = ()
    asked: int = 0
    named: bool = False
    filters: Sequence[Any] = ()
    reason: str | None = None

    def among(self, page: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those hits of a page that joined the window."""
        joined = {id(hit) for hit in self.hits}
        return [hit for hit in page if id(hit) in joined]

    def places_left(self, hits: Sequence[Mapping[str, Any]], start: int) -> list[int]:
        """Return the places of those hits of the first pass from ``start`` on that have not joined its window."""
        joined = Counter(identity_mark(hit, named=self.named) for hit in self.hits)
        left = []
        for place in range(start, len(hits)):
            mark = identity_mark(hits[place], named=self.named)
            if joined[mark]:
                joined[mark] -= 1
            else:
                left.append(place)
        return left

    def as_dict(self) -> dict[str, Any]:
        """Return what the response tells about them."""
        told: dict[str, Any] = {"knn": self.asked, "joined": len(self.hits)}
        return told if self.reason is None else {**told, "reason": self.reason}


NONE_JOINED = JoinedCandidates()


def obstacle(plan: SearchPlan) -> str | None:
    """Return why no documents can join a search's window, or None where they can."""
    for key in plan.body:
        if key not in _UNDERSTOOD:
            return f"[{key}] of the search is not known to hold for documents that kNN finds"
    for name, _ in plan.params:
        if name not in _PARAMS_UNDERSTOOD:
            return f"the URL parameter [{name}] is not known to hold for documents that kNN finds"
    query = plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        return "a [hybrid] query brings candidates of its own"
    return None


class NearestDocuments:
    """Finds documents that join windows.

    Args:
        upstream: The engine.
        features: The documents' features.
        attached: Finds those of attached indices.
        encoders: The queries' encoders.
        pool: Where computations run.
    """

    def __init__(
        self,
        upstream: Upstream,
        features: FeatureStore,
        attached: AttachedFeatureLocator,
        encoders: Encoders,
        pool: BoundedPool,
    ) -> None:
        self._upstream = upstream
        self.engine = EngineSearches(upstream)
        self._features = features
        self._attached = attached
        self._encoders = encoders
        self._pool = pool
        self._own: ExpiringCache[str, str] = ExpiringCache(_MOST_REMEMBERED, _REMEMBERED_SECONDS)
        """By what is searched, the encoder of documents that hold their own vectors."""

    def begin(
        self,
        request: SearchRequest,
        item: SearchItem,
        plan: SearchPlan,
        count: int,
        method: Method,
        begun: asyncio.Task[EncodedQuery] | None,
    ) -> "CandidateSearch":
        """Return a search for candidates; it is sent at once where the query is on its way and the target known.

        Args:
            request: The request.
            item: The search, as the engine will be asked it.
            plan: The search, taken apart.
            count: Documents to look for.
            method: What the query is encoded for.
            begun: The query on its way through the encoder, where that has begun.
        """
        search = CandidateSearch(self, request, item, plan, count, method, begun)
        encoder = self._known(search.caller)
        if begun is not None and encoder is not None and not request.is_template and search.reason is None:
            search.early = asyncio.create_task(self._early(search, encoder, begun))
            search.early.add_done_callback(_ignore_failure)
        return search

    async def find(self, search: "CandidateSearch", hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the documents that join a window of some hits.

        Raises:
            EsTtcError: Encoding failed: nothing can be scored either.
        """
        if search.reason is not None:
            return JoinedCandidates(asked=search.count, reason=search.reason)
        try:
            found, named = await self._found(search)
        except (EngineRefusal, ItemRefusal):
            reason = "the engine refused the kNN search for candidates"
            return JoinedCandidates(asked=search.count, reason=reason)
        except (
            EngineError,
            EncoderMismatch,
            MissingFeature,
        ) as error:  # of two encoders: the window's own may still be one
            return JoinedCandidates(asked=search.count, reason=str(error))
        if not found:
            reason = "kNN finds no document: none with a vector that the engine can search matches the filters"
            return JoinedCandidates(asked=search.count, reason=reason)
        return JoinedCandidates(outside(hits, found, named=named), search.count, named, search.filters)

    async def _found(self, search: "CandidateSearch") -> tuple[list[dict[str, Any]], bool]:
        """Return the nearest documents, and whether they have ids."""
        encoder = self._known(search.caller)
        if encoder is None:
            ground = await self._searched(search)
            if ground.sides:
                return await self._beside(search, ground), True
            if ground.encoder is None:
                return [], False
            encoder = ground.encoder
            self._own.put(search.caller.indices, encoder)
        found = None if search.early is None else await asyncio.shield(search.early)  # it may be needed once more
        if found is None:
            found = await self._own_vectors(search, encoder, await self._vector(search, encoder), named=False)
        if any(map(changed_inside, found)):
            found = await self._own_vectors(search, encoder, await self._vector(search, encoder), named=True)
            return found, True
        return found, False

    def _known(self, caller: Caller) -> str | None:
        """Return the encoder of the documents of a target that is known to hold its own vectors."""
        known = self._own.get(caller.indices) if caller.indices else None  # without a name it may be anything
        return None if known is None else known.value

    async def _early(
        self, search: "CandidateSearch", encoder: str, begun: asyncio.Task[EncodedQuery]
    ) -> list[dict[str, Any]] | None:
        encoded = await asyncio.shield(begun)
        if encoded.key != encoder:
            return None
        return await self._own_vectors(search, encoder, encoded.query.vectors[0], named=False)

    async def _own_vectors(
        self, search: "CandidateSearch", encoder: str, vector: Float32, *, named: bool
    ) -> list[dict[str, Any]]:
        """Search the vectors that the searched documents hold themselves."""
        product = await self._upstream.product()
        clause = _clause(product, search.filters)
        body = search_body(clause, product, vector, search.count, search.filters)
        answer = await search.ask({**body, **search.marks, **({} if named else {"stored_fields": "_none_"})})
        return [hit for hit in answer["hits"]["hits"] if (key := own_key(hit)) is not None and key.encoder == encoder]

    async def _vector(self, search: "CandidateSearch", encoder: str) -> Float32:
        serving = await self._encoders.serving(encoder, search.caller.indices or "searched")
        tokens = search.method.query_tokens
        encoded = await self._encoders.finish(serving, search.plan.texts, search.begun, tokens=tokens)
        vector: Float32 = encoded.query.vectors[0]
        return vector

    async def _searched(self, search: "CandidateSearch") -> SearchedIndices:
        """Find out which vectors there are, and where."""
        async with self._client(search) as asks:
            product = await self._upstream.product()
            found = await searched_indices_of(asks, search.filters, search.shared, product)
            found.require_searchable()
            return found

    @asynccontextmanager
    async def _client(self, search: "CandidateSearch") -> AsyncIterator[SearchClient]:
        """Give the ways to ask several searches at once."""
        path, query_string = msearch_target(search.request)
        clients = SearchClients(self._upstream, self._attached, search.caller, path, query_string)
        rounds: BatchedMsearch = BatchedSearches(clients.send)
        [member] = rounds.join(1)
        async with rounds.at_work(member):
            yield search_client_of(rounds, member, search_header(search.request, search.item))

    async def _beside(self, search: "CandidateSearch", ground: SearchedIndices) -> list[dict[str, Any]]:
        """Search vectors in side indices, and return the documents of the source, which the caller may see."""
        assert ground.encoder is not None  # noqa: S101 - of a side index
        vector = await self._vector(search, ground.encoder)
        product = await self._upstream.product()
        clause = _clause(product, search.filters)
        never = float("inf")  # the budget of scoring ends it
        context = SearchContext(product, search.caller, ground.encoder, search.shared, never)
        try:
            async with self._client(search) as asks:
                beside = SideIndexSearch(
                    clause, context, ground, asks, self._features, self._attached, self._pool, details=False
                )
                [nearest] = await beside.nearest(vector[np.newaxis], search.count)
        except SideIndexReplaced as error:
            raise EngineError(str(error)) from error
        named = [beside.ids[number] for number in nearest.documents.tolist()]
        if not named:
            return []
        ids = {"ids": {"values": sorted({identifier for _, identifier in named})}}
        body = {"query": {"bool": {"filter": [ids, *search.filters]}}, "size": len(named), **search.marks}
        answer = await search.ask({**body, "track_total_hits": False})
        found = {(str(hit["_index"]), str(hit["_id"])): hit for hit in answer["hits"]["hits"]}
        return [found[one] for one in named if one in found]


@dataclass(slots=True)
class CandidateSearch:
    """The search for candidates of one search.

    Attributes:
        service: Finds them.
        request: The request.
        item: The search.
        plan: The search, taken apart.
        count: Documents to look for.
        method: What the query is encoded for.
        begun: The query on its way through the encoder.
        early: The search that went out beside the first pass; None where none did.
        caller: In whose name documents are read.
        filters: What every candidate must match.
        reason: Why there can be none.
    """

    service: NearestDocuments
    request: SearchRequest
    item: SearchItem
    plan: SearchPlan
    count: int
    method: Method
    begun: asyncio.Task[EncodedQuery] | None
    early: asyncio.Task[list[dict[str, Any]] | None] | None = None
    caller: Caller = field(init=False)
    filters: list[Any] = field(init=False)
    reason: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.caller = self.request.caller(self.item)
        self.filters = required_filters(self.plan.body, query_in_url=False)
        self.reason = obstacle(self.plan)

    @property
    def shared(self) -> Body:
        """Parts of the caller's body that the filters may depend on."""
        return shared_parts(self.plan.body)

    @property
    def marks(self) -> Body:
        """How a search is asked for what tells documents' features, beside what it shares with the caller's."""
        fields = [HASH, ENCODER, VERSION, SEQ_NO, *self.plan.group_fields]
        return {**self.shared, "_source": False, "docvalue_fields": fields, "version": True}

    async def find(self, hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the documents that join a window; see :meth:`NearestDocuments.find`."""
        return await self.service.find(self, hits)

    async def ask(self, body: Body) -> dict[str, Any]:
        """Return the engine's whole response to a body, asked as the search itself.

        Raises:
            EngineRefusal: The engine refused it; ItemRefusal in an `_msearch`.
            EngineError: A part of the documents was not searched.
        """
        response, _ = await self.service.engine.again(self.request, self.item, body)
        require_whole(response)
        return response


def outside(hits: Sequence[Mapping[str, Any]], found: Sequence[dict[str, Any]], *, named: bool) -> list[dict[str, Any]]:
    """Return those of the documents found that a window does not hold.

    Args:
        hits: The window's hits.
        found: The documents found.
        named: Whether they are told apart by their ids; else by index and content hash: of documents with the same
            content as one of the window none joins.

    Returns:
        Hits of their own, with score 0: a window may be ranked a second time.
    """
    held = {identity_mark(hit, named=named) for hit in hits}
    return [{**hit, "_score": 0.0} for hit in found if identity_mark(hit, named=named) not in held]


def _ignore_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waits for it has it; nobody else is to be told


def _clause(product: Product, filters: Sequence[Any]) -> KnnClause:
    """Return a kNN clause as a request would have it."""
    return KnnClause((), "top", product, VECTOR, {"filter": [*filters]}, (), None, None)
