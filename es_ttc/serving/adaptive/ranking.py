"""One search whose method walks: strategy, judge, deadline, what is left when something fails, and the marks."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from es_ttc.common import entry_points
from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.reranking.rerankers import Cost, PointwiseCalls, Rerankers
from es_ttc.reranking.strategies import (
    STRATEGIES,
    BudgetedReranker,
    RerankedList,
    Strategy,
    StrategyParams,
    budgeted_reranker,
)
from es_ttc.reranking.strategies.base import reranked_so_far as walked_to_here
from es_ttc.reranking.strategies.methods import require_suited
from es_ttc.rescorers import registry
from es_ttc.serving.adaptive.candidates import CandidateDocuments
from es_ttc.serving.adaptive.filters import required_filters
from es_ttc.serving.adaptive.neighbours import CallerNeighbours
from es_ttc.serving.adaptive.page import DOOR_PARAMS, RankedHits, add_hits_outside_first_pass, in_groups, rank_hits
from es_ttc.serving.adaptive.rerankers import (
    ListwiseTextReranker,
    PointwiseTextReranker,
    RescorerReranker,
    TextFields,
    rescorer_of,
)
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.scoring import Method, Timings, WindowScorer
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.rescore.collapse import groups_of
from es_ttc.serving.rescore.page import set_max_score, shortest, shown_hit
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.response import RescoredResponse
from es_ttc.serving.search.fallback import ScoringError, budget_ms, fell_back
from es_ttc.serving.search.response import add_took
from es_ttc.serving.search.stage import Answered

_SHARED = ("derived", "runtime_mappings", "timeout")
_AHEAD = 20
"""Documents of the window whose neighbours' ids are read beside the first call of the reranker."""
_KNOWN_SECONDS = 60.0
"""How long an index that had a graph is taken to have one, so that no search waits to find out."""
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class AdaptiveRequest:
    """What a request asks of a walk.

    Attributes:
        strategy: The method.
        params: Its parameters.
        method: The rescorer that judges; None where a reranker of the settings does.
        begun: The query on its way through the encoder, where it is encoded.
    """

    strategy: Strategy
    params: StrategyParams
    method: Method | None
    begun: asyncio.Task[EncodedQuery] | None


@dataclass(slots=True)
class _RerankingResult:
    """A walk that has ended.

    Attributes:
        walk: What it found.
        judge: Who judged.
        documents: The documents by number.
        graph: The neighbours that were read; None for a method that needs none.
        encoder: Identity of the encoder, where a rescorer judged.
        cost: What a reranker of the settings took.
        failures: What went wrong under way, the reranker's failure first.
        skipped: Documents whose features are not used, where a rescorer judged.
    """

    walk: RerankedList
    judge: BudgetedReranker
    documents: CandidateDocuments
    graph: CallerNeighbours | None
    encoder: str | None
    cost: Cost | None
    failures: list[Exception] = field(default_factory=list)
    skipped: Mapping[int, SkipReason] = field(default_factory=dict)


