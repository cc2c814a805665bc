"""The knn hook on real engines: what is found, what natively belongs to a search, what is refused."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest import encode_documents
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Documents, Vectors
from es_ttc.retrievers.memory import Matrix, MemorySearch
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, fill, make_index
from tests.serving.corpus import CATS, WITHOUT_TEXT, corpus
from tests.support.encoders import Renamed
from tests.support.gateway import gateway_to

BIRDS = "an owl that hunts"
GROUP = {"term": {"group.keyword": "g1"}}
IN_GROUP = {one["_id"] for one in corpus() if one["group"] == "g1"} - {WITHOUT_TEXT}


def knn_clause(method: str = "nnn", text: str = CATS, **clause: Any) -> dict[str, Any]:
    section = {"method": method, **clause.pop("ttc", {})}
    return {"field": "ttc.vector", "query_text": text, "k": 10, "ttc": section, **clause}


def asked(stack: SearchStack, clause: dict[str, Any], url: str = "", /, **body: Any) -> Reply:
    return search(stack.gateway, stack.index, {"knn": clause, **body}, url)


def is_elasticsearch(stack: SearchStack) -> bool:
    return bool(call(stack.engine, "GET", "/").json().get("tagline") == "You Know, for Search")


def native(stack: SearchStack, question: dict[str, Any], **clause: Any) -> dict[str, Any]:
    """A native kNN search body of this engine's form."""
    if is_elasticsearch(stack):
        given = {"query_vector": question["vector"]} if "vector" in question else question
        return {"knn": {"field": "ttc.vector", "k": 10, "num_candidates": 60, **given, **clause}}
    return {"query": {"knn": {"ttc.vector": {"k": 10, **question, **clause}}}}


def in_memory(stack: SearchStack, encoder: Encoder, *, only: set[str] | None = None) -> tuple[MemorySearch, list[str]]:
    """The corpus as arrays, and its ids."""
    documents = [one for one in corpus() if one["_id"] != WITHOUT_TEXT]
    features = encode_documents(documents, stack.spec, encoder)
    pooled = np.stack([one.pooled for one in features if one.pooled is not None])
    tokens = [one.tokens for one in features if one.tokens is not None]
    spans = [one.spans for one in features if one.spans is not None]
    owners = np.repeat(np.arange(len(spans)), [len(one.vectors) for one in spans])
    ids = [one["_id"] for one in documents]

    def windows(numbers: Documents, _: frozenset[Feature]) -> Window:
        return Window(
            [ids[one] for one in numbers],
            np.zeros(len(numbers), np.float32),
            pooled=pooled[numbers],
            tokens=[tokens[one].vectors for one in numbers],
            norms=[tokens[one].norms for one in numbers],
        )

    matrices = {
        Vectors.POOLED: Matrix.of(pooled),
        Vectors.SPANS: Matrix(np.concatenate([one.vectors for one in spans]), owners),
    }
    eligible = None if only is None else np.array([one in only for one in ids])
    return MemorySearch(matrices, windows, eligible=eligible), ids


def expected(
    stack: SearchStack, encoder: Encoder, method: str, k: int, params: dict[str, Any], only: set[str] | None = None
) -> dict[str, float]:
    """What the retriever finds over arrays."""
    memory, ids = in_memory(stack, encoder, only=only)
    retriever = registry.load(method)
    encoded = encoder.encode([CATS], role="query")
    query = Query(CATS, encoded.pooled, encoded.tokens[0])
    found = asyncio.run(retriever.retrieve(query, memory, k, registry.parse_params(retriever, params)))
    scores = shown_similarity(found.scores) if retriever.similarity else found.scores
    return dict(zip([ids[one] for one in found.documents], scores.tolist(), strict=True))


