"""What a search finds is what its query matches and what joins: counted, aggregated, grouped and paged as one set.

The set is computed by hand: what the query matches is the engine's plain answer, what is nearest comes of exact vectors
among the documents that a query without the words finds.
"""

import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.rescoring import add_to_total
from es_ttc.vectors.tokens import Float32
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import ANIMALS, CATS, DEEDS
from tests.serving.relay import Passed, relay
from tests.support.gateway import gateway_to

GROUP = "group.keyword"
OPEN = "x-may-see-open"
WORDS = {"match": {"text": CATS}}
FEW = {"match": {"text": "snow"}}
AGGREGATIONS = {
    "groups": {"terms": {"field": GROUP, "size": 50}},
    "late": {"filter": {"range": {"number": {"gte": 20}}}, "aggs": {"sum": {"sum": {"field": "number"}}}},
}


def documents() -> list[dict[str, Any]]:
    texts = [(animal, deed) for animal in ANIMALS for deed in DEEDS]
    return [
        {
            "_id": f"u{number}", "number": number, "group": f"g{number % 6}", "open": number % 3 > 0,
            "text": f"Our {animal} {deed} on day {number}.",
        }
        for number, (animal, deed) in enumerate(texts)
    ]  # fmt: skip


@dataclass(frozen=True)
class CosineIndex:
    """An index, and how near its documents are to the query."""

    stack: SearchStack
    cosines: dict[str, float]

    def search(self, body: dict[str, Any], url: str = "", index: str = "") -> Reply:
        reply = search(self.stack.gateway, index or self.stack.index, body, url)
        assert reply.status == 200, reply.body
        return reply

    def plain(self, query: Any, **more: Any) -> dict[str, float]:
        reply = search(self.stack.engine, self.stack.index, {"query": query, "size": 100, **more})
        assert reply.status == 200, reply.body
        return dict(zip(reply.ids, reply.scores, strict=True))

    def nearest(self, demand: Any, most: int) -> set[str]:
        """Return the nearest documents that a query demands: at most some, up to a gap that no rounding closes."""
        found = sorted(self.plain(demand), key=lambda name: -self.cosines[name])
        count = min(most, len(found))
        while 0 < count < len(found) and self.cosines[found[count - 1]] - self.cosines[found[count]] < 0.004:
            count -= 1
        return set(found[:count])


@pytest.fixture(scope="module")
def cosine_index(stack: SearchStack, encoder: Encoder) -> Iterator[CosineIndex]:
    name = f"test-union-{uuid.uuid4().hex[:8]}"
    spec = make_index(stack.engine, name, encoder, documents=documents())
    query: Float32 = encoder.encode([CATS], role="query").pooled[0]
    pooled = encoder.encode([one["text"] for one in documents()], role="document").pooled
    cosines = {one["_id"]: float(np.dot(vector, query)) for one, vector in zip(documents(), pooled, strict=True)}
    yield CosineIndex(replace(stack, index=name, spec=spec), cosines)
    call(stack.engine, "DELETE", f"/{name}")


def asked(query: Any, knn: int, window: int, **more: Any) -> dict[str, Any]:
    section = {"query_text": CATS, "candidates": {"knn": knn}, "detail": True, "on_error": "fail", "timeout": "60s"}
    return {"query": query, "size": 100, "rescore": {"window_size": window, "ttc": section}, **more}


def some_demand(choice: random.Random) -> Any:
    number = choice.randrange(30)
    return choice.choice(
        [
            {"range": {"number": {"gte": number}}},
            {"terms": {GROUP: [f"g{choice.randrange(6)}", f"g{choice.randrange(6)}", "g1"]}},
            {"term": {"open": choice.random() < 0.7}},
            {"match": {"open": "true"}},
            {"match": {"number": number}},
            {"match_phrase": {"text": "in the snow"}},
            {"bool": {"must_not": {"term": {GROUP: f"g{choice.randrange(6)}"}}}},
            {"constant_score": {"filter": {"range": {"number": {"lt": number + 10}}}, "boost": 2}},
            {
                "simple_query_string": {
                    "query": f"{choice.choice(ANIMALS)} | {choice.choice(ANIMALS)}",
                    "fields": ["text"],
                }
            },
            {"dis_max": {"queries": [{"term": {GROUP: "g0"}}, {"range": {"number": {"gte": number}}}]}},
        ]
    )


