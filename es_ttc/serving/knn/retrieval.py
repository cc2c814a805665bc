"""One kNN clause of ours answered: encoder, vector, method, deadline, and the native query to put in its place."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from es_ttc.engine.versions import Product
from es_ttc.errors import DeadlineExceeded, EngineError, EsTtcError, InvalidRequest, MissingFeature
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import POOLED, VECTOR
from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Retrieved, Retriever
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.features.field_caps import mapped_fields
from es_ttc.serving.features.store import FeatureStore
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.knn.answers import SearchClient
from es_ttc.serving.knn.batched_searches import BatchedSearches, Member
from es_ttc.serving.knn.clauses import KnnClause, with_scores
from es_ttc.serving.knn.engine_search import FIELDS, AmbiguousContent, EngineSearch, SearchContext
from es_ttc.serving.knn.search_client import BatchedMsearch, SearchClients, search_client_of
from es_ttc.serving.knn.searched_indices import SearchedIndices, searched_indices_of
from es_ttc.serving.knn.side_index_search import SideIndexReplaced, SideIndexSearch
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.rescore.page import shortest, with_field_name
from es_ttc.serving.search.fallback import ScoringError, attempt, budget_ms, fell_back
from es_ttc.serving.search.msearch import shared_parts
from es_ttc.vectors.tokens import Float32

_PLAIN = "dense"
"""What answers a clause that gives a text only, where the engine itself has no vectors to search."""
_ENCODING_SECONDS = 10.0
"""What finding the encoder and encoding may take: without the query's vector there is no kNN search to fall back to."""


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    """A kNN clause with what belongs to its request.

    Attributes:
        clause: The clause.
        body: The body that it stands in.
        size: The page's size.
        caller: In whose name documents are read.
        door: The header line of its searches in an `_msearch`.
        timeout_ms: The search timeout of the caller's own, in ms, or None.
        started: `time.perf_counter` when the request came in.
        known: Whether the engine has answered this caller's searches of this target lately: the query may be encoded
            before it is asked again.
    """

    clause: KnnClause
    body: Mapping[str, Any]
    size: int
    caller: Caller
    door: bytes
    timeout_ms: float | None
    started: float
    known: bool


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """What stands in a clause's place.

    Attributes:
        clause: The clause.
        query: The native query.
        summary: What the answer says about it; None where only a text was encoded.
        applied: Whether a method's own retrieval stands there, if one was asked for.
        details: By index and id, what is shown about a document.
    """

    clause: KnnClause
    query: dict[str, Any]
    summary: dict[str, Any] | None = None
    applied: bool = True
    details: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Method:
    retriever: Retriever[Any]
    params: Params
    tuned: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _RankedDocuments:
    """Documents found, as they are shown.

    Attributes:
        ids: Index and id, best first; the content's hash in place of the id where they are not `named`.
        named: Whether they are named by their ids.
        scores: Not negative, never rising.
        details: What is shown about a document.
        told: What is said about the retrieval.
    """

    ids: list[tuple[str, str]]
    named: bool
    scores: list[float]
    details: Mapping[tuple[str, str], dict[str, Any]]
    told: Mapping[str, Any]


@dataclass(slots=True)
class _Timings:
    """Milliseconds of each stage; the searches' include what the method computed between them."""

    encode: float = 0.0
    search: float = 0.0
    features: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 2) for name in ("encode", "search", "features")}


