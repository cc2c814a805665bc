"""With a method that gives every document its first-pass score, or has no weight, answers are the engine's own.

So nothing that belongs to a search is lost, doubled or changed on its way through the rescore hook.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.serving.plan.items import DEFAULT_WINDOW
from es_ttc.vectors.tokens import Float32
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.support.yaml_suites import WEIGHTLESS, Section, Suite, comparable

SECTIONS: list[dict[str, Any]] = [{"method": "identity"}, {"method": "identity", **WEIGHTLESS}, {**WEIGHTLESS}]


class IdentityParams(Params):
    """There are none."""


class IdentityRescorer:
    """The first pass as it is."""

    name: ClassVar[str] = "identity"
    Params: ClassVar[type[Params]] = IdentityParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = False

    def needs(self, params: IdentityParams) -> frozenset[Feature]:
        return frozenset({Feature.FIRST_PASS})

    def score(self, query: Query, window: Window, params: IdentityParams) -> Float32:
        return window.first_pass

    def detail(self, query: Query, window: Window, params: IdentityParams) -> list[dict[str, Any]]:
        return [{} for _ in range(len(window))]


@pytest.fixture(scope="module", autouse=True)
def identity() -> Iterator[None]:
    """The method is there; a package of its own would be too much for it."""
    load, method = registry.load, IdentityRescorer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "load", lambda name: method if name == method.name else load(name))
        yield


words = st.sampled_from(
    ["cat", "dog owl", "drinks milk", "hunts at night", "the farmer watches it for 7 hours", "no-such"]
)
leaves = st.one_of(
    words.map(lambda text: {"match": {"text": text}}),
    words.map(lambda text: {"multi_match": {"query": text, "fields": ["title^2", "text"]}}),
    words.map(lambda text: {"query_string": {"query": f'"{text}"', "fields": ["text"]}}),
    st.integers(1, 60).map(lambda n: {"range": {"number": {"lte": n, "boost": 0.5}}}),
    st.just({"match_all": {}}),
    st.integers(0, 6).map(lambda n: {"term": {"group.keyword": f"g{n}"}}),
)
queries = leaves | st.one_of(
    st.tuples(leaves, leaves).map(lambda two: {"bool": {"must": [two[0]], "should": [two[1]]}}),
    st.tuples(leaves, leaves).map(lambda two: {"bool": {"should": [two[0]], "filter": [two[1]]}}),
    st.lists(leaves, min_size=1, max_size=3).map(lambda parts: {"dis_max": {"queries": parts, "tie_breaker": 0.3}}),
    leaves.map(lambda one: {"constant_score": {"filter": one, "boost": 1.5}}),
    leaves.map(
        lambda one: {"function_score": {"query": one, "field_value_factor": {"field": "number"}, "boost_mode": "sum"}}
    ),
    leaves.map(lambda one: {"script_score": {"query": one, "script": {"source": "doc['number'].value * 0.25 + 0.25"}}}),
)
aggregations = st.sampled_from(
    [
        {"g": {"terms": {"field": "group.keyword", "size": 3}}},
        {"n": {"histogram": {"field": "number", "interval": 20}, "aggs": {"m": {"max": {"field": "number"}}}}},
        {"best": {"top_hits": {"size": 2, "_source": ["number"]}}},
        {"all": {"global": {}, "aggs": {"c": {"cardinality": {"field": "group.keyword"}}}}},
        {"f": {"filter": {"range": {"number": {"gt": 30}}}, "aggs": {"s": {"stats": {"field": "number"}}}}},
    ]
)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "from": st.integers(0, 70),
    "size": st.integers(0, 25),
    "_source": st.sampled_from(
        [False, True, "number", ["t*", "number"], {"includes": ["*"], "excludes": ["t*"]}, {"excludes": ["text"]}, []]
    ),
    "fields": st.sampled_from([["title"], ["num*", {"field": "group.keyword"}], ["*"]]),
    "docvalue_fields": st.sampled_from(
        [["number"], [{"field": "number", "format": "#.0"}], ["group.keyword"], ["ttc.hash"]]
    ),
    "stored_fields": st.sampled_from(["_none_", ["number"], ["_source"], [], "title"]),
    "script_fields": st.just({"twice": {"script": "doc['number'].value * 2"}}),
    "highlight": st.sampled_from(
        [{"fields": {"text": {}}}, {"fields": {"t*": {"number_of_fragments": 0}}, "require_field_match": False}]
    ),
    "aggs": aggregations,
    "post_filter": leaves,
    "min_score": st.sampled_from([0.1, 1, 2.5, 1000]),
    "track_total_hits": st.sampled_from([True, False, 3, 1000]),
    "version": st.booleans(),
    "seq_no_primary_term": st.booleans(),
    "track_scores": st.booleans(),
    "explain": st.booleans(),
    "profile": st.booleans(),
    "suggest": st.just({"s": {"text": "catt milkk", "term": {"field": "text"}}}),
    "terminate_after": st.sampled_from([1, 5, 100]),
    "timeout": st.just("30s"),
    "stats": st.just(["group1"]),
    "indices_boost": st.just([{"*": 1.7}]),
    "sort": st.sampled_from(
        [
            "_score",
            [{"_score": "desc"}],
            ["number"],
            ["_score", "number"],
            ["_score", {"group.keyword": "desc"}, "number"],
        ]
    ),
    "slice": st.just({"id": 0, "max": 2}),
    "collapse": st.sampled_from(
        [
            {"field": "group.keyword"},
            {"field": "group.keyword", "inner_hits": {"name": "few", "size": 2, "_source": ["number"]}},
            {"field": "number", "inner_hits": [{"name": "all", "size": 9}, {"name": "late", "sort": ["number"]}]},
        ]
    ),
    "unknown_key": st.just(1),
}
URL: dict[str, st.SearchStrategy[str]] = {
    "typed_keys": st.just("true"),
    "rest_total_hits_as_int": st.just("true"),
    "preference": st.sampled_from(["_local", "mine"]),
    "routing": st.sampled_from(["a", "b,c"]),
    "sort": st.sampled_from(["_score", "_score:desc,number:desc"]),
    "search_type": st.sampled_from(["dfs_query_then_fetch", "query_then_fetch"]),
    "from": st.integers(0, 30).map(str),
    "size": st.integers(0, 12).map(str),
    "_source": st.sampled_from(["false", "number", "t*,number"]),
    "_source_excludes": st.just("text"),
    "_source_includes": st.just("t*"),
    "stored_fields": st.sampled_from(["_none_", "number"]),
    "docvalue_fields": st.just("number"),
    "explain": st.sampled_from(["true", "false", ""]),
    "version": st.just("true"),
    "track_scores": st.just("true"),
    "track_total_hits": st.sampled_from(["false", "5"]),
    "terminate_after": st.just("4"),
    "timeout": st.just("20s"),
    "q": st.sampled_from(["cat", "text:owl"]),
    "df": st.just("text"),
    "request_cache": st.sampled_from(["true", "false"]),
    "ignore_unavailable": st.just("true"),
    "allow_no_indices": st.just("true"),
    "batched_reduce_size": st.just("2"),
    "filter_path": st.sampled_from(["hits.hits._id,hits.total", "-hits.hits._source", "aggregations,took"]),
}


def some(options: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few options at a time: with many, few requests are valid."""
    names = st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: options[name] for name in chosen}))


