"""Strategies of reranking under a budget: which documents a reranker scores, and in what order; no HTTP, no engine."""

from es_ttc.reranking.strategies.base import (
    BudgetedReranker,
    BudgetExhausted,
    ListwiseSorter,
    Neighbours,
    PartialScores,
    PointwiseScorer,
    RerankedList,
    StepLimit,
    StopReason,
)
from es_ttc.reranking.strategies.gar import gar
from es_ttc.reranking.strategies.listwise import ListwiseBudgetedReranker
from es_ttc.reranking.strategies.methods import STRATEGIES, Strategy, StrategyParams, budgeted_reranker
from es_ttc.reranking.strategies.pointwise import PointwiseBudgetedReranker
from es_ttc.reranking.strategies.retrieve_and_rerank import retrieve_and_rerank
from es_ttc.reranking.strategies.rgs import rgs
from es_ttc.reranking.strategies.slidegar import Nearness, slidegar

__all__ = [
    "STRATEGIES",
    "BudgetExhausted",
    "BudgetedReranker",
    "ListwiseBudgetedReranker",
    "ListwiseSorter",
    "Nearness",
    "Neighbours",
    "PartialScores",
    "PointwiseBudgetedReranker",
    "PointwiseScorer",
    "RerankedList",
    "StepLimit",
    "StopReason",
    "Strategy",
    "StrategyParams",
    "budgeted_reranker",
    "gar",
    "retrieve_and_rerank",
    "rgs",
    "slidegar",
]
