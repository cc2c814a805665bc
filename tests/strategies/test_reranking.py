"""The strategies: their budgets, what they reach, and what they do when the reranker fails."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_reranker import SimulatedReranker, noise_scale
from es_ttc.reranking.graph import NO_NEIGHBOUR
from es_ttc.reranking.graph.prune import robust_prune
from es_ttc.reranking.strategies import (
    BudgetedReranker,
    ListwiseBudgetedReranker,
    PartialScores,
    PointwiseBudgetedReranker,
    RerankedList,
    StopReason,
    gar,
    retrieve_and_rerank,
    rgs,
    slidegar,
)
from es_ttc.reranking.strategies.listwise import Count
from es_ttc.reranking.strategies.slidegar import Frontier

ids = [f"d{number}" for number in range(200)]


class Edges:
    """A graph given by its edges."""

    def __init__(self, edges: dict[int, list[int]]) -> None:
        self.edges = edges
        self.asked: list[int] = []

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        self.asked.extend(documents)
        return [self.edges.get(document, []) for document in documents]

    def expect(self, documents: Sequence[int]) -> None:
        pass


class Counting:
    """A reranker that knows the right order, and counts what it is shown."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self.shown: list[int] = []
        self.largest = 0

    async def scores(self, documents: Sequence[int]) -> list[float]:
        self.shown.extend(documents)
        self.largest = max(self.largest, len(documents))
        return [self.values[document] for document in documents]

    async def order(self, documents: Sequence[int]) -> list[int]:
        self.shown.extend(documents)
        self.largest = max(self.largest, len(documents))
        return sorted(documents, key=lambda document: -self.values[document])


def line(length: int) -> Edges:
    """Each document leads to the next."""
    return Edges({number: [number + 1] for number in range(length - 1)})


async def near_zero(documents: Sequence[int]) -> list[float]:
    return [-float(document) for document in documents]


async def walk(strategy: str, judge: BudgetedReranker, first_pass: Sequence[int], edges: Edges) -> RerankedList:
    match strategy:
        case "rr":
            return await retrieve_and_rerank(first_pass, judge)
        case "gar":
            assert isinstance(judge, PointwiseBudgetedReranker)
            return await gar(first_pass, edges, judge, batch=4)
        case "slidegar":
            assert isinstance(judge, ListwiseBudgetedReranker)
            return await slidegar(first_pass, edges, judge, near_zero)
        case _:
            return await rgs(first_pass, edges, judge, seeds=5, length=20)


graphs = st.dictionaries(st.integers(0, 59), st.lists(st.integers(0, 59), max_size=6), max_size=60)
orders = st.permutations(range(60)).flatmap(lambda order: st.integers(1, 60).map(lambda size: order[:size]))
values = st.lists(st.integers(-5, 5).map(float), min_size=60, max_size=60)


@given(graphs, orders, values, st.integers(0, 80), st.sampled_from(["rr", "gar", "rgs"]))
async def test_pointwise_never_beyond_the_budget(
    edges: dict[int, list[int]], first_pass: list[int], worth: list[float], budget: int, strategy: str
) -> None:
    reranker = Counting(worth)
    judge = PointwiseBudgetedReranker(reranker, budget)
    found = await walk(strategy, judge, first_pass, Edges(edges))
    assert len(reranker.shown) == len(set(reranker.shown)) == found.spent <= budget
    assert_sound(found, first_pass)
    scores = [worth[document] for document in found.documents[: found.judged]]
    assert scores == sorted(scores, reverse=True)