class RetrievalService:
    """Answers kNN clauses of ours.

    Args:
        upstream: The engine.
        features: The documents' features.
        attached: Finds those of attached indices.
        encoders: The queries' encoders.
        pool: Where methods compute.
        metrics: Told about stages and fallbacks.
        tuned: Parameters of retrievals that give none of their own.
        default_timeout_ms: Budget of a retrieval that names none.
        max_window: Greatest ``k`` of a retrieval of ours.
    """

    def __init__(
        self,
        upstream: Upstream,
        features: FeatureStore,
        attached: AttachedFeatureLocator,
        encoders: Encoders,
        pool: BoundedPool,
        metrics: Metrics,
        tuned: TunedDefaults,
        *,
        default_timeout_ms: float,
        max_window: int,
    ) -> None:
        self._upstream = upstream
        self._features = features
        self._attached = attached
        self._encoders = encoders
        self._pool = pool
        self._metrics = metrics
        self._tuned = tuned
        self._default_timeout_ms = default_timeout_ms
        self._max_window = max_window

    async def answer(
        self, questions: Sequence[RetrievalRequest], path: bytes, query_string: bytes
    ) -> list[RetrievalResult | EsTtcError]:
        """Answer the clauses of one request, all of them in step: one request to the engine a round.

        Args:
            questions: The clauses.
            path: Of the engine's `_msearch`, through the caller's door.
            query_string: Its parameters.

        Returns:
            For each what stands in its place, or why nothing can.
        """
        if not questions:
            return []
        methods = [_outcome(partial(_method, question.clause, self._tuned)) for question in questions]
        doors = SearchClients(self._upstream, self._attached, questions[0].caller, path, query_string)
        rounds: BatchedMsearch = BatchedSearches(doors.send)
        product = await self._upstream.product()
        members = rounds.join(len(questions))
        tasks = [
            self._one(question, method, product, rounds, member)
            for question, method, member in zip(questions, methods, members, strict=True)
        ]
        return await asyncio.gather(*tasks)

    async def _one(
        self,
        question: RetrievalRequest,
        method: "_Method | EsTtcError | None",
        product: Product,
        rounds: BatchedMsearch,
        member: Member,
    ) -> RetrievalResult | EsTtcError:
        async with rounds.at_work(member):
            if isinstance(method, EsTtcError):
                return method
            asks = search_client_of(rounds, member, question.door)
            try:
                try:
                    return await self._replacement(question, method, product, asks)
                except SideIndexReplaced:  # another one has taken over meanwhile
                    return await self._replacement(question, method, product, asks, again=True)
            except EsTtcError as error:
                return error

    async def _replacement(
        self,
        question: RetrievalRequest,
        method: "_Method | None",
        product: Product,
        asks: SearchClient,
        *,
        again: bool = False,
    ) -> RetrievalResult:
        """Return what stands in a clause's place.

        Raises:
            SideMoved: Its side index was replaced under way; not raised `again` where the engine can answer without it.
            EsTtcError: Nothing can stand there.
        """
        took = _Timings()
        clause = question.clause
        try:
            async with asyncio.timeout(_ENCODING_SECONDS):
                ground, query = await self._query(question, method, product, asks, took)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the query was not encoded within {_ENCODING_SECONDS:g} s, and without its vector nothing can be found"
            ) from None
        if ground.sides and method is None:
            clause.require_ours(self._max_window)
            plain = registry.load(_PLAIN)
            method = _Method(plain, plain.Params(), {})
        if query is None:  # nothing that the caller can see has a vector
            summary = None if method is None else _summary(method, {"retrieved": 0}, "", took, applied=True)
            return RetrievalResult(clause, {"match_none": {}}, summary)
        native = clause.native(query.vectors[0], product, question.size)
        if method is None:
            return RetrievalResult(clause, native)
        encoder = ground.encoder or ""
        frame = SearchContext(product, question.caller, encoder, shared_parts(question.body), self._end(question))
        outcome = await self._retrieved(question, method, query, frame, ground, asks, took)
        if isinstance(outcome, SideIndexReplaced) and not again:
            raise outcome
        for stage, ms in took.as_dict().items():
            self._metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(outcome, EsTtcError):
            if clause.section is not None and clause.section.on_error == "fail":
                raise outcome
            if ground.sides:  # the engine has no kNN of its own to answer with
                if clause.standing != "top" or not question.body.get("query"):
                    raise outcome
                native = {"match_none": {}}
            fell_back(self._metrics, "native kNN answered", method.retriever.name, outcome)
            summary = _summary(method, {"reason": str(outcome)}, encoder, took, applied=False)
            return RetrievalResult(clause, native, summary, applied=False)
        told = {"retrieved": len(outcome.ids), **outcome.told}
        kept = clause.filters if ground.sides or not outcome.named else ()
        query_with_scores = with_scores(
            outcome.ids, outcome.scores, kept, by_content=not outcome.named, name=clause.given.get("_name")
        )
        summary = _summary(method, told, encoder, took, applied=True)
        return RetrievalResult(clause, query_with_scores, summary, details=outcome.details)

    def _end(self, question: RetrievalRequest) -> float:
        section = question.clause.section
        asked = (section.timeout_ms if section is not None else None) or self._default_timeout_ms
        return time.perf_counter() + budget_ms(asked, question.timeout_ms, question.started) / 1000

    async def _retrieved(
        self,
        question: RetrievalRequest,
        method: _Method,
        query: Query,
        frame: SearchContext,
        ground: SearchedIndices,
        asks: SearchClient,
        took: _Timings,
    ) -> _RankedDocuments | EsTtcError:
        """Return what the method found, or the reason why it found nothing.

        Documents that hold their own vectors are not named, as long as nothing needs it.
        """
        clause, section = question.clause, question.clause.section
        means = self._features, self._attached, self._pool
        details = section is not None and section.detail
        if ground.sides:
            beside = SideIndexSearch(clause, frame, ground, asks, *means, details=details)
            return await self._searched(question, method, query, beside, took)
        named = details or self._attached.expects_ids(question.caller)
        try:
            search = EngineSearch(clause, frame, asks, *means, named=named, details=details)
            return await self._searched(question, method, query, search, took)
        except AmbiguousContent:
            search = EngineSearch(clause, frame, asks, *means, details=details)
            return await self._searched(question, method, query, search, took)

    async def _searched(
        self, question: RetrievalRequest, method: _Method, query: Query, search: EngineSearch, took: _Timings
    ) -> _RankedDocuments | EsTtcError:
        """Return what the method finds by a search, or the reason why it finds nothing.

        Raises:
            IdsNeeded: The search does not name documents, and has to.
        """
        clause, name = question.clause, method.retriever.name
        began = time.perf_counter()

        async def retrieved() -> _RankedDocuments:
            found = await method.retriever.retrieve(query, search, clause.k(question.size), method.params)
            found = await _similar_only(found, search, query, clause.similarity)
            self._metrics.skipped(search.skipped.values())
            return _shown(found, search, clause, method)

        try:
            budget = search.seconds_left * 1000
            return await attempt(
                retrieved(), what="retrieval", method=name, budget_ms=budget, not_caught=AmbiguousContent
            )
        finally:
            took.features += search.feature_ms
            took.search += (time.perf_counter() - began) * 1000 - search.feature_ms

    async def _query(
        self, question: RetrievalRequest, method: _Method | None, product: Product, asks: SearchClient, took: _Timings
    ) -> tuple[SearchedIndices, Query | None]:
        """Return what is searched and the query's vectors; none where there is nothing.

        Raises:
            EncoderMismatch: No encoder of ours made the vectors, or several encoders did.
            MissingFeature: The index has no such vectors, or kNN cannot search them.
        """
        clause = question.clause
        tokens = method is not None and Feature.QUERY_TOKENS in method.retriever.needs(method.params)
        begun = self._encoders.begin(clause.texts, tokens=tokens) if clause.texts and question.known else None
        try:
            ground = await searched_indices_of(asks, clause.filters, shared_parts(question.body), product)
            await self._require_fields(question, method, ground)
            if VECTOR in _searched_fields(clause, method):
                ground.require_searchable()
            if ground.encoder is None:
                return ground, None
            if clause.vector is not None:
                if tokens:
                    raise InvalidRequest("the method reads the query's tokens: give [query_text] in place of a vector")
                return ground, Query("", clause.vector[np.newaxis])
            encoder = await self._encoders.serving(ground.encoder, question.caller.indices or "searched")
            encoded = await self._encoders.finish(encoder, clause.texts, begun, tokens=tokens)
        finally:
            if begun is not None:
                begun.cancel()
        took.encode = encoded.seconds * 1000
        empty = [text for text, row in zip(clause.texts, encoded.query.vectors, strict=True) if not row.any()]
        if empty:
            raise InvalidRequest(f"[query_text] {empty[0]!r} holds nothing that the encoder can read: its vector is 0")
        return ground, encoded.query

    async def _require_fields(
        self, question: RetrievalRequest, method: _Method | None, ground: SearchedIndices
    ) -> None:
        """Refuse a method for whose vectors and features nothing that is searched has a field.

        Raises:
            MissingFeature: There is none.
        """
        fields = {question.clause.field} if method is None else _fields(method)
        known = frozenset({VECTOR, POOLED}) if ground.encoder else frozenset[str]()  # written with an encoder's name
        lacking = await self._lacking(question.caller, fields - known, ground)
        if lacking:
            who = f"method [{method.retriever.name}]" if method is not None else "[query_text]"
            raise MissingFeature(
                f"{who} needs [{', '.join(lacking)}], which index [{question.caller.indices}] does not have: add it "
                "with `es-ttc attach` (spans with --spans), or make an index that has it with `es-ttc index create` "
                "and fill it with `es-ttc ingest`"
            )

    async def _lacking(self, caller: Caller, fields: set[str], ground: SearchedIndices) -> list[str]:
        """Return the fields that nothing searched has; none where the request names a point in time alone."""
        if not fields:
            return []
        sides = [side.name for side in ground.sides]
        found: set[str] = set()
        try:
            if sides:
                found |= await mapped_fields(self._upstream, self._attached.door(caller), sides, fields)
            if not caller.indices and not sides:
                return []
            if caller.indices and (ground.own or not sides):
                found |= await mapped_fields(self._upstream, caller, [], fields)
        except EngineError:
            return []  # the search itself will say in the engine's words what is wrong
        return sorted(fields - found)


