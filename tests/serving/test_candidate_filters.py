"""What a query demands beside its words holds for every document from outside its hits, on both engines."""

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder
from es_ttc.serving.candidates.filters import UnknownFilter, required_filters, text_fields
from es_ttc.serving.request.query import changes_scores, query_of_url
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack, make_index, write

TEXT = "pollination"
BY_TEXT = {"match": {"body": TEXT}}
OTHERS = {"match": {"tenant": "acme"}}
TERM = {"term": {"tenant": "acme"}}
ANALYSED = frozenset({"body", "title", "brand"})


def demanded(query: Any, *texts: str) -> list[Any]:
    return required_filters({"query": query}, texts or (TEXT,), ANALYSED.__contains__)


def any_of(*queries: Any, least: int = 1) -> list[Any]:
    should = [{"bool": {"filter": [query]}} for query in queries]
    return [{"bool": {"should": should, "minimum_should_match": least}}]


FREE: list[Any] = [
    None,
    BY_TEXT,
    {"match_all": {}},
    {"match": {"body": {"query": f" {TEXT}  ", "operator": "and", "fuzziness": "AUTO"}}},
    {"match_bool_prefix": {"body": TEXT}},
    {"multi_match": {"query": TEXT, "fields": ["title^3", "body"], "type": "cross_fields"}},
    {"combined_fields": {"query": TEXT, "fields": ["title", "body"]}},
    {"query_string": {"query": TEXT, "default_field": "body"}},
    {"simple_query_string": {"query": TEXT, "fields": ["body"]}},
    {"semantic": {"field": "meaning", "query": TEXT}},
    {"knn": {"field": "v", "query_vector": [1], "k": 3}},
    {"bool": {"must": BY_TEXT, "should": [TERM]}},
    {"bool": {"should": [BY_TEXT, TERM]}},
    {"bool": {"should": [BY_TEXT, {"match": {"title": TEXT}}, TERM], "minimum_should_match": 2}},
    {"bool": {"must": BY_TEXT, "should": [TERM], "minimum_should_match": "-100%"}},
    {"dis_max": {"queries": [BY_TEXT, {"match": {"title": TEXT}}], "tie_breaker": 0.3}},
    {"pinned": {"ids": ["1"], "organic": BY_TEXT}},
    {"function_score": {"query": BY_TEXT, "boost": 2}},
    {"multi_match": {"query": TEXT, "fields": ["body^3", "tenant"]}},
    {"multi_match": {"query": TEXT}},
    {"query_string": {"query": TEXT}},
    {"simple_query_string": {"query": TEXT, "fields": ["*"]}},
]
WHOLE: list[Any] = [
    OTHERS,
    TERM,
    {"match": {"body": {"query": TEXT, "unheard_of": 1}}},
    {"match": {"body": 5}},
    {"match": {"body.raw": TEXT}},
    {"match_phrase": {"body": TEXT}},
    {"match_phrase_prefix": {"body": TEXT}},
    {"multi_match": {"query": TEXT, "fields": ["tenant", "price"]}},
    {"multi_match": {"query": "no text of the section", "fields": ["body", "tenant"]}},
    {"multi_match": {"query": "no text of the section"}},
    {"multi_match": {"query": TEXT, "fields": ["bod*"]}},
    {"multi_match": {"query": TEXT, "fields": ["body"], "type": "phrase"}},
    *[
        {"query_string": {"query": text, "default_field": "body"}}
        for text in (
            "a AND tenant:acme",
            '"a b"',
            "a +b",
            "-a b",
            "a -b",
            "poll*",
            "a~",
            "(a)",
            "a NOT b",
            "/a/",
            "a&&b",
        )
    ],
    {"simple_query_string": {"query": "pollination +acme", "fields": ["body"]}},
    {"nested": {"path": "p", "query": {"match": {"p.t": TEXT}}}},
    {"constant_score": {"filter": BY_TEXT}},
    {"terms_set": {"tags": {"terms": ["a"], "minimum_should_match_field": "n"}}},
    {"rank_feature": {"field": "rank"}},
    {"more_like_this": {"like": TEXT, "fields": ["body"]}},
    {"knn": {"field": "v", "query_vector": [1], "similarity": 0.9}},
    {"dis_max": {"queries": [BY_TEXT], "unheard_of": 1}},
    {"bool": {"must": BY_TEXT, "adjust_pure_negative": False}},
    {"unheard_of": {"body": TEXT}},
    {"match": {"body": TEXT}, "term": {"a": 1}},
]
OTHER: list[tuple[Any, list[Any]]] = [
    ({"knn": {"field": "v", "query_vector": [1], "filter": TERM}}, [TERM]),
    ({"knn": {"v": {"vector": [1], "k": 3, "filter": TERM}}}, [TERM]),
    ({"neural": {"v": {"query_text": TEXT, "k": 3, "filter": TERM}}}, [TERM]),
    ({"bool": {"must": [BY_TEXT, OTHERS]}}, [OTHERS]),
    ({"bool": {"must": [BY_TEXT, {"match": {"brand": "acme"}}]}}, [{"match": {"brand": "acme"}}]),
    ({"match": {"brand": "its only text"}}, []),
    ({"bool": {"must": [BY_TEXT], "filter": BY_TEXT}}, [BY_TEXT]),
    ({"bool": {"should": [OTHERS, BY_TEXT], "minimum_should_match": 2}}, any_of(OTHERS)),
    ({"bool": {"should": [OTHERS, BY_TEXT], "minimum_should_match": "100%"}}, any_of(OTHERS)),
    ({"bool": {"should": [BY_TEXT], "minimum_should_match": 2}}, [{"match_none": {}}]),
    ({"bool": {"should": [TERM, OTHERS], "minimum_should_match": 0}}, any_of(TERM, OTHERS)),
    ({"bool": {"should": [TERM], "must_not": [OTHERS]}}, [{"bool": {"must_not": [OTHERS]}}, *any_of(TERM)]),
    (
        {"bool": {"must": BY_TEXT, "should": [TERM], "minimum_should_match": "2<75%"}},
        [{"bool": {"should": [TERM], "minimum_should_match": "2<75%"}}],
    ),
    ({"dis_max": {"queries": [OTHERS, TERM]}}, any_of(OTHERS, TERM)),
    ({"pinned": {"ids": ["1"], "organic": {"bool": {"must": [BY_TEXT, OTHERS]}}}}, [OTHERS]),
]
EVERY: dict[str, Any] = {"constant_score": {"filter": {"match_all": {}}}}
OF_ACME = {"bool": {"must": BY_TEXT, "filter": TERM}}
SCRIPT = {"source": "0"}
SCORING: list[tuple[Any, Any]] = [
    (
        {"function_score": {"query": BY_TEXT, "functions": [{"filter": TERM, "weight": 0}]}},
        [{"function_score": {"query": EVERY, "functions": [{"filter": TERM, "weight": 0}], "min_score": 1e-37}}],
    ),
    (
        {"script_score": {"query": OF_ACME, "script": SCRIPT}},
        [
            {
                "script_score": {
                    "query": {"constant_score": {"filter": {"bool": {"filter": [TERM]}}}},
                    "script": SCRIPT,
                    "min_score": 1e-37,
                }
            }
        ],
    ),
    *(({kind: {"query": BY_TEXT, "min_score": 2}},) * 2 for kind in ("function_score", "script_score")),
    ({"boosting": {"positive": OF_ACME, "negative": OTHERS, "negative_boost": 0.1}}, [TERM]),
    ({"boosting": {"positive": BY_TEXT, "negative": OTHERS, "negative_boost": 0}}, [{"bool": {"must_not": [OTHERS]}}]),
    (
        {"rule": {"organic": OF_ACME, "ruleset_ids": ["a"], "match_criteria": {}}},
        [{"rule": {"organic": {"bool": {"filter": [TERM]}}, "ruleset_ids": ["a"], "match_criteria": {}}}],
    ),
    ({"bool": {"must": BY_TEXT, "should": [{"script_score": {"query": BY_TEXT, "script": SCRIPT}}]}}, []),
]


