"""The kernel on real vectors: LIMIT-small with all-MiniLM-L6-v2, every document in the window."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.metrics import score
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import DEFAULT_SCALES, scale_norms
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True)
class Encoded:
    collection: Collection
    documents: Encodings
    queries: Float32


@pytest.fixture(scope="module")
def limit_small(encoder: Encoder, shared_data: Path) -> Encoded:
    collection = load_collection(shared_data / "limit-small")
    documents = encoder.encode([" ".join(document.source.values()) for document in collection.documents])
    queries = encoder.encode(list(collection.queries.values()), role="query", tokens=False)
    return Encoded(collection, documents, queries.pooled)


def ndcg_at_10(limit_small: Encoded, window: Window, method: str) -> float:
    rescorer = registry.load(method)
    params = registry.parse_params(rescorer, {})
    rankings = {}
    for query_id, vector in zip(limit_small.collection.queries, limit_small.queries, strict=True):
        scores = rescorer.score(Query(query_id, vector[None]), window, params)
        rankings[query_id] = [window.ids[place] for place in np.argsort(-scores, kind="stable")[:10]]
    return score(limit_small.collection.qrels, rankings).mean("ndcg@10")


def test_limit_small_is_ranked_by_spectral_and_not_by_dense(limit_small: Encoded) -> None:
    tokens = [quantise(matrix, "int8") for matrix in limit_small.documents.tokens]
    window = Window(
        ids=[document.id for document in limit_small.collection.documents],
        first_pass=np.zeros(len(tokens), np.float32),
        pooled=limit_small.documents.pooled,
        tokens=tokens,
        norms=[scale_norms(dequantise(document), DEFAULT_SCALES) for document in tokens],
    )
    dense, maxsim, spectral = (ndcg_at_10(limit_small, window, name) for name in ("dense", "maxsim", "spectral"))
    assert dense == pytest.approx(0.314, abs=0.005)
    assert spectral == pytest.approx(0.945, abs=0.005)
    assert dense < maxsim < spectral
