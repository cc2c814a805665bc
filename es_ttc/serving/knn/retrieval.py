"""Retrieval for one kNN clause: encoder, query vectors, method, deadline, and the native query that replaces it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.engine.versions import Product
from es_ttc.errors import DeadlineExceeded, EngineError, EsTtcError, InvalidRequest, MissingFeature, MissingText
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import POOLED, VECTOR
from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Retrieved, Retriever
from es_ttc.serving.deadline import ScoringError, attempt, budget_ms, fell_back
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.field_types import mapped_fields
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.knn.bodies import FIELDS
from es_ttc.serving.knn.clauses import KnnClause, RetrievalRequest, RetrievalResult, with_scores
from es_ttc.serving.knn.engine_search import AmbiguousContent, EngineSearch, SearchContext
from es_ttc.serving.knn.msearch import (
    BatchedMsearch,
    BatchedSearches,
    Member,
    MsearchSender,
    SearchClient,
    search_client,
)
from es_ttc.serving.knn.searched_indices import SearchedIndices, searched_indices_of
from es_ttc.serving.knn.side_index_search import SideIndexReplaced, SideIndexSearch
from es_ttc.serving.request.request import shared_parts
from es_ttc.serving.request.response import add_summary, shortest, with_field_name
from es_ttc.vectors.tokens import Float32

_DEFAULT_METHOD = "dense"
"""The method of a clause without a section on a side index, which the engine's own kNN does not search."""
_ENCODING_SECONDS = 10.0
"""Timeout of finding the encoder and encoding: without the query's vector there is no kNN search to fall back to."""


@dataclass(frozen=True, slots=True)
class RetrievalMethod:
    """A retriever with its parameters."""

    retriever: Retriever[Any]
    params: Params
    tuned: Mapping[str, Any]


