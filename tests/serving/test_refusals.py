"""What a search refuses over HTTP, and in which words: the sections, their parameters, windows and kNN clauses."""

import math
import re
from typing import Any

import pytest

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers import registry
from es_ttc.serving.request.section import parse_section
from tests.serving.client import search
from tests.serving.conftest import SearchStack

ON_ONE_ENGINE = True

MATCH = {"match": {"text": "cat drinks milk"}}
NATIVE = {"window_size": 50, "query": {"rescore_query": {"match": {"text": "b"}}}}
NNN = {"method": "nnn"}
TTC: dict[str, Any] = {"ttc": {"method": "dense"}}
RERANKED: dict[str, Any] = {"window_size": 60, "ttc": {"params": {"signals": {"reranker": 1}}}}
FIRST: dict[str, Any] = {"window_size": 9, "ttc": {"method": "dense"}}


def later(window: int = 9, **section: Any) -> list[dict[str, Any]]:
    """Two items: a first one, and one that follows."""
    return [FIRST, {"window_size": window, "ttc": {"method": "mmr", **section}}]


RESCORE: list[tuple[Any, str]] = [
    ([TTC, NATIVE], "native rescorers after"),
    ([FIRST, NATIVE, *later()], "native rescorers after"),
    ([TTC] * 5, "5 times: it may hold it 4 times at most"),
    (TTC | {"query": {}}, "two items"),
    (TTC | {"window": 3}, "did you mean [window_size]?"),
    (TTC | {"window_size": "ten"}, "[rescore.window_size]"),
    (TTC | {"window_size": -1}, "[rescore.window_size]"),
    (TTC | {"window_size": 1001}, "Rescore window [1001] is too large"),
    (later(0), "[rescore.window_size]"),
    (later(10), "10 of item 2 of [rescore] is greater than 9, the number of documents that the item before it"),
    ([NATIVE, RERANKED, *later(60)[1:]], "60 of item 3 of [rescore] is greater than 20, the number of documents"),
    (
        [RERANKED, {"window_size": 9, "ttc": {"method": "gar"}}],
        "must be the first item of [rescore] with [ttc], not item 2",
    ),
    (later(candidates={"knn": 5}), "give it to the first item"),
    ([{"window_size": 9, "ttc": {"passages": 1}}, *later(passages=1)[1:]], "keep it in one of them"),
    ({"ttc": []}, "[ttc] must be an object"),
]
SECTION: list[tuple[dict[str, Any], str]] = [
    ({"metod": "spectral"}, "unknown field [metod], did you mean [method]?"),
    ({"window_size": 3}, "unknown field [window_size], known fields are"),
    ({"method": "spectrl"}, "unknown method [spectrl]: did you mean [spectral]?"),
    ({"method": "zzz"}, "unknown method [zzz]: valid are [adaptgran], [bidirzscore]"),
    ({"method": ""}, "method"),
    ({"detail": "maps"}, 'got "maps": must be true, false or "map"'),
    ({"query_weight": -1}, "[ttc.query_weight] is wrong, got -1"),
    ({"timeout": "fast"}, '[ttc.timeout] is wrong, got "fast"'),
    ({"timeout": "0ms"}, "[ttc.timeout]"),
    ({"query_text": "a", "query_texts": ["b"]}, "not both"),
    ({"passages": 11}, "[ttc.passages] is wrong, got 11"),
    ({"candidates": {"knn": -1}}, "[ttc.candidates"),
    ({"candidates": 100}, "[ttc.candidates]"),
    ({"candidates": {"bm25": 100}}, "[ttc.candidates] unknown field [bm25], known fields are [count, knn]"),
    ({"method": "rr", "candidates": {"knn": 10}}, "[ttc.candidates] cannot be used with [rr]"),
]
ITEMS = list(range(1, 18))
PARAMS: list[tuple[str, Any, str]] = [
    ("spectral", {"scale": [1]}, "unknown parameter [scale] of method [spectral]: did you mean [scales]?"),
    ("spectral", {"zzzz": 1}, "unknown parameter [zzzz] of method [spectral]: valid are [aggregation], "),
    ("spectral", {"scales": [1, 0.5]}, "[scales] of method [spectral] is [1, 0.5]: a scale is a number of tokens"),
    ("spectral", {"scales": [1e9]}, "a scale is a number of tokens from 1 to 100000"),
    ("spectral", {"scales": ["wide"]}, 'is ["wide"]: a scale is a number'),
    ("spectral", {"scales": [True]}, "is [true]: a scale is a number"),
    ("spectral", {"scales": ITEMS}, "at most 16 items"),
    ("spectral", {"aggregation": "top_mean", "top_m": "3"}, 'parameter [top_m] of method [spectral] is "3"'),
    ("spectral", {"top_m": 4}, '[top_m] belongs to aggregation "top_mean"'),
    ("spectral", {"aggregation": "top_mean", "percentile": 3}, '[percentile] belongs to aggregation "percentile"'),
    ("spectral", {"temperature": 0.1}, '[temperature] belongs to pool "softmax": set that, or leave'),
    ("spectral", {"pool": "softmax", "scale_weights": [1] * 8}, '[scale_weights] belongs to pool "mean": set'),
    ("spectral", {"pool": "mean", "scale_weights": [1, 2]}, "2 weights for 8 different [scales]: give one for each"),
    ("spectral", {"pool": "mean", "scales": [3, 3.0], "scale_weights": [1, 2]}, "2 weights for 1 different [scales]"),
    ("spectral", {"pool": "mean", "scales": [1, 3], "scale_weights": [0, 0]}, "all 0: give at least one scale"),
    ("spectral", {"query": "tokens", "roles": "mean"}, '[roles] belongs to query "pooled": set that, or leave'),
    ("spectral", [], "object"),
    ("nnn", {"l1": -0.1}, "parameter [l1] of method [nnn] is -0.1"),
    ("nnn", {"documents": 5, "l1": 0.1}, "[documents] chooses l1"),
    ("mmr", {"lambda": 1.5}, "parameter [lambda] of method [mmr] is 1.5"),
    ("blend", {"signals": {}}, "at least one signal"),
    ("blend", {"signals": {"lexical": 0}}, "at least one signal"),
    ("blend", {"signals": {"lexical": -1}}, "finite numbers of 0 or more"),
    ("blend", {"signals": {"lexicl": 1}}, "parameter [signals.lexicl] of method [blend]"),
    ("blend", {"signals": ["lexical"]}, "signals"),
    ("blend", {"normalise": "zscore"}, "normalise"),
    ("blend", {"weights": {}}, "weights"),
    ("blend", {"reranker": {"nam": "x"}}, "reranker.nam"),
    ("blend", {"reranker": {"top": 1000}}, "reranker.top"),
    ("blend", {"signals": {"reranker": -1}}, "signals"),
    ("blend", {"reranker": {"name": "nobody"}}, "nobody"),
    ("program", {"name": "covtripel"}, "unknown program [covtripel]: did you mean [covtriple]"),
    ("program", {"name": "covtriple", "budget": 4}, "exclude each other"),
    ("program", {"budget": 0.5}, "1 or more"),
    ("program", {"budget": 1}, "no program costs 1 or less: the cheapest is"),
]
KNN: list[tuple[dict[str, Any], str]] = [
    ({"k": 0}, "[knn.k] must be an integer from 1 to 300, got 0"),
    ({"k": 301}, "[knn.k] must be an integer from 1 to 300, got 301"),
    ({"num_candidates": 3}, "[knn.num_candidates] 3 is less than [k] 5"),
    ({"boost": -1}, "[knn.boost] must be a number from 0 to 3.40282e+38, got -1"),
    ({"boost": 10**400}, "[knn.boost] must be a number from 0 to 3.40282e+38, got 1000"),
    ({"k": 10**400}, "[knn.k] must be an integer from 1 to 300, got 1000"),
    ({"similarity": 2}, "[knn.similarity] must be a number from -1 to 1, got 2"),
    ({"filter": "cats"}, "[knn.filter]"),
    ({"query_vector": [1, 2]}, "gives both [query_text] and [query_vector]"),
    ({"query_text": None}, "[knn.query_text] must be a text that is not empty"),
    ({"field": "mine"}, "searches [mine]: with [ttc] name [ttc.vector]"),
    ({"field": "ttc.spans.v"}, "with [ttc] name [ttc.vector]"),
    ({"fiter": {}}, "unknown field [fiter], did you mean [filter]?"),
    ({"inner_hits": {}}, "unknown field [inner_hits]"),
    ({"ttc": {**NNN, "query_text": "dogs"}}, "gives the query's text twice"),
    ({"ttc": {**NNN, "query_texts": ["dogs"]}}, "gives the query's text twice"),
    ({"ttc": {**NNN, "score_mode": "total"}}, "[ttc.score_mode] belongs to [rescore]"),
    ({"ttc": {**NNN, "candidates": {"knn": 5}}}, "[ttc.candidates] belongs to [rescore]"),
    ({"ttc": {**NNN, "detail": "map"}}, '[ttc.detail] "map" belongs to [rescore]: in [knn] take true'),
    ({"ttc": {}}, "[ttc.method]"),
    ({"ttc": "nnn"}, "must be an object"),
    ({"ttc": {"method": "maxsim"}}, "method [maxsim] belongs in [rescore.ttc]"),
    ({"ttc": {"method": "sira"}}, "method [sira] belongs in [query.ttc]"),
    ({"ttc": {"method": "llm_pick"}}, "method [llm_pick] belongs in [rescore.ttc]"),
    *(
        ({"ttc": {**NNN, "params": params}}, problem)
        for params, problem in (
            ({"l1": -0.1}, "[l1] of method [nnn] is -0.1"),
            ({"rounds": 0}, "[rounds]"),
            ({"candidates": 0}, "[candidates]"),
            ({"rest": "all"}, "[rest]"),
            ({"documents": 3, "l1": 0.1}, "[documents]"),
        )
    ),
    *(
        ({"query_text": ..., "query_vector": vector}, f"[knn.query_vector] {problem}")
        for vector, problem in (
            ([0, 0.0], "has no direction"),
            ([], "must be a list of finite numbers"),
            ([1, True], "must be a list of finite numbers"),
            ([1, 10**400], "must be a list of finite numbers"),
            ("0f", "must be a list of finite numbers"),
        )
    ),
]
"""Changes of a clause; `...` leaves a field out."""
WRONG_RANKS: list[Any] = [-1, True, -1.5, [], "ten", "-3"]
OTHERS: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: wrong, "query": MATCH, "rescore": TTC}, f"[{name}]")
        for name in ("from", "size")
        for wrong in WRONG_RANKS
    ),
    ({"from": 995, "size": 10, "query": MATCH, "rescore": TTC}, "Rescore window [1005] is too large"),
    *(
        ({"collapse": collapse, "query": MATCH, "rescore": TTC}, words)
        for collapse, words in (
            ({"feild": "f"}, "[collapse] must be an object"),
            ({"field": "f", "size": 3}, "unknown field [size]"),
            ("f", "[collapse] must be an object"),
        )
    ),
    (
        {"query": {"knn": {"mine": {"query_text": "cats"}}}},
        "[mine] is none of them: search [ttc.vector]",
    ),
    (
        {"query": {"ttc": {"method": "rm3", "query_text": "cats", "candidates": {"knn": 5}}}},
        "[ttc.candidates] belongs to [rescore]",
    ),
    *(
        ({"highlight": highlight, "query": MATCH, "rescore": TTC}, words)
        for highlight, words in (
            ({"fields": {"text": {"type": "ttc", "fragment_size": 9}}}, "unknown field [fragment_size]"),
            ({"fields": {"te*": {"type": "ttc"}}}, 'takes names of text fields, got "te*"'),
            ({"type": "ttc", "encoder": "xml", "fields": {"text": {}}}, "[highlight.encoder] must be"),
        )
    ),
]
TTC_CLAUSE = {"field": "ttc.vector", "query_text": "cats", "k": 5, "ttc": NNN}
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"query": MATCH, "rescore": rescore}, words) for rescore, words in RESCORE),
    *(({"query": MATCH, "rescore": {"ttc": section}}, words) for section, words in SECTION),
    *(
        ({"query": MATCH, "rescore": {"ttc": {"method": method, "params": params}}}, words)
        for method, params, words in PARAMS
    ),
    *(
        ({"knn": {name: value for name, value in (TTC_CLAUSE | changes).items() if value is not ...}}, words)
        for changes, words in KNN
    ),
    *OTHERS,
]