class AdaptiveReranking:
    """Answers searches whose method is a strategy of :mod:`es_ttc.reranking.strategies`.

    Args:
        upstream: The engine.
        scorer: Scores documents by rescorers.
        attached: In whose name indices beside the searched ones are read.
        rerankers: Those of the settings.
        metrics: Told about fallbacks.
        default_timeout_ms: Budget of a request that names none.
    """

    def __init__(
        self,
        upstream: Upstream,
        scorer: WindowScorer,
        attached: AttachedFeatureLocator,
        rerankers: Rerankers,
        metrics: Metrics,
        default_timeout_ms: float,
    ) -> None:
        self._default_timeout_ms = default_timeout_ms
        self._upstream = upstream
        self._scorer = scorer
        self._attached = attached
        self._rerankers = rerankers
        self._metrics = metrics
        self._fields = TextFields(upstream, attached)
        self._with_graph: ExpiringCache[str, None] = ExpiringCache(_MOST_KNOWN, _KNOWN_SECONDS)

    def begin(self, plan: SearchPlan, started: float, *, encode: bool) -> "AdaptiveRescoring | None":
        """Check a request, and start to encode its query; None where its method is no strategy.

        Args:
            plan: The request, taken apart.
            started: `time.perf_counter` when the request came in.
            encode: Whether the query is encoded while the engine runs the first pass, not after it.

        Raises:
            InvalidRequest: It has no such parameters, or there is no such reranker.
        """
        strategy = STRATEGIES.get(plan.section.method)
        if strategy is None:
            return None
        if plan.section.candidates is not None and plan.section.candidates.knn:
            raise InvalidRequest(
                f"[ttc.candidates] cannot be used with [{strategy.name}], which finds its own: leave it out"
            )
        params = entry_points.parse_params(strategy.Params, plan.section.params, strategy.name)
        method = rescorer_of(params.reranker, params.reranker_params, self._rerankers, max_tokens=params.max_tokens)
        if method is None:
            calls = self._rerankers.named(params.reranker)
            require_suited(strategy.name, params, gives_scores=isinstance(calls, PointwiseCalls))
        begun = None
        if method is not None and plan.page.fetch and encode:
            begun = self._scorer.begin_encoding(method, plan.texts)
        return AdaptiveRescoring(self, plan, AdaptiveRequest(strategy, params, method, begun), started)

    async def finish(
        self,
        asked: AdaptiveRequest,
        plan: SearchPlan,
        response: dict[str, Any],
        caller: Caller,
        first_pass_ms: float,
        started: float,
    ) -> RescoredResponse:
        """Put the engine's response into the walk's order, in place.

        Args:
            asked: What is asked of the walk.
            plan: The request, taken apart.
            response: The engine's decoded response to it.
            caller: In whose name everything is read.
            first_pass_ms: What the engine took.
            started: `time.perf_counter` when the request came in.

        Raises:
            InvalidRequest: The index lacks what the reranker needs.
            EsTtcError: The reranker failed, and the request says ``on_error: fail``.
        """
        took, began = Timings(first_pass=first_pass_ms), time.perf_counter()
        hits = response["hits"]["hits"]
        budget = budget_ms(plan.section.timeout_ms or self._default_timeout_ms, plan.timeout_ms, started)
        walked = await self._walked(asked, plan, hits, caller, took, budget / 1000)
        reason = next((error for error in walked.failures if isinstance(error, InvalidRequest)), None)
        if reason is not None:
            raise reason
        if walked.failures and plan.section.on_error == "fail":
            raise _as_ours(walked.failures[0])
        applied = walked.walk.judged > 0 or not hits
        groups = None if plan.collapse is None else groups_of(walked.documents.hits, plan.collapse.field)
        outcome = rank_hits(walked.walk, walked.judge, walked.documents, len(hits), plan.section) if applied else None
        order, window = in_groups(outcome, groups, hits, plan.page.fetch)
        page = order[plan.page.start : plan.page.start + plan.page.size]
        try:
            shown = await add_hits_outside_first_pass(page, walked.documents, len(hits), plan)
        except EsTtcError as error:
            walked.failures.append(error)
            applied, outcome = False, None
            order, window = in_groups(None, groups, hits, plan.page.fetch)
            page = order[plan.page.start : plan.page.start + plan.page.size]
            shown = {document: hits[document] for document in page}
        response["hits"]["hits"] = _hits(page, shown, walked, outcome, plan, len(hits))
        if outcome is not None:
            set_max_score(response, outcome.scores)
        response["ttc"] = _summary(asked, plan, walked, took, len(hits), applied=applied)
        add_took(response, (time.perf_counter() - began) * 1000)
        self._metrics.skipped(walked.skipped.values())
        for failure in walked.failures:
            fell_back(self._metrics, "walk cut short", asked.strategy.name, _as_ours(failure))
        return RescoredResponse(applied, window)

    async def _walked(
        self,
        asked: AdaptiveRequest,
        plan: SearchPlan,
        hits: Sequence[dict[str, Any]],
        caller: Caller,
        took: Timings,
        seconds: float,
    ) -> _RerankingResult:
        end = time.monotonic() + seconds
        params = asked.params
        body = plan.body
        documents = CandidateDocuments(
            self._upstream,
            caller,
            urlencode([pair for pair in plan.params if pair[0] in DOOR_PARAMS]).encode(),
            {key: body[key] for key in _SHARED if key in body},
            required_filters(body, query_in_url="q" in dict(plan.params)),
            hits,
            plan.group_fields,
        )
        graph = CallerNeighbours(
            self._upstream,
            self._attached.door(caller),
            documents,
            end,
            depth=getattr(params, "depth", 0),
            fan_out=getattr(params, "fan_out", 0),
        )
        reranker = self._reranker(asked, documents, plan.texts, caller, took, end)
        judge = budgeted_reranker(asked.strategy.name, params, reranker)

        async def nearness(some: Sequence[int]) -> list[float]:
            dense = registry.load("dense")
            method = Method(dense, dense.Params(), detail=False)
            near = RescorerReranker(self._scorer, method, documents, plan.texts, None, caller, took, end)
            return await near.scores(some)

        window = range(min(len(hits), plan.page.asked))
        failures: list[Exception] = []
        try:
            if asked.strategy.walks:
                graph.begin(window[:_AHEAD])
                if not all(documents.identity(document)[0] in self._with_graph for document in window):
                    await graph.require(window, _AHEAD)
            walk = await asked.strategy.run(params, window, graph, judge, nearness)
        except EsTtcError as error:  # of nearness; the judge keeps a failure of its own
            failures.append(error)
            walk = _so_far(judge, window)
        except Exception as error:  # noqa: BLE001 - whatever fails of ours, what was judged is there to answer
            log.error("walk failed", method=asked.strategy.name, exc_info=error)
            failures.append(ScoringError(f"the walk failed: {type(error).__name__}: {error}"))
            walk = _so_far(judge, window)
        finally:
            await graph.close()
            for index in graph.present:
                self._with_graph.put(index, None)
        if walk.failure is not None:
            failures.insert(0, walk.failure)
        if graph.problem is not None:
            failures.append(graph.problem)
        read = graph if asked.strategy.walks else None
        if isinstance(reranker, RescorerReranker):
            return _RerankingResult(walk, judge, documents, read, reranker.encoder, None, failures, reranker.skipped)
        return _RerankingResult(walk, judge, documents, read, None, reranker.cost, failures)

    def _reranker(
        self,
        asked: AdaptiveRequest,
        documents: CandidateDocuments,
        texts: tuple[str, ...],
        caller: Caller,
        took: Timings,
        end: float,
    ) -> RescorerReranker | PointwiseTextReranker | ListwiseTextReranker:
        if asked.method is not None:
            return RescorerReranker(self._scorer, asked.method, documents, texts, asked.begun, caller, took, end)
        calls = self._rerankers.named(asked.params.reranker)
        cost = Cost(asked.params.max_tokens)
        rest = (documents, self._fields, caller, texts[0], took, end, cost)
        return (
            PointwiseTextReranker(calls, *rest)
            if isinstance(calls, PointwiseCalls)
            else ListwiseTextReranker(calls, *rest)
        )


