"""The neighbour graph, against slow literal forms of the same definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from es_ttc.reranking.graph import (
    NO_NEIGHBOUR,
    GraphParams,
    NeighbourGraph,
    build,
    statistics,
    takers_of,
    update_neighbours,
)
from es_ttc.reranking.graph.nearest import Hnsw, exact
from es_ttc.reranking.graph.prune import robust_prune
from es_ttc.reranking.graph.statistics import reachable
from es_ttc.vectors.tokens import Float32


def corpus(count: int, dims: int = 16, seed: int = 0) -> Float32:
    vectors = np.random.default_rng(seed).standard_normal((count, dims)).astype(np.float32)
    unit: Float32 = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def pruned_literally(vectors: Float32, document: int, candidates: list[int], degree: int, alpha: float) -> list[int]:
    """DiskANN's algorithm 2, word for word."""

    def distance(one: int, other: int) -> float:
        return float(np.linalg.norm(vectors[one].astype(np.float64) - vectors[other]))

    left = sorted((c for c in candidates if c != document), key=lambda c: (distance(document, c), c))
    chosen: list[int] = []
    while left and len(chosen) < degree:
        best = left.pop(0)
        chosen.append(best)
        left = [other for other in left if alpha * distance(best, other) > distance(document, other)]
    return chosen


@pytest.mark.parametrize("count", [1, 2, 3, 50, 700])
def test_exact_neighbours_are_the_nearest(count: int) -> None:
    vectors = corpus(count)
    numbers, cosines = exact(vectors, 10)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    for document in range(count):
        wanted = np.argsort(-similarity[document], kind="stable")[: min(10, count - 1)]
        assert numbers[document].tolist() == wanted.tolist()
        np.testing.assert_allclose(cosines[document], similarity[document][wanted], atol=1e-6)


def test_equal_documents_are_neighbours_in_the_order_of_their_numbers() -> None:
    numbers, _ = exact(np.tile(corpus(1), (5, 1)), 3)
    assert numbers.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2]]


def test_the_approximate_neighbours_are_nearly_all_exact() -> None:
    vectors = corpus(3000)
    found, cosines = Hnsw(vectors, 10).nearest()
    wanted, _ = exact(vectors, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)])
    assert recall > 0.95
    assert not (found == np.arange(3000)[:, None]).any()
    assert (np.diff(cosines, axis=1) <= 0).all()


@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(1, 3), st.integers(0, 12))
def test_pruning_is_diskanns(seed: int, degree: int, alpha: float, dropped: int) -> None:
    vectors = corpus(30, 8, seed)
    near, _ = exact(vectors, 20)
    near[:, 20 - dropped :] = NO_NEIGHBOUR
    found = robust_prune(vectors, np.arange(30, dtype=np.int32), near, degree, alpha)
    for document in range(30):
        candidates = [c for c in near[document].tolist() if c != NO_NEIGHBOUR]
        chosen = [c for c in found[document].tolist() if c != NO_NEIGHBOUR]
        assert chosen == pruned_literally(vectors, document, candidates, degree, alpha)


def test_a_graph_keeps_its_bounds() -> None:
    graph = build(corpus(300), GraphParams(degree=6, candidates=20))
    assert graph.table.shape == (300, 6)
    assert graph.table.dtype == np.int32
    assert graph.degrees.max() <= 6
    assert all(document not in graph.of(document) for document in range(300))


@pytest.mark.parametrize("count", [0, 1])
def test_a_corpus_too_small_for_neighbours_has_none(count: int) -> None:
    graph = build(corpus(count))
    assert len(graph) == count
    assert graph.degrees.sum() == 0
    assert statistics(graph).components == ()


@pytest.mark.parametrize("wrong", [{"degree": 0}, {"alpha": 0.5}, {"candidates": 0}, {"degre": 3}])
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        GraphParams.model_validate(wrong)


def test_statistics_are_scipys() -> None:
    generator = np.random.default_rng(3)
    table = np.where(generator.random((200, 3)) < 0.25, generator.integers(0, 200, (200, 3)), NO_NEIGHBOUR)
    table = np.sort(table, axis=1)[:, ::-1].astype(np.int32)
    graph = NeighbourGraph(table)
    sources, places = np.nonzero(table != NO_NEIGHBOUR)
    edges = csr_matrix((np.ones(len(sources)), (sources, table[sources, places])), shape=(200, 200))
    _, labels = connected_components(edges, directed=True, connection="weak")
    touched = np.zeros(200, np.bool_)
    touched[sources] = touched[table[sources, places]] = True
    sizes = sorted((int(size) for size in np.bincount(labels[touched]) if size), reverse=True)
    measured = statistics(graph)
    assert measured.components == tuple(sizes)
    assert measured.isolated == int((~touched).sum())
    assert measured.edges == len(sources)


