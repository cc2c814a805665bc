"""The strategies by name, with their parameters."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from es_ttc.errors import InvalidRequest
from es_ttc.reranking.strategies.base import BudgetedReranker, ListwiseSorter, Neighbours, PointwiseScorer, RerankedList
from es_ttc.reranking.strategies.gar import gar
from es_ttc.reranking.strategies.listwise import Count, ListwiseBudgetedReranker
from es_ttc.reranking.strategies.pointwise import PointwiseBudgetedReranker
from es_ttc.reranking.strategies.retrieve_and_rerank import retrieve_and_rerank
from es_ttc.reranking.strategies.rgs import rgs
from es_ttc.reranking.strategies.slidegar import Frontier, Nearness, slidegar
from es_ttc.rescorers.base import Params

MAX_BUDGET = 1000

BY_THEMSELVES = ("dense", "maxsim", "spectral")  # can rerank: they score each document alone

AUTO = "auto"
MSMARCO_MINILM = "msmarco-minilm"  # on a CPU 20 to 90 ms a pair: a budget of 100 is too slow for a search
CROSS_ENCODER_BUDGET = 20


class StrategyParams(Params):
    """Parameters that all strategies share."""

    reranker: str = Field(
        AUTO,
        min_length=1,
        max_length=100,
        description="Name of a reranker in the gateway's settings, `msmarco-minilm`, or one of the methods that score "
        "each document independently: dense, maxsim, spectral. `auto`: the only reranker of the settings; without "
        "any, `msmarco-minilm` where es-ttc[cross-encoder] is installed, else spectral.",
    )
    reranker_params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the reranker, if it is a method: dense, maxsim, spectral."
    )
    budget: int = Field(
        100,
        ge=1,
        le=MAX_BUDGET,
        description="Maximum number of documents sent to the reranker. For a reranker that returns scores: distinct "
        "documents. For one that returns an order: every document sent, including repetitions (see `count`). Default "
        "with `msmarco-minilm`: 20.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Number of tokens, read and written, after which the reranker is not called again; running calls "
        "finish. Only for rerankers that report their use (language models, some endpoints).",
    )
    window: int = Field(20, ge=2, le=100, description="Number of documents per call of a listwise reranker.")
    count: Count = Field(
        "shown",
        description="Whether a document counts against the budget each time a listwise reranker gets it, or once.",
    )


class _GraphParams(StrategyParams):
    depth: int = Field(8, ge=0, le=100, description="Maximum number of steps from the first pass.")
    fan_out: int = Field(
        256,
        ge=1,
        le=256,
        description="Maximum number of neighbours per document, nearest first. By default all that a graph can have.",
    )


class RrParams(StrategyParams):
    """Parameters of retrieve and rerank, which uses the first pass only."""

    first_pass_weight: float = Field(
        0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Weight of the scores before this method, beside 1 for the reranker's: both as z-scores over the "
        "documents that the reranker has scored. 0: the reranker's scores alone.",
    )


class LlmPickParams(StrategyParams):
    """Parameters of the pick by a language model."""

    reranker: str = Field(
        "llm",
        min_length=1,
        max_length=100,
        description="`llm`: the gateway's model rates each document from 0 to 100. `llm_listwise`: it puts windows of "
        "documents in order. Or a reranker in the settings.",
    )
    budget: int = Field(
        20,
        ge=1,
        le=MAX_BUDGET,
        description="Maximum number of documents sent to the model; each rating is one request.",
    )


class GarParams(_GraphParams):
    """Parameters of GAR."""

    batch: int = Field(16, ge=1, le=100, description="Number of documents per batch.")


class SlideGarParams(_GraphParams):
    """Parameters of SlideGAR."""

    frontier: Frontier = Field(
        "dropped",
        description="Whether neighbours that are not reranked at once are dropped, as in the paper, or kept for later "
        "turns.",
    )


class RgsParams(_GraphParams):
    """Parameters of RGS."""

    seeds: int = Field(20, ge=1, le=100, description="Number of first-pass documents at the start.")
    length: int = Field(
        50, ge=1, le=1000, description="L: length of the list; documents that are cut are not expanded."
    )
    queue: Literal["list", "best_first"] = Field(
        "list",
        description="list: rerank all neighbours of the best document, as in the paper. best_first: rerank a batch of "
        "those neighbours whose own source document has the best score; for rerankers that return scores.",
    )


def with_defaults(params: StrategyParams, reranker: str | None) -> StrategyParams:
    """Return parameters with the reranker, and its budget, that a request left out; without any, spectral retrieval."""
    name = params.reranker
    if name == AUTO:
        name = "spectral" if reranker is None or params.reranker_params else reranker
    update: dict[str, Any] = {"reranker": name}
    if name == MSMARCO_MINILM and "budget" not in params.model_fields_set:
        update["budget"] = CROSS_ENCODER_BUDGET
    return params.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy; it runs with its parameters, the first pass, neighbours, reranker and nearness to the query."""

    name: str
    Params: type[StrategyParams]
    about: str
    walks: bool
    run: Callable[[Any, Sequence[int], Neighbours, BudgetedReranker, Nearness], Awaitable[RerankedList]]