def some_query(choice: random.Random) -> tuple[Any, Any]:
    """Return a query, and what it demands beside its words."""
    must = [some_demand(choice) for _ in range(choice.choice([0, 0, 1]))]
    filters = [some_demand(choice) for _ in range(choice.choice([0, 1, 1, 2]))]
    excluded = [some_demand(choice) for _ in range(choice.choice([0, 0, 1]))]
    should = [some_demand(choice) for _ in range(choice.choice([0, 1, 2]))]
    words = choice.choice([WORDS, WORDS, {"multi_match": {"query": CATS, "fields": ["text"]}}])
    query: Any = {"bool": {"must": [words, *must], "filter": filters, "must_not": excluded, "should": should}}
    demand: Any = {"bool": {"filter": [*must, *filters], "must_not": excluded}}
    match choice.randrange(5):
        case 0:
            hidden = some_demand(choice)
            functions = [{"filter": hidden, "weight": 0}, {"weight": choice.choice([0.5, 3])}]
            query = {"function_score": {"query": query, "functions": functions, "score_mode": "multiply"}}
            demand = {"bool": {"filter": [demand], "must_not": hidden}}
        case 1:
            query = {"boosting": {"positive": query, "negative": some_demand(choice), "negative_boost": 0.3}}
        case 2 if should:
            query["bool"]["minimum_should_match"] = 1
            demand["bool"]["filter"].append({"bool": {"should": should, "minimum_should_match": 1}})
    return query, demand


def drawn(cosine_index: CosineIndex, seed: int) -> tuple[random.Random, Any, dict[str, float], set[str]]:
    """Return a query with the scores of what it matches and the nearest documents that it demands."""
    choice = random.Random(seed)
    query, demand = some_query(choice)
    return choice, query, cosine_index.plain(query), cosine_index.nearest(demand, choice.randrange(1, 12))


@pytest.mark.parametrize("seed", range(16))
def test_the_union_is_what_is_counted_aggregated_grouped_and_paged(cosine_index: CosineIndex, seed: int) -> None:
    choice, query, matches, nearest = drawn(cosine_index, seed)
    window = choice.randrange(1, 15)
    union = matches.keys() | nearest
    asking = asked(query, len(nearest), window, aggs=AGGREGATIONS, track_total_hits=True)
    for size in (100, 3, 0):
        whole = cosine_index.search({**asking, "size": size})
        answer = whole.json()
        assert "reason" not in answer["ttc"].get("candidates", {}) or not nearest
        assert answer["hits"]["total"] == {"value": len(union), "relation": "eq"}
        of = [one for one in documents() if one["_id"] in union]
        buckets = answer["aggregations"]["groups"]["buckets"]
        assert {one["key"]: one["doc_count"] for one in buckets} == Counter(one["group"] for one in of)
        late = [one["number"] for one in of if one["number"] >= 20]
        assert answer["aggregations"]["late"] == {"doc_count": len(late), "sum": {"value": sum(late)}}
    whole = cosine_index.search(asking)
    assert len(whole.ids) == len(union)
    assert set(whole.ids) == union
    for hit in whole.json()["hits"]["hits"]:
        assert hit["_ttc"]["first_pass_score"] == pytest.approx(matches.get(hit["_id"], 0), rel=1e-5)
    pages = [cosine_index.search({**asking, "size": 7, "from": start}) for start in range(0, 35, 7)]
    assert [name for page in pages for name in page.ids] == whole.ids
    kept = cosine_index.search({**asking, "rescore": {**asking["rescore"], "ttc": {
        **asking["rescore"]["ttc"], "candidates": {"knn": len(nearest), "count": False}}}})  # fmt: skip
    assert kept.ids == whole.ids
    assert kept.json()["hits"]["total"]["value"] == len(matches)
    assert sum(one["doc_count"] for one in kept.json()["aggregations"]["groups"]["buckets"]) == len(matches)


