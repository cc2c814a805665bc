"""Retrieval for kNN clauses: encoder, query vectors, method, deadline, and the native query that replaces a clause."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from es_ttc.engine.versions import Product
from es_ttc.errors import DeadlineExceeded, EngineError, EsTtcError, InvalidRequest, MissingText
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import POOLED, VECTOR
from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Retrieved, Retriever
from es_ttc.serving.candidates.batches import TargetSearches, batched
from es_ttc.serving.candidates.nearest import FIELDS, KnnOptions, KnnTarget, SideIndexReplaced
from es_ttc.serving.candidates.targets import SearchedIndices, searched_indices_of
from es_ttc.serving.deadline import Deadline, ScoringError
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.field_types import mapped_fields
from es_ttc.serving.features.missing import lacks_fields
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.knn.clauses import GREATEST_SCORE, KnnClause, with_scores
from es_ttc.serving.knn.retriever_search import AmbiguousContent, RetrieverSearch
from es_ttc.serving.request.body import body_number
from es_ttc.serving.request.request import shared_parts
from es_ttc.serving.request.response import add_summary, shortest, with_field_name
from es_ttc.serving.summary import Summary, record_fallback, shares_read

_DEFAULT_METHOD = "dense"
"""The method of a clause without a section on a side index, which the engine's own kNN does not search."""
_ENCODING_SECONDS = 10.0
"""Timeout of finding the encoder and encoding: without the query's vector there is no kNN search to fall back to."""

Details = Mapping[tuple[str, str], dict[str, Any]]
"""What the response shows of each document, by index and id."""
_Found = tuple[dict[str, Any], dict[str, Any], Details]
"""A native query, its part of the summary, and details."""
_Outcome = _Found | EsTtcError


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    """A kNN clause with the data of its request."""

    clause: KnnClause
    body: Mapping[str, Any]
    size: int
    caller: Caller
    header: bytes
    timeout_ms: float | None
    started: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """The native query that replaces a clause."""

    clause: KnnClause
    query: dict[str, Any]
    summary: Summary | None = None
    details: Details = field(default_factory=dict)


async def retrieve(
    gateway: Gateway, requests: Sequence[RetrievalRequest], path: bytes, query_string: bytes
) -> list[RetrievalResult | EsTtcError]:
    """Return the result of each clause of one request, or its error. Their searches are sent in batches."""
    caller = requests[0].caller
    batches = batched(gateway, caller, path, query_string)
    product = await gateway.upstream.product()

    async def result(request: RetrievalRequest, member: int) -> RetrievalResult | EsTtcError:
        async with batches.active(member):
            try:
                searches = TargetSearches(batches, member, request.header)
                return await _Retrieval(gateway, request, product, searches).result()
            except EsTtcError as error:
                return error

    members = batches.join(len(requests))
    return await asyncio.gather(*map(result, requests, members))