@dataclass(slots=True)
class RetrievalTimings:
    """Milliseconds of each stage; ``search`` contains the method's computations between searches."""

    encode: float = 0.0
    search: float = 0.0
    features: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the timings for a response."""
        return {name: round(getattr(self, name), 2) for name in ("encode", "search", "features")}


@dataclass(frozen=True, slots=True)
class RankedDocuments:
    """Documents found by a method."""

    ids: list[tuple[str, str]]
    named: bool
    scores: list[float]
    details: Mapping[tuple[str, str], dict[str, Any]]
    summary: Mapping[str, Any]


class RetrievalService:
    """Retrieves documents for kNN clauses."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._tuned = gateway.tuned
        self._default_timeout_ms = gateway.settings.default_timeout_ms
        self._max_window = gateway.settings.max_window

    async def retrieve(
        self, requests: Sequence[RetrievalRequest], path: bytes, query_string: bytes
    ) -> list[RetrievalResult | EsTtcError]:
        """Return the result of each clause of one request, or its error. Their searches are sent in batches."""
        if not requests:
            return []
        methods = [self._method(request.clause) for request in requests]
        caller = requests[0].caller
        sender = MsearchSender(
            self._gateway.upstream, caller, self._gateway.attached.side_caller(caller), path, query_string
        )
        batches: BatchedMsearch = BatchedSearches(sender.send)
        product = await self._gateway.upstream.product()
        members = batches.join(len(requests))
        tasks = [
            self._one(request, method, product, batches, member)
            for request, method, member in zip(requests, methods, members, strict=True)
        ]
        return await asyncio.gather(*tasks)

    def _method(self, clause: KnnClause) -> RetrievalMethod | EsTtcError | None:
        """Return the clause's method, None without a section, or the error of a wrong one."""
        if clause.section is None:
            return None
        try:
            retriever = registry.load(clause.section.method)
            return RetrievalMethod(retriever, *self._tuned.parse(retriever, clause.section.params))
        except EsTtcError as error:
            return error

    async def _one(
        self,
        request: RetrievalRequest,
        method: RetrievalMethod | EsTtcError | None,
        product: Product,
        batches: BatchedMsearch,
        member: Member,
    ) -> RetrievalResult | EsTtcError:
        async with batches.active(member):
            if isinstance(method, EsTtcError):
                return method
            client = search_client(batches, member, request.header)
            try:
                try:
                    return await self._result(request, method, product, client)
                except SideIndexReplaced:
                    return await self._result(request, method, product, client, again=True)
            except (InvalidRequest, EngineError) as error:
                return error
            except EsTtcError as error:
                section = request.clause.section
                if method is None or section is None or section.on_error == "fail":
                    return error
                if not request.clause.is_optional(request.body):
                    return error
                fell_back(self._metrics, "search without kNN answered", method.retriever.name, error)
                summary = retrieval_summary(method, {"reason": str(error)}, "", RetrievalTimings(), applied=False)
                return RetrievalResult(request.clause, {"match_none": {}}, summary, applied=False)

    async def _result(
        self,
        request: RetrievalRequest,
        method: RetrievalMethod | None,
        product: Product,
        client: SearchClient,
        *,
        again: bool = False,
    ) -> RetrievalResult:
        """Return the native query that replaces a clause."""
        timings = RetrievalTimings()
        clause = request.clause
        try:
            async with asyncio.timeout(_ENCODING_SECONDS):
                indices, query = await self._query(request, method, product, client, timings)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the query was not encoded within {_ENCODING_SECONDS:g} s, and without its vector nothing can be found"
            ) from None
        if indices.sides and method is None:
            clause.require_valid(self._max_window)
            default = registry.load(_DEFAULT_METHOD)
            method = RetrievalMethod(default, default.Params(), {})
        if query is None:  # no document that the caller may read has a vector
            nothing = None if method is None else retrieval_summary(method, {"retrieved": 0}, "", timings, applied=True)
            return RetrievalResult(clause, {"match_none": {}}, nothing)
        native = clause.native(query.vectors[0], product, request.size)
        if method is None:
            return RetrievalResult(clause, native)
        encoder = indices.encoder or ""
        context = SearchContext(product, request.caller, encoder, shared_parts(request.body), self._end(request))
        outcome = await self._retrieved(request, method, query, context, indices, client, timings)
        if isinstance(outcome, SideIndexReplaced) and not again:
            raise outcome
        for stage, ms in timings.as_dict().items():
            self._metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(outcome, EsTtcError):
            if clause.section is not None and clause.section.on_error == "fail":
                raise outcome
            if indices.sides:  # the engine's own kNN does not search side indices
                if not clause.is_optional(request.body):
                    raise outcome
                native = {"match_none": {}}
            fell_back(self._metrics, "native kNN answered", method.retriever.name, outcome)
            summary = retrieval_summary(method, {"reason": str(outcome)}, encoder, timings, applied=False)
            return RetrievalResult(clause, native, summary, applied=False)
        filters = clause.filters if indices.sides or not outcome.named else ()
        replacement = with_scores(
            outcome.ids, outcome.scores, filters, by_content=not outcome.named, name=clause.given.get("_name")
        )
        parts = {"retrieved": len(outcome.ids), **outcome.summary}
        summary = retrieval_summary(method, parts, encoder, timings, applied=True)
        return RetrievalResult(clause, replacement, summary, details=outcome.details)

    def _end(self, request: RetrievalRequest) -> float:
        section = request.clause.section
        timeout_ms = (section.timeout_ms if section is not None else None) or self._default_timeout_ms
        return time.perf_counter() + budget_ms(timeout_ms, request.timeout_ms, request.started) / 1000

    async def _retrieved(
        self,
        request: RetrievalRequest,
        method: RetrievalMethod,
        query: Query,
        context: SearchContext,
        indices: SearchedIndices,
        client: SearchClient,
        timings: RetrievalTimings,
    ) -> RankedDocuments | EsTtcError:
        """Return the documents that the method finds, or the reason for the fallback.

        Documents that contain their own vectors are identified by content hash if possible, because ids are slower.
        """
        clause, section = request.clause, request.clause.section
        details = section is not None and bool(section.detail)
        if indices.sides:
            in_side_indices = SideIndexSearch(clause, context, indices, client, self._gateway, details=details)
            return await self._search(request, method, query, in_side_indices, timings)
        named = details or self._gateway.attached.expects_ids(request.caller)
        try:
            search = EngineSearch(clause, context, client, self._gateway, named=named, details=details)
            return await self._search(request, method, query, search, timings)
        except AmbiguousContent:
            search = EngineSearch(clause, context, client, self._gateway, details=details)
            return await self._search(request, method, query, search, timings)

    async def _search(
        self,
        request: RetrievalRequest,
        method: RetrievalMethod,
        query: Query,
        search: EngineSearch,
        timings: RetrievalTimings,
    ) -> RankedDocuments | EsTtcError:
        """Run the method; return the documents that it finds, or the reason for the fallback."""
        clause, name = request.clause, method.retriever.name
        began = time.perf_counter()

        async def retrieved() -> RankedDocuments:
            found = await method.retriever.retrieve(query, search, clause.k(request.size), method.params)
            found = await only_similar(found, search, query, clause.similarity)
            self._metrics.skipped(search.skipped.values())
            return ranked_documents(found, search, clause, method)

        try:
            budget = search.seconds_left * 1000
            return await attempt(
                retrieved(), what="retrieval", method=name, budget_ms=budget, not_caught=AmbiguousContent
            )
        finally:
            timings.features += search.feature_ms
            timings.search += (time.perf_counter() - began) * 1000 - search.feature_ms

    async def _query(
        self,
        request: RetrievalRequest,
        method: RetrievalMethod | None,
        product: Product,
        client: SearchClient,
        timings: RetrievalTimings,
    ) -> tuple[SearchedIndices, Query | None]:
        """Return the searched indices and the query's vectors; no vectors if no document has any."""
        clause = request.clause
        if clause.vector is None and not clause.texts:
            raise MissingText("[query_text] is empty: the query has no text to search by")
        tokens = method is not None and Feature.QUERY_TOKENS in method.retriever.needs(method.params)
        begun = self._gateway.encoders.begin(clause.texts, tokens=tokens) if clause.texts and request.accepted else None
        try:
            indices = await searched_indices_of(
                client,
                clause.filters,
                shared_parts(request.body),
                unsearchable=product == "opensearch" and VECTOR in _searched_fields(clause, method),
            )
            await self._require_fields(request, method, indices)
            indices.require_searchable()
            if indices.encoder is None:
                return indices, None
            if clause.vector is not None:
                if tokens:
                    raise InvalidRequest("the method reads the query's tokens: give [query_text] in place of a vector")
                return indices, Query("", clause.vector[np.newaxis])
            encoder = await self._gateway.encoders.serving(indices.encoder, request.caller.indices or "searched")
            encoded = await self._gateway.encoders.finish(encoder, clause.texts, begun, tokens=tokens)
        finally:
            if begun is not None:
                begun.cancel()
        timings.encode = encoded.seconds * 1000
        empty = [text for text, row in zip(clause.texts, encoded.query.vectors, strict=True) if not row.any()]
        if empty:
            raise MissingText(f"[query_text] {empty[0]!r} holds nothing that the encoder can read: its vector is 0")
        return indices, encoded.query

    async def _require_fields(
        self, request: RetrievalRequest, method: RetrievalMethod | None, indices: SearchedIndices
    ) -> None:
        """Raise an error if no searched index has the fields that a method searches and reads."""
        fields = {request.clause.field} if method is None else _fields(method)
        known = frozenset({VECTOR, POOLED}) if indices.encoder else frozenset[str]()  # written with an encoder's name
        lacking = await self._lacking(request.caller, fields - known, indices)
        if lacking:
            who = f"method [{method.retriever.name}]" if method is not None else "[query_text]"
            raise MissingFeature(
                f"{who} needs [{', '.join(lacking)}], which index [{request.caller.indices}] does not have: add it "
                "with `es-ttc attach` (spans with --spans), or make an index that has it with `es-ttc index create` "
                "and fill it with `es-ttc ingest`"
            )

    async def _lacking(self, caller: Caller, fields: set[str], indices: SearchedIndices) -> list[str]:
        """Return the fields that no searched index has; none if the request names only a point in time."""
        if not fields:
            return []
        sides = [side.name for side in indices.sides]
        found: set[str] = set()
        try:
            if sides:
                found |= await mapped_fields(
                    self._gateway.upstream, self._gateway.attached.side_caller(caller), sides, fields
                )
            if not caller.indices and not sides:
                return []
            if caller.indices and (indices.own or not sides):
                found |= await mapped_fields(self._gateway.upstream, caller, [], fields)
        except EngineError:
            return []  # the search itself will return the engine's error
        return sorted(fields - found)