@pytest.mark.parametrize("seed", range(0, 16, 2))
@pytest.mark.parametrize("collapse", [False, True])
def test_documents_of_equal_score_are_in_the_order_of_the_further_keys(
    cosine_index: CosineIndex, seed: int, *, collapse: bool
) -> None:
    choice, query, matches, nearest = drawn(cosine_index, seed)
    section = {
        "query_text": CATS,
        "candidates": {"knn": len(nearest)},
        "score_mode": "total",
        "rescore_query_weight": 0,
    }
    order = choice.choice([1, -1])
    sort = ["_score", {"open": "desc"}, {"number": "asc" if order > 0 else "desc"}]
    body = {"query": query, "sort": sort, "size": 100, "rescore": {"window_size": 100, "ttc": section}}

    def expected(one: dict[str, Any]) -> tuple[float, bool, bool, int]:
        score = matches.get(one["_id"])
        return -(score or 0), score == 0, not one["open"], order * one["number"]

    of = sorted((one for one in documents() if one["_id"] in matches.keys() | nearest), key=expected)
    if collapse:
        of = sorted({one["group"]: one for one in reversed(of)}.values(), key=expected)
        body["collapse"] = {"field": GROUP}
    whole = cosine_index.search(body)
    assert whole.ids == [one["_id"] for one in of]
    assert whole.json()["ttc"]["applied"]
    for hit, one in zip(whole.json()["hits"]["hits"], of, strict=True):
        assert hit["sort"] == [hit["_score"], int(one["open"]), one["number"]]
    assert [cosine_index.search({**body, "size": 4, "from": start}).ids for start in (0, 4)] == [
        whole.ids[:4],
        whole.ids[4:8],
    ]
    lines = [{"index": cosine_index.stack.index}, body]
    several = call(cosine_index.stack.gateway, "POST", "/_msearch", lines).json()["responses"][0]
    assert [hit["_id"] for hit in several["hits"]["hits"]] == whole.ids


def test_documents_of_equal_content_are_in_the_order_of_the_further_keys(stack: SearchStack, encoder: Encoder) -> None:
    """Their sequence numbers, each shard's own, are equal too."""
    name = f"test-twins-{uuid.uuid4().hex[:8]}"
    twins = [{"_id": f"t{number}", "number": number * 7 % 20, "text": documents()[2]["text"]} for number in range(20)]
    make_index(stack.engine, name, encoder, documents=twins)
    for query in (WORDS, FEW):
        for order in ("asc", "desc"):
            body = asked(query, 20, 20, sort=["_score", {"number": order}])
            body["rescore"]["ttc"] |= {"score_mode": "total", "rescore_query_weight": 0, "query_weight": 0}
            numbers = [hit["_source"]["number"] for hit in search(stack.gateway, name, body).json()["hits"]["hits"]]
            assert numbers == sorted(range(20), reverse=order == "desc")
    call(stack.engine, "DELETE", f"/{name}")


