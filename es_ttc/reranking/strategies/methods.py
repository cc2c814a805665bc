"""The strategies by name, with the parameters that a request or an evaluation gives them."""

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
from es_ttc.reranking.strategies.slidegar import Nearness, slidegar
from es_ttc.rescorers.base import Params

MAX_BUDGET = 1000

BY_THEMSELVES = ("dense", "maxsim", "spectral")
"""Rescorers of this project that may be the reranker: their score of a document does not depend on others."""


class StrategyParams(Params):
    """What every strategy takes."""

    reranker: str = Field(
        "spectral",
        min_length=1,
        max_length=100,
        description="Name of a reranker of the gateway's settings, or one of this project's methods that score each "
        "document by itself: dense, maxsim, spectral.",
    )
    reranker_params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the reranker, where it is a method of this project."
    )
    budget: int = Field(
        100,
        ge=1,
        le=MAX_BUDGET,
        description="Documents that the reranker may be shown: distinct ones where it gives scores; every one shown, "
        "repetitions included, where it gives an order (see `count`).",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens, read and written, after which the reranker is not asked again; calls under way end. Only "
        "rerankers of the settings that say what they take (language models, some endpoints) can be held to it.",
    )
    window: int = Field(20, ge=2, le=100, description="Documents that a listwise reranker is shown at once.")
    count: Count = Field(
        "shown", description="Whether a listwise reranker's documents are paid for whenever they are shown, or once."
    )


class _GraphParams(StrategyParams):
    depth: int = Field(8, ge=0, le=100, description="Steps from the first pass at most.")
    fan_out: int = Field(16, ge=1, le=64, description="Neighbours of a document that are looked at, the nearest ones.")


class RrParams(StrategyParams):
    """Parameters of retrieve and rerank: it never leaves the first pass."""


class LlmPickParams(StrategyParams):
    """Parameters of the pick by a language model."""

    reranker: str = Field(
        "llm",
        min_length=1,
        max_length=100,
        description="`llm`: the gateway's model rates each document from 0 to 100. `llm_listwise`: it puts windows of "
        "documents in order. Or a reranker of the settings.",
    )
    budget: int = Field(
        20, ge=1, le=MAX_BUDGET, description="Documents that the model may be shown; each rating is a question."
    )


class GarParams(_GraphParams):
    """Parameters of GAR."""

    batch: int = Field(16, ge=1, le=100, description="Documents that are scored at once.")


class SlideGarParams(_GraphParams):
    """Parameters of SlideGAR."""


