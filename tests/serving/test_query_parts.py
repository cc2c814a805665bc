"""What a query says besides its words: which clauses are words, what is asked of the engine, which factor follows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.serving.plan.query_parts import QueryParts, UndividedQuery, query_parts, without_parts
from es_ttc.serving.rescore.ranking import stretched

TEXT = "garlic press KET-12345"
WORDS: dict[str, Any] = {"match": {"text": TEXT}}
RECENT: dict[str, Any] = {"distance_feature": {"field": "date", "origin": "now", "pivot": "10d"}}
ALL: dict[str, Any] = {"match_all": {}}
CODE: dict[str, Any] = {"term": {"sku": {"value": "garlic press ket-12345", "boost": 10}}}
OPEN: dict[str, Any] = {"term": {"open": True}}


def function(query: Any, **more: Any) -> dict[str, Any]:
    return {"function_score": {"query": query, "field_value_factor": {"field": "sales"}, **more}}


@pytest.mark.parametrize(
    "query",
    [
        WORDS,
        {"bool": {"must": [WORDS], "filter": [OPEN], "must_not": [OPEN]}},
        {"bool": {"should": [WORDS, CODE, {"match_phrase": {"title": TEXT}}]}},
        {"dis_max": {"queries": [WORDS, CODE]}},
        {"function_score": {"query": WORDS, "boost": 2}},
        {"nested": {"path": "parts", "query": WORDS}},
        {"constant_score": {"filter": CODE}},
        {"pinned": {"ids": ["1"], "organic": WORDS}},
        OPEN,
        {"bool": {"filter": [OPEN]}},
        ALL,
        None,
        "no query",
    ],
)
def test_a_query_of_words_alone_has_no_parts(query: Any) -> None:
    assert query_parts(query, [TEXT], None) is None


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"boosting": {"positive": WORDS, "negative": OPEN, "negative_boost": 0.1}}, [WORDS]),
        (function(WORDS), [WORDS]),
        ({"script_score": {"query": WORDS, "script": {"source": "_score * 2"}}}, [WORDS]),
        ({"bool": {"must": [WORDS], "should": [RECENT]}}, [WORDS]),
        ({"bool": {"must": WORDS, "should": [OPEN, CODE]}}, [WORDS, CODE]),
        (function({"bool": {"must": [WORDS], "should": [RECENT]}}), [WORDS]),
        (function({"bool": {"should": [WORDS, CODE]}}), [{"bool": {"should": [WORDS, CODE]}}]),
        ({"pinned": {"ids": ["1"], "organic": function(WORDS)}}, [WORDS]),
        (function(ALL), [ALL]),
        ({"function_score": {"functions": [{"weight": 2}]}}, []),
        ({"bool": {"must": [ALL], "should": [RECENT]}}, [ALL]),
    ],
)
def test_clauses_of_words_are_named_and_replaced_by_constants(query: Any, named: list[Any]) -> None:
    parts = query_parts(query, [TEXT], None)
    assert parts is not None
    found: list[Any] = []

    def collect(part: Any, name: str) -> Any:
        """Return a query as it was without the wrappers of a name, which are noted."""
        if isinstance(part, list):
            return [collect(one, name) for one in part]
        if not isinstance(part, dict):
            return part
        inner = part.get("bool")
        if isinstance(inner, dict) and str(inner.get("_name", "")).startswith(name):
            found.append(inner["must"][0])
            return inner["must"][0]
        return {key: collect(value, name) for key, value in part.items()}

    one = {"bool": {"must": [query["bool"]["must"]]}} if "bool" in query and "must" in query["bool"] else None
    plain = collect(parts.query, "ttc-words-")
    if one is None or isinstance(query["bool"]["must"], list):
        assert plain == query
    assert found == named
    assert len(parts.names) == len(named)
    assert "ttc-words" not in str(parts.constants)
    assert [*parts.constants] == ["ttc-at-1", "ttc-at-10", "ttc-at-100"]
    assert str(parts.constants["ttc-at-10"]).count("'boost': 10.0") == min(1, len(named))


def test_the_greater_of_words_and_something_else_cannot_be_divided() -> None:
    with pytest.raises(UndividedQuery, match="dis_max"):
        query_parts({"dis_max": {"queries": [WORDS, OPEN]}}, [TEXT], None)


def made(words: float, *at: float, index: str = "shop") -> dict[str, Any]:
    names = ("ttc-words-0", "ttc-at-1", "ttc-at-10", "ttc-at-100")
    return {"_index": index, "matched_queries": dict(zip(names, (words, *at), strict=True)), "_score": 1.0}


def test_factors_are_what_the_query_makes_of_the_mean_score_of_words() -> None:
    parts = query_parts(function(WORDS), [TEXT], [{"old-*": 0.5}])
    assert parts is not None
    hits = [
        made(6, 1, 10, 100),  # unchanged
        made(4, 0.1, 1, 10),  # a tenth
        made(5, 6, 15, 105),  # 5 are added
        made(0, 3, 10, 100),  # the greater of the words and 3: joined, without a word
        {"_index": "shop", "_score": 0.0},  # no part of the query matches
        made(3, 1, 10, 100, index="old-2024"),
    ]
    words = parts.words(hits, np.zeros(6, np.float32))
    np.testing.assert_allclose(words, [6, 4, 5, 0, 0, 3])
    expected = [1, 0.1, 2, (3 + 4 * 7 / 9) / 5, 1, 0.5]
    np.testing.assert_allclose(parts.factors(hits, words, found=3), expected, rtol=1e-6)


@given(st.floats(0.001, 1), st.floats(0.01, 1e3), st.lists(st.floats(0.01, 30), min_size=2, max_size=20))
def test_equal_scores_keep_the_order_of_their_factors(score: float, factor: float, words: list[float]) -> None:
    scores = np.full(len(words), score, np.float32)
    final = stretched(scores, np.array(words, np.float32), len(words)).astype(np.float64)
    assert final[0] * 2 * factor > final[1] * factor


def test_boosts_of_indices_alone_need_no_names() -> None:
    parts = query_parts(WORDS, [TEXT], {"old": 0.5})
    assert parts == QueryParts(None, boosts={"old": 0.5})
    hits = [{"_index": "old", "_score": 2.0}, {"_index": "new", "_score": 3.0}]
    np.testing.assert_allclose(parts.words(hits, np.array([2, 3], np.float32)), [4, 3])
    np.testing.assert_allclose(parts.factors(hits, np.ones(2, np.float32), 2), [0.5, 1])
    assert parts.asked({"query": WORDS}) == {"query": WORDS}


@pytest.mark.parametrize(("with_scores", "own"), [(True, {"mine": 2.0}), (False, ["mine"])])
def test_names_of_the_gateway_are_removed(with_scores: bool, own: Any) -> None:
    hit: dict[str, Any] = {"matched_queries": {"mine": 2.0, "ttc-words-0": 1.0, "ttc-at-10": 4.0}}
    without_parts(hit, with_scores=with_scores)
    assert hit == {"matched_queries": own}
    ours: dict[str, Any] = {"matched_queries": {"ttc-words-0": 1.0}}
    without_parts(ours, with_scores=with_scores)
    assert ours == {}
