"""Reranking under a budget: which documents are worth showing to an expensive reranker, and in what order.

The strategies know documents by number, and reach rerankers and neighbours through protocols: no HTTP, no engine.
"""

from es_ttc.reranking.base import Interrupted, Judge, Listwise, Neighbourhood, Pointwise, Spent, Stopped, Walk
from es_ttc.reranking.gar import gar
from es_ttc.reranking.listwise import ListwiseJudge
from es_ttc.reranking.pointwise import PointwiseJudge
from es_ttc.reranking.retrieve_and_rerank import retrieve_and_rerank
from es_ttc.reranking.rgs import rgs
from es_ttc.reranking.slidegar import Nearness, slidegar
from es_ttc.reranking.strategies import STRATEGIES, Strategy, WalkParams, judge_of

__all__ = [
    "STRATEGIES",
    "Interrupted",
    "Judge",
    "Listwise",
    "ListwiseJudge",
    "Nearness",
    "Neighbourhood",
    "Pointwise",
    "PointwiseJudge",
    "Spent",
    "Stopped",
    "Strategy",
    "Walk",
    "WalkParams",
    "gar",
    "judge_of",
    "retrieve_and_rerank",
    "rgs",
    "slidegar",
]
