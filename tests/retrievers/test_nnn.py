"""NNN retrieval by column generation against the solver on the whole corpus."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.nnn import Dictionary, Penalty, Solution, select, solve
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Documents, KnownDocuments, NearestDocuments, Retrieved
from es_ttc.retrievers.memory import MemorySearch
from es_ttc.retrievers.nnn import CorpusSolution, SearchLimits, column_generation
from es_ttc.retrievers.nnn.retriever import NnnRetrieverParams, solver
from es_ttc.vectors.tokens import Float32
from tests.rescorers.nnn.certificates import objective
from tests.rescorers.nnn.problems import KINDS, rows_of
from tests.retrievers.test_memory import search_over, unit

MANY = SearchLimits(candidates=5, batch=3, rounds=10_000, exact=True)


def generated(
    query: Float32, search: MemorySearch, params: NnnRetrieverParams, effort: SearchLimits = MANY
) -> CorpusSolution:
    return asyncio.run(column_generation(query.astype(np.float64), search, solver(params), effort))


def retrieved(query: Float32, search: MemorySearch, k: int, **params: Any) -> Retrieved:
    nnn = registry.load("nnn")
    return asyncio.run(nnn.retrieve(Query("q", query[np.newaxis]), search, k, registry.parse_params(nnn, params)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Float32, Float32, NnnRetrieverParams]:
    """Corpora of every kind, a zero vector among them, n below and above d."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(1, 80)), draw(st.integers(1, 12))
    rows = rows_of(draw(st.sampled_from(KINDS)), n, d, random).astype(np.float32)
    rows[random.random(len(rows)) < draw(st.sampled_from([0.0, 0.1, 1.0]))] = 0
    query = unit(np.abs(random.standard_normal(d)) if draw(st.booleans()) else random.standard_normal(d))
    l1, l2 = draw(st.sampled_from([0.0, 0.05, 0.2, 0.6])), draw(st.sampled_from([0.0, 0.1, 1.0]))
    return rows, query, NnnRetrieverParams(l1=l1, l2=l2)


def undecided(whole: Solution) -> float:
    """How much the objective can differ where all conditions hold to their tolerance.

    By convexity it is the tolerance times the sum of the coefficients: nothing, but where l1 and l2 are 0 and vectors
    all but cancel, so that coefficients are millions.
    """
    return 1e-8 * float(whole.x.sum())


@given(problem=problems(), eligible=st.sampled_from([1.0, 0.5, 0.0]), batch=st.sampled_from([1, 3, 50]))
def test_nnn_retrieval_equals_the_solution_over_the_corpus(
    problem: tuple[Float32, Float32, NnnRetrieverParams], eligible: float, batch: int
) -> None:
    rows, query, params = problem
    allowed = np.random.default_rng(0).random(len(rows)) < eligible
    effort = SearchLimits(candidates=5, batch=batch, rounds=10_000, exact=True)
    outcome = generated(query, search_over(rows, eligible=allowed), params, effort)
    penalty = Penalty(params.l1, params.l2)
    whole = solve(Dictionary.of(rows[allowed]), query, penalty)
    x = np.zeros(len(rows))
    x[outcome.documents] = outcome.solution.x
    best = objective(rows[allowed], query, whole.x, penalty)
    assert allowed[outcome.documents].all()
    assert objective(rows, query, x, penalty) == pytest.approx(best, abs=1e-7 + undecided(whole))
    assert outcome.stop == ("certified" if len(outcome.documents) else "empty")
    assert outcome.gap == 0
    if params.l2 > 0:
        assert x[allowed] == pytest.approx(whole.x, abs=1e-5)