METHODS = [
    ("dense", {}),
    ("dense", {"exact": True}),
    ("nnn", {"exact": True}),
    ("nnn", {"exact": True, "candidates": 2, "batch": 1, "l1": 0.05}),
    ("nnn", {"documents": 4, "rest": "none"}),
    ("softcentroid", {}),
    ("rocchio", {"documents": 5, "weight": 0.7}),
    ("consensusrocchio", {"documents": 16}),
    ("spectral", {}),
    ("spectral", {"exact": True, "candidates": 3}),
    ("spectral", {"pooled": False, "scales": [1, 5, "mean"]}),
    ("spectral", {"query": "tokens", "pool": "mean"}),
]


@pytest.mark.parametrize(("method", "params"), METHODS)
@pytest.mark.parametrize("filtered", [False, True])
def test_knn_hits_equal_the_retriever_over_arrays(
    spanned: SearchStack, encoder: Encoder, method: str, params: dict[str, Any], filtered: bool
) -> None:
    clause = knn_clause(method, ttc={"params": params}) | ({"filter": GROUP} if filtered else {})
    reply = asked(spanned, clause)
    assert reply.status == 200
    wanted = expected(spanned, encoder, method, 10, params, IN_GROUP if filtered else None)
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(wanted, abs=1e-4)
    assert reply.scores == sorted(reply.scores, reverse=True)
    answer = reply.json()
    assert answer["hits"]["total"]["value"] == len(wanted)
    assert answer["hits"]["max_score"] == reply.scores[0]
    assert (answer["ttc"]["method"], answer["ttc"]["applied"]) == (method, True)
    assert answer["ttc"]["retrieved"] == len(wanted)
    assert answer["ttc"]["encoder"] == encoder.identity.key
    assert set(answer["ttc"]["took"]) == {"encode", "search", "features"}
    assert reply.headers["x-ttc-applied"] == "true"
    if filtered:
        assert set(reply.ids) <= IN_GROUP


def test_either_products_form_works_on_either(spanned: SearchStack) -> None:
    elasticsearchs = asked(spanned, knn_clause(filter=[GROUP]))
    clause = {key: value for key, value in knn_clause(filter=GROUP).items() if key != "field"}
    for query in ({"knn": {"ttc.vector": clause}}, {"bool": {"must": [{"knn": {"ttc.vector": clause}}]}}):
        reply = search(spanned.gateway, spanned.index, {"query": query})
        assert (reply.ids, reply.scores) == (elasticsearchs.ids, elasticsearchs.scores)


def test_a_text_is_encoded_and_the_rest_is_native(spanned: SearchStack, encoder: Encoder) -> None:
    vector = encoder.encode([CATS], role="query").pooled[0].tolist()
    for clause in ({}, {"filter": GROUP}, {"boost": 2}):
        direct = search(spanned.engine, spanned.index, native(spanned, {"vector": vector}, **clause))
        reply = search(spanned.gateway, spanned.index, native(spanned, {"query_text": CATS}, **clause))
        assert direct.ids
        assert (reply.ids, reply.scores) == (direct.ids, direct.scores)
        assert "ttc" not in reply.json()
        assert "x-ttc-applied" not in reply.headers


def test_a_text_for_the_spans_is_encoded_too(spanned: SearchStack, encoder: Encoder) -> None:
    vector = encoder.encode([CATS], role="query").pooled[0].tolist()

    def over_spans(key: str, value: Any) -> dict[str, Any]:
        field = {"ttc.spans.v": {key: value, "k": 5}}
        if is_elasticsearch(spanned):
            told = {"vector": "query_vector"}.get(key, key)
            return {"knn": {"field": "ttc.spans.v", told: value, "k": 5, "num_candidates": 60}}
        return {"query": {"nested": {"path": "ttc.spans", "score_mode": "max", "query": {"knn": field}}}}

    direct = search(spanned.engine, spanned.index, over_spans("vector", vector))
    reply = search(spanned.gateway, spanned.index, over_spans("query_text", CATS))
    assert direct.ids
    assert (reply.ids, reply.scores) == (direct.ids, direct.scores)


