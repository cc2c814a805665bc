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
from itertools import compress
from typing import Any

import numpy as np

from es_ttc.errors import EncoderMismatch, EngineError, MissingFeature
from es_ttc.serving.candidates.batches import SearchBody, TargetSearches, require_whole_answer, searches_of
from es_ttc.serving.candidates.filters import UnknownFilter, filters_of_search, text_fields
from es_ttc.serving.candidates.nearest import KnnTarget, NearestSearch, Neighbour, SideIndexReplaced
from es_ttc.serving.candidates.targets import SearchedIndices, TargetCache, matched_again, searched_indices_of
from es_ttc.serving.engine import EngineRefusal
from es_ttc.serving.features.encoding import EncodedQuery, ignore_failure
from es_ttc.serving.features.keys import IDENTIFYING_FIELDS, content_ids
from es_ttc.serving.features.known_marks import Attachment
from es_ttc.serving.features.locations import FeatureLocations
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.plan.bodies import NAMED_SCORES, OF_HITS, OF_THE_SEARCH, PARAMS_OF_HITS, params_of_matching
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.plan.query_parts import QueryParts, boost_of
from es_ttc.serving.request.body import body_number
from es_ttc.serving.request.query import without_inner_hits
from es_ttc.serving.request.request import SHARED_PARTS, SearchItem, SearchRequest, shared_parts
from es_ttc.serving.tracing import span

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


def unsupported_reason(plan: SearchPlan) -> str | None:
    """Return why a search can have no candidates, or None if it can."""
    for key in plan.body:
        if key not in _UNDERSTOOD:
            return f"[{key}] of the search is not known to hold for documents that kNN finds"
    for name in params_of_matching(plan.params):
        return f"the URL parameter [{name}] is not known to hold for documents that kNN finds"
    query = plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        return "a [hybrid] query brings candidates of its own"
    try:
        text_fields(plan.body, plan.texts)
    except UnknownFilter as error:
        return str(error)
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


@dataclass(frozen=True, slots=True)
class NearestToQuery:
    """The documents nearest to a query, the filters that each of them matches, and what is still to be confirmed."""

    documents: Sequence[Neighbour] = ()
    filters: Sequence[Any] = ()
    assumed: frozenset[Attachment] = frozenset()


