"""One search with a strategy: strategy, reranker, deadline, fallback, and the response's summary."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from es_ttc.common import entry_points
from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, EsTtcError, InvalidRequest
from es_ttc.reranking.rerankers import Cost, PointwiseCalls
from es_ttc.reranking.strategies import (
    STRATEGIES,
    BudgetedReranker,
    RerankedList,
    Strategy,
    StrategyParams,
    budgeted_reranker,
)
from es_ttc.reranking.strategies.base import reranked_so_far
from es_ttc.reranking.strategies.methods import require_suited
from es_ttc.rescorers import registry
from es_ttc.serving.adaptive.candidates import CandidateDocuments
from es_ttc.serving.adaptive.neighbours import CallerNeighbours
from es_ttc.serving.adaptive.page import TARGET_PARAMS, RankedHits, add_hits_outside_first_pass, in_groups, rank_hits
from es_ttc.serving.adaptive.rerankers import (
    ListwiseTextReranker,
    PointwiseTextReranker,
    RescorerReranker,
    TextFields,
    rescorer_of,
)
from es_ttc.serving.deadline import ScoringError, budget_ms, fell_back
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.scores import Method, ScoringRequest, Timings, first_pass_scores
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.request.response import add_took, shortest
from es_ttc.serving.rescore.collapse import groups_of
from es_ttc.serving.rescore.demands import UndecidedDemands, query_of_url, required_filters, text_fields
from es_ttc.serving.rescore.page import pinned_count, set_max_score, shown_hit
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.window import RescoredResponse, cut_first_pass

_SHARED = ("derived", "runtime_mappings", "timeout")
_AHEAD = 20
"""Number of documents of the window whose neighbours' ids are read during the first call of the reranker."""
_KNOWN_SECONDS = 60.0
"""Time for which an index is assumed to have a graph still, so that no search waits for a check."""
_MOST_KNOWN = 10_000


@dataclass(slots=True)
class _RerankingResult:
    """The result of a strategy."""

    reranked: RerankedList
    budgeted: BudgetedReranker
    documents: CandidateDocuments
    graph: CallerNeighbours | None
    failures: list[Exception]
    encoder: str | None = None
    cost: Cost | None = None
    skipped: Mapping[int, SkipReason] = field(default_factory=dict)
    undecided: str | None = None


class AdaptiveReranking:
    """Answers searches whose method is a strategy of :mod:`es_ttc.reranking.strategies`."""

    def __init__(self, gateway: Gateway) -> None:
        self.upstream = gateway.upstream
        self.scorer = gateway.scorer
        self.attached = gateway.attached
        self.types = gateway.numbers
        self.rerankers = gateway.rerankers
        self.metrics = gateway.metrics
        self.default_timeout_ms = gateway.settings.default_timeout_ms
        self.fields = TextFields(gateway.upstream, gateway.attached)
        self.with_graph: ExpiringCache[str, None] = ExpiringCache(_MOST_KNOWN, _KNOWN_SECONDS)

    def begin(self, plan: SearchPlan, started: float, *, encode: bool) -> "AdaptiveRescoring":
        """Check a request whose method is a strategy, and begin to encode its query.

        Args:
            plan: The parsed request.
            started: `time.perf_counter` when the request arrived.
            encode: Whether the query is encoded while the engine runs the first pass, or after it.

        Raises:
            InvalidRequest: The parameters are invalid, or there is no such reranker.
        """
        strategy = STRATEGIES[plan.section.method]
        if plan.section.candidates is not None and plan.section.candidates.knn:
            raise InvalidRequest(
                f"[ttc.candidates] cannot be used with [{strategy.name}], which finds its own: leave it out"
            )
        params = entry_points.parse_params(strategy.Params, plan.section.params, strategy.name)
        method = rescorer_of(params.reranker, params.reranker_params, self.rerankers, max_tokens=params.max_tokens)
        if method is None:
            calls = self.rerankers.named(params.reranker)
            require_suited(strategy.name, params, gives_scores=isinstance(calls, PointwiseCalls))
        begun = None
        if method is not None and plan.page.fetch and encode and plan.problem is None:
            begun = self.scorer.begin_encoding(method, plan.texts)
        return AdaptiveRescoring(self, plan, strategy, params, method, begun, started)