def _method(clause: KnnClause, tuned: TunedDefaults) -> _Method | None:
    if clause.section is None:
        return None
    retriever = registry.load(clause.section.method)
    return _Method(retriever, *tuned.parse(retriever, clause.section.params))


def _outcome(call: Callable[[], _Method | None]) -> "_Method | EsTtcError | None":
    try:
        return call()
    except EsTtcError as error:
        return error


def _searched_fields(clause: KnnClause, method: _Method | None) -> set[str]:
    """Return the fields that kNN searches for a clause."""
    if method is None:
        return {clause.field}
    return {FIELDS[one] for one in method.retriever.searches(method.params)}


def _fields(method: _Method) -> set[str]:
    """Return the fields that a method searches and reads."""
    searched = {FIELDS[one] for one in method.retriever.searches(method.params)}
    return searched | {FEATURES[one].name for one in method.retriever.needs(method.params) if one in FEATURES}


async def _similar_only(found: Retrieved, search: EngineSearch, query: Query, least: float | None) -> Retrieved:
    """Leave out documents whose pooled vector's cosine with the query is below Elasticsearch's `similarity`."""
    if least is None or not len(found.documents):
        return found
    known = await search.window(found.documents, frozenset({Feature.POOLED}))
    assert known.window.pooled is not None  # noqa: S101 - asked for
    near: Float32 = (known.window.pooled @ query.vectors.T).max(axis=1)
    kept = np.isin(found.documents, known.documents[near >= least])
    details = [shown for shown, keep in zip(found.details, kept, strict=True) if keep] if found.details else ()
    return Retrieved(found.documents[kept], found.scores[kept], details, found.summary)