@given(problem=problems(), rounds=st.integers(1, 4))
def test_the_gap_of_an_early_end_bounds_what_is_missing(
    problem: tuple[Float32, Float32, NnnRetrieverParams], rounds: int
) -> None:
    rows, query, params = problem
    outcome = generated(query, search_over(rows), params, SearchLimits(3, 1, rounds, exact=True))
    penalty = Penalty(params.l1, params.l2)
    whole = solve(Dictionary.of(rows), query, penalty)
    best = objective(rows, query, whole.x, penalty)
    found = objective(outcome.rows, query, outcome.solution.x, penalty)
    assert found - best <= outcome.gap + 1e-6 + undecided(whole)
    assert outcome.searches <= rounds
    assert outcome.stop in (("certified", "rounds") if len(outcome.documents) else ("empty",))


def test_nnn_returns_the_requested_number_of_documents() -> None:
    random = np.random.default_rng(0)
    rows, query = unit(random.standard_normal((500, 16))), unit(random.standard_normal(16))
    params = NnnRetrieverParams(documents=6)
    outcome = generated(query, search_over(rows), params)
    chosen = outcome.solution
    assert len(chosen.support) >= 6
    assert outcome.stop == "certified"
    whole = solve(Dictionary.of(rows), query, chosen.penalty)
    assert set(outcome.documents[chosen.support]) == set(whole.support)
    assert len(select(Dictionary.of(rows), query, 6, l2=params.l2).support) == len(chosen.support)


class ShortSighted(MemorySearch):
    """Looks at a few of the nearest documents only, however many are asked for, and says so."""

    sight = 3

    async def nearest(self, vectors: Float32, k: int, **how: Any) -> list[NearestDocuments]:
        return [replace(one, complete=False) for one in await super().nearest(vectors, min(k, self.sight), **how)]


def test_a_search_that_gives_up_certifies_nothing_that_it_has_not_seen() -> None:
    random = np.random.default_rng(4)
    rows, query = unit(np.abs(random.standard_normal((60, 24)))), unit(np.abs(random.standard_normal(24)))
    whole = search_over(rows)
    assert generated(query, whole, NnnRetrieverParams(l1=0.02)).stop == "certified"
    short = ShortSighted(whole._matrices, whole._windows)
    few = generated(
        query, short, NnnRetrieverParams(l1=0.02), SearchLimits(candidates=10, batch=3, rounds=1, exact=True)
    )
    assert (few.stop, few.gap > 0) == ("rounds", True)


def test_nnn_returns_its_support_first_by_weight() -> None:
    random = np.random.default_rng(1)
    rows, query = unit(random.standard_normal((300, 16))), unit(random.standard_normal(16))
    everything = retrieved(query, search_over(rows), 40)
    whole = solve(Dictionary.of(rows), query, Penalty(0.2, 0.1))
    selected = len(whole.support)
    assert 1 < selected < 40
    assert everything.summary["certified"] is True
    assert everything.summary["selected"] == selected
    assert everything.documents[:selected].tolist() == sorted(whole.support, key=lambda one: -whole.x[one])
    assert everything.scores[:selected] == pytest.approx(sorted(whole.coefficients, reverse=True), abs=1e-6)
    assert (np.diff(everything.scores) <= 0).all()
    assert (everything.scores > 0).all()
    rest = rows[everything.documents[selected:]] @ query
    assert (np.diff(rest) <= 1e-7).all()
    assert len(everything.documents) == 40
    assert [detail["coefficient"] > 0 for detail in everything.details] == [True] * selected + [False] * (40 - selected)
    assert all(set(map(str, everything.documents)) >= {part["id"] for part in detail.get("redundant_with", ())}
               for detail in everything.details)  # fmt: skip
    alone = retrieved(query, search_over(rows), 40, rest="none")
    assert alone.documents.tolist() == everything.documents[:selected].tolist()
    assert len(retrieved(query, search_over(rows), 3).documents) == 3
    assert len(retrieved(query, search_over(rows[:7]), 1000).documents) == 7


def test_nnn_over_no_document_returns_none() -> None:
    rows, query = unit(np.random.default_rng(2).standard_normal((9, 4))), unit(np.ones(4))
    found = retrieved(query, search_over(rows, eligible=np.zeros(9, np.bool_)), 10)
    assert len(found.documents) == 0
    assert found.summary["certified"] is False
    assert found.summary["stopped_by"] == "empty"
    assert "duality_gap" not in found.summary
    assert found.summary["knn_searches"] == 1


