"""Reranking under a budget: which documents are worth showing to an expensive reranker, and in what order.

The strategies know documents by number, and reach rerankers and neighbours through protocols: no HTTP, no engine.
"""

from es_ttc.reranking.base import Interrupted, Judge, Listwise, Neighbourhood, Pointwise, Stopped, Walk
from es_ttc.reranking.gar import gar
from es_ttc.reranking.listwise import ListwiseJudge
from es_ttc.reranking.pointwise import PointwiseJudge
from es_ttc.reranking.retrieve_and_rerank import retrieve_and_rerank
from es_ttc.reranking.rgs import rgs
from es_ttc.reranking.slidegar import slidegar

__all__ = [
    "Interrupted",
    "Judge",
    "Listwise",
    "ListwiseJudge",
    "Neighbourhood",
    "Pointwise",
    "PointwiseJudge",
    "Stopped",
    "Walk",
    "gar",
    "retrieve_and_rerank",
    "rgs",
    "slidegar",
]