def _searched_fields(clause: KnnClause, method: RetrievalMethod | None) -> set[str]:
    """Return the fields that kNN searches for a clause."""
    if method is None:
        return {clause.field}
    return {FIELDS[one] for one in method.retriever.searches(method.params)}


def _fields(method: RetrievalMethod) -> set[str]:
    """Return the fields that a method searches and reads."""
    searched = {FIELDS[one] for one in method.retriever.searches(method.params)}
    return searched | {FEATURES[one].name for one in method.retriever.needs(method.params) if one in FEATURES}


def add_retrievals(response: dict[str, Any], results: Sequence[RetrievalResult]) -> None:
    """Add the summaries of retrievals to a response, and their details to the page's hits, in place."""
    summaries = [one.summary for one in results if one.summary is not None]
    if not summaries:
        return
    add_summary(response, "knn", summaries, sum(one["took"]["encode"] + one["took"]["search"] for one in summaries))
    for hit in response.get("hits", {}).get("hits", ()):
        identity = (hit.get("_index", ""), hit.get("_id", ""))
        found = next((one.details[identity] for one in results if identity in one.details), None)
        if found is not None:
            hit["_ttc"] = {**hit["_ttc"], "knn": found} if "_ttc" in hit else found


async def only_similar(found: Retrieved, search: EngineSearch, query: Query, minimum: float | None) -> Retrieved:
    """Return documents without those whose pooled vector has a cosine with the query below ``similarity``."""
    if minimum is None or not len(found.documents):
        return found
    known = await search.window(found.documents, frozenset({Feature.POOLED}))
    assert known.window.pooled is not None  # noqa: S101 - required above
    cosines: Float32 = (known.window.pooled @ query.vectors.T).max(axis=1)
    kept = np.isin(found.documents, known.documents[cosines >= minimum])
    details = [detail for detail, keep in zip(found.details, kept, strict=True) if keep] if found.details else ()
    return Retrieved(found.documents[kept], found.scores[kept], details, found.summary)


