"""The rescore hook on real engines: the ranking, pages, and what natively belongs to a search."""

import gc
import gzip
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http.filter_path import with_filter_path
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, by_id, corpus, in_memory, ttc_rescore


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("spectral", {}),
        ("spectral", {"scales": [1, 3, 12, "mean"], "aggregation": "top_mean"}),
        ("spectral", {"query": "tokens", "scales": [5, 1], "pool": "mean", "scale_weights": [1, 2]}),
        ("maxsim", {}),
        ("maxsim", {"query": "tokens"}),
        ("dense", {}),
    ],
)
def test_rescore_ranking_equals_the_rescorer_in_memory(
    stack: SearchStack, encoder: Encoder, method: str, params: Any
) -> None:
    expected = in_memory(encoder, stack.spec, method, [CATS], **params)
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(method, params=params)}
    reply = search(stack.gateway, stack.index, body)
    assert reply.status == 200
    got = dict(zip(reply.ids, reply.scores, strict=True))
    assert got.pop(WITHOUT_TEXT) <= min(got.values())
    assert reply.ids[-1] == WITHOUT_TEXT
    assert got == pytest.approx(expected, abs=1e-4)
    assert reply.scores == sorted(reply.scores, reverse=True)
    ttc = reply.json()["ttc"]
    assert ttc["applied"] is True
    assert (ttc["method"], ttc["window"], ttc["scored"]) == (method, 60, 59)
    assert ttc["encoder"] == encoder.identity.key
    assert set(ttc["took"]) == {"first_pass", "features", "encode", "score"}
    assert reply.headers["x-ttc-applied"] == "true"


def test_several_texts_of_one_query(stack: SearchStack, encoder: Encoder) -> None:
    texts = ["which cat drinks milk?", "birds singing in the rain"]
    expected = in_memory(encoder, stack.spec, "spectral", texts)
    section = {"method": "spectral", "query_texts": texts}
    reply = search(stack.gateway, stack.index, {"query": EVERYTHING, "size": 59, "rescore": {"ttc": section}})
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("storage", "rounding"),
    [
        ({"codec": "float16"}, 1e-3),
        ({"codec": "int8"}, 0.002),
        ({"codec": "int4"}, 0.02),
        ({"codec": "int2", "skip_tokens": "stop_words"}, 0.05),
        ({"tokens": "nested"}, 1e-3),
    ],
    ids=str,
)
def test_rescore_scores_of_every_codec_and_storage(
    engine_url: str, index_name: str, encoder: Encoder, stack: SearchStack, storage: dict[str, Any], rounding: float
) -> None:
    spec = make_index(engine_url, index_name, encoder, **storage)
    for method in ("dense", "spectral", "maxsim"):
        reply = search(stack.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ttc_rescore(method)})
        expected = in_memory(encoder, spec, method, [CATS])
        assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(expected, abs=1e-4)
    exact = in_memory(encoder, replace(spec, tokens="nested"), "spectral", [CATS])
    assert in_memory(encoder, spec, "spectral", [CATS]) == pytest.approx(exact, abs=rounding)
    body = {"query": EVERYTHING, "size": 3, "rescore": ttc_rescore(detail=True)}
    first = search(stack.gateway, index_name, body).json()["hits"]["hits"][0]
    assert {"field", "start", "end"} <= set(first["_ttc"])
    source = {key: value for key, value in first["_source"].items() if key != "ttc"}
    assert source == {key: value for key, value in by_id(first["_id"]).items() if key != "_id"}


def test_rescore_index_without_token_vectors(
    engine_url: str, index_name: str, encoder: Encoder, stack: SearchStack
) -> None:
    make_index(engine_url, index_name, encoder, tokens="none")
    reply = search(stack.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ttc_rescore("dense")})
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
        in_memory(encoder, stack.spec, "dense", [CATS]), abs=1e-4
    )
    reply = search(
        stack.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ttc_rescore(on_error="fail")}
    )
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "ttc_missing_feature_exception"
    assert "[ttc.tokens]" in reply.reason
    assert "es-ttc index create" in reply.reason