def test_a_query_beside_it_adds_its_scores_as_natively(spanned: SearchStack) -> None:
    found = asked(spanned, knn_clause("dense", k=5))
    query = {"match": {"text": "trout"}}
    matched = search(spanned.engine, spanned.index, {"query": query, "size": 60})
    both = asked(spanned, knn_clause("dense", k=5), query=query, size=60)
    sums = dict(zip(matched.ids, matched.scores, strict=True))
    for one, score in zip(found.ids, found.scores, strict=True):
        sums[one] = sums.get(one, 0) + score
    assert dict(zip(both.ids, both.scores, strict=True)) == pytest.approx(sums, rel=1e-5)


def test_several_clauses_in_one_search(spanned: SearchStack) -> None:
    one, two = asked(spanned, knn_clause("dense")), asked(spanned, knn_clause("nnn", BIRDS))
    body = {"knn": [knn_clause("dense"), knn_clause("nnn", BIRDS)], "size": 30}
    both = search(spanned.gateway, spanned.index, body)
    assert set(both.ids) == {*one.ids, *two.ids}
    assert [summary["method"] for summary in both.json()["ttc"]["knn"]] == ["dense", "nnn"]


def test_boost_and_the_least_similarity(spanned: SearchStack) -> None:
    plain = asked(spanned, knn_clause("dense"))
    boosted = asked(spanned, knn_clause("dense", boost=3))
    assert boosted.ids == plain.ids
    assert boosted.scores == pytest.approx([3 * score for score in plain.scores], rel=1e-6)
    least = 2 * plain.scores[4] - 1 - 1e-4
    assert asked(spanned, knn_clause("dense", similarity=least)).ids == plain.ids[:5]
    near = {one for one, score in zip(plain.ids, plain.scores, strict=True) if score >= plain.scores[4]}
    assert set(asked(spanned, knn_clause("nnn", similarity=least)).ids) <= near


def test_knn_pages_fields_highlights_and_aggregations_are_the_engines(spanned: SearchStack) -> None:
    whole = asked(spanned, knn_clause("nnn", k=12), size=12)
    numbers = {one["_id"]: one["number"] for one in corpus()}
    assert len(whole.ids) == 12
    for start in (0, 4, 8, 12):
        page = search(spanned.gateway, spanned.index, {"knn": knn_clause("nnn", k=12), "size": 4, "from": start})
        assert page.ids == whole.ids[start : start + 4]
    in_url = asked(spanned, knn_clause("nnn", k=12), "?size=4&from=8&_source_includes=number")
    assert in_url.ids == whole.ids[8:12]
    assert all(hit["_source"].keys() == {"number"} for hit in in_url.json()["hits"]["hits"])
    by_default = asked(spanned, {key: value for key, value in knn_clause("nnn").items() if key != "k"}, size=3)
    assert by_default.json()["hits"]["total"]["value"] == 3
    reply = asked(
        spanned,
        knn_clause("nnn", k=12),
        size=12,
        aggs={"groups": {"terms": {"field": "group.keyword"}}},
        highlight={"fields": {"text": {"highlight_query": {"match": {"text": "cat"}}}}},
        fields=["number"],
        _source=False,
        explain=True,
        min_score=whole.scores[6],
        track_total_hits=True,
    )
    answer = reply.json()
    assert reply.ids == whole.ids[:7]
    assert sum(bucket["doc_count"] for bucket in answer["aggregations"]["groups"]["buckets"]) in (7, 12)
    for hit in answer["hits"]["hits"]:
        assert hit["fields"]["number"] == [numbers[hit["_id"]]]
        assert "_source" not in hit
        assert hit["_explanation"]["value"] == pytest.approx(hit["_score"])
    assert any("highlight" in hit for hit in answer["hits"]["hits"])
    by_number = asked(spanned, knn_clause("nnn", k=12), size=12, sort=[{"number": "desc"}])
    assert by_number.ids == sorted(whole.ids, key=lambda one: -numbers[one])
    after = asked(spanned, knn_clause("nnn", k=12), size=12, post_filter=GROUP)
    assert after.ids == [one for one in whole.ids if one in IN_GROUP]
    none = asked(spanned, knn_clause("nnn", k=12), size=0, aggs={"n": {"value_count": {"field": "number"}}}).json()
    assert none["aggregations"]["n"]["value"] == 12
    named = asked(spanned, knn_clause("nnn", _name="mine")).json()["hits"]["hits"]
    assert all(hit["matched_queries"] == ["mine"] for hit in named)
    paths = asked(spanned, knn_clause("nnn"), "?filter_path=hits.hits._id,ttc.certified").json()
    assert paths == {"hits": {"hits": [{"_id": one} for one in whole.ids[:10]]}, "ttc": {"certified": True}}