@dataclass(frozen=True, slots=True)
class AdaptiveRescoring:
    """One search whose method is a strategy.

    Attributes:
        services: The gateway's services.
        plan: The parsed request.
        strategy: The strategy.
        params: Its parameters.
        method: The rescorer that is used as reranker; None for a reranker of the settings.
        begun: The query's encoding in progress, or None.
        started: `time.perf_counter` when the request arrived.
    """

    services: AdaptiveReranking
    plan: SearchPlan
    strategy: Strategy
    params: StrategyParams
    method: Method | None
    begun: asyncio.Task[EncodedQuery] | None
    started: float

    @property
    def reads_bare_hits(self) -> bool:
        """Whether hits with only content hashes can be ranked; documents are identified by their ids here."""
        return False

    async def rank(
        self,
        response: dict[str, Any],
        first_pass_ms: float | None,
        caller: Caller,
        *,
        spent: float = 0.0,
        ranked_ms: float | None = None,
    ) -> RescoredResponse:
        """Put the engine's response into the order of the strategy, in place; see :meth:`WindowRescoring.rank`.

        Raises:
            InvalidRequest: The request is malformed.
            EsTtcError: The reranker failed, and the request says ``on_error: fail``.
        """
        plan, metrics = self.plan, self.services.metrics
        timings, began = Timings(first_pass=first_pass_ms), time.perf_counter()
        hits = response["hits"]["hits"]
        if plan.problem is not None:
            own = None if plan.collapse is None else groups_of(hits, plan.collapse.field)
            window = cut_first_pass(response, plan, own)
            response["ttc"] = {
                "method": self.strategy.name,
                "applied": False,
                "window": min(len(hits), plan.page.window),
                "scored": 0,
                "reason": str(plan.problem),
                "took": timings.as_dict(),
            }
            fell_back(metrics, "first pass answered", self.strategy.name, plan.problem)
            return RescoredResponse(False, window)
        scores = first_pass_scores(hits[: plan.page.window])
        pinned = pinned_count(scores)
        buried = int((scores[pinned:] <= 0).sum()) if plan.changes_scores else 0
        reranked = range(pinned, len(scores) - buried)
        result = await self._reranked(hits, reranked, caller, timings, spent + (ranked_ms or 0.0))
        reason = next((error for error in result.failures if isinstance(error, InvalidRequest)), None)
        if reason is not None:
            raise reason
        if result.failures and plan.section.on_error == "fail":
            raise _as_ours(result.failures[0])
        applied = result.reranked.judged > 0 or not reranked
        groups = None if plan.collapse is None else groups_of(result.documents.hits, plan.collapse.field)
        outcome = (
            rank_hits(result.reranked, result.budgeted, result.documents, len(hits), plan.section, pinned)
            if applied
            else None
        )
        ranks = slice(plan.page.start, plan.page.start + plan.page.size)
        order, window = in_groups(outcome, groups, hits, plan.page.fetch)
        try:
            page_hits = await add_hits_outside_first_pass(order[ranks], result.documents, len(hits), plan)
        except EsTtcError as error:
            result.failures.append(error)
            applied, outcome = False, None
            order, window = in_groups(None, groups, hits, plan.page.fetch)
            page_hits = {document: hits[document] for document in order[ranks]}
        response["hits"]["hits"] = self._hits(order[ranks], page_hits, result, outcome, len(hits))
        if outcome is not None:
            set_max_score(response, outcome.scores)
        response["ttc"] = self._summary(result, timings, len(hits), applied=applied)
        add_took(response, (time.perf_counter() - began) * 1000)
        metrics.skipped(result.skipped.values())
        for failure in result.failures:
            fell_back(metrics, "walk cut short", self.strategy.name, _as_ours(failure))
        return RescoredResponse(applied, window)

    async def _reranked(
        self, hits: Sequence[dict[str, Any]], window: range, caller: Caller, timings: Timings, spent: float
    ) -> _RerankingResult:
        services, plan, params, body = self.services, self.plan, self.params, self.plan.body
        timeout_ms = plan.section.timeout_ms or services.default_timeout_ms
        left = budget_ms(max(0.0, timeout_ms - spent), plan.timeout_ms, self.started)
        end = time.monotonic() + left / 1000
        conditions, undecided = await self._conditions(caller) if self.strategy.walks else ([], None)
        documents = CandidateDocuments(
            services.upstream,
            caller,
            urlencode([pair for pair in plan.params if pair[0] in TARGET_PARAMS]).encode(),
            {key: body[key] for key in _SHARED if key in body},
            conditions,
            hits,
            plan.group_fields,
        )
        graph = CallerNeighbours(
            services.upstream,
            services.attached.side_caller(caller),
            documents,
            end,
            depth=getattr(params, "depth", 0),
            fan_out=0 if undecided else getattr(params, "fan_out", 0),
        )
        reranker = self._reranker(documents, caller, timings, end)
        budgeted = budgeted_reranker(self.strategy.name, params, reranker)

        async def nearness(some: Sequence[int]) -> list[float]:
            dense = registry.load("dense")
            scoring = ScoringRequest(Method(dense, dense.Params(), detail=False), plan.texts, None, caller, timings)
            return await RescorerReranker(services.scorer, scoring, documents, end).scores(some)

        failures: list[Exception] = []
        try:
            if self.strategy.walks:
                graph.begin(window[:_AHEAD])
                if not all(documents.identity(document)[0] in services.with_graph for document in window):
                    await graph.require(window, _AHEAD)
            reranked = await self.strategy.run(params, window, graph, budgeted, nearness)
        except EsTtcError as error:  # of the nearness; the reranker's own failure is recorded by the budgeted reranker
            failures.append(error)
            reranked = reranked_so_far(list(budgeted.judged), window, budgeted)
        except Exception as error:  # noqa: BLE001 - after any failure, the response contains what was reranked
            log.error("walk failed", method=self.strategy.name, exc_info=error)
            failures.append(ScoringError(f"the walk failed: {type(error).__name__}: {error}"))
            reranked = reranked_so_far(list(budgeted.judged), window, budgeted)
        finally:
            await graph.close()
            for index in graph.present:
                services.with_graph.put(index, None)
        if reranked.failure is not None:
            failures.insert(0, reranked.failure)
        if graph.problem is not None:
            failures.append(graph.problem)
        result = _RerankingResult(reranked, budgeted, documents, graph if self.strategy.walks else None, failures)
        result.undecided = undecided
        if isinstance(reranker, RescorerReranker):
            result.encoder, result.skipped = reranker.encoder, reranker.skipped
        else:
            result.cost = reranker.cost
        return result

    async def _conditions(self, caller: Caller) -> tuple[list[Any], str | None]:
        """Return what every document from outside the first pass must match, or why that cannot be decided."""
        plan = self.plan
        query = query_of_url(dict(plan.params))
        body = plan.body if query is None else {**plan.body, "query": query}
        try:
            names = text_fields(body, plan.texts)
            analysed = await self.services.types.analysed(names, caller) if names else frozenset()
            return required_filters(body, plan.texts, analysed.__contains__), None
        except (UndecidedDemands, EngineError) as error:
            return [], str(error)

    def _reranker(
        self, documents: CandidateDocuments, caller: Caller, timings: Timings, end: float
    ) -> RescorerReranker | PointwiseTextReranker | ListwiseTextReranker:
        services, texts = self.services, self.plan.texts
        if self.method is not None:
            scoring = ScoringRequest(self.method, texts, self.begun, caller, timings)
            return RescorerReranker(services.scorer, scoring, documents, end)
        calls = services.rerankers.named(self.params.reranker)
        rest = (documents, services.fields, caller, texts[0], timings, end, Cost(self.params.max_tokens))
        return (
            PointwiseTextReranker(calls, *rest)
            if isinstance(calls, PointwiseCalls)
            else ListwiseTextReranker(calls, *rest)
        )

    def _hits(
        self,
        page: Sequence[int],
        page_hits: Mapping[int, dict[str, Any]],
        result: _RerankingResult,
        outcome: RankedHits | None,
        found: int,
    ) -> list[dict[str, Any]]:
        """Return the page's hits, without deleted documents."""
        plan = self.plan
        scores = {} if outcome is None else dict(zip(outcome.documents, outcome.scores, strict=True))
        calls = {document: place for place, document in enumerate(result.reranked.calls, 1)}
        unscored = "not judged by the reranker, kept below the documents that were"
        hits = []
        for document in page:
            hit = page_hits.get(document)
            if hit is None:
                continue
            detail: dict[str, Any] = {"first_pass_score": hit.get("_score") if document < found else None}
            detail["first_pass_rank"] = document + 1 if document < found else None
            if document in calls:
                detail["call"] = calls[document]
            if document in result.skipped:
                detail["skipped"] = result.skipped[document].value
            if document in result.reranked.found_from:
                detail["found_from"] = result.documents.identity(result.reranked.found_from[document])[1]
            score = shortest(scores[document]) if document in scores else None
            judged = None if outcome is None else outcome.judged.get(document)
            hits.append(shown_hit(hit, plan.section, score, judged, detail, explain=plan.explain, unscored=unscored))
        return hits

    def _summary(self, result: _RerankingResult, timings: Timings, found: int, *, applied: bool) -> dict[str, Any]:
        reranked, params = result.reranked, self.params
        summary: dict[str, Any] = {
            "method": self.strategy.name,
            "applied": applied,
            "window": min(found, self.plan.page.window),
            "scored": reranked.judged,
        }
        adaptive: dict[str, Any] = {
            "reranker": params.reranker,
            "budget": params.budget,
            "spent": reranked.spent,
            "stopped": str(reranked.stopped),
        }
        if result.cost is not None:
            adaptive["cost"] = result.cost.as_dict()
        times = timings.as_dict()
        if result.graph is not None:
            adaptive["outside"] = sum(document >= found for document in reranked.documents[: reranked.judged])
            adaptive["graph"] = _graph_state(result.graph)
            times["graph"] = round(result.graph.waited * 1000, 2)
        if self.plan.section.detail:
            adaptive["calls"] = [_call(document, result) for document in reranked.calls]
        summary["walk"] = adaptive
        if result.encoder is not None:
            summary["encoder"] = result.encoder
        if result.skipped:
            summary["skipped"] = skip_reasons.summary(result.skipped.values())
        if result.failures:
            summary["partial"] = applied
            summary["reason"] = str(result.failures[0])
        elif result.undecided is not None:
            summary |= {"partial": True, "reason": result.undecided}
        elif result.graph is not None and result.graph.without:
            summary["partial"] = True
            summary["reason"] = result.graph.without[min(result.graph.without)]
        return summary | {"took": times}


def _graph_state(graph: CallerNeighbours) -> str:
    if graph.problem is not None:
        return "unread"
    return "missing" if graph.without else "read"


def _call(document: int, result: _RerankingResult) -> dict[str, Any]:
    index, identifier = result.documents.identity(document)
    call: dict[str, Any] = {"_index": index, "_id": identifier}
    source = result.reranked.found_from.get(document)
    if source is not None:
        call["from"] = result.documents.identity(source)[1]
    score = result.budgeted.score(document)
    return call if score is None else {**call, "score": round(score, 6)}


def _as_ours(error: Exception) -> EsTtcError:
    return error if isinstance(error, EsTtcError) else ScoringError(f"the reranker failed: {error}")