@pytest.mark.parametrize(("size", "window"), [(7, 20), (10, 100), (25, 10)])
def test_pages_hold_every_document_once_in_descending_order(stack: SearchStack, size: int, window: int) -> None:
    ids: list[str] = []
    scores: list[float] = []
    for start in range(0, 60, size):
        body = {"query": EVERYTHING, "from": start, "size": size, "rescore": ttc_rescore() | {"window_size": window}}
        reply = search(stack.gateway, stack.index, body)
        assert reply.json()["ttc"]["window"] == min(window, 60)
        ids += reply.ids
        scores += reply.scores
    assert sorted(ids) == sorted(document["_id"] for document in corpus())
    assert scores == sorted(scores, reverse=True)
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 60}).ids
    assert set(ids[:window]) == set(native[:window])
    assert ids[window:] == native[window:]


@pytest.mark.parametrize("mode", ["total", "multiply", "avg", "max", "min"])
def test_score_modes_are_the_engines_own_arithmetic(stack: SearchStack, encoder: Encoder, mode: str) -> None:
    query = {"match": {"text": "cat drinks milk"}}
    modes = {"score_mode": mode, "query_weight": 0.7, "rescore_query_weight": 3}
    scores = in_memory(encoder, stack.spec, "dense", [CATS])
    functions = [{"filter": {"ids": {"values": [one]}}, "weight": score} for one, score in scores.items()]
    same = {"function_score": {"query": {"match_all": {}}, "functions": functions, "boost_mode": "replace"}}
    native = {"window_size": 60, "query": {"rescore_query": same, **modes}}
    body = {"query": query, "size": 60}
    direct = search(stack.engine, stack.index, body | {"rescore": native})
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore("dense", **modes)})
    assert len(reply.ids) > 10
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
        dict(zip(direct.ids, direct.scores, strict=True)), rel=1e-4
    )


@pytest.mark.parametrize(
    "native",
    [
        {"query": {"rescore_query": {"match": {"title": "owl"}}, "score_mode": "total", "rescore_query_weight": 100}},
        {"script": {"script": {"source": "_score + doc['number'].value"}}},
        {"learning_to_rank": {"model_id": "none"}},
    ],
)
def test_native_rescorers_run_before_ours(stack: SearchStack, native: dict[str, Any]) -> None:
    native = {"window_size": 60, **native}
    body = {"query": {"match": {"text": "the"}}, "size": 10}
    alone = search(stack.engine, stack.index, body | {"rescore": native})
    mixed = search(
        stack.gateway, stack.index, body | {"rescore": [native, ttc_rescore(detail=True) | {"window_size": 10}]}
    )
    if alone.status != 200:  # not every engine has each
        assert "query" not in native
        assert (mixed.status, mixed.json()["error"]["type"]) == (alone.status, alone.json()["error"]["type"])
        return
    assert set(mixed.ids) == set(alone.ids)
    ranks = {hit["_id"]: hit["_ttc"]["first_pass_rank"] for hit in mixed.json()["hits"]["hits"]}
    assert [one for one, _ in sorted(ranks.items(), key=lambda pair: pair[1])] == alone.ids


def test_everything_else_of_the_answer_is_the_engines(stack: SearchStack) -> None:
    body = {
        "query": {"match": {"text": "cat"}},
        "size": 5,
        "_source": ["number"],
        "fields": ["title"],
        "docvalue_fields": ["number"],
        "highlight": {"fields": {"text": {}}},
        "aggs": {"groups": {"terms": {"field": "group.keyword"}}},
        "track_total_hits": 3,
        "min_score": 0.1,
    }
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore()})
    direct = search(stack.engine, stack.index, body | {"size": 60}).json()
    answer = reply.json()
    assert answer["aggregations"] == direct["aggregations"]
    assert answer["hits"]["total"] == direct["hits"]["total"]
    assert answer["_shards"] == direct["_shards"]
    assert answer["hits"]["max_score"] == reply.scores[0]
    natives = {hit["_id"]: hit for hit in direct["hits"]["hits"]}
    assert len(reply.ids) == 5
    for hit in answer["hits"]["hits"]:
        assert hit | {"_score": None} == natives[hit["_id"]] | {"_score": None}