def ranked_documents(
    found: Retrieved, search: EngineSearch, clause: KnnClause, method: RetrievalMethod
) -> RankedDocuments:
    """Return the documents that a retriever has found, with scores and details for the response.

    Raises:
        ScoringError: The retriever has returned invalid scores.
    """
    name = method.retriever.name
    scores = np.asarray(found.scores, np.float32)
    if len(scores) != len(found.documents) or not np.isfinite(scores).all() or (np.diff(scores) > 0).any():
        raise ScoringError(f"method [{name}] must return one finite score a document, never rising")
    scores = shown_similarity(scores) if method.retriever.similarity else scores
    if (scores < 0).any():
        raise ScoringError(f"method [{name}] returned a negative score, which engines do not allow")
    ids = [search.ids[document] for document in found.documents]
    details: dict[tuple[str, str], dict[str, Any]] = {}
    if search.details:
        own: Sequence[Mapping[str, Any]] = found.details or [{} for _ in ids]
        for rank, (document, identity, detail) in enumerate(zip(found.documents.tolist(), ids, own, strict=True), 1):
            named = with_field_name(dict(detail), search.fields.get(document, ()))
            details[identity] = {"retrieval_rank": rank, **named}
    boosted = scores * np.float32(clause.boost)
    summary = {**found.summary, **({"stale": search.stale} if search.stale else {})}
    if search.skipped:
        summary["skipped"] = skip_reasons.summary(search.skipped.values())
    return RankedDocuments(ids, search.named, [shortest(score) for score in boosted], details, summary)


def retrieval_summary(
    method: RetrievalMethod, parts: Mapping[str, Any], encoder: str, timings: RetrievalTimings, *, applied: bool
) -> dict[str, Any]:
    """Return the summary of a retrieval for the response.

    Args:
        method: The method.
        parts: What depends on the outcome: the number of documents, or the reason for the fallback.
        encoder: Identity of the encoder; empty if there is none.
        timings: Milliseconds of each stage.
        applied: Whether the method was applied.
    """
    known = {"encoder": encoder} if encoder else {}
    tuned = {"tuned": dict(method.tuned)} if method.tuned else {}
    return {"method": method.retriever.name, "applied": applied, **parts, **known, **tuned, "took": timings.as_dict()}