def test_knn_detail_shows_weights_and_ranks(spanned: SearchStack) -> None:
    reply = asked(spanned, knn_clause("nnn", ttc={"detail": True}))
    shown = [hit["_ttc"] for hit in reply.json()["hits"]["hits"]]
    assert [detail["retrieval_rank"] for detail in shown] == list(range(1, 11))
    late = asked(spanned, knn_clause("nnn", ttc={"detail": True, "timeout": "1nanos"})).json()
    outcome = {name: late["ttc"][name] for name in ("method", "applied", "reason")}
    assert [hit["_ttc"] for hit in late["hits"]["hits"]] == [outcome] * 10
    assert shown[0]["coefficient"] == pytest.approx(reply.scores[0], abs=1e-6)
    known = {f"d{number}" for number in range(60)}
    assert all({part["id"] for part in detail.get("redundant_with", ())} <= known for detail in shown)
    spans = asked(spanned, knn_clause("spectral", ttc={"detail": True})).json()["hits"]["hits"]
    for hit in spans:
        detail = hit["_ttc"]
        assert detail["field"] in ("title", "text")
        assert 0 <= detail["start"] <= detail["end"] <= len(hit["_source"][detail["field"]])
        assert {"rank_by_spans", "rank_by_pooled"} & detail.keys()
    assert all("_ttc" not in hit for hit in asked(spanned, knn_clause("nnn")).json()["hits"]["hits"])


@pytest.mark.parametrize("method", ["dense", "nnn", "spectral", "softcentroid"])
@pytest.mark.parametrize("filtered", [False, True])
def test_knn_hits_are_the_same_with_and_without_detail(spanned: SearchStack, method: str, filtered: bool) -> None:
    """Without details documents go by their contents, with them by their ids."""
    clause: dict[str, Any] = {"k": 20} | ({"filter": GROUP} if filtered else {})
    shown = asked(spanned, knn_clause(method, ttc={"detail": True}, **clause), size=20)
    plain = asked(spanned, knn_clause(method, **clause), size=20)
    assert (plain.ids, plain.scores) == (shown.ids, shown.scores)
    assert plain.json()["hits"]["total"] == shown.json()["hits"]["total"]


def test_ids_are_read_of_what_is_shown_alone(spanned: SearchStack, through_relay: str, relayed: Any) -> None:
    """An engine reads all that it stores of a document, token vectors too, to tell its id."""
    relayed.passed.clear()
    reply = search(through_relay, spanned.index, {"knn": knn_clause("nnn", k=40), "size": 3})
    assert len(reply.ids) == 3
    lines = [
        json.loads(line) for one in relayed.passed if one.target.endswith("_msearch") for line in one.body.splitlines()
    ]
    searches = [line for line in lines if line.get("size")]
    assert searches
    assert all(line["stored_fields"] == "_none_" for line in searches)


