"""Rerankers that read texts: their contract, their settings, and calls to them."""

from es_ttc.reranking.rerankers.base import (
    Kind,
    ListwiseReranker,
    Passage,
    PointwiseReranker,
    Reranker,
    RerankerSettings,
)
from es_ttc.reranking.rerankers.calls import ListwiseCalls, PointwiseCalls
from es_ttc.reranking.rerankers.cost import Cost, charged_to, tell
from es_ttc.reranking.rerankers.registry import Rerankers

__all__ = [
    "Cost",
    "Kind",
    "ListwiseCalls",
    "ListwiseReranker",
    "Passage",
    "PointwiseCalls",
    "PointwiseReranker",
    "Reranker",
    "RerankerSettings",
    "Rerankers",
    "charged_to",
    "tell",
]