@dataclass(frozen=True, slots=True)
class AdaptiveRescoring:
    """One search whose method walks.

    Attributes:
        walks: Answers it.
        plan: The request, taken apart.
        asked: What is asked of the walk.
        started: `time.perf_counter` when the request came in.
    """

    walks: AdaptiveReranking
    plan: SearchPlan
    asked: AdaptiveRequest
    started: float

    async def rank(self, answered: Answered) -> RescoredResponse:
        """Put the engine's response into the walk's order, in place; see :meth:`AdaptiveReranking.finish`."""
        response, caller = answered.response, answered.caller
        return await self.walks.finish(self.asked, self.plan, response, caller, answered.ms, self.started)


def _hits(
    page: Sequence[int],
    shown: Mapping[int, dict[str, Any]],
    walked: _RerankingResult,
    outcome: RankedHits | None,
    plan: SearchPlan,
    found: int,
) -> list[dict[str, Any]]:
    """Return the page's hits, those of documents that have gone left out."""
    scores = {} if outcome is None else dict(zip(outcome.documents, outcome.scores, strict=True))
    calls = {document: place for place, document in enumerate(walked.walk.calls, 1)}
    unscored = "not judged by the reranker, kept below the documents that were"
    hits = []
    for document in page:
        hit = shown.get(document)
        if hit is None:
            continue
        detail: dict[str, Any] = {"first_pass_score": hit.get("_score") if document < found else None}
        detail["first_pass_rank"] = document + 1 if document < found else None
        if document in calls:
            detail["call"] = calls[document]
        if document in walked.skipped:
            detail["skipped"] = walked.skipped[document].value
        if document in walked.walk.found_from:
            detail["found_from"] = walked.documents.identity(walked.walk.found_from[document])[1]
        score = shortest(scores[document]) if document in scores else None
        judged = None if outcome is None else outcome.judged.get(document)
        hits.append(shown_hit(hit, plan.section, score, judged, detail, explain=plan.explain, unscored=unscored))
    return hits