def test_equal_documents_are_told_apart(spanned: SearchStack, encoder: Encoder) -> None:
    name = f"{spanned.index}-twins"
    twins = [{"_id": f"twin{number}", "text": "a cat drinks milk", "group": f"g{number % 2}"} for number in range(4)]
    others = [{"_id": f"other{number}", "text": f"an owl hunts {number} mice"} for number in range(4)]
    asyncio.run(fill(spanned.engine, name, IndexSpec(encoder.identity), encoder, [*twins, *others]))
    try:
        both = [search(spanned.gateway, name, {"knn": knn_clause("dense", k=k)}) for k in (8, 4)]
        assert sorted(both[0].ids) == sorted(one["_id"] for one in [*twins, *others])
        assert sorted(both[1].ids) == [one["_id"] for one in twins]
        filtered = search(spanned.gateway, name, {"knn": knn_clause("dense", filter={"term": {"group.keyword": "g1"}})})
        assert sorted(filtered.ids) == ["twin1", "twin3"]
        for method in ("dense", "nnn", "softcentroid"):
            plain, shown = (
                search(spanned.gateway, name, {"knn": knn_clause(method, k=6, ttc={"detail": detail})})
                for detail in (False, True)
            )
            assert (plain.ids, plain.scores) == (shown.ids, shown.scores)
    finally:
        call(spanned.engine, "DELETE", f"/{name}")


def test_another_index_may_have_the_same_ids(spanned: SearchStack, encoder: Encoder) -> None:
    name = f"{spanned.index}-other"
    far = [{"_id": one["_id"], "text": f"invoice number {place}"} for place, one in enumerate(corpus())]
    asyncio.run(fill(spanned.engine, name, IndexSpec(encoder.identity), encoder, far))
    try:
        for detail in (False, True):
            clause = knn_clause("dense", k=5, ttc={"detail": detail})
            reply = search(spanned.gateway, f"{spanned.index},{name}", {"knn": clause})
            assert {hit["_index"] for hit in reply.json()["hits"]["hits"]} == {spanned.index}
            assert reply.ids == asked(spanned, knn_clause("dense", k=5)).ids
    finally:
        call(spanned.engine, "DELETE", f"/{name}")


def test_knn_hits_are_rescored(spanned: SearchStack) -> None:
    section = {"method": "maxsim", "detail": True}
    reply = asked(spanned, knn_clause("nnn", k=20), size=20, rescore={"window_size": 20, "ttc": section})
    assert reply.status == 200
    assert set(reply.ids) == set(asked(spanned, knn_clause("nnn", k=20), size=20).ids)
    again = asked(spanned, knn_clause("nnn", k=20), size=20, rescore={"ttc": {**section, "query_text": CATS}})
    assert (reply.ids, reply.scores) == (again.ids, again.scores)
    answer = reply.json()["ttc"]
    assert (answer["method"], answer["applied"], answer["knn"]["method"]) == ("maxsim", True, "nnn")
    elsewhere = asked(spanned, knn_clause("nnn", k=20), size=20, rescore={"ttc": {**section, "query_text": BIRDS}})
    assert elsewhere.ids != reply.ids


def test_several_texts_and_the_callers_own_vector(spanned: SearchStack, encoder: Encoder) -> None:
    texts = [CATS, BIRDS]
    clause = {"k": 10, "ttc": {"method": "dense", "query_texts": texts}}
    reply = asked(spanned, clause)
    parts = [
        dict(zip(one.ids, one.scores, strict=True)) for one in (asked(spanned, knn_clause("dense", t)) for t in texts)
    ]
    best = {one: max(part.get(one, 0) for part in parts) for part in parts for one in part}
    first = sorted(best, key=lambda one: -best[one])[:5]
    assert reply.ids[:5] == first
    vector = (7 * encoder.encode([CATS], role="query").pooled[0]).tolist()
    for method in ("nnn", "spectral"):
        given = asked(spanned, {"query_vector": vector, "k": 10, "ttc": {"method": method}})
        assert given.ids == asked(spanned, knn_clause(method)).ids


def test_a_filter_that_matches_nothing_and_more_wanted_than_there_are(spanned: SearchStack) -> None:
    for method in registry.names():
        nothing = asked(spanned, knn_clause(method, filter={"term": {"group.keyword": "none"}}))
        assert nothing.status == 200
        assert nothing.ids == []
        assert nothing.json()["ttc"]["retrieved"] == 0
        everything = asked(spanned, knn_clause(method, k=300), size=300)
        assert sorted(everything.ids) == sorted(one["_id"] for one in corpus() if one["_id"] != WITHOUT_TEXT)