@pytest.mark.parametrize("seed", range(16, 26))
def test_groups_are_those_of_the_union(cosine_index: CosineIndex, seed: int) -> None:
    choice, query, matches, nearest = drawn(cosine_index, seed)
    window = choice.randrange(2, 40)
    groups: dict[str, set[str]] = {}
    for one in documents():
        if one["_id"] in matches or one["_id"] in nearest:
            groups.setdefault(one["group"], set()).add(one["_id"])
    inner = {"name": "members", "size": 30, "_source": ["number"]}
    asking = asked(query, len(nearest), window)
    whole = cosine_index.search({**asking, "collapse": {"field": GROUP, "inner_hits": inner}})
    assert {hit["fields"][GROUP][0] for hit in whole.json()["hits"]["hits"]} == groups.keys()
    assert len(whole.ids) == len(groups)
    for hit in whole.json()["hits"]["hits"]:
        members = hit["inner_hits"]["members"]["hits"]
        assert {one["_id"] for one in members["hits"]} == groups[hit["fields"][GROUP][0]]
        assert members["total"]["value"] == len(groups[hit["fields"][GROUP][0]])
        for one in members["hits"]:
            assert one["_score"] == pytest.approx(matches.get(one["_id"], 0), rel=1e-5)
    pages = [
        cosine_index.search({**asking, "size": 2, "from": start, "collapse": {"field": GROUP}}) for start in (0, 2, 4)
    ]
    assert [name for page in pages for name in page.ids] == whole.ids
    first: dict[str, str] = {}
    of = {one["_id"]: one["group"] for one in documents()}
    ranked = cosine_index.search(asking)
    for name in ranked.ids[: ranked.json()["ttc"]["scored"]]:
        first.setdefault(of[name], name)
    assert whole.ids[: len(first)] == [*first.values()]


def test_every_hit_of_a_page_has_the_same_parts(cosine_index: CosineIndex) -> None:
    """Both kinds of candidates: those that the query matches, and those that it does not."""
    named = {"bool": {"should": [{"match": {"text": {"query": "snow", "_name": "snow"}}}], "_name": "whole"}}
    parts: dict[str, Any] = {
        "highlight": {"fields": {"text": {}}}, "fields": ["number"], "_source": ["group"], "version": True,
        "seq_no_primary_term": True, "explain": True,
        "script_fields": {"twice": {"script": "doc['number'].value * 2"}},
    }  # fmt: skip
    whole = cosine_index.search(asked(named, 12, 2, **parts)).json()["hits"]["hits"]
    of_the_page = {key: value for key, value in parts.items() if key != "explain"}
    split = cosine_index.search({**asked(named, 12, 2, **of_the_page), "size": 3}).json()["hits"]["hits"]
    plain = search(cosine_index.stack.engine, cosine_index.stack.index, {"query": named, "size": 100, **parts}).json()
    expected = {hit["_id"]: hit for hit in plain["hits"]["hits"]}
    every = search(cosine_index.stack.engine, cosine_index.stack.index, {"size": 100, **parts}).json()["hits"]["hits"]
    others = {hit["_id"]: hit for hit in every}
    assert {hit["_id"] in expected for hit in whole} == {True, False}
    for hit in [*whole, *split]:
        model = expected.get(hit["_id"], others[hit["_id"]])
        same = ("_source", "fields", "highlight", "matched_queries", "_version", "_seq_no", "_primary_term", "_id")
        assert {key: hit.get(key) for key in same} == {key: model.get(key) for key in same}
        if "_explanation" in hit:
            assert hit["_explanation"]["value"] == hit["_score"]
            assert bool(hit["_ttc"]["first_pass_score"]) == (hit["_id"] in expected)


def test_several_texts_find_documents_each(cosine_index: CosineIndex) -> None:
    texts = ["owls hunt at night", "bees sing before the rain"]
    found = [cosine_index.search(asked(FEW, 3, 30) | {"rescore": with_texts([text])}).ids for text in texts]
    both = cosine_index.search(asked(FEW, 6, 30) | {"rescore": with_texts(texts)})
    for ids, animal in zip(found, ("owl", "bee"), strict=True):
        of_the_text = [name for name in ids if animal in documents()[int(name[1:])]["text"]]
        assert set(of_the_text[:2]) <= set(both.ids)
    assert both.json()["ttc"]["candidates"]["joined"] <= 6


def with_texts(texts: list[str]) -> dict[str, Any]:
    return {"window_size": 30, "ttc": {"query_texts": texts, "candidates": {"knn": 3 * len(texts)}}}