def test_texts_that_cancel_each_other_out() -> None:
    vector = unit(np.ones(4))
    nnn = registry.load("nnn")
    with pytest.raises(InvalidRequest, match="cancel"):
        asyncio.run(
            nnn.retrieve(
                Query("q", np.stack([vector, -vector])), search_over(np.eye(4, dtype=np.float32)), 5, nnn.Params()
            )
        )


class Recording(MemorySearch):
    """Notes what is asked."""

    def begin(self) -> "Recording":
        self.asked: list[tuple[Float32, int, bool]] = []
        return self

    async def nearest(self, vectors: Float32, k: int, **options: Any) -> list[NearestDocuments]:
        self.asked.append((vectors, k, options["exact"]))
        return await super().nearest(vectors, k, **options)


class Forgetful(MemorySearch):
    """Finds a document whose features are gone by the time they are read: it changed in between."""

    async def window(self, documents: Documents, *features: frozenset[Feature]) -> KnownDocuments:
        return await super().window(documents[documents != 4], *features)


class Late(MemorySearch):
    """Has no time left after the first search."""

    @property
    def seconds_left(self) -> float:
        return 0.0


def over(kind: type[MemorySearch], rows: Float32) -> Any:
    plain = search_over(rows)
    return kind(plain._matrices, plain._windows)


def test_only_directions_are_asked_and_nothing_after_the_certificate() -> None:
    random = np.random.default_rng(3)
    rows, query = unit(random.standard_normal((400, 8))), unit(random.standard_normal(8))
    search = over(Recording, rows).begin()
    found = retrieved(query, search, 5, candidates=10, batch=7, exact=True)
    assert len(search.asked) == found.summary["knn_searches"]
    assert search.asked[0][1] == 10
    for vectors, k, exact in search.asked:
        assert vectors.shape == (1, 8)
        assert np.linalg.norm(vectors) == pytest.approx(1)
        assert k >= 7
        assert exact is True


def test_a_query_that_is_explained_at_once_needs_one_search() -> None:
    rows = unit(np.random.default_rng(4).standard_normal((200, 8)))
    found = retrieved(rows[17], search_over(rows), 5, l1=0.3, l2=0.0, candidates=1)
    assert found.summary["knn_searches"] == 1
    assert found.summary["certified"] is True


def test_a_document_that_changes_meanwhile_is_left_out_and_the_certificate_with_it() -> None:
    query = np.eye(6, dtype=np.float32)[0] * 0.8 + np.eye(6, dtype=np.float32)[4] * 0.6
    found = retrieved(query, over(Forgetful, np.eye(6, dtype=np.float32)), 6, candidates=1)
    assert 4 not in found.documents
    assert found.summary["certified"] is False
    assert found.summary["stopped_by"] == "changed"


def test_without_time_the_first_solution_stands() -> None:
    random = np.random.default_rng(5)
    rows, query = unit(random.standard_normal((400, 8))), unit(random.standard_normal(8))
    found = retrieved(query, over(Late, rows), 5, candidates=2, l1=0.05)
    assert found.summary["stopped_by"] == "time"
    assert found.summary["knn_searches"] == 1
    assert 0 < found.summary["duality_gap"] < math.inf


def test_many_copies_do_not_hide_a_document() -> None:
    """Copies of a selected document fill an answer, since each has the selected one's own inner product."""
    axes = np.eye(4, dtype=np.float32)
    rows = np.concatenate([np.repeat(axes[:1], 60, axis=0), axes[1:]])
    query = unit(np.array([1, 0.5, 0.4, 0]))
    outcome = generated(
        query, search_over(rows), NnnRetrieverParams(l1=0.1, l2=0.0), SearchLimits(1, 1, 100, exact=True)
    )
    assert outcome.stop == "certified"
    assert sorted(outcome.documents[outcome.solution.support].tolist()) == [0, 60, 61]
    assert outcome.searches < 20