def test_knn_over_an_empty_index_has_no_hits(spanned: SearchStack, index_name: str, encoder: Encoder) -> None:
    asyncio.run(fill(spanned.engine, index_name, IndexSpec(encoder.identity), encoder, []))
    for body in ({"knn": knn_clause("nnn")}, native(spanned, {"query_text": CATS})):
        reply = search(spanned.gateway, index_name, body | {"aggs": {"n": {"value_count": {"field": "number"}}}})
        assert reply.status == 200
        assert reply.ids == []
        assert reply.json()["aggregations"]["n"]["value"] == 0


def test_a_filtered_alias_never_leaks(spanned: SearchStack, through_relay: str, relayed: Any) -> None:
    alias = f"{spanned.index}-alias"
    action = {"add": {"index": spanned.index, "alias": alias, "filter": GROUP}}
    assert call(spanned.engine, "POST", "/_aliases", {"actions": [action]}).status == 200
    for method in registry.names():
        relayed.passed.clear()
        reply = search(through_relay, alias, {"knn": knn_clause(method, k=60, ttc={"detail": True}), "size": 60})
        assert reply.status == 200
        assert set(reply.ids) == IN_GROUP
        assert f"d{WITHOUT_TEXT}" not in reply.ids
        assert json.dumps(reply.json()["hits"]).count('"_id"') == len(IN_GROUP)
        for request in relayed.passed:
            of_the_mapping = request.target.startswith(f"/{spanned.index}/_mapping?")
            assert of_the_mapping or request.target.startswith((f"/{alias}/", "/?")) or request.target == "/"
    text = search(through_relay, alias, native(spanned, {"query_text": CATS}, k=60) | {"size": 60})
    assert set(text.ids) == IN_GROUP


def test_credentials_go_with_every_call(spanned: SearchStack, through_relay: str, relayed: Any) -> None:
    relayed.passed.clear()
    body = json.dumps({"knn": knn_clause("spectral")}).encode()
    headers = {"content-type": "application/json", "authorization": "ApiKey c2VjcmV0", "x-opaque-id": "7"}
    assert call(through_relay, "POST", f"/{spanned.index}/_search", body, headers).status == 200
    calls = [one for one in relayed.passed if one.target != "/"]
    assert len(calls) >= 4
    assert all(one.headers["authorization"] == "ApiKey c2VjcmV0" for one in calls)


def test_one_request_a_round_for_all_items(spanned: SearchStack, through_relay: str, relayed: Any) -> None:
    texts = [CATS, BIRDS, "snow", "rain before the night"]
    params = {"candidates": 2, "batch": 1, "l1": 0.05, "exact": True}
    clauses = [knn_clause("nnn", text, ttc={"params": params}) for text in texts]
    lines = [line for clause in clauses for line in ({"index": spanned.index}, {"knn": clause, "size": 10})]
    relayed.passed.clear()
    reply = call(through_relay, "POST", "/_msearch", lines)
    responses = reply.json()["responses"]
    searches = [response["ttc"]["knn_searches"] for response in responses]
    sent = [one for one in relayed.passed if one.target.endswith("/_msearch")]
    assert min(searches) > 1
    assert len(sent) == 1 + max(searches) + 1  # the encoder, the rounds, the caller's own search
    for clause, response in zip(clauses, responses, strict=True):
        alone = asked(spanned, clause)
        assert [hit["_id"] for hit in response["hits"]["hits"]] == alone.ids


@pytest.mark.parametrize("method", ["softcentroid", "rocchio", "consensusrocchio"])
def test_feedback_takes_two_round_trips(spanned: SearchStack, through_relay: str, relayed: Any, method: str) -> None:
    relayed.passed.clear()
    reply = search(through_relay, spanned.index, {"knn": knn_clause(method)})
    assert reply.json()["ttc"]["feedback"]["documents"] > 0
    sent = [one.target.rpartition("/")[2].partition("?")[0] for one in relayed.passed]
    sent = [name for name in sent if name.startswith("_")]  # not the gateway's looks at its version and at jobs
    # The encoder's name (beside encoding), two kNN searches, the caller's own search.
    assert sent == ["_msearch", "_msearch", "_msearch", "_search"]


