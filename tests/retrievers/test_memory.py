"""The search over arrays, and dense retrieval through it, against plain sorting."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import MissingFeature
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Documents, NearestDocuments, Retriever, Vectors, together
from es_ttc.retrievers.memory import Matrix, MemorySearch
from es_ttc.vectors.tokens import Float32


def unit(rows: Any) -> Float32:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: Float32 = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0).astype(np.float32)
    return scaled


def windows_of(pooled: Float32) -> Any:
    def windows(documents: Documents, _: frozenset[Feature]) -> Window:
        return Window([str(one) for one in documents], np.zeros(len(documents), np.float32), pooled[documents])

    return windows


def search_over(pooled: Float32, **options: Any) -> MemorySearch:
    return MemorySearch({Vectors.POOLED: Matrix.of(pooled)}, windows_of(pooled), **options)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 40),
    k=st.integers(1, 50),
    texts=st.integers(1, 3),
    filtered=st.booleans(),
)
def test_dense_retrieval_is_sorting(seed: int, n: int, k: int, texts: int, filtered: bool) -> None:
    random = np.random.default_rng(seed)
    pooled = unit(random.standard_normal((n, 5)) * (random.random((n, 1)) > 0.2))
    query = Query("q", unit(random.standard_normal((texts, 5))))
    eligible = random.random(n) > 0.5 if filtered else np.ones(n, np.bool_)
    found = asyncio.run(
        registry.load("dense").retrieve(
            query, search_over(pooled, eligible=eligible), k, registry.load("dense").Params()
        )
    )
    cosines = (pooled @ query.vectors.T).max(axis=1) if n else np.zeros(0, np.float32)
    expected = [one for one in np.argsort(-cosines, kind="stable") if eligible[one] and pooled[one].any()][:k]
    assert found.scores == pytest.approx(cosines[expected], abs=1e-6)
    assert sorted(found.documents) == pytest.approx(sorted(expected))


def test_the_nearest_of_a_documents_vectors_counts() -> None:
    rows = unit(np.array([[1.0, 0], [0, 1], [1, 1], [-1, 0]]))
    spans = Matrix(rows, np.array([2, 2, 5, 7]))
    search = MemorySearch({Vectors.SPANS: spans}, windows_of(rows))
    [found] = asyncio.run(search.nearest(np.array([[0.0, 3.0]], np.float32), 2, among=Vectors.SPANS))
    assert found.documents.tolist() == [2, 5]
    assert found.cosines == pytest.approx([1, 2**-0.5])


def test_vectors_that_the_corpus_lacks() -> None:
    search = search_over(np.eye(2, dtype=np.float32))
    with pytest.raises(MissingFeature, match=r"\[tokens\]"):
        asyncio.run(search.nearest(np.eye(2, dtype=np.float32), 1, among=Vectors.TOKENS))


def test_several_searches_as_one() -> None:
    found = together(
        [
            NearestDocuments(np.array([4, 1]), np.array([0.9, 0.2], np.float32)),
            NearestDocuments(np.array([1, 7]), np.array([0.8, 0.1], np.float32)),
        ]
    )
    assert found.documents.tolist() == [4, 1, 7]
    assert found.cosines == pytest.approx([0.9, 0.8, 0.1])
    assert len(together([]).documents) == 0


def test_the_built_in_retrievers_follow_the_contract() -> None:
    assert "dense" in registry.names()
    assert registry.problems() == {}
    for name in registry.names():
        retriever = registry.load(name)
        assert isinstance(retriever, Retriever)
        for field, info in retriever.Params.model_fields.items():
            assert info.description, f"{name}.{field}"