class _Retrieval:
    """The retrieval for one clause.

    `took` has the ms of each stage; ``search`` contains the method's computations between searches.
    """

    def __init__(self, gateway: Gateway, request: RetrievalRequest, product: Product, searches: TargetSearches) -> None:
        self._gateway = gateway
        self._product = product
        self._request = request
        self._clause = request.clause
        self._searches = searches
        self._method: Retriever[Any] | None = None
        self._params: Params | None = None
        self._tuned: Mapping[str, Any] = {}
        self._of_query: dict[str, Any] = {}  # its part of the summary
        self._took = {"encode": 0.0, "search": 0.0, "features": 0.0}

    async def result(self) -> RetrievalResult:
        """Return the native query that replaces the clause, or raise the error of its search."""
        section = self._clause.section
        if section is not None:
            self._method = registry.load(section.method)
            self._params, self._tuned = self._gateway.tuned.parse(self._method, section.params)
        try:
            try:
                return await self._result()
            except SideIndexReplaced:
                self._took = dict.fromkeys(self._took, 0.0)
                self._method = None if section is None else self._method
                return await self._result(again=True)
        except (InvalidRequest, EngineError):
            raise
        except EsTtcError as error:
            if section is None or section.on_error == "fail" or not self._clause.is_optional(self._request.body):
                raise
            self._took = dict.fromkeys(self._took, 0.0)
            return self._fallback({"match_none": {}}, error, "search without kNN answered")

    async def _result(self, *, again: bool = False) -> RetrievalResult:
        request, clause, section = self._request, self._clause, self._clause.section
        try:
            async with asyncio.timeout(_ENCODING_SECONDS):
                indices, query = await self._query()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the query was not encoded within {_ENCODING_SECONDS:g} s, and without its vector nothing can be found"
            ) from None
        if indices.sides and self._method is None:
            clause.require_valid(self._gateway.settings.max_window)
            self._method = registry.load(_DEFAULT_METHOD)
            self._params = self._method.Params()
        method = self._method
        if query is None:  # no document that the caller may read has a vector
            nothing = None if method is None else self._summary({"retrieved": 0})
            return RetrievalResult(clause, {"match_none": {}}, nothing)
        native = clause.native(query.vectors[0], self._product, request.size)
        if method is None:
            return RetrievalResult(clause, native)
        timeout_ms = (section.timeout_ms if section else None) or self._gateway.settings.scoring_timeout_ms
        deadline = Deadline.within(timeout_ms, timeout_ms=request.timeout_ms, started=request.started)
        outcome = await self._retrieved(method, query, indices, deadline)
        if isinstance(outcome, SideIndexReplaced) and not again:
            raise outcome
        for stage, ms in self._took.items():
            self._gateway.metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if not isinstance(outcome, EsTtcError):
            replacement, parts, details = outcome
            return RetrievalResult(clause, replacement, self._summary(parts), details=details)
        if section is not None and section.on_error == "fail":
            raise outcome
        if indices.sides:  # the engine's own kNN does not search side indices
            if not clause.is_optional(request.body):
                raise outcome
            native = {"match_none": {}}
        return self._fallback(native, outcome, "native kNN answered")

    async def _retrieved(
        self, method: Retriever[Any], query: Query, indices: SearchedIndices, deadline: Deadline
    ) -> _Outcome:
        """Return what the method finds, or the reason for the fallback.

        Documents that contain their own vectors are identified by content hash if possible, because ids are slower.
        """
        section, request = self._clause.section, self._request
        target = KnnTarget(
            request.caller, indices, self._searches, self._clause.filters, shared_parts(request.body),
            with_ids=bool(indices.sides or (section is not None and section.detail))
            or self._gateway.attached.expects_ids(request.caller),
        )  # fmt: skip
        try:
            return await self._search(method, query, target, deadline)
        except AmbiguousContent:
            return await self._search(method, query, replace(target, with_ids=True), deadline)

    async def _search(self, method: Retriever[Any], query: Query, target: KnnTarget, deadline: Deadline) -> _Outcome:
        clause = self._clause
        options = KnnOptions(num_candidates=clause.num_candidates or 0, keys=clause.of_each_search(self._product))
        details = clause.section is not None and bool(clause.section.detail)
        search = RetrieverSearch(self._gateway, target, options, deadline, details=details)
        filters = clause.filters if target.indices.sides or not target.with_ids else ()

        async def retrieved() -> _Found:
            found = await method.retrieve(query, search, clause.k(self._request.size), self._params)
            found = await _only_similar(found, search, query, clause.given.get("similarity"))
            self._gateway.metrics.skipped(search.skipped.values())
            return _replacement(clause, method, found, search, filters)

        began = time.perf_counter()
        try:
            return await deadline.run(retrieved(), "retrieval", method=method.name, not_caught=AmbiguousContent)
        finally:
            self._took["features"] += search.feature_ms
            self._took["search"] += (time.perf_counter() - began) * 1000 - search.feature_ms

    async def _query(self) -> tuple[SearchedIndices, Query | None]:
        """Return the searched indices and the query's vectors; no vectors if no document has any."""
        clause, method, encoders = self._clause, self._method, self._gateway.encoders
        if clause.vector is None and not clause.texts:
            raise MissingText("[query_text] is empty: the query has no text to search by")
        tokens = method is not None and Feature.QUERY_TOKENS in method.needs(self._params)
        searched = {clause.field} if method is None else {FIELDS[among] for among in method.searches(self._params)}
        target = self._request.caller.indices
        begun = encoders.begin(clause.texts, target, tokens=tokens) if clause.texts and self._request.accepted else None
        try:
            shared = shared_parts(self._request.body)
            indices = await searched_indices_of(self._searches, clause.filters, shared)
            await self._require_fields(searched, indices)
            if indices.encoder is None:
                return indices, None
            if clause.vector is not None:
                if tokens:
                    raise InvalidRequest("the method reads the query's tokens: give [query_text] in place of a vector")
                self._of_query = {"encoder": indices.encoder}
                return indices, Query("", clause.vector[np.newaxis])
            encoder = await encoders.serving(indices.encoder, target or "searched")
            encoded = await encoders.finish(encoder, clause.texts, target, begun, tokens=tokens)
        finally:
            if begun is not None:
                begun.cancel()
        self._of_query = {"encoder": encoded.key, **shares_read(encoded.query)}
        self._took["encode"] = encoded.seconds * 1000
        empty = [text for text, row in zip(clause.texts, encoded.query.vectors, strict=True) if not row.any()]
        if empty:
            raise MissingText(f"[query_text] {empty[0]!r} holds nothing that the encoder can read: its vector is 0")
        return indices, encoded.query

    async def _require_fields(self, searched: set[str], indices: SearchedIndices) -> None:
        """Raise an error if no searched index has the fields that the method searches and reads."""
        method = self._method
        needs = frozenset[Feature]() if method is None else method.needs(self._params)
        fields = searched | {FEATURES[feature].name for feature in needs if feature in FEATURES}
        if indices.encoder:
            fields -= {VECTOR, POOLED}  # written with an encoder's name
        lacking = await self._lacking(fields, indices)
        if lacking:
            who = f"method [{method.name}]" if method is not None else "[query_text]"
            raise lacks_fields(who, lacking, self._request.caller.indices)

    async def _lacking(self, fields: set[str], indices: SearchedIndices) -> list[str]:
        """Return the fields that no searched index has; none if the request names only a point in time."""
        caller, engine = self._request.caller, self._gateway.engine
        sides = [side.name for side in indices.sides]
        if not fields or not (caller.indices or sides):
            return []
        mapped: set[str] = set()
        try:
            if sides:
                mapped |= await mapped_fields(engine.as_side_reader(caller), sides, fields)
            if caller.indices and (indices.own or not sides):
                mapped |= await mapped_fields(engine.as_caller(caller), [], fields)
        except EngineError:
            return []  # the search itself will return the engine's error
        return sorted(fields - mapped)

    def _fallback(self, query: dict[str, Any], reason: EsTtcError, event: str) -> RetrievalResult:
        record_fallback(self._gateway.metrics, event, "" if self._method is None else self._method.name, reason)
        return RetrievalResult(self._clause, query, self._summary({}, reason))

    def _summary(self, parts: Mapping[str, Any], reason: EsTtcError | None = None) -> Summary:
        """Return the summary for the response; `parts` depend on the outcome."""
        tuned = {"tuned": dict(self._tuned)} if self._tuned else {}
        method, parts = "" if self._method is None else self._method.name, {**parts, **self._of_query, **tuned}
        if reason is not None:
            return Summary.fell_back(method, reason, self._took, **parts)
        return Summary(method, self._took, parts)