def test_items_of_an_msearch_stand_for_themselves(spanned: SearchStack) -> None:
    bodies = [
        {"knn": knn_clause("nnn")},
        {"query": {"match": {"text": "cat"}}},
        {"knn": knn_clause("nmn")},
        native(spanned, {"query_text": CATS}),
        {"knn": knn_clause("dense"), "rescore": {"ttc": {"method": "maxsim"}}},
        {"knn": knn_clause("dense", k=-1)},
        {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {"method": "dense"}}},
    ]
    lines = [line for body in bodies for line in ({}, body)]
    reply = call(spanned.gateway, "POST", f"/{spanned.index}/_msearch", lines)
    assert reply.status == 200
    for body, response in zip(bodies, reply.json()["responses"], strict=True):
        alone = search(spanned.gateway, spanned.index, body).json()
        if "error" in alone:
            assert response == alone
        else:
            assert response["status"] == 200
            found = [(hit["_id"], hit["_score"]) for hit in response["hits"]["hits"]]
            assert found == [(hit["_id"], hit["_score"]) for hit in alone["hits"]["hits"]]
            assert ("ttc" in response) == ("ttc" in alone)


def test_templates_points_in_time_and_bodies_in_the_url(spanned: SearchStack) -> None:
    alone = asked(spanned, knn_clause("nnn"))
    inline = {"source": json.dumps({"knn": knn_clause("nnn", "{{words}}")}), "params": {"words": CATS}}
    if not is_elasticsearch(spanned):  # the tests' node has no templates
        assert call(spanned.gateway, "POST", f"/{spanned.index}/_search/template", inline).ids == alone.ids
    source = quote(json.dumps({"knn": knn_clause("nnn")}))
    target = f"/{spanned.index}/_search?source={source}&source_content_type=application/json"
    assert call(spanned.gateway, "GET", target).ids == alone.ids
    opened = "_pit" if is_elasticsearch(spanned) else "_search/point_in_time"
    pit = call(spanned.engine, "POST", f"/{spanned.index}/{opened}?keep_alive=1m").json()
    body = {"knn": knn_clause("nnn"), "pit": {"id": pit.get("id") or pit["pit_id"], "keep_alive": "1m"}}
    reply = call(spanned.gateway, "POST", "/_search", body)
    assert reply.status == 200
    assert reply.json()["ttc"]["applied"] is True
    assert reply.ids == alone.ids


def test_tuned_parameters_serve_retrievals_that_give_none(
    spanned: SearchStack, encoder: Encoder, tmp_path: Path
) -> None:
    tuned = {"method": "nnn", "params": {"l1": 0.3}, "data": "cats", "split": "train", "encoder": None}
    file = tmp_path / "nnn.json"
    file.write_text(json.dumps(tuned), encoding="utf-8")
    with gateway_to(spanned.engine, encoder, tuned=(file,)) as gateway:
        asking = replace(spanned, gateway=gateway)
        by_file, by_params = asked(asking, knn_clause()), asked(spanned, knn_clause(ttc={"params": {"l1": 0.3}}))
        assert (by_file.ids, by_file.scores) == (by_params.ids, by_params.scores)
        assert by_file.json()["ttc"]["tuned"] == {"l1": 0.3}
        assert by_file.ids != asked(spanned, knn_clause()).ids or by_file.scores != asked(spanned, knn_clause()).scores
        own = asked(asking, knn_clause(ttc={"params": {"l1": 0.1}})).json()["ttc"]
        assert "tuned" not in own
        assert "tuned" not in asked(asking, knn_clause("dense")).json()["ttc"]