@pytest.mark.parametrize(("query", "demands"), [*((one, []) for one in FREE), *((one, [one]) for one in WHOLE), *OTHER])
def test_filters_of_a_query(query: Any, demands: list[Any]) -> None:
    assert demanded(query, TEXT, "another") == demands
    assert not changes_scores(query)


@pytest.mark.parametrize(("query", "demands"), SCORING)
def test_filters_of_a_query_that_changes_scores_require_a_score(query: Any, demands: Any) -> None:
    assert demanded(query) == (demands if isinstance(demands, list) else [query])
    assert changes_scores(query)
    assert changes_scores({"nested": {"path": "p", "query": {"bool": {"should": [query]}}}})


def test_parts_of_the_body_beside_the_query() -> None:
    body = {"query": BY_TEXT, "post_filter": TERM, "knn": [{"field": "v", "query_vector": [1], "filter": OTHERS}]}
    assert required_filters(body, [TEXT], ANALYSED.__contains__) == [OTHERS, TERM]
    assert text_fields(body, [TEXT]) == {"body"}
    defined = {"query": BY_TEXT, "runtime_mappings": {"body": {"type": "keyword"}}}
    assert required_filters(defined, [TEXT], ANALYSED.__contains__) == [BY_TEXT]
    deep: Any = BY_TEXT
    for _ in range(5000):
        deep = {"bool": {"must": deep}}
    with pytest.raises(UnknownFilter):
        demanded(deep)


