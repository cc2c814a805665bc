"""One search with a strategy: strategy, reranker, deadline, fallback, and the response's summary."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from es_ttc.common import entry_points
from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import ConfigurationError, EngineError, EsTtcError, InvalidRequest
from es_ttc.reranking.rerankers import Cost, PointwiseCalls
from es_ttc.reranking.strategies import STRATEGIES, Strategy, StrategyParams, budgeted_reranker
from es_ttc.reranking.strategies.base import reranked_so_far
from es_ttc.reranking.strategies.methods import RrParams, require_suited, with_defaults
from es_ttc.rescorers import registry
from es_ttc.serving.answer_forms import require_scores
from es_ttc.serving.candidates.filters import UnknownFilter, filters_of_search
from es_ttc.serving.deadline import Deadline, ScoringError
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.on_demand import Coverage
from es_ttc.serving.features.scores import Method, Timings, WindowRequest, first_pass_scores
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.response import shortest
from es_ttc.serving.rescore.collapse import groups_of
from es_ttc.serving.rescore.page import RankedPage, first_pass_page, max_score, shown_hit
from es_ttc.serving.rescore.ranking import pinned_count
from es_ttc.serving.strategies.page import TARGET_PARAMS, RankedHits, add_hits_outside_first_pass, in_groups, rank_hits
from es_ttc.serving.strategies.rerankers import (
    ListwiseTextReranker,
    PointwiseTextReranker,
    RerankedFields,
    RescorerReranker,
    reranking_method,
)
from es_ttc.serving.strategies.walk import CallerNeighbours, WalkDocuments
from es_ttc.serving.summary import Summary

_SHARED = ("derived", "runtime_mappings", "timeout")
_AHEAD = 20
"""Number of documents of the window whose neighbours' ids are read during the first call of the reranker."""
_KNOWN_SECONDS = 60.0
"""Time for which an index is assumed to have a graph still, so that no search waits for a check."""
_MAX_KNOWN = 10_000