def test_reach_counts_the_steps_from_the_nearest_seed() -> None:
    graph = NeighbourGraph(
        np.array([[1, NO_NEIGHBOUR], [2, 0], [NO_NEIGHBOUR, NO_NEIGHBOUR], [2, NO_NEIGHBOUR]], np.int32)
    )
    assert reachable(graph, [0]).tolist() == [0, 1, 2, -1]
    assert reachable(graph, [3, 1]).tolist() == [1, 0, 1, 0]


def recall(graph: NeighbourGraph, vectors: Float32, documents: list[int], k: int = 8) -> float:
    """The share of some documents' k nearest, among these documents, that the graph leads to in one step or two."""
    subset = vectors[documents]
    wanted, _ = exact(subset, k)
    hits = 0
    for place, document in enumerate(documents):
        one = graph.of(document).tolist()
        two = {further for neighbour in one for further in graph.of(neighbour).tolist()} | set(one)
        hits += sum(documents[other] in two for other in wanted[place].tolist())
    return hits / (k * len(documents))


def test_a_mended_graph_is_as_good_as_a_new_one() -> None:
    generator = np.random.default_rng(5)
    params = GraphParams(degree=12, candidates=40)
    old = corpus(600)
    graph = build(old, params)
    deleted = generator.choice(600, 12, replace=False)
    changed = np.setdiff1d(generator.choice(600, 12, replace=False), deleted)
    vectors = np.concatenate([old, corpus(12, seed=9)])
    vectors[changed] = corpus(len(changed), seed=10)
    written = [*changed.tolist(), *range(600, 612)]
    mended, touched = update_neighbours(graph, vectors, written=written, deleted=deleted.tolist(), params=params)
    living = [document for document in range(612) if document not in set(deleted.tolist())]
    assert mended.degrees[deleted].sum() == 0
    assert not np.isin(mended.table, deleted).any()
    assert (mended.degrees[written] > 0).all()
    untouched = np.setdiff1d(np.arange(600), touched)
    np.testing.assert_array_equal(mended.table[untouched], graph.table[untouched])
    rebuilt = build(vectors[living], params)
    numbers = np.array([*living, NO_NEIGHBOUR], np.int32)
    anew = np.full((612, 12), NO_NEIGHBOUR, np.int32)
    anew[living] = numbers[rebuilt.table]
    assert recall(mended, vectors, living) > recall(NeighbourGraph(anew), vectors, living) - 0.01


@pytest.mark.parametrize("degree", [4, 12])
def test_mending_skips_nodes_that_can_take_no_newcomer(degree: int) -> None:
    params = GraphParams(degree=degree, candidates=40)
    vectors = corpus(612)
    graph = build(vectors[:600], params)
    written = np.arange(600, 612, dtype=np.int32)
    near, _ = exact(vectors, params.candidates, rows=written)
    farthest = np.full(612, NO_NEIGHBOUR, np.int32)
    farthest[:600] = np.where(graph.degrees == degree, graph.table[:, -1], NO_NEIGHBOUR)
    takers = takers_of(near, written, vectors, farthest)
    assert len(takers) < 0.8 * len(np.unique(near))
    whole, touched = update_neighbours(graph, vectors, written=written.tolist(), params=params, near=near)
    mended, same = update_neighbours(graph, vectors, written=written.tolist(), params=params, near=near, takers=takers)
    np.testing.assert_array_equal(mended.table, whole.table)
    np.testing.assert_array_equal(same, touched)


def test_mending_with_nothing_to_do_changes_nothing() -> None:
    vectors = corpus(50)
    graph = build(vectors)
    mended, touched = update_neighbours(graph, vectors)
    np.testing.assert_array_equal(mended.table, graph.table)
    assert len(touched) == 0


def test_a_graph_can_be_emptied_and_filled_again() -> None:
    vectors = corpus(20)
    params = GraphParams(degree=4, candidates=8)
    empty, _ = update_neighbours(build(vectors, params), vectors, deleted=range(20), params=params)
    assert empty.degrees.sum() == 0
    again, _ = update_neighbours(empty, vectors, written=range(20), params=params)
    assert (again.degrees > 0).all()
