"""kNN clauses found in bodies, read, and replaced; retrievals in step."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.serving.candidates.batches import BatchedSearches
from es_ttc.serving.knn.clauses import KnnClause, parse_clause, put_in_place, with_scores
from es_ttc.serving.request.body import find_clauses

VECTOR = np.array([0.6, 0.8], np.float32)
NNN = {"method": "nnn"}
TTC_CLAUSE = {"field": "ttc.vector", "query_text": "cats", "k": 5, "ttc": NNN}
NATIVE_CLAUSE = {"field": "ttc.vector", "query_vector": [1, 0], "k": 5}
FOUND: dict[str, Any] = {"match_none": {}}


def parsed(body: dict[str, Any]) -> list[KnnClause]:
    return [parse_clause(one, 1000) for one in find_clauses(body) if one.is_knn]


def replaced(body: dict[str, Any]) -> dict[str, Any]:
    """Every clause with a section becomes FOUND, every other one its native form."""
    clauses = parsed(body)
    queries = [(one, FOUND if one.section else one.native(VECTOR, "elasticsearch", 10)) for one in clauses]
    return put_in_place(body, queries)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"knn": TTC_CLAUSE}, {"query": FOUND}),
        ({"knn": [TTC_CLAUSE]}, {"query": FOUND}),
        ({"knn": TTC_CLAUSE, "query": {"match_all": {}}}, {"query": {"bool": {"should": [{"match_all": {}}, FOUND]}}}),
        ({"knn": [TTC_CLAUSE, NATIVE_CLAUSE]}, {"knn": [NATIVE_CLAUSE], "query": FOUND}),
        ({"knn": [TTC_CLAUSE, TTC_CLAUSE]}, {"query": {"bool": {"should": [FOUND, FOUND]}}}),
        ({"query": {"knn": {"ttc.vector": {"query_text": "cats", "ttc": NNN}}}}, {"query": FOUND}),
        (
            {"query": {"hybrid": {"queries": [{"match": {"a": "b"}}, {"knn": TTC_CLAUSE}]}}},
            {"query": {"hybrid": {"queries": [{"match": {"a": "b"}}, FOUND]}}},
        ),
        ({"retriever": {"knn": TTC_CLAUSE}}, {"retriever": {"standard": {"query": FOUND}}}),
        (
            {"retriever": {"rrf": {"retrievers": [{"standard": {"query": {"knn": TTC_CLAUSE}}}, {"knn": TTC_CLAUSE}]}}},
            {"retriever": {"rrf": {"retrievers": [{"standard": {"query": FOUND}}, {"standard": {"query": FOUND}}]}}},
        ),
    ],
)
def test_knn_clauses_with_a_section_are_replaced_by_their_hits(body: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(body)
    assert replaced(body | {"size": 3}) == expected | {"size": 3}
    assert repr(body) == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"knn": {"field": "ttc.vector", "query_text": "cats", "k": 5, "anything": 1}},
            {"knn": {"field": "ttc.vector", "k": 5, "anything": 1, "query_vector": VECTOR.tolist()}},
        ),
        (
            {"query": {"nested": {"query": {"knn": {"ttc.spans.v": {"query_text": "a"}}}}}},
            {"query": {"nested": {"query": {"knn": {"ttc.spans.v": {"vector": VECTOR.tolist()}}}}}},
        ),
        (
            {"knn": [NATIVE_CLAUSE, {"query_text": "cats"}], "query": {"match_all": {}}},
            {
                "knn": [NATIVE_CLAUSE, {"field": "ttc.vector", "query_vector": VECTOR.tolist()}],
                "query": {"match_all": {}},
            },
        ),
    ],
)  # fmt: skip
def test_a_text_becomes_a_vector_and_all_else_stays(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert replaced(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"knn": NATIVE_CLAUSE},
        {"query": {"neural": {"ttc.vector": {"query_text": "cats", "k": 3}}}},
        {"query": {"knn": {"mine": {"vector": [1, 2], "k": 3}}}},
        {"knn": "cats"},
        {"query": ["knn"]},
        {"query": {"knn": 1}},
    ],
)
def test_knn_clauses_without_section_or_text_are_left_alone(body: dict[str, Any]) -> None:
    assert parsed(body) == []


def test_a_vector_counts_by_its_direction() -> None:
    [clause] = parsed({"knn": {"query_vector": [3e300, 4e300], "ttc": NNN}})
    assert clause.vector == pytest.approx(VECTOR)


def test_knn_body_nested_too_deeply_is_refused() -> None:
    query: Any = {}
    for _ in range(100_000):
        query = [query]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parsed({"query": query})


def test_documents_of_several_indices_are_told_apart() -> None:
    query = with_scores([("a", "1"), ("b", "1")], [0.7, 0.5])["function_score"]
    first, second = query["functions"]
    assert first["weight"] == 0.7
    assert first["filter"] != second["filter"]
    assert with_scores([], []) == {"match_none": {}}


class Sent:
    """Notes batches, and answers each question with itself."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    async def __call__(self, questions: Sequence[str]) -> Sequence[str]:
        self.batches.append(list(questions))
        await asyncio.sleep(0)
        if "fail" in questions:
            raise EngineError("it fails")
        return questions


async def test_batched_searches_send_one_request_a_round() -> None:
    sent = Sent()
    rounds: BatchedSearches[str, str] = BatchedSearches(sent)
    long, short, two = rounds.join(3)

    async def work(member: int, *batches: Sequence[str], pause: int = 0) -> list[str]:
        answers: list[str] = []
        async with rounds.active(member):
            for batch in batches:
                for _ in range(pause):
                    await asyncio.sleep(0)
                answers += await rounds.send(member, batch)
        return answers

    async def at_once(member: int) -> list[str]:
        async with rounds.active(member):
            parts = await asyncio.gather(rounds.send(member, ["x"]), rounds.send(member, ["y"]))
        return [answer for part in parts for answer in part]

    answers = await asyncio.gather(
        work(long, ["a1"], ["a2", "a2'"], ["a3"], pause=7), work(short, ["b1"], ["b2"]), at_once(two)
    )
    assert list(answers) == [["a1", "a2", "a2'", "a3"], ["b1", "b2"], ["x", "y"]]
    assert [sorted(batch) for batch in sent.batches] == [["a1", "b1", "x", "y"], ["a2", "a2'", "b2"], ["a3"]]


async def test_batched_searches_go_on_when_one_member_leaves() -> None:
    sent = Sent()
    rounds: BatchedSearches[str, str] = BatchedSearches(sent)
    patient, hasty = rounds.join(2)

    async def hasty_work() -> None:
        async with rounds.active(hasty), asyncio.timeout(0.01):
            await asyncio.sleep(60)

    async def patient_work() -> Sequence[str]:
        async with rounds.active(patient):
            return await rounds.send(patient, ["a"])

    outcomes = await asyncio.gather(hasty_work(), patient_work(), return_exceptions=True)
    assert isinstance(outcomes[0], TimeoutError)
    assert outcomes[1] == ["a"]
    assert sent.batches == [["a"]]


async def test_batched_searches_raise_a_failure_to_every_member() -> None:
    rounds: BatchedSearches[str, str] = BatchedSearches(Sent())
    first, second = rounds.join(2)

    async def work(member: int, question: str) -> Sequence[str]:
        async with rounds.active(member):
            return await rounds.send(member, [question])

    outcomes = await asyncio.gather(work(first, "fail"), work(second, "b"), return_exceptions=True)
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