def test_knn_over_several_indices(spanned: SearchStack, index_name: str, encoder: Encoder) -> None:
    asyncio.run(fill(spanned.engine, index_name, spanned.spec, encoder, corpus()))
    body = {"knn": knn_clause("dense", k=10), "size": 20}
    both = search(spanned.gateway, f"{spanned.index},{index_name}", body)
    found = [(hit["_index"], hit["_id"], hit["_score"]) for hit in both.json()["hits"]["hits"]]
    alone = asked(spanned, knn_clause("dense", k=10))
    assert len(found) == 10
    assert {one for _, one, _ in found} == set(alone.ids[:5])
    for _, one, score in found:
        assert score == pytest.approx(dict(zip(alone.ids, alone.scores, strict=True))[one], abs=1e-6)


def test_knn_over_an_index_of_another_encoder_is_refused(
    spanned: SearchStack, index_name: str, encoder: Encoder
) -> None:
    other = Renamed(encoder)
    asyncio.run(fill(spanned.engine, index_name, IndexSpec(other.identity), other, corpus()))
    for body in ({"knn": knn_clause("nnn")}, native(spanned, {"query_text": CATS})):
        refused = search(spanned.gateway, index_name, body)
        assert refused.status == 400
        assert refused.json()["error"]["type"] == "ttc_encoder_mismatch_exception"
        assert other.identity.key in refused.reason
        mixed = search(spanned.gateway, f"{index_name},{spanned.index}", body)
        assert mixed.status == 400
        assert "two encoders" in mixed.reason


def test_an_index_that_lacks_what_is_searched(spanned: SearchStack, index_name: str, encoder: Encoder) -> None:
    make_index(spanned.engine, index_name, encoder, tokens="none")
    refused = search(spanned.gateway, index_name, {"knn": knn_clause("spectral")})
    assert refused.status == 400
    assert refused.json()["error"]["type"] == "ttc_missing_feature_exception"
    assert "[ttc.spans.v, ttc.tokens]" in refused.reason
    assert "es-ttc index create" in refused.reason
    foreign = f"{index_name}-foreign"
    call(spanned.engine, "PUT", f"/{foreign}", {"mappings": {"properties": {"text": {"type": "text"}}}})
    for body in ({"knn": knn_clause("nnn")}, native(spanned, {"query_text": CATS})):
        refused = search(spanned.gateway, foreign, body)
        assert refused.status == 400
        assert "ttc.vector]" in refused.reason
    missing = search(spanned.gateway, f"{index_name}-absent", {"knn": knn_clause("nnn")})
    assert missing.status == 404
    assert missing.json()["error"]["type"] == "index_not_found_exception"


def test_a_clause_that_cannot_be_answered_leaves_the_rest_of_the_search(spanned: SearchStack, index_name: str) -> None:
    """The search has another way to find documents; without one there is nothing to answer."""
    foreign = f"{index_name}-foreign"
    call(spanned.engine, "PUT", f"/{foreign}/_doc/1?refresh=true", {"text": "The cat drinks milk."})
    words = {"match": {"text": "cat"}}
    for index, text, kind in (
        (spanned.index, "", "ttc_missing_text_exception"),
        (spanned.index, "\x07", "ttc_missing_text_exception"),
        (foreign, CATS, "ttc_missing_feature_exception"),
    ):
        clause = knn_clause("nnn", text)
        plain = search(spanned.engine, index, {"query": words})
        in_query = {"bool": {"should": [words, {"knn": {"ttc.vector": clause}}]}}
        for body in ({"query": words, "knn": clause}, {"query": in_query}):
            reply = search(spanned.gateway, index, body)
            assert (reply.status, reply.ids) == (200, plain.ids), reply.body
            assert reply.headers["x-ttc-applied"] == "false"
            assert reply.json()["ttc"]["reason"]
        failing = knn_clause("nnn", text, ttc={"on_error": "fail"})
        for body in ({"knn": clause}, {"query": words, "knn": failing}):
            refused = search(spanned.gateway, index, body)
            assert (refused.status, refused.json()["error"]["type"]) == (400, kind)


def test_another_format_is_refused(spanned: SearchStack) -> None:
    reply = asked(spanned, knn_clause("nnn"), "?format=yaml")
    assert reply.status == 400
    assert "JSON only" in reply.reason