def test_an_explanation_explains_the_score(stack: SearchStack) -> None:
    body = {"query": {"match": {"text": "cat"}}, "size": 60, "explain": True}
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore(score_mode="total")})
    natives = {hit["_id"]: hit for hit in search(stack.engine, stack.index, body).json()["hits"]["hits"]}
    assert len(reply.ids) > 5
    for hit in reply.json()["hits"]["hits"]:
        explanation = hit["_explanation"]
        assert explanation["value"] == hit["_score"]
        assert "[spectral]" in explanation["description"]
        method, first_pass = explanation["details"]
        assert method["value"] + first_pass["value"] == pytest.approx(hit["_score"], rel=1e-6)
        assert first_pass == natives[hit["_id"]]["_explanation"]


def test_detail_shows_rank_score_and_the_passage(stack: SearchStack) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(detail=True)}
    reply = search(stack.gateway, stack.index, body)
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 60})
    documents = {document["_id"]: document for document in corpus()}
    passages = []
    for hit in reply.json()["hits"]["hits"]:
        detail = hit["_ttc"]
        assert native.ids[detail["first_pass_rank"] - 1] == hit["_id"]
        assert detail["first_pass_score"] == native.scores[detail["first_pass_rank"] - 1]
        if "field" in detail:
            passages.append(documents[hit["_id"]][detail["field"]][detail["start"] : detail["end"]])
    assert len(passages) > 20
    assert all(passage.strip() for passage in passages)
    assert "milk" in documents[reply.ids[0]]["text"]


@pytest.mark.parametrize(("method", "score"), [("nnn", "coefficient"), ("mmr", "picked")])
def test_documents_are_judged_together_whatever_page_is_shown(stack: SearchStack, method: str, score: str) -> None:
    body = {"query": EVERYTHING, "rescore": ttc_rescore(method, detail=True)}
    whole = search(stack.gateway, stack.index, body | {"size": 60})
    hits = whole.json()["hits"]["hits"]
    assert [hit["_id"] for hit in hits][-1] == WITHOUT_TEXT
    shown = [hit["_ttc"][score] for hit in hits[:-1]]
    if method == "nnn":
        selected = [hit for hit in hits[:-1] if hit["_ttc"]["coefficient"] > 0]
        assert [hit["_score"] for hit in selected] == pytest.approx([hit["_ttc"]["coefficient"] for hit in selected])
        assert 0 < len(selected) < len(shown)
        assert hits[: len(selected)] == selected
    else:
        assert shown == list(range(1, 60))
    page = search(stack.gateway, stack.index, body | {"from": 2, "size": 5}).json()["hits"]["hits"]
    assert [(hit["_id"], hit["_score"], hit["_ttc"]) for hit in page] == [
        (hit["_id"], hit["_score"], hit["_ttc"]) for hit in hits[2:7]
    ]


def test_hits_hold_nothing_that_was_not_asked_for(stack: SearchStack) -> None:
    base = {"query": EVERYTHING, "size": 3}
    plain = search(stack.gateway, stack.index, base | {"rescore": ttc_rescore()})
    assert all("fields" not in hit and "_ttc" not in hit for hit in plain.json()["hits"]["hits"])
    asked = search(stack.gateway, stack.index, base | {"docvalue_fields": ["ttc.hash"], "rescore": ttc_rescore()})
    assert all(list(hit["fields"]) == ["ttc.hash"] for hit in asked.json()["hits"]["hits"])
    bare = search(stack.gateway, stack.index, base | {"stored_fields": "_none_", "rescore": ttc_rescore()})
    assert bare.scores == plain.scores
    assert all(set(hit) == {"_index", "_score"} for hit in bare.json()["hits"]["hits"])