class StrategyReranking:
    """Starts searches whose method is a strategy of :mod:`es_ttc.reranking.strategies`."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.fields = RerankedFields(gateway)
        self.with_graph: ExpiringCache[str, None] = ExpiringCache(_MAX_KNOWN, _KNOWN_SECONDS)

    def begin(self, plan: SearchPlan, caller: Caller, started: float, *, encode: bool) -> "StrategyRescoring":
        """Check a request whose method is a strategy, and begin to encode its query if it is to be `encode`d now."""
        strategy, rerankers = STRATEGIES[plan.section.method], self.gateway.rerankers
        if plan.section.candidates is not None and plan.section.candidates.knn:
            raise InvalidRequest(
                f"[ttc.candidates] cannot be used with [{strategy.name}], which finds its own: leave it out"
            )
        requested = entry_points.parse_params(strategy.Params, plan.section.params, strategy.name)
        params = with_defaults(requested, rerankers.default)
        method = reranking_method(params.reranker, params.reranker_params, rerankers, max_tokens=params.max_tokens)
        if method is None:
            try:
                calls = rerankers.named(params.reranker)
            except ConfigurationError as problem:  # its model is not installed, or not configured
                if plan.section.on_error == "fail":
                    raise
                plan = replace(plan, problem=problem)
            else:
                require_suited(strategy.name, params, gives_scores=isinstance(calls, PointwiseCalls))
        begun = None
        if method is not None and plan.page.fetch and encode and plan.problem is None:
            begun = self.gateway.scorer.begin_encoding(method, plan.texts, caller)
        return StrategyRescoring(self, plan, caller, strategy, params, method, begun, started)


@dataclass(frozen=True, slots=True)
class StrategyRescoring:
    """One search whose method is a strategy."""

    services: StrategyReranking
    plan: SearchPlan
    caller: Caller
    strategy: Strategy
    params: StrategyParams
    method: Method | None  # the rescorer that is used as reranker; None for a reranker of the settings
    begun: asyncio.Task[EncodedQuery] | None  # the query's encoding in progress
    started: float  # `time.perf_counter` when the request arrived

    @property
    def reads_bare_hits(self) -> bool:
        """Whether hits with only content hashes can be ranked; documents are identified by their ids here."""
        return False

    async def rank(self, hits: Sequence[dict[str, Any]], *, first_pass_ms: float | None, since: float) -> RankedPage:
        """Return the page of some hits in the order of the strategy; see :meth:`WindowRescoring.rank`."""
        plan, name = self.plan, self.strategy.name
        timings = Timings(first_pass=first_pass_ms)
        if plan.problem is not None:
            page, own = first_pass_page(plan, hits)
            window = min(len(hits), plan.page.window)
            summary = Summary.fell_back(name, plan.problem, timings.as_dict(), window=window, scored=0)
            return RankedPage(page, summary, groups=own, fallbacks=[("first pass answered", plan.problem)])
        require_scores(hits, "the search failed")
        scores = first_pass_scores(hits[: plan.page.window])
        pinned = pinned_count(scores)
        buried = int((scores[pinned:] <= 0).sum()) if plan.changes_scores else 0
        filters, undecided = await self._filters() if self.strategy.walks else ([], None)
        walk = _Walk(self, hits, timings, since, filters, undecided)
        await walk.run(range(pinned, len(scores) - buried))
        invalid = next((error for error in walk.failures if isinstance(error, InvalidRequest)), None)
        if invalid is not None:
            raise invalid
        if walk.failures and plan.section.on_error == "fail":
            raise _as_ours(walk.failures[0])
        applied = walk.reranked.judged > 0 or pinned >= len(scores) - buried
        documents, ranks = walk.documents, plan.page.ranks
        groups = None if plan.collapse is None else groups_of(documents.hits, plan.collapse.field)
        weight = self.params.first_pass_weight if isinstance(self.params, RrParams) else 0
        outcome = rank_hits(walk.reranked, walk.budgeted, documents, plan.section, pinned, weight) if applied else None
        order, window_groups = in_groups(outcome, groups, hits, plan.page.fetch)
        try:
            page_hits = await add_hits_outside_first_pass(order[ranks], documents, plan)
        except EsTtcError as error:
            walk.failures.append(error)
            applied, outcome = False, None
            order, window_groups = in_groups(None, groups, hits, plan.page.fetch)
            page_hits = {document: hits[document] for document in order[ranks]}
        return RankedPage(
            hits=walk.shown(order[ranks], page_hits, outcome),
            summary=walk.summary(applied=applied),
            max_score=None if outcome is None else max_score(outcome.scores),
            groups=window_groups,
            fallbacks=[("walk cut short", _as_ours(failure)) for failure in walk.failures],
            skipped=[*walk.skipped.values()],
        )

    async def _filters(self) -> tuple[list[Any], str | None]:
        """Return what every document from outside the first pass must match, or why that cannot be decided."""
        types = self.services.gateway.numbers
        try:
            return await filters_of_search(self.plan.body, self.plan.texts, types, self.caller), None
        except (UnknownFilter, EngineError) as error:
            return [], str(error)


class _Walk:
    """One run of a strategy: its documents, its reranker, and what the response says of it."""

    def __init__(
        self,
        search: StrategyRescoring,
        hits: Sequence[dict[str, Any]],
        timings: Timings,
        since: float,
        filters: Sequence[Any],
        undecided: str | None,
    ) -> None:
        gateway, plan, params, caller = search.services.gateway, search.plan, search.params, search.caller
        budget = plan.section.timeout_ms or gateway.settings.scoring_timeout_ms
        self._deadline = Deadline.within(budget, timeout_ms=plan.timeout_ms, started=search.started, since=since)
        self._search = search
        self._caller = caller
        self._timings = timings
        self._coverage = Coverage()
        self._undecided = undecided
        self._found = len(hits)
        self.failures: list[Exception] = []
        self.documents = WalkDocuments(
            gateway.engine.as_caller(caller),
            urlencode([pair for pair in plan.params if pair[0] in TARGET_PARAMS]).encode(),
            {key: plan.body[key] for key in _SHARED if key in plan.body},
            filters,
            hits,
            plan.group_fields,
        )
        self._graph = CallerNeighbours(
            gateway.engine.as_side_reader(caller),
            self.documents,
            self._deadline,
            depth=getattr(params, "depth", 0),
            fan_out=0 if undecided else getattr(params, "fan_out", 0),
        )
        self._reranker = self._reranker_of(search)
        self.budgeted = budgeted_reranker(search.strategy.name, params, self._reranker)
        self.reranked = reranked_so_far((), (), self.budgeted)

    @property
    def skipped(self) -> Mapping[int, skip_reasons.SkipReason]:
        """The documents whose features were not used, with the reason."""
        return self._reranker.skipped if isinstance(self._reranker, RescorerReranker) else {}

    async def run(self, window: range) -> None:
        """Run the strategy; after any failure, the result is what was reranked."""
        strategy, with_graph, graph = self._search.strategy, self._search.services.with_graph, self._graph
        try:
            if strategy.walks:
                graph.begin(window[:_AHEAD])
                if not all(self.documents.identity(document)[0] in with_graph for document in window):
                    await graph.require(window, _AHEAD)
            params = self._search.params
            self.reranked = await strategy.run(params, window, graph, self.budgeted, self._nearness)
        except EsTtcError as error:  # of the nearness; the reranker's own failure is recorded by the budgeted reranker
            self.failures.append(error)
        except Exception as error:  # noqa: BLE001 - after any failure, the response contains what was reranked
            log.error("walk failed", method=strategy.name, exc_info=error)
            self.failures.append(ScoringError(f"the walk failed: {type(error).__name__}: {error}"))
        finally:
            await graph.close()
            for index in graph.present:
                with_graph.put(index, None)
        if self.failures:
            self.reranked = reranked_so_far(list(self.budgeted.judged), window, self.budgeted)
        if self.reranked.failure is not None:
            self.failures.insert(0, self.reranked.failure)
        if graph.problem is not None:
            self.failures.append(graph.problem)

    async def _nearness(self, documents: Sequence[int]) -> list[float]:
        dense = registry.load("dense")
        return await self._scored_by(Method(dense, dense.Params(), detail=False), None).scores(documents)

    def _scored_by(
        self, method: Method, begun: asyncio.Task[EncodedQuery] | None, coverage: Coverage | None = None
    ) -> RescorerReranker:
        request = WindowRequest(self._search.plan.texts, begun, self._caller, self._timings, coverage)
        return RescorerReranker(self._search.services.gateway.scorer, method, request, self.documents, self._deadline)

    def _reranker_of(
        self, search: StrategyRescoring
    ) -> RescorerReranker | PointwiseTextReranker | ListwiseTextReranker:
        if search.method is not None:
            return self._scored_by(search.method, search.begun, self._coverage)
        services, params = search.services, search.params
        calls, query = services.gateway.rerankers.named(params.reranker), search.plan.texts[0]
        cost = Cost(params.max_tokens)
        rest = (self.documents, services.fields, self._caller, query, self._timings, self._deadline, cost)
        if isinstance(calls, PointwiseCalls):
            return PointwiseTextReranker(calls, *rest)
        return ListwiseTextReranker(calls, *rest)

    def shown(
        self, page: Sequence[int], page_hits: Mapping[int, dict[str, Any]], outcome: RankedHits | None
    ) -> list[dict[str, Any]]:
        """Return the page's hits, without deleted documents."""
        plan, skipped = self._search.plan, self.skipped
        scores = {} if outcome is None else dict(zip(outcome.documents, outcome.scores, strict=True))
        calls = {document: place for place, document in enumerate(self.reranked.calls, 1)}
        unscored = "not judged by the reranker, kept below the documents that were"
        hits = []
        for document in page:
            hit = page_hits.get(document)
            if hit is None:
                continue
            of_first_pass = document < self._found
            detail: dict[str, Any] = {"first_pass_score": hit.get("_score") if of_first_pass else None}
            detail["first_pass_rank"] = document + 1 if of_first_pass else None
            if document in calls:
                detail["call"] = calls[document]
                raw = self.budgeted.score(document)
                detail |= {} if raw is None else {"reranker_score": round(raw, 6)}
            if document in skipped:
                detail["skipped"] = skipped[document].value
            if document in self.reranked.found_from:
                detail["found_from"] = self.documents.identity(self.reranked.found_from[document])[1]
            score = shortest(scores[document]) if document in scores else None
            judged = None if outcome is None else outcome.judged.get(document)
            hits.append(shown_hit(hit, plan.section, score, judged, detail, explain=plan.explain, unscored=unscored))
        return hits

    def summary(self, *, applied: bool) -> Summary:
        """Return the summary of the walk."""
        search, reranked, graph, reranker = self._search, self.reranked, self._graph, self._reranker
        walk: dict[str, Any] = {
            "reranker": search.params.reranker,
            "budget": search.params.budget,
            "spent": reranked.spent,
            "stopped": str(reranked.stopped),
        }
        times = self._timings.as_dict()
        if not isinstance(reranker, RescorerReranker):
            walk["cost"] = reranker.cost.as_dict()
        if search.strategy.walks:
            walk["outside"] = sum(document >= self._found for document in reranked.documents[: reranked.judged])
            walk["graph"] = "unreadable" if graph.problem is not None else "missing" if graph.without else "read"
            times["graph"] = graph.waited * 1000
        if search.plan.section.detail:
            walk["calls"] = [self._call(document) for document in reranked.calls]
        parts: dict[str, Any] = {
            "window": min(self._found, search.plan.page.window),
            "scored": reranked.judged,
            **self._coverage.as_dict(),
            "strategy": walk,
        }
        if isinstance(reranker, RescorerReranker) and reranker.encoder is not None:
            parts |= {"encoder": reranker.encoder, **reranker.of_query}
        if self.skipped:
            parts["skipped"] = skip_reasons.skipped_summary(self.skipped.values())
        reason = None
        if self.failures:
            parts["partial"], reason = applied, str(self.failures[0])
        elif self._undecided is not None:
            parts["partial"], reason = True, self._undecided
        elif search.strategy.walks and graph.without:
            parts["partial"], reason = True, graph.without[min(graph.without)]
        return Summary(search.strategy.name, times, parts, applied, reason)

    def _call(self, document: int) -> dict[str, Any]:
        index, identifier = self.documents.identity(document)
        call: dict[str, Any] = {"_index": index, "_id": identifier}
        source = self.reranked.found_from.get(document)
        if source is not None:
            call["from"] = self.documents.identity(source)[1]
        score = self.budgeted.score(document)
        return call if score is None else {**call, "score": round(score, 6)}


def _as_ours(error: Exception) -> EsTtcError:
    return error if isinstance(error, EsTtcError) else ScoringError(f"the reranker failed: {error}")
