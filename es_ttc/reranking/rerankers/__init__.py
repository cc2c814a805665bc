"""Rerankers that read texts: their contract, their settings, and calls to them."""

from es_ttc.reranking.rerankers.base import (
    ListwiseReranker,
    Passage,
    PointwiseReranker,
    Reranker,
    RerankerKind,
    RerankerSettings,
)
from es_ttc.reranking.rerankers.calls import ListwiseCalls, PointwiseCalls
from es_ttc.reranking.rerankers.cost import Cost, charged_to, tell
from es_ttc.reranking.rerankers.registry import Rerankers

__all__ = [
    "Cost",
    "ListwiseCalls",
    "ListwiseReranker",
    "Passage",
    "PointwiseCalls",
    "PointwiseReranker",
    "Reranker",
    "RerankerKind",
    "RerankerSettings",
    "Rerankers",
    "charged_to",
    "tell",
]