def test_boosts_of_indices_count(cosine_index: CosineIndex) -> None:
    plain = cosine_index.plain(WORDS, indices_boost=[{f"{cosine_index.stack.index[:-2]}*": 3.0}])
    for name in (cosine_index.stack.index, f"{cosine_index.stack.index[:-1]}*"):
        reply = cosine_index.search(asked(WORDS, 8, 2, indices_boost=[{name: 3.0}]))
        scores = {hit["_id"]: hit["_ttc"]["first_pass_score"] for hit in reply.json()["hits"]["hits"]}
        assert {name: scores[name] for name in plain} == pytest.approx(plain, rel=1e-5)


@contextmanager
def filtered_alias(cosine_index: CosineIndex, encoder: Encoder) -> Iterator[tuple[str, str]]:
    """Yield the gateway and an alias of the open documents."""
    alias = f"{cosine_index.stack.index}-open"
    add = {"index": cosine_index.stack.index, "alias": alias, "filter": {"term": {"open": True}}}
    assert call(cosine_index.stack.engine, "POST", "/_aliases", {"actions": [{"add": add}]}).status == 200
    yield cosine_index.stack.gateway, alias


@contextmanager
def header(cosine_index: CosineIndex, encoder: Encoder) -> Iterator[tuple[str, str]]:
    """Yield a gateway before an engine that shows by a request's header which documents it may see.

    No engine that package registries carry does so: a relay adds the filter, and refuses searches without the header.
    """

    def restrict(request: Passed) -> Reply | None:
        if not re.search(r"/_m?search\b", request.target):
            return None if re.search(r"/_field_caps|^/(_nodes.*)?(\?|$)", request.target) else refused
        if OPEN not in request.headers:
            return refused
        demand = {"term": {"open": request.headers[OPEN] == "true"}}
        lines = [orjson.loads(line) for line in request.body.splitlines()]
        for body in lines[1::2] if "_msearch" in request.target else lines:
            body["query"] = {"bool": {"must": [body.get("query") or {"match_all": {}}], "filter": [demand]}}
            if "knn" in body:
                knn, filters = body.pop("knn"), body["query"]["bool"]["filter"]
                body["knn"] = {**knn, "filter": [*knn.get("filter", []), *filters]}
                if "query" in body and body["query"]["bool"]["must"] == [{"match_all": {}}]:
                    del body["query"]
        sent = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return call(cosine_index.stack.engine, request.method, request.target, sent, kept)

    refused = Reply(403, {"content-type": "application/json"}, b'{"error": {"reason": "no header"}, "status": 403}')
    with relay(cosine_index.stack.engine) as seen:
        seen.before = restrict
        with gateway_to(seen.url, encoder, scoring_timeout_ms=60_000, jobs_metrics_seconds=0) as gateway:
            yield gateway, cosine_index.stack.index


@pytest.mark.parametrize("restricted", [filtered_alias, header])
def test_restrictions_bind_counts_buckets_groups_and_explanations(
    cosine_index: CosineIndex, encoder: Encoder, restricted: Callable[..., AbstractContextManager[tuple[str, str]]]
) -> None:
    inner = {"field": GROUP, "inner_hits": {"name": "members", "size": 30}}
    body = asked(FEW, 15, 3, aggs={**AGGREGATIONS, "top": {"top_hits": {"size": 30}}}, explain=True)
    totals = []
    with restricted(cosine_index, encoder) as (gateway, index):
        for may_see in ("false", "true", "false") if restricted is header else ("true",):
            headers = {OPEN: may_see, "content-type": "application/json"}
            permitted = {one["_id"] for one in documents() if one["open"] == (may_see == "true")}

            def sent(body: dict[str, Any], headers: dict[str, str] = headers) -> Reply:
                return call(gateway, "POST", f"/{index}/_search", orjson.dumps(body), headers)

            for size in (100, 2):
                whole = sent({**body, "size": size} | ({} if size == 100 else {"explain": False}))
                assert whole.status == 200, whole.body
                assert whole.json()["ttc"]["candidates"]["joined"] > 3
                assert set(whole.ids) <= permitted
            totals.append(whole.json()["hits"]["total"]["value"])
            whole = sent(body)
            assert totals[-1] == len(whole.ids)
            shown = whole.json()["aggregations"]["top"]["hits"]["hits"]
            assert {hit["_id"] for hit in shown} == set(whole.ids)
            assert all(hit["_explanation"] for hit in whole.json()["hits"]["hits"])
            grouped = sent({**body, "collapse": inner}).json()
            members = [hit["inner_hits"]["members"]["hits"]["hits"] for hit in grouped["hits"]["hits"]]
            assert {one["_id"] for hits in members for one in hits} == set(whole.ids)
            lines = [{"index": index}, body]
            several = call(gateway, "POST", "/_msearch", lines, {OPEN: may_see}).json()["responses"][0]
            assert [hit["_id"] for hit in several["hits"]["hits"]] == whole.ids
            assert several["hits"]["total"] == whole.json()["hits"]["total"]
            assert several["aggregations"]["groups"] == whole.json()["aggregations"]["groups"]
    assert totals[0] == totals[-1]