class RgsParams(_GraphParams):
    """Parameters of RGS."""

    seeds: int = Field(20, ge=1, le=100, description="Documents of the first pass that the search begins with.")
    length: int = Field(50, ge=1, le=1000, description="L: documents that the list keeps; what is cut leads nowhere.")
    queue: Literal["list", "best_first"] = Field(
        "list",
        description="list: all neighbours of the best document are judged, as in the paper. best_first: a batch of "
        "those neighbours whose leading document has the best score; for rerankers that give scores.",
    )


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy.

    Attributes:
        name: As in a request's ``method``.
        Params: The model of its parameters.
        about: What it does, in a few sentences.
        walks: Whether it reads the neighbour graph.
        run: Runs it, given its parameters, the first pass, neighbours, judge and nearness to the query.
    """

    name: str
    Params: type[StrategyParams]
    about: str
    walks: bool
    run: Callable[[Any, Sequence[int], Neighbours, BudgetedReranker, Nearness], Awaitable[RerankedList]]


def budgeted_reranker(
    name: str, params: StrategyParams, reranker: PointwiseScorer | ListwiseSorter
) -> BudgetedReranker:
    """Return the judge that a strategy works with.

    Raises:
        InvalidRequest: The strategy needs scores, and the reranker gives none.
    """
    require_suited(name, params, gives_scores=isinstance(reranker, PointwiseScorer))
    if not isinstance(reranker, PointwiseScorer):
        return ListwiseBudgetedReranker(reranker, params.budget, params.window, params.count)
    if name == "slidegar":
        return ListwiseBudgetedReranker(_ScoreOrder(reranker), params.budget, params.window, "distinct")
    return PointwiseBudgetedReranker(reranker, params.budget)


def require_suited(name: str, params: StrategyParams, *, gives_scores: bool) -> None:
    """Refuse a reranker that a strategy cannot work with.

    Raises:
        InvalidRequest: The strategy goes by scores, and the reranker gives none.
    """
    if not gives_scores and (name == "gar" or getattr(params, "queue", "list") == "best_first"):
        raise InvalidRequest(
            f"method [{name}] goes by scores, and reranker [{params.reranker}] gives an order: take rgs or slidegar"
        )


class _ScoreOrder:
    """Orders documents by scores, each of which is asked for once."""

    def __init__(self, reranker: PointwiseScorer) -> None:
        self._reranker = reranker
        self._scores: dict[int, float] = {}

    async def order(self, documents: Sequence[int]) -> list[int]:
        new = [document for document in documents if document not in self._scores]
        judge = PointwiseBudgetedReranker(self._reranker, len(new))
        await judge.sort(new)
        if judge.failure is not None:
            raise judge.failure
        self._scores.update((document, score) for document in new if (score := judge.score(document)) is not None)
        return sorted(documents, key=lambda document: -self._scores[document])


async def _rr(
    _params: RrParams, first: Sequence[int], _: Neighbours, judge: BudgetedReranker, __: Nearness
) -> RerankedList:
    return await retrieve_and_rerank(first, judge)


async def _gar(
    params: GarParams, first: Sequence[int], graph: Neighbours, judge: BudgetedReranker, _: Nearness
) -> RerankedList:
    return await gar(first, graph, judge, batch=params.batch)


async def _slidegar(
    _params: SlideGarParams, first: Sequence[int], graph: Neighbours, judge: BudgetedReranker, nearness: Nearness
) -> RerankedList:
    if not isinstance(judge, ListwiseBudgetedReranker):
        raise TypeError("SlideGAR needs a judge over windows")
    return await slidegar(first, graph, judge, nearness)


async def _rgs(
    params: RgsParams, first: Sequence[int], graph: Neighbours, judge: BudgetedReranker, _: Nearness
) -> RerankedList:
    if params.queue == "best_first":
        return await gar(first, graph, judge, seeds=params.seeds, alternate=False)
    return await rgs(first, graph, judge, seeds=params.seeds, length=params.length)


STRATEGIES: Mapping[str, Strategy] = {
    one.name: one
    for one in (
        Strategy(
            "rr",
            RrParams,
            "Retrieve and rerank: the first documents of the window, as many as the budget pays for, in the "
            "reranker's order.",
            walks=False,
            run=_rr,
        ),
        Strategy(
            "llm_pick",
            LlmPickParams,
            "SIRA's pick: a language model judges the first documents of the window, as in `rr`. One without a rating "
            "or place that can be read keeps its first-pass order behind those that have one. Give it a `timeout` of "
            "several seconds.",
            walks=False,
            run=_rr,
        ),
        Strategy(
            "gar",
            GarParams,
            "Graph-based adaptive reranking (MacAvaney et al., CIKM 2022): batches in turn from the window and from "
            "the neighbours of what scored best. For rerankers that give scores.",
            walks=True,
            run=_gar,
        ),
        Strategy(
            "slidegar",
            SlideGarParams,
            "SlideGAR (Rathee et al., ECIR 2025): the better half of a listwise reranker's window stays, the other is "
            "filled in turn from the first pass and from neighbours, those nearest to the query first.",
            walks=True,
            run=_slidegar,
        ),
        Strategy(
            "rgs",
            RgsParams,
            "Reranker-Guided Search (Xu et al., ICLR 2026): from the first documents of the window on, all neighbours "
            "of the best document that has not been expanded yet are judged, until the budget is spent.",
            walks=True,
            run=_rgs,
        ),
    )
}
"""By name."""