def _shown(found: Retrieved, search: EngineSearch, clause: KnnClause, method: _Method) -> _RankedDocuments:
    """Return what was found as it is shown.

    Raises:
        ScoringError: The retriever broke its contract.
    """
    scores = np.asarray(found.scores, np.float32)
    if len(scores) != len(found.documents) or not np.isfinite(scores).all() or (np.diff(scores) > 0).any():
        raise ScoringError(f"method [{method.retriever.name}] must return one finite score a document, never rising")
    scores = shown_similarity(scores) if method.retriever.similarity else scores
    if (scores < 0).any():
        raise ScoringError(f"method [{method.retriever.name}] returned a negative score, which engines do not allow")
    ids = [search.ids[document] for document in found.documents]
    details: dict[tuple[str, str], dict[str, Any]] = {}
    if search.details:
        told: Sequence[Mapping[str, Any]] = found.details or [{} for _ in ids]
        for rank, (document, identity, one) in enumerate(zip(found.documents.tolist(), ids, told, strict=True), 1):
            named = with_field_name(dict(one), search.fields.get(document, ()))
            details[identity] = {"retrieval_rank": rank, **named}
    boosted = scores * np.float32(clause.boost)
    summary = {**found.summary, **({"stale": search.stale} if search.stale else {})}
    if search.skipped:
        summary["skipped"] = skip_reasons.summary(search.skipped.values())
    return _RankedDocuments(ids, search.named, [shortest(score) for score in boosted], details, summary)


def _summary(
    method: _Method, told: Mapping[str, Any], encoder: str, took: _Timings, *, applied: bool
) -> dict[str, Any]:
    known = {"encoder": encoder} if encoder else {}
    tuned = {"tuned": dict(method.tuned)} if method.tuned else {}
    return {"method": method.retriever.name, "applied": applied, **told, **known, **tuned, "took": took.as_dict()}
