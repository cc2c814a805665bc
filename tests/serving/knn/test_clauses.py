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
OURS = {"field": "ttc.vector", "query_text": "cats", "k": 5, "ttc": NNN}
THEIRS = {"field": "ttc.vector", "query_vector": [1, 0], "k": 5}
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
        ({"knn": OURS}, {"query": FOUND}),
        ({"knn": [OURS]}, {"query": FOUND}),
        ({"knn": OURS, "query": {"match_all": {}}}, {"query": {"bool": {"should": [{"match_all": {}}, FOUND]}}}),
        ({"knn": [OURS, THEIRS]}, {"knn": [THEIRS], "query": FOUND}),
        ({"knn": [OURS, OURS]}, {"query": {"bool": {"should": [FOUND, FOUND]}}}),
        ({"query": {"knn": {"ttc.vector": {"query_text": "cats", "ttc": NNN}}}}, {"query": FOUND}),
        (
            {"query": {"hybrid": {"queries": [{"match": {"a": "b"}}, {"knn": OURS}]}}},
            {"query": {"hybrid": {"queries": [{"match": {"a": "b"}}, FOUND]}}},
        ),
        ({"retriever": {"knn": OURS}}, {"retriever": {"standard": {"query": FOUND}}}),
        (
            {"retriever": {"rrf": {"retrievers": [{"standard": {"query": {"knn": OURS}}}, {"knn": OURS}]}}},
            {"retriever": {"rrf": {"retrievers": [{"standard": {"query": FOUND}}, {"standard": {"query": FOUND}}]}}},
        ),
    ],
)
def test_what_stands_in_the_place_of_a_section(body: dict[str, Any], expected: dict[str, Any]) -> None:
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
            {"knn": [THEIRS, {"query_text": "cats"}], "query": {"match_all": {}}},
            {"knn": [THEIRS, {"field": "ttc.vector", "query_vector": VECTOR.tolist()}], "query": {"match_all": {}}},
        ),
    ],
)  # fmt: skip
def test_a_text_becomes_a_vector_and_all_else_stays(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert replaced(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"knn": THEIRS},
        {"query": {"neural": {"ttc.vector": {"query_text": "cats", "k": 3}}}},
        {"query": {"knn": {"mine": {"vector": [1, 2], "k": 3}}}},
        {"knn": "cats"},
        {"query": ["knn"]},
        {"query": {"knn": 1}},
    ],
)
def test_what_is_not_ours(body: dict[str, Any]) -> None:
    assert parsed(body) == []


def test_a_vector_counts_by_its_direction() -> None:
    [clause] = parsed({"knn": {"query_vector": [3e300, 4e300], "ttc": NNN}})
    assert clause.vector == pytest.approx(VECTOR)


def test_neither_text_nor_vector() -> None:
    with pytest.raises(InvalidRequest, match=r"\[knn.ttc.vector.query_text\] is missing"):
        parsed({"query": {"knn": {"ttc.vector": {"k": 3, "ttc": NNN}}}})


def test_a_body_nested_too_deeply() -> None:
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


async def test_what_all_ask_next_goes_out_together() -> None:
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


async def test_one_that_gives_up_does_not_hold_the_others() -> None:
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


async def test_a_failure_reaches_all_who_asked() -> None:
    rounds: BatchedSearches[str, str] = BatchedSearches(Sent())
    first, second = rounds.join(2)

    async def work(member: int, question: str) -> Sequence[str]:
        async with rounds.active(member):
            return await rounds.send(member, [question])

    outcomes = await asyncio.gather(work(first, "fail"), work(second, "b"), return_exceptions=True)
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