@pytest.mark.parametrize(
    "filter_path",
    ["hits.hits._id", "hits.hits._source.t*,took", "**._id", "-hits.hits._source,hits.hits", "-_shards,-**.text", "x"],
)
def test_filter_path_filters_as_the_engine_does(stack: SearchStack, filter_path: str) -> None:
    body = {"query": EVERYTHING, "size": 3, "_source": ["title", "text"]}
    whole = search(stack.engine, stack.index, body).json()
    native = search(stack.engine, stack.index, body, f"?filter_path={filter_path}").json()
    own = with_filter_path(whole, filter_path, keep_empty=stack.product == "elasticsearch")
    assert own | {"took": 0} == native | {"took": 0}
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore()}, f"?filter_path={filter_path}").json()
    reply.pop("ttc", None)
    assert list(reply) == list(native)
    assert [list(hit) for hit in _hits(reply)] == [list(hit) for hit in _hits(native)]


def _hits(answer: dict[str, Any]) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = answer.get("hits", {}).get("hits", [])
    return hits


def test_requests_come_in_many_forms(stack: SearchStack) -> None:
    body = {"query": EVERYTHING, "size": 4, "rescore": ttc_rescore()}
    expected = search(stack.gateway, stack.index, body).ids
    raw = orjson.dumps(body)
    path = f"/{stack.index}/_search"
    as_json = {"content-type": "application/json"}
    forms: list[Reply] = [
        call(stack.gateway, "GET", path, raw, as_json),
        call(stack.gateway, "POST", path, gzip.compress(raw), as_json | {"content-encoding": "gzip"}),
        call(stack.gateway, "POST", path, [raw[:20], raw[20:]], as_json),
        call(stack.gateway, "POST", f"{path}?size=4&from=0", orjson.dumps(body | {"size": 50}), as_json),
        call(stack.gateway, "POST", path, raw, as_json | {"accept-encoding": "gzip", "accept": "*/*"}),
    ]
    source = f"{path}?source={quote(raw.decode())}&source_content_type=application/json"
    forms.append(call(stack.gateway, "GET", source))
    for form in forms:
        assert form.status == 200, form.body
        assert form.ids == expected
    pretty = call(stack.gateway, "POST", f"{path}?pretty", raw, as_json)
    assert pretty.body.startswith(b'{\n  "took"')


def test_rescore_without_hits_or_page(stack: SearchStack) -> None:
    nothing = search(stack.gateway, stack.index, {"query": EVERYTHING, "size": 0, "rescore": ttc_rescore()})
    assert nothing.status == 200
    assert nothing.json()["hits"]["hits"] == []
    assert nothing.json()["hits"]["total"]["value"] == 60
    beyond = search(stack.gateway, stack.index, {"query": EVERYTHING, "from": 80, "rescore": ttc_rescore()})
    assert beyond.json()["hits"]["hits"] == []


def test_a_vector_search_is_a_first_pass_too(stack: SearchStack, encoder: Encoder) -> None:
    vector = encoder.encode([CATS], role="query", tokens=False).pooled[0].tolist()
    knn: dict[str, Any] = (
        {"query": {"knn": {"ttc.vector": {"vector": vector, "k": 40}}}}
        if stack.product == "opensearch"
        else {"knn": {"field": "ttc.vector", "query_vector": vector, "k": 40, "num_candidates": 60}}
    )
    reply = search(stack.gateway, stack.index, knn | {"size": 20, "rescore": ttc_rescore()})
    assert reply.status == 200, reply.body
    expected = in_memory(encoder, stack.spec, "spectral", [CATS])
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
        {one: expected[one] for one in reply.ids}, abs=1e-4
    )


@pytest.mark.parametrize("method", ["spectral", "blend"])
def test_searches_leave_nothing_to_a_garbage_collection(stack: SearchStack, method: str) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(method)}
    before = search(stack.gateway, stack.index, body)

    def left_by_five() -> int:
        gc.collect()
        for _ in range(5):
            assert search(stack.gateway, stack.index, body).ids == before.ids
        return gc.collect()

    gc.disable()
    try:
        assert min(left_by_five() for _ in range(3)) < 5 * 20  # tasks in the background may leave something too
    finally:
        gc.enable()