def test_a_query_in_the_url_demands_as_one_in_the_body() -> None:
    assert query_of_url({"size": "3"}) is None
    free = query_of_url({"q": TEXT, "df": "body", "default_operator": "AND"})
    assert demanded(free) == []
    bound = query_of_url({"q": f"{TEXT} AND tenant:acme", "df": "body"})
    assert demanded(bound) == [{"query_string": {"query": f"{TEXT} AND tenant:acme", "default_field": "body"}}]


def test_inner_hits_are_left_to_the_callers_query() -> None:
    family = {"has_child": {"type": "c", "query": TERM}}
    with_hits = {"has_child": {**family["has_child"], "inner_hits": {"size": 1}}}
    assert demanded({"bool": {"must": [BY_TEXT, with_hits], "filter": [with_hits]}}) == [family, family]


LEAVES = st.sampled_from([BY_TEXT, OTHERS, {"term": {"a": 1}}, {"term": {"b": 1}}, {"range": {"n": {"gte": 1}}}])


def bools(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    clauses = st.lists(inner, max_size=3)
    least = st.sampled_from([None, 0, 1, 2, "1", "-1", "50%", "-50%", "100%"])
    plain = st.fixed_dictionaries({}, optional=dict.fromkeys(("must", "filter", "must_not", "should"), clauses))
    whole = st.builds(lambda one, at: one if at is None else {**one, "minimum_should_match": at}, plain, least)
    any_query = st.builds(lambda some: {"dis_max": {"queries": some}}, st.lists(inner, min_size=1, max_size=3))
    return st.one_of(whole.map(lambda one: {"bool": one}), any_query)


def least_of(given: Any, count: int) -> int:
    if given is None:
        return 0
    number = int(str(given).rstrip("%"))
    number = int(count * number / 100) if "%" in str(given) else number
    return number + count if str(given).startswith("-") else number


def holds(query: Any, true: frozenset[str], *, words: bool) -> bool:
    """Return whether a document matches, with ``words`` as if it had the search's own words."""
    [(kind, clause)] = query.items()
    if kind == "dis_max":
        return any(holds(one, true, words=words) for one in clause["queries"])
    if kind != "bool":
        return str(query) in true or (words and query == BY_TEXT)
    must = [holds(one, true, words=words) for one in clause.get("must", [])]
    must += [holds(one, true, words=False) for one in clause.get("filter", [])]
    must += [not holds(one, true, words=False) for one in clause.get("must_not", [])]
    should = [holds(one, true, words=words) for one in clause.get("should", [])]
    least = least_of(clause.get("minimum_should_match"), len(should))
    if should and not clause.get("must") and not clause.get("filter"):
        least = max(least, 1)
    return all(must) and sum(should) >= (least if should else 0)


@given(st.recursive(LEAVES, bools, max_leaves=12), st.frozensets(LEAVES.map(str)))
@example({"bool": {"should": [BY_TEXT], "minimum_should_match": 2}}, frozenset())
def test_a_document_may_join_where_all_but_the_words_holds(query: Any, true: frozenset[str]) -> None:
    filters = demanded(query, TEXT, "another")
    assert all(holds(one, true, words=False) for one in filters) == holds(query, true, words=True)


def with_tenant(*ways: Any) -> dict[str, Any]:
    return {"bool": {"must": [BY_TEXT, *ways]}}


MUST: list[dict[str, Any]] = [
    {"match": {"tenant": "acme"}},
    {"match": {"n": 5}},
    {"match": {"open": True}},
    {"match": {"brand": "acme"}},
    {"match_phrase": {"brand": "acme"}},
    {"multi_match": {"query": "acme", "fields": ["tenant", "brand"]}},
    {"match_bool_prefix": {"tenant": "acme"}},
    {"combined_fields": {"query": "acme", "fields": ["brand"]}},
    {"dis_max": {"queries": [{"match": {"tenant": "acme"}}, {"term": {"n": 5}}]}},
    {"term": {"tenant": "acme"}},
    {"query_string": {"query": "tenant:acme"}},
    {"query_string": {"query": "acme", "default_field": "tenant"}},
    {"simple_query_string": {"query": "+acme", "fields": ["brand"]}},
    {"constant_score": {"filter": {"match": {"tenant": "acme"}}}},
    {"nested": {"path": "owner", "query": {"match": {"owner.name": "acme"}}}},
    {"terms_set": {"tenant": {"terms": ["acme"], "minimum_should_match_script": {"source": "1"}}}},
    {"distance_feature": {"field": "day", "origin": "2026-01-01", "pivot": "7d"}},
    {"rank_feature": {"field": "rank"}},
    {"function_score": {"query": {"match": {"tenant": "acme"}}, "functions": [{"weight": 2}]}},
    {"boosting": {"positive": {"match": {"tenant": "acme"}}, "negative": {"term": {"n": 7}}, "negative_boost": 0.5}},
]
HIDING: list[dict[str, Any]] = [
    {"function_score": {"query": BY_TEXT, "functions": [{"filter": {"match": {"tenant": "zeta"}}, "weight": 0}]}},
    {"script_score": {"query": BY_TEXT, "script": {"source": "doc['open'].value ? _score : 0"}}},
    {"boosting": {"positive": BY_TEXT, "negative": {"match": {"tenant": "zeta"}}, "negative_boost": 0}},
]
"""Ways to score all documents of the other tenant 0."""
WAYS: list[dict[str, Any]] = [
    *[with_tenant(way) for way in MUST],
    {"bool": {"should": [BY_TEXT, {"match": {"tenant": "acme"}}], "minimum_should_match": 2}},
    {"bool": {"should": [BY_TEXT, {"match": {"tenant": "acme"}}], "minimum_should_match": "100%"}},
    {"query_string": {"query": "pollination AND tenant:acme", "default_field": "body"}},
    {"query_string": {"query": "+pollination +acme", "fields": ["body", "brand"]}},
    {"simple_query_string": {"query": "pollination + acme", "fields": ["body", "brand"], "default_operator": "and"}},
    {"boosting": {"positive": with_tenant(MUST[0]), "negative": {"term": {"n": 7}}, "negative_boost": 0.5}},
    {"function_score": {"query": with_tenant(MUST[0]), "functions": [{"weight": 2}]}},
    {"function_score": {"query": with_tenant(MUST[0])}},
    {"script_score": {"query": with_tenant(MUST[0]), "script": {"source": "_score"}}},
    {"bool": {"must": BY_TEXT, "must_not": {"match": {"tenant": "zeta"}}}},
]
"""Ways to write that a document must be of one tenant."""


@pytest.fixture(scope="module")
def tenants(stack: SearchStack, encoder: Encoder) -> Iterator[SearchStack]:
    """Documents of two tenants of which the other's are as near to the query, half of them without its word."""
    name = f"test-tenants-{uuid.uuid4().hex[:8]}"
    spec = make_index(stack.engine, name, encoder, documents=[])
    types = {"tenant": "keyword", "n": "integer", "open": "boolean", "brand": "text", "body": "text"}
    owner = {"type": "nested", "properties": {"name": {"type": "keyword"}}}
    types |= {"day": "date"} | ({"rank": "rank_feature"} if stack.product == "opensearch" else {})
    fields = {"properties": {**{field: {"type": kind} for field, kind in types.items()}, "owner": owner}}
    assert call(stack.engine, "PUT", f"/{name}/_mapping", fields).status == 200
    texts = ("Bees and pollination of flowers", "Bees carry pollen between flowers", "Nectar feeds the bee")
    documents = [
        {
            "_id": f"{tenant}-{place}", "text": text, "body": text, "tenant": tenant, "brand": f"{tenant} corp",
            "n": number, "open": tenant == "acme", "owner": [{"name": tenant}],
            **({"day": "2026-01-01", "rank": 3} if tenant == "acme" else {}),
        }
        for tenant, number in (("acme", 5), ("zeta", 6))
        for place, text in enumerate(texts)
    ]  # fmt: skip
    asyncio.run(write(stack.engine, name, encoder, documents))
    yield replace(stack, index=name, spec=spec)
    call(stack.engine, "DELETE", f"/{name}")


def ranked(stack: SearchStack, query: Any, index: str = "", **section: Any) -> tuple[list[str], dict[str, Any]]:
    body = {"query": query, "rescore": {"ttc": {"query_text": TEXT, **section}}}
    reply = search(stack.gateway, index or stack.index, body)
    assert reply.status == 200, reply.body
    return reply.ids, reply.json()["ttc"]


@pytest.mark.parametrize("place", range(len(WAYS)))
def test_no_way_to_write_a_tenant_lets_another_one_join(tenants: SearchStack, place: int) -> None:
    if "rank_feature" in str(WAYS[place]) and tenants.product == "elasticsearch":
        pytest.skip("the Elasticsearch of the tests lacks the module mapper-extras")
    for _ in range(2):  # the second time the types of fields and the encoder are known
        ids, told = ranked(tenants, WAYS[place])
        assert told["applied"], told
        assert ids
        assert all(name.startswith("acme") for name in ids), ids


def test_the_text_of_a_search_is_the_one_in_a_text_field(tenants: SearchStack) -> None:
    must = [{"match": {"tenant": "acme"}}, {"match": {"body": TEXT}}, {"multi_match": {"query": "5", "fields": ["n"]}}]
    sent = b"\xef\xbb\xbf" + orjson.dumps({"query": {"bool": {"must": must}}, "rescore": {"ttc": {}}})
    reply = call(tenants.gateway, "POST", f"/{tenants.index}/_search", sent)
    assert reply.json()["ttc"]["applied"], reply.body
    assert sorted(reply.ids) == ["acme-0", "acme-1", "acme-2"]


@pytest.mark.parametrize("place", range(len(HIDING)))
def test_documents_scored_0_do_not_join(tenants: SearchStack, place: int) -> None:
    """What has the query's word is found all the same, and stays below."""
    ids, told = ranked(tenants, HIDING[place])
    assert sorted(ids[:3]) == ["acme-0", "acme-1", "acme-2"], told
    assert ids[3:] == ["zeta-0"]
    assert told["candidates"]["joined"] == 2


def test_documents_that_only_words_exclude_join(tenants: SearchStack) -> None:
    ids, told = ranked(tenants, with_tenant(MUST[0]))
    assert sorted(ids) == ["acme-0", "acme-1", "acme-2"]
    assert told["candidates"]["joined"] == 2
    assert len(ranked(tenants, BY_TEXT)[0]) == 6
    for query in WAYS[-5:-1]:
        ids, told = ranked(tenants, query)
        assert sorted(ids) == ["acme-0", "acme-1", "acme-2"]
        assert "reason" not in told["candidates"]


@pytest.mark.parametrize(("field", "found"), [("body", ["acme-0", "zeta-0"]), ("message", None)])
def test_a_field_must_be_text_in_every_searched_index_that_has_it(
    tenants: SearchStack, index_name: str, field: str, found: list[str] | None
) -> None:
    other = {"mappings": {"properties": {field: {"type": "keyword"}}}}
    assert call(tenants.engine, "PUT", f"/{index_name}", other).status == 200
    alias = f"{tenants.index}-{field}"
    add = [{"add": {"index": name, "alias": alias}} for name in (tenants.index, index_name)]
    assert call(tenants.engine, "POST", "/_aliases", {"actions": add}).status == 200
    for target in (f"{tenants.index},{index_name}", alias):
        ids, told = ranked(tenants, BY_TEXT, target)
        assert sorted(ids) == (found or sorted(ranked(tenants, BY_TEXT)[0]))
        assert told["candidates"]["joined"] == (0 if found else 4)


def test_filters_of_a_point_in_time_bind_candidates(tenants: SearchStack) -> None:
    path = "_pit" if tenants.product == "elasticsearch" else "_search/point_in_time"
    opened = call(tenants.engine, "POST", f"/{tenants.index}/{path}?keep_alive=1m").json()
    pit = {"pit": {"id": opened.get("id") or opened["pit_id"]}, "rescore": {"ttc": {"query_text": TEXT}}}
    for query, count in ((BY_TEXT, 6), (with_tenant(MUST[0]), 3)):
        reply = call(tenants.gateway, "POST", "/_search", {"query": query, **pit})
        assert reply.status == 200, reply.body
        assert len(reply.ids) == len(set(reply.ids)) == count