def _summary(
    asked: AdaptiveRequest, plan: SearchPlan, walked: _RerankingResult, took: Timings, found: int, *, applied: bool
) -> dict[str, Any]:
    walk, params = walked.walk, asked.params
    summary: dict[str, Any] = {
        "method": asked.strategy.name,
        "applied": applied,
        "window": min(found, plan.page.asked),
        "scored": walk.judged,
    }
    told: dict[str, Any] = {
        "reranker": params.reranker,
        "budget": params.budget,
        "spent": walk.spent,
        "stopped": str(walk.stopped),
    }
    if walked.cost is not None:
        told["cost"] = walked.cost.as_dict()
    times = took.as_dict()
    if walked.graph is not None:
        told["outside"] = sum(document >= found for document in walk.documents[: walk.judged])
        told["graph"] = _graph_state(walked.graph)
        times["graph"] = round(walked.graph.waited * 1000, 2)
    if plan.section.detail:
        told["calls"] = [_call(document, walked) for document in walk.calls]
    summary["walk"] = told
    if walked.encoder is not None:
        summary["encoder"] = walked.encoder
    if walked.skipped:
        summary["skipped"] = skip_reasons.summary(walked.skipped.values())
    if walked.failures:
        summary["partial"] = applied
        summary["reason"] = str(walked.failures[0])
    elif walked.graph is not None and walked.graph.without:
        summary["partial"] = True
        summary["reason"] = walked.graph.without[min(walked.graph.without)]
    return summary | {"took": times}


def _graph_state(graph: CallerNeighbours) -> str:
    if graph.problem is not None:
        return "unread"
    return "missing" if graph.without else "read"


def _call(document: int, walked: _RerankingResult) -> dict[str, Any]:
    index, identifier = walked.documents.identity(document)
    told: dict[str, Any] = {"_index": index, "_id": identifier}
    source = walked.walk.found_from.get(document)
    if source is not None:
        told["from"] = walked.documents.identity(source)[1]
    score = walked.judge.score(document)
    return told if score is None else {**told, "score": round(score, 6)}


def _so_far(judge: BudgetedReranker, window: Sequence[int]) -> RerankedList:
    """Return the walk that ends with what was judged, where the strategy itself broke off."""
    return walked_to_here(list(judge.judged), window, judge)


def _as_ours(error: Exception) -> EsTtcError:
    return error if isinstance(error, EsTtcError) else ScoringError(f"the reranker failed: {error}")