@given(
    graphs,
    orders,
    values,
    st.integers(0, 120),
    st.sampled_from(["rr", "slidegar", "rgs"]),
    st.sampled_from(["shown", "distinct"]),
    st.integers(2, 21),
)
async def test_listwise_never_beyond_the_budget(
    edges: dict[int, list[int]],
    first_pass: list[int],
    worth: list[float],
    budget: int,
    strategy: str,
    count: Count,
    window: int,
) -> None:
    reranker = Counting(worth)
    judge = ListwiseBudgetedReranker(reranker, budget, window, count)
    found = await walk(strategy, judge, first_pass, Edges(edges))
    paid = len(reranker.shown) if count == "shown" else len(set(reranker.shown))
    assert paid == found.spent <= budget
    assert reranker.largest <= window
    assert set(found.calls) == set(reranker.shown)
    assert_sound(found, first_pass)


def assert_sound(found: RerankedList, first_pass: Sequence[int]) -> None:
    """Nothing is lost or doubled, judged documents stand first, neighbours were led to by documents met before."""
    assert len(found.documents) == len(set(found.documents))
    assert set(found.documents) >= set(first_pass)
    assert set(found.documents[: found.judged]) == set(found.calls)
    unjudged = [document for document in found.documents[found.judged :] if document in set(first_pass)]
    assert unjudged == [document for document in first_pass if document not in set(found.calls)]
    assert set(found.documents) - set(first_pass) <= set(found.found_from)


async def test_guided_search_reaches_what_the_first_pass_lacks() -> None:
    """Documents are worth more the farther along the line they stand; the first pass knows the first ten only."""
    worth = [float(number) for number in range(60)]
    found = await rgs(range(10), line(60), PointwiseBudgetedReranker(Counting(worth), 60), seeds=10)
    assert found.documents[:3] == [59, 58, 57]
    assert found.found_from[59] == 58
    baseline = await retrieve_and_rerank(range(10), PointwiseBudgetedReranker(Counting(worth), 60))
    assert baseline.documents[0] == 9
    assert baseline.stopped is StopReason.EXHAUSTED


@pytest.mark.parametrize("count", ["shown", "distinct"])
async def test_listwise_guided_search_reaches_it_too(count: Count) -> None:
    worth = [float(number) for number in range(60)]
    judge = ListwiseBudgetedReranker(Counting(worth), 400, 20, count)
    found = await rgs(range(10), line(60), judge, seeds=10, length=20)
    assert found.documents[0] > 20


async def test_no_document_is_expanded_twice() -> None:
    everything = Edges({number: list(range(30)) for number in range(30)})
    await rgs(range(30), everything, PointwiseBudgetedReranker(Counting([1.0] * 30), 30))
    assert len(everything.asked) == len(set(everything.asked))


async def test_with_an_empty_graph_guided_search_is_retrieve_and_rerank() -> None:
    worth = [math.sin(number) for number in range(100)]
    guided = await rgs(range(100), Edges({}), PointwiseBudgetedReranker(Counting(worth), 40), seeds=7, length=100)
    plain = await retrieve_and_rerank(range(100), PointwiseBudgetedReranker(Counting(worth), 40))
    assert guided.documents == plain.documents
    assert guided.spent == plain.spent == 40


@pytest.mark.parametrize("budget", [40, 95, 100])
async def test_a_window_that_agrees_with_the_first_pass_leaves_it_as_it_was(budget: int) -> None:
    async def near(documents: Sequence[int]) -> list[float]:
        return [0.0] * len(documents)

    judge = ListwiseBudgetedReranker(Counting(list(range(100, 0, -1))), budget, count="distinct")
    found = await slidegar(range(100), Edges({}), judge, near)
    assert list(found.documents) == list(range(100))
    assert found.judged == budget


@pytest.mark.parametrize(("frontier", "third"), [("dropped", [16, 17]), ("kept", [12, 13])])
async def test_neighbours_that_were_not_taken_are_dropped(frontier: Frontier, third: list[int]) -> None:
    """The last of the first window has four neighbours, of which two are taken, and leaves the window."""
    edges = Edges({3: [10, 11, 12, 13], 10: [16, 17]})
    reranker = Counting([-number for number in range(20)])
    judge = ListwiseBudgetedReranker(reranker, 8, 4, "distinct")
    await slidegar(range(4), edges, judge, near_zero, frontier=frontier)
    shown = list(dict.fromkeys(reranker.shown))
    assert shown == [0, 1, 2, 3, 10, 11, *third]