def add_retrievals(response: dict[str, Any], results: Sequence[RetrievalResult]) -> None:
    """Add the summaries of retrievals to a response, and their details to the page's hits, in place."""
    summaries = [result.summary for result in results if result.summary is not None]
    if not summaries:
        return
    ms = sum(summary.took["encode"] + summary.took["search"] for summary in summaries)
    add_summary(response, "knn", summaries, ms)
    for hit in response.get("hits", {}).get("hits", ()):
        identity = (hit.get("_index", ""), hit.get("_id", ""))
        detail = next((result.details[identity] for result in results if identity in result.details), None)
        if detail is not None:
            hit["_ttc"] = {**hit["_ttc"], "knn": detail} if "_ttc" in hit else detail


async def _only_similar(found: Retrieved, search: RetrieverSearch, query: Query, minimum: float | None) -> Retrieved:
    """Return documents without those whose pooled vector has a cosine with the query below ``similarity``."""
    if minimum is None or not len(found.documents):
        return found
    known = await search.window(found.documents, frozenset({Feature.POOLED}))
    assert known.window.pooled is not None  # noqa: S101 - required above
    cosines = (known.window.pooled @ query.vectors.T).max(axis=1)
    similar = np.isin(found.documents, known.documents[cosines >= minimum])
    details = [detail for detail, keep in zip(found.details, similar, strict=True) if keep] if found.details else ()
    return Retrieved(found.documents[similar], found.scores[similar], details, found.summary)


def _replacement(
    clause: KnnClause, method: Retriever[Any], found: Retrieved, search: RetrieverSearch, filters: Sequence[Any]
) -> _Found:
    """Return the query for the documents that a method has found, or raise a ScoringError for invalid scores."""
    scores = np.asarray(found.scores, np.float32)
    if len(scores) != len(found.documents) or not np.isfinite(scores).all() or (np.diff(scores) > 0).any():
        raise ScoringError(f"method [{method.name}] must return one finite score a document, never rising")
    scores = shown_similarity(scores) if method.similarity else scores
    if (scores < 0).any():
        raise ScoringError(f"method [{method.name}] returned a negative score, which engines do not allow")
    ids = [search.ids[document] for document in found.documents]
    details: dict[tuple[str, str], dict[str, Any]] = {}
    if search.details:
        own: Sequence[Mapping[str, Any]] = found.details or [{} for _ in ids]
        for rank, (document, identity, detail) in enumerate(zip(found.documents.tolist(), ids, own, strict=True), 1):
            named = with_field_name(dict(detail), search.fields.get(document, ()))
            details[identity] = {"retrieval_rank": rank, **named}
    boost = body_number(clause.given.get("boost"))
    products = scores * np.float64(np.float32(1.0 if boost is None else boost))
    boosted = [shortest(score) for score in np.minimum(products, GREATEST_SCORE).astype(np.float32)]
    query = with_scores(ids, boosted, filters, by_content=not search.named, name=clause.given.get("_name"))
    parts = {"retrieved": len(ids), **found.summary, **({"stale": len(search.stale)} if search.stale else {})}
    if search.skipped:
        parts["skipped"] = skip_reasons.skipped_summary(search.skipped.values())
    return query, parts, details