def budgeted_reranker(
    name: str, params: StrategyParams, reranker: PointwiseScorer | ListwiseSorter
) -> BudgetedReranker:
    """Return the budgeted reranker that a strategy needs."""
    require_suited(name, params, gives_scores=isinstance(reranker, PointwiseScorer))
    if not isinstance(reranker, PointwiseScorer):
        return ListwiseBudgetedReranker(reranker, params.budget, params.window, params.count)
    if name == "slidegar":
        return ListwiseBudgetedReranker(_ScoreOrder(reranker), params.budget, params.window, "distinct")
    return PointwiseBudgetedReranker(reranker, params.budget)


def require_suited(name: str, params: StrategyParams, *, gives_scores: bool) -> None:
    """Raise an error if a strategy cannot work with a reranker."""
    if not gives_scores and (name == "gar" or getattr(params, "queue", "list") == "best_first"):
        raise InvalidRequest(
            f"method [{name}] goes by scores, and reranker [{params.reranker}] gives an order: take rgs or slidegar"
        )
    if not gives_scores and isinstance(params, RrParams) and params.first_pass_weight:
        raise InvalidRequest(
            f"reranker [{params.reranker}] gives an order, and [first_pass_weight] of rr, or the signal [reranker] of "
            "blend, adds scores: leave it out, or take a reranker that returns scores"
        )


class _ScoreOrder:
    """Orders documents by scores and keeps the scores."""

    def __init__(self, reranker: PointwiseScorer) -> None:
        self._reranker = reranker
        self._scores: dict[int, float] = {}

    async def order(self, documents: Sequence[int]) -> list[int]:
        new = [document for document in documents if document not in self._scores]
        budgeted = PointwiseBudgetedReranker(self._reranker, len(new))
        await budgeted.sort(new)
        if budgeted.failure is not None:
            raise budgeted.failure
        self._scores.update((document, score) for document in new if (score := budgeted.score(document)) is not None)
        return sorted(documents, key=lambda document: -self._scores[document])


async def _rr(
    _params: RrParams, first: Sequence[int], _: Neighbours, reranker: BudgetedReranker, __: Nearness
) -> RerankedList:
    return await retrieve_and_rerank(first, reranker)


async def _gar(
    params: GarParams, first: Sequence[int], graph: Neighbours, reranker: BudgetedReranker, _: Nearness
) -> RerankedList:
    return await gar(first, graph, reranker, batch=params.batch)


async def _slidegar(
    params: SlideGarParams, first: Sequence[int], graph: Neighbours, reranker: BudgetedReranker, nearness: Nearness
) -> RerankedList:
    if not isinstance(reranker, ListwiseBudgetedReranker):
        raise TypeError("SlideGAR needs a listwise budgeted reranker")
    return await slidegar(first, graph, reranker, nearness, frontier=params.frontier)


async def _rgs(
    params: RgsParams, first: Sequence[int], graph: Neighbours, reranker: BudgetedReranker, _: Nearness
) -> RerankedList:
    if params.queue == "best_first":
        return await gar(first, graph, reranker, seeds=params.seeds, alternate=False)
    return await rgs(first, graph, reranker, seeds=params.seeds, length=params.length)


STRATEGIES: Mapping[str, Strategy] = {
    one.name: one
    for one in (
        Strategy(
            "rr",
            RrParams,
            "Retrieve and rerank: sort the first documents of the window, as many as the budget allows, by the "
            "reranker.",
            walks=False,
            run=_rr,
        ),
        Strategy(
            "llm_pick",
            LlmPickParams,
            "SIRA's pick: a language model rates the first documents of the window, as in `rr`. Documents whose "
            "rating or position cannot be read follow in first-pass order. Set a `timeout` of several seconds.",
            walks=False,
            run=_rr,
        ),
        Strategy(
            "gar",
            GarParams,
            "Graph-based adaptive reranking (MacAvaney et al., CIKM 2022): rerank batches in turn from the window and "
            "from the neighbours of the documents with the best scores. For rerankers that return scores.",
            walks=True,
            run=_gar,
        ),
        Strategy(
            "slidegar",
            SlideGarParams,
            "SlideGAR (Rathee et al., ECIR 2025): keep the better half of a listwise reranker's window, and fill the "
            "other half in turn from the first pass and from neighbours, those nearest to the query first.",
            walks=True,
            run=_slidegar,
        ),
        Strategy(
            "rgs",
            RgsParams,
            "Reranker-Guided Search (Xu et al., ICLR 2026): start with the first documents of the window, then rerank "
            "all neighbours of the best document that is not expanded yet, until the budget is spent.",
            walks=True,
            run=_rgs,
        ),
    )
}
"""Strategies by name."""