@given(st.integers(0, 10_000))
async def test_search_on_a_graph_of_vectors_finds_what_is_near_by_the_rerankers_distance(seed: int) -> None:
    """If both distances differ by a factor of at most C, greedy search errs by a bounded factor (bi-metric framework).

    A graph whose pruning has alpha C under the vectors' distance has at least alpha under the reranker's, and greedy
    search over it ends at most (alpha + 1) / (alpha - 1) times as far as the nearest document.
    """
    random = np.random.default_rng(seed)
    count, factor, alpha = 40, 1.5, 2.0
    rows = random.standard_normal((count + 1, 6)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    documents, query = rows[:count], rows[count]
    every = np.arange(count, dtype=np.int32)
    table = robust_prune(documents, every, np.tile(every, (count, 1)), count, alpha * factor)
    turned = np.linalg.qr(random.standard_normal((6, 6)))[0] * random.uniform(1, factor, 6)
    far = np.linalg.norm((documents - query) @ turned, axis=1)
    edges = Edges({at: [int(one) for one in row if one != NO_NEIGHBOUR] for at, row in enumerate(table)})
    judge = PointwiseBudgetedReranker(Counting((-far).tolist()), count)
    found = await rgs([int(random.integers(count))], edges, judge, seeds=1, length=1)
    assert far[found.documents[0]] <= (alpha + 1) / (alpha - 1) * far.min() + 1e-6


async def test_rgs_does_not_expand_documents_below_its_list() -> None:
    edges = Edges({0: [10, 11, 12], 12: [20]})
    worth = [0.0] * 30
    worth[:3] = 9, 8, 7
    found = await rgs(range(3), edges, PointwiseBudgetedReranker(Counting(worth), 30), seeds=3, length=3)
    assert 12 not in edges.asked
    assert found.documents == [0, 1, 2, 10, 11, 12]


@given(st.permutations(range(50)), st.integers(2, 25).map(lambda half: 2 * half))
async def test_one_pass_brings_the_best_half_window_to_the_front(order: list[int], window: int) -> None:
    worth = [float(-number) for number in range(50)]
    judge = ListwiseBudgetedReranker(Counting(worth), 10_000, window)
    ranked = await judge.sort(order)
    assert ranked[: window // 2] == sorted(order)[: window // 2]
    assert sorted(ranked) == sorted(order)


async def test_a_window_that_changes_nothing_ends_the_pass() -> None:
    reranker = Counting([float(-number) for number in range(60)])
    judge = ListwiseBudgetedReranker(reranker, 10_000, 10)
    ranked = await judge.sort(range(40))
    spent = judge.spent
    ranked = await judge.sort([*ranked, 50, 51])
    assert judge.spent - spent == 10
    assert ranked == [*range(40), 50, 51]


async def test_one_pass_of_a_listwise_reranker_pays_for_what_it_covers() -> None:
    reranker = Counting([float(number) for number in range(100)])
    found = await retrieve_and_rerank(range(100), ListwiseBudgetedReranker(reranker, 100, 20))
    assert found.judged == 60  # 20 at first, then 10 new ones in each of four windows of 20
    assert found.spent == 100
    assert found.documents[0] == 59


class Faulty:
    """A reranker that answers a few times, then goes wrong in one way or another."""

    def __init__(self, fault: str, after: int) -> None:
        self.fault = fault
        self.after = after

    async def scores(self, documents: Sequence[int]) -> list[float]:
        self.after -= 1
        right = [float(-document) for document in documents]
        if self.after >= 0:
            return right
        match self.fault:
            case "raises":
                raise TimeoutError("no answer")
            case "fewer":
                return right[:-1]
            case _:
                return [math.nan, *right[1:]]

    async def order(self, documents: Sequence[int]) -> list[int]:
        self.after -= 1
        if self.after >= 0:
            return sorted(documents)
        match self.fault:
            case "raises":
                raise TimeoutError("no answer")
            case "duplicates":
                return [documents[-1]] * 3
            case _:
                return [999, -1]


@pytest.mark.parametrize("fault", ["raises", "fewer", "nan"])
@pytest.mark.parametrize("strategy", ["rr", "gar", "rgs"])
@pytest.mark.parametrize("after", [0, 1])
async def test_a_failing_pointwise_reranker_leaves_what_was_ranked(fault: str, strategy: str, after: int) -> None:
    first_pass = list(range(40))
    found = await walk(strategy, PointwiseBudgetedReranker(Faulty(fault, after), 30), first_pass, line(60))
    assert found.spent <= 30
    assert set(found.documents) >= set(first_pass)
    if found.failure is None:  # a strategy that needs one call only has not met the fault
        assert strategy == "rr"
        assert after == 1
    else:
        assert found.stopped is StopReason.FAILED
        assert found.documents[0] == 0


@pytest.mark.parametrize("strategy", ["rr", "slidegar", "rgs"])
async def test_a_failing_listwise_reranker_leaves_what_was_ranked(strategy: str) -> None:
    found = await walk(strategy, ListwiseBudgetedReranker(Faulty("raises", 1), 100), list(range(40)), line(60))
    assert found.stopped is StopReason.FAILED
    assert isinstance(found.failure, TimeoutError)
    assert sorted(found.documents) == sorted({*range(40), *found.documents})


@pytest.mark.parametrize("fault", ["duplicates", "foreign"])
@pytest.mark.parametrize("strategy", ["rr", "slidegar", "rgs"])
async def test_odd_orders_are_mended(fault: str, strategy: str) -> None:
    found = await walk(strategy, ListwiseBudgetedReranker(Faulty(fault, 0), 100), list(range(40)), line(60))
    assert found.failure is None
    assert_sound(found, list(range(40)))


async def test_scores_that_came_before_a_failure_count() -> None:
    class Halfway:
        async def scores(self, documents: Sequence[int]) -> list[float]:
            raise PartialScores({0: 1.0, 2: 3.0}, RuntimeError("line is down"))

    judge = PointwiseBudgetedReranker(Halfway(), 10)
    found = await retrieve_and_rerank([7, 8, 9], judge)
    assert (found.documents, found.judged, found.stopped) == ([9, 7, 8], 2, StopReason.FAILED)
    assert str(found.failure) == "line is down"


@pytest.mark.parametrize("error_rate", [0.05, 0.2, 0.4])
async def test_the_simulation_errs_as_often_as_it_says(error_rate: float) -> None:
    wrong = total = 0
    for query in range(60):
        simulated = SimulatedReranker(f"q{query}", dict.fromkeys(ids[:100], 1), ids, error_rate)
        scores = await simulated.scores(range(200))
        for relevant, other in zip(scores[:100], scores[100:], strict=True):
            wrong += relevant < other
            total += 1
    assert wrong / total == pytest.approx(error_rate, abs=0.02)


async def test_the_simulation_is_an_oracle_without_errors_and_always_says_the_same() -> None:
    oracle = SimulatedReranker("q", {"d3": 2, "d1": 1}, ids, 0)
    assert await oracle.order([0, 1, 2, 3]) == [3, 1, 0, 2]
    noisy = [SimulatedReranker("q", {}, ids, 0.3, seed=4) for _ in range(2)]
    assert await noisy[0].scores(range(9)) == await noisy[1].scores(range(9))
    assert await noisy[0].scores(range(9)) != await SimulatedReranker("p", {}, ids, 0.3, seed=4).scores(range(9))


@pytest.mark.parametrize("wrong", [-0.1, 0.5, 1])
def test_an_error_rate_that_means_nothing_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="error rate"):
        noise_scale(wrong)