@pytest.fixture(scope="module")
def places(stack: SearchStack) -> Iterator[list[str]]:
    """What is searched: an index, an alias, a filtered alias, patterns, an index without features beside it."""
    name, plain = f"{stack.index}-alias", f"{stack.index}-plain"
    for number in range(5):
        document = {"text": f"a cat drinks milk {number}", "title": "plain", "number": number, "group": f"g{number}"}
        call(stack.engine, "PUT", f"/{plain}/_doc/p{number}?refresh=true", document)
    some = {"index": stack.index, "alias": f"{name}-some", "filter": {"range": {"number": {"lt": 30}}}}
    actions = [{"add": {"index": stack.index, "alias": name}}, {"add": some}]
    assert call(stack.engine, "POST", "/_aliases", {"actions": actions}).status == 200
    yield [stack.index, name, f"{name}-some", f"{stack.index}*", f"{stack.index},{plain}", f"absent-*,{name}"]
    call(stack.engine, "DELETE", f"/{plain}")
    removed = [{"remove": {"index": stack.index, "alias": f"{name}*"}}]
    call(stack.engine, "POST", "/_aliases", {"actions": removed})


BY_NUMBER: dict[str, Any] = {"sort": ["_score", "number"], "stored_fields": "_none_"}
TWICE = {"script_fields": {"twice": {"script": "doc['number'].value * 2"}}}
ALONE = {"place": 4, "query": None, "window": None, "section": SECTIONS[1]}


@example(options={"collapse": {"field": "number"}}, url={"docvalue_fields": "number"}, **ALONE)
@example(options={"collapse": {"field": "number"}, "sort": ["number"]}, url={}, **ALONE)
@example(options={**BY_NUMBER, "_source": False}, url={}, **ALONE)
@example(options={**BY_NUMBER, **TWICE}, url={}, **ALONE)
@given(
    place=st.integers(0, 5),
    query=st.none() | queries,
    options=some(OPTIONS, 4),
    url=some(URL, 2),
    window=st.none() | st.integers(1, 120),
    section=st.sampled_from(SECTIONS),
)
def test_the_identity_changes_nothing(
    stack: SearchStack,
    places: list[str],
    place: int,
    query: Any,
    options: dict[str, Any],
    url: dict[str, str],
    window: int | None,
    section: dict[str, Any],
) -> None:
    body = options if query is None else options | {"query": query}
    item = {"ttc": {"query_text": "any text", **section}} | ({} if window is None else {"window_size": window})
    # What a rescore forbids, and how much it reads before it ends early, is seen beside a native one.
    as_native = body.get("sort") == ["number"] or "terminate_after" in body | url
    assume(not (as_native and {"collapse", "sort"} & (body | url).keys() and body.get("sort") != ["number"]))
    assume(not ("sort" in body and "sort" in url))  # one is appended to the other
    native = {"window_size": window or DEFAULT_WINDOW, "query": {"rescore_query": {"match_none": {}}}}
    target = f"/{places[place]}/_search?{urlencode(url)}"
    # OpenSearch refuses a native rescorer beside `collapse`, by a 500, before it reads the sort.
    beside_native = {key: value for key, value in body.items() if key != "collapse"} | {"rescore": native}
    direct = call(stack.engine, "POST", target, beside_native if as_native else body)
    through = call(stack.gateway, "POST", target, body | {"rescore": item})
    if (
        through.status == 200
    ):  # an older engine fails to collapse beside doc values of other fields; the gateway does not
        assume(b"unsupported_operation_exception" not in direct.body)
    assert through.status == direct.status, (through.body, direct.body)
    assert comparable(through) == comparable(direct)


def test_the_engines_own_searches_are_answered_alike(stack: SearchStack, encoder: Encoder) -> None:
    """A sample whose searches name their index; `python -m tests.support.yaml_suites` runs them all."""
    suite, counts = Suite(stack.product), Counter[str]()
    for _, steps in suite.sections("search/310_match_bool_prefix.yml"):
        section = Section(suite, stack.engine, stack.gateway, encoder).run(steps)
        assert not section.different
        counts += section.counts
    assert counts["(applied)"]