@pytest.mark.parametrize(
    ("total", "up_to", "expected"),
    [
        ({"value": 5, "relation": "eq"}, 10_000, {"value": 8, "relation": "eq"}),
        ({"value": 9_999, "relation": "eq"}, 10_000, {"value": 10_000, "relation": "gte"}),
        ({"value": 10_000, "relation": "gte"}, 10_000, {"value": 10_000, "relation": "gte"}),
        ({"value": 99_999, "relation": "eq"}, None, {"value": 100_002, "relation": "eq"}),
        (7, None, 10),
        (-1, None, -1),
        (None, None, None),
    ],
)
def test_totals_end_where_the_engine_ends_to_count(total: Any, up_to: int | None, expected: Any) -> None:
    response = {"hits": {"total": total}}
    add_to_total(response, 3, up_to, least=0)
    assert response == {"hits": {"total": expected}}


def test_a_search_that_ends_early_counts_at_least_what_its_pages_show(cosine_index: CosineIndex) -> None:
    every = {"match": {"text": "in the snow at night"}}
    body = asked(every, 30, 12, terminate_after=1)
    reply = cosine_index.search(body).json()
    assert reply["terminated_early"]
    assert reply["hits"]["total"] == {"value": len(reply["hits"]["hits"]), "relation": "eq"}
    plain = search(cosine_index.stack.engine, cosine_index.stack.index, {"query": every, "terminate_after": 1}).json()
    assert reply["hits"]["total"]["value"] > plain["hits"]["total"]["value"]


@pytest.mark.parametrize("url", ["", "?rest_total_hits_as_int=true&track_total_hits=true", "?typed_keys=true"])
@pytest.mark.parametrize("count", [True, False, 10, 1])
def test_totals_in_every_form(cosine_index: CosineIndex, url: str, count: Any) -> None:
    if "as_int" in url and count is not True:
        return
    body = asked(FEW, 10, 3, track_total_hits=count, aggs=AGGREGATIONS)
    plain = search(
        cosine_index.stack.engine, cosine_index.stack.index, {"query": FEW, "track_total_hits": count}, url
    ).json()
    reply = cosine_index.search(body, url).json()
    whole = len(reply["hits"]["hits"])
    if count is False:
        assert "total" not in reply["hits"]
    elif "as_int" in url:
        assert reply["hits"]["total"] == whole > plain["hits"]["total"]
    elif plain["hits"]["total"]["relation"] == "gte" or (count is not True and whole > count):
        assert reply["hits"]["total"] == {"value": max(count, plain["hits"]["total"]["value"]), "relation": "gte"}
    else:
        assert reply["hits"]["total"] == {"value": whole, "relation": "eq"}
    assert reply["aggregations"].keys() == ({"sterms#groups", "filter#late"} if "typed" in url else {"groups", "late"})