@pytest.mark.parametrize(("body", "words"), REFUSED)
def test_rescore_with_an_invalid_section_is_refused_with_the_field(
    stack: SearchStack, body: dict[str, Any], words: str
) -> None:
    reply = search(stack.gateway, stack.index, body)
    assert reply.status == 400, reply.body
    error = reply.json()["error"]
    assert error["type"] == "illegal_argument_exception"
    assert words in reply.reason
    assert "\n" not in reply.reason
    assert len(reply.reason) < 500


@pytest.mark.parametrize(
    "section",
    [{"query_weight": math.nan}, {"query_text": "\ud800"}, {"params": {"n": 2**70}}],
)
def test_values_that_no_json_of_an_engine_has_are_refused_in_a_section(section: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"\[ttc"):
        parse_section({"method": "spectral", **section})


@pytest.mark.parametrize(
    ("method", "raw", "words"),
    [
        ("spectral", {"scales": [math.nan]}, "a scale is a number"),
        ("spectral", {"aggregation": "top_mean", "top_m": 2**70}, "are not JSON"),
        ("spectral", {"roles": {1, 2}}, "are not JSON"),
        ("spectral", None, "object"),
        ("blend", {"signals": {"lexical": math.inf}}, "must be a number"),
    ],
)
def test_values_that_no_json_of_an_engine_has_are_refused_in_parameters(method: str, raw: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        registry.parse_params(registry.load(method), raw)


def test_a_language_model_that_is_not_configured_leaves_the_first_pass(stack: SearchStack) -> None:
    ours = {"method": "rr", "params": {"reranker": "llm"}}
    body = {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": ours}}
    reply = search(stack.gateway, stack.index, body)
    assert reply.ids == search(stack.engine, stack.index, {"query": body["query"]}).ids
    assert reply.json()["ttc"]["applied"] is False
    assert "ES_TTC_LLM_URL" in reply.json()["ttc"]["reason"]
    ours["on_error"] = "fail"
    assert "ES_TTC_LLM_URL" in search(stack.gateway, stack.index, body).reason