@dataclass(frozen=True, slots=True)
class CandidateSearch:
    """The search for the candidates of one window.

    Attributes:
        target: The key of the caller's target; see :meth:`TargetCache.key_of`.
        count: Number of documents.
        encoding: The encoding of the query, if it has begun.
        tokens: Whether the query's token vectors are encoded too.
        unsupported_reason: Why no documents can join; None if they can.
        early: The search beside the first pass, in the indices that it was started for; None if none was.
    """

    gateway: Gateway
    targets: TargetCache
    target: bytes | None
    request: SearchRequest
    item: SearchItem
    caller: Caller
    plan: SearchPlan
    count: int
    encoding: asyncio.Task[EncodedQuery] | None
    tokens: bool
    unsupported_reason: str | None
    early: tuple[SearchedIndices, asyncio.Task[NearestToQuery | None]] | None = None

    async def find(self, hits: Sequence[Mapping[str, Any]]) -> JoinedCandidates:
        """Return the candidates that join a window."""
        reason = self.unsupported_reason
        if reason is None:
            try:
                nearest = await self._nearest(hits)
                if nearest.documents:
                    return self._joined(replace(nearest, documents=outside(hits, nearest.documents)))
                reason = "kNN finds no document: none with a vector that the engine can search matches the filters"
            except EngineRefusal:
                reason = "the engine refused the kNN search for candidates"
            except (UnknownFilter, EngineError, EncoderMismatch, MissingFeature) as error:
                reason = str(error)
        return JoinedCandidates(requested=self.count, reason=reason)

    def _joined(self, nearest: NearestToQuery) -> JoinedCandidates:
        """Return documents from outside a window with the engine's scores of the query."""
        least, boosts = body_number(self.plan.body.get("min_score")), self.plan.body.get("indices_boost")
        hits, keys, matches = [], [], []
        for hit, key, _ in nearest.documents:
            score = hit.get("matched_queries", {}).get(_QUERY)
            boosted = (score or 0.0) * boost_of(hit["_index"], boosts)
            if score is not None and not self.plan.page.fetch:
                continue  # nothing is fetched but counts, and the engine counts what the query matches
            if least is None or (score is not None and boosted >= least):
                hits.append({**hit, "_score": boosted})
                keys.append(key)
                matches.append(score is not None)
        located = FeatureLocations([*keys], assumed=nearest.assumed)
        return JoinedCandidates(hits, matches, self.count, nearest.filters, located)

    async def _nearest(self, hits: Sequence[Mapping[str, Any]]) -> NearestToQuery:
        """Return the nearest documents, in the indices that an earlier search has found if they are still those."""
        known = self.targets.of(self.target)
        if known is not None and all(hit["_index"] in known.counts for hit in hits):
            with suppress(EngineRefusal, SideIndexReplaced):  # what is known is of another index
                indices, early = self.early or (None, None)
                nearest = await asyncio.shield(early) if early is not None and indices is known else None
                nearest = nearest or await self._nearest_in(known)
                if nearest.documents:
                    return nearest
        self.targets.put(self.target, None)  # an alias has moved, there is a new index, or vectors are elsewhere now
        async with self._searches() as searches:
            indices = await searched_indices_of(searches, [], shared_parts(self.plan.body))
        if indices.encoder is None:
            return NearestToQuery()
        self.targets.put(self.target, indices)
        return await self._nearest_in(indices)

    async def found_early(
        self, indices: SearchedIndices, encoding: asyncio.Task[EncodedQuery]
    ) -> NearestToQuery | None:
        """Return the nearest documents; None if the query is encoded by another encoder than they are."""
        if (await self.gateway.encoders.first()).identity.key != indices.encoder:
            return None
        await asyncio.shield(encoding)
        return await self._nearest_in(indices)

    async def _nearest_in(self, indices: SearchedIndices) -> NearestToQuery:
        """Return the documents of some indices that are nearest to one of the query's texts."""
        assert indices.encoder is not None  # noqa: S101 - others are not remembered
        gateway, texts, shared = self.gateway, self.plan.texts, shared_parts(self.plan.body)
        with span("candidates"):
            filters = await filters_of_search(self.plan.body, texts, gateway.numbers, self.caller)
            name = self.caller.indices
            encoder = await gateway.encoders.serving(indices.encoder, name or "searched")
            encoded = await gateway.encoders.finish(encoder, texts, name, self.encoding, tokens=self.tokens)
            async with self._searches() as searches:
                if indices.sides:
                    indices = await matched_again(searches, indices, filters, shared)
                target = KnnTarget(
                    self.caller, indices, searches, filters, shared, self._fields,
                    with_ids=bool(indices.sides), send=self._send, assume=True,
                )  # fmt: skip
                search = NearestSearch(gateway, target)
                vectors = encoded.query.vectors
                queries = [vectors] if self.plan.section.parts is None else [*vectors[:, np.newaxis]]
                nearest = await search.nearest(queries, -(-self.count // len(queries)))
        return NearestToQuery(united([hits.documents for hits in nearest]), filters, search.assumed)

    def _searches(self) -> AbstractAsyncContextManager[TargetSearches]:
        """Open what sends several searches in one `_msearch`."""
        header = self.request.msearch_header(self.item)
        return searches_of(self.gateway, self.caller, *self.request.msearch_target(), header)

    @property
    def _fields(self) -> SearchBody:
        """The parts of a search by which its hits identify documents and features, and tell the query's scores."""
        fields = [*IDENTIFYING_FIELDS, *self.plan.numbers, *self.plan.group_fields]
        parts = self.plan.divided_query or QueryParts(None)
        query = without_inner_hits(parts.query or self.plan.body.get("query")) or {"match_all": {}}
        further = () if self.plan.part_words is None else self.plan.part_words.queries
        named = parts.named(further=[{"bool": {"must": [query], "_name": _QUERY}}, *further])
        return {"_source": False, "docvalue_fields": fields, "post_filter": named}

    async def _send(self, bodies: Sequence[SearchBody]) -> list[dict[str, Any]]:
        """Send bodies as the caller's search, and return the engine's responses.

        Parameters that affect only the contents of hits, or how words are scored, are left out: engines refuse some.
        """
        path, params = self.request.search_target(self.item)
        params = [(name, value) for name, value in params if name not in _NOT_SENT]
        params.append((NAMED_SCORES, "true"))
        responses = []
        for body in bodies:
            response, _ = await self.gateway.engine.search_for(self.request.incoming, path, params, body)
            require_whole_answer(response)
            responses.append(response)
        return responses


def start_candidates(
    gateway: Gateway,
    targets: TargetCache,
    request: SearchRequest,
    item: SearchItem,
    plan: SearchPlan,
    count: int,
    encoding: asyncio.Task[EncodedQuery] | None,
    *,
    tokens: bool,
) -> CandidateSearch:
    """Return the search for a window's candidates; it is sent at once if its target is known."""
    reason, target = unsupported_reason(plan), targets.key_of(request, item)
    caller = request.caller(item)
    search = CandidateSearch(
        gateway, targets, target, request, item, caller, plan, count, encoding, tokens, unsupported_reason=reason
    )
    indices = targets.of(target)
    if encoding is None or indices is None or reason is not None or request.is_template:
        return search
    early = asyncio.create_task(search.found_early(indices, encoding))
    early.add_done_callback(ignore_failure)
    if (owner := asyncio.current_task()) is not None:  # a search whose client has left needs no candidates
        owner.add_done_callback(lambda _: early.cancel())
    return replace(search, early=(indices, early))


def outside(hits: Sequence[Mapping[str, Any]], documents: Sequence[Neighbour]) -> list[Neighbour]:
    """Return those documents that are not in a window."""
    return [documents[place] for place in _places_of_others([document.hit for document in documents], hits)]


def united(lists: Sequence[Sequence[Neighbour]]) -> Sequence[Neighbour]:
    """Return the documents of several lists, each once."""
    documents: list[Neighbour] = []
    for others in lists:
        documents += outside([document.hit for document in documents], others)
    return documents


def _places_of_others(hits: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the places of hits whose documents are not among those of others."""
    left, places = Counter(content_ids(held)), []
    for place, identity in enumerate(content_ids(hits)):
        if left[identity]:
            left[identity] -= 1
        else:
            places.append(place)
    return places
