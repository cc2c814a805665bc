"""The rescore hook on real engines: the ranking, pages, what natively belongs to a search, what is refused."""

import gc
import gzip
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.encoders.queries import word_means
from es_ttc.errors import ConfigurationError
from es_ttc.index.ingest import encode_documents
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.http.filter_path import filtered
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import Behind, corpus, make_index
from tests.support.encoders import Wrapped

EVERYTHING = {"match": {"anyway": "creature"}}
CATS = "which cat drinks milk?"
WITHOUT_TEXT = "d7"


def ours(method: str = "spectral", **section: Any) -> dict[str, Any]:
    return {"window_size": 100, "ttc": {"method": method, "query_text": CATS, **section}}


def by_id(name: str) -> dict[str, Any]:
    return next(document for document in corpus() if document["_id"] == name)


def in_memory(encoder: Encoder, behind: Behind, method: str, texts: Sequence[str], **params: Any) -> dict[str, float]:
    """Every document's score from the rescorer called directly."""
    documents = [document for document in corpus() if document["_id"] != WITHOUT_TEXT]
    features = encode_documents(documents, behind.spec, encoder)
    tokens = [feature.tokens for feature in features]
    window = Window(
        ids=[document["_id"] for document in documents],
        first_pass=np.ones(len(documents), dtype=np.float32),
        pooled=np.stack([feature.pooled for feature in features if feature.pooled is not None]),
        tokens=[token.vectors for token in tokens if token is not None],
        norms=[token.norms for token in tokens if token is not None],
    )
    encoded = encoder.encode(texts, role="query")
    rescorer = registry.load(method)
    means = None if encoder.identity.averages else word_means(encoded)
    query = Query(texts[0], encoded.pooled, encoded.tokens[0], word_means=means)
    scores = rescorer.score(query, window, registry.parse_params(rescorer, params))
    return dict(zip(window.ids, shown_similarity(scores).tolist(), strict=True))


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
def test_the_ranking_is_the_rescorers_own(behind: Behind, encoder: Encoder, method: str, params: Any) -> None:
    expected = in_memory(encoder, behind, method, [CATS], **params)
    body = {"query": EVERYTHING, "size": 60, "rescore": ours(method, params=params)}
    reply = search(behind.gateway, behind.index, body)
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


def test_several_texts_of_one_query(behind: Behind, encoder: Encoder) -> None:
    texts = ["which cat drinks milk?", "birds singing in the rain"]
    expected = in_memory(encoder, behind, "spectral", texts)
    section = {"method": "spectral", "query_texts": texts}
    reply = search(behind.gateway, behind.index, {"query": EVERYTHING, "size": 59, "rescore": {"ttc": section}})
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("storage", "rounding"),
    [
        ({"codec": "int8"}, 0.002),
        ({"codec": "int2"}, 0.05),
        ({"tokens": "nested"}, 1e-3),
    ],
    ids=str,
)
def test_other_storage(
    engine_url: str, index_name: str, encoder: Encoder, behind: Behind, storage: dict[str, Any], rounding: float
) -> None:
    spec = make_index(engine_url, index_name, encoder, **storage)
    there = replace(behind, index=index_name, spec=spec)
    for method in ("dense", "spectral", "maxsim"):
        reply = search(behind.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ours(method)})
        expected = in_memory(encoder, there, method, [CATS])
        assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(expected, abs=1e-4)
    as_float16 = in_memory(encoder, behind, "spectral", [CATS])
    assert in_memory(encoder, there, "spectral", [CATS]) == pytest.approx(as_float16, abs=rounding)
    body = {"query": EVERYTHING, "size": 3, "rescore": ours(detail=True)}
    first = search(behind.gateway, index_name, body).json()["hits"]["hits"][0]
    assert {"field", "start", "end"} <= set(first["_ttc"])
    source = {key: value for key, value in first["_source"].items() if key != "ttc"}
    assert source == {key: value for key, value in by_id(first["_id"]).items() if key != "_id"}


def test_without_token_vectors(engine_url: str, index_name: str, encoder: Encoder, behind: Behind) -> None:
    make_index(engine_url, index_name, encoder, tokens="none")
    reply = search(behind.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ours("dense")})
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
        in_memory(encoder, behind, "dense", [CATS]), abs=1e-4
    )
    reply = search(behind.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ours(on_error="fail")})
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "ttc_missing_feature_exception"
    assert "[ttc.tokens]" in reply.reason
    assert "es-ttc index create" in reply.reason


@pytest.mark.parametrize(("size", "window"), [(7, 20), (10, 100), (25, 10)])
def test_pages_hold_every_document_once_and_never_rise(behind: Behind, size: int, window: int) -> None:
    ids: list[str] = []
    scores: list[float] = []
    for start in range(0, 60, size):
        body = {"query": EVERYTHING, "from": start, "size": size, "rescore": ours() | {"window_size": window}}
        reply = search(behind.gateway, behind.index, body)
        assert reply.json()["ttc"]["window"] == min(window, 60)
        ids += reply.ids
        scores += reply.scores
    assert sorted(ids) == sorted(document["_id"] for document in corpus())
    assert scores == sorted(scores, reverse=True)
    native = search(behind.engine, behind.index, {"query": EVERYTHING, "size": 60}).ids
    assert set(ids[:window]) == set(native[:window])
    assert ids[window:] == native[window:]


@pytest.mark.parametrize("mode", ["total", "multiply", "avg", "max", "min"])
def test_score_modes_are_the_engines_own_arithmetic(behind: Behind, encoder: Encoder, mode: str) -> None:
    query = {"match": {"text": "cat drinks milk"}}
    modes = {"score_mode": mode, "query_weight": 0.7, "rescore_query_weight": 3}
    scores = in_memory(encoder, behind, "dense", [CATS])
    functions = [{"filter": {"ids": {"values": [one]}}, "weight": score} for one, score in scores.items()]
    same = {"function_score": {"query": {"match_all": {}}, "functions": functions, "boost_mode": "replace"}}
    native = {"window_size": 60, "query": {"rescore_query": same, **modes}}
    body = {"query": query, "size": 60}
    direct = search(behind.engine, behind.index, body | {"rescore": native})
    reply = search(behind.gateway, behind.index, body | {"rescore": ours("dense", **modes)})
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
def test_native_rescorers_run_before_ours(behind: Behind, native: dict[str, Any]) -> None:
    native = {"window_size": 60, **native}
    body = {"query": {"match": {"text": "the"}}, "size": 10}
    alone = search(behind.engine, behind.index, body | {"rescore": native})
    mixed = search(behind.gateway, behind.index, body | {"rescore": [native, ours(detail=True) | {"window_size": 10}]})
    if alone.status != 200:  # not every engine has each
        assert "query" not in native
        assert (mixed.status, mixed.json()["error"]["type"]) == (alone.status, alone.json()["error"]["type"])
        return
    assert set(mixed.ids) == set(alone.ids)
    ranks = {hit["_id"]: hit["_ttc"]["first_pass_rank"] for hit in mixed.json()["hits"]["hits"]}
    assert [one for one, _ in sorted(ranks.items(), key=lambda pair: pair[1])] == alone.ids


def test_everything_else_of_the_answer_is_the_engines(behind: Behind) -> None:
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
    reply = search(behind.gateway, behind.index, body | {"rescore": ours()})
    direct = search(behind.engine, behind.index, body | {"size": 60}).json()
    answer = reply.json()
    assert answer["aggregations"] == direct["aggregations"]
    assert answer["hits"]["total"] == direct["hits"]["total"]
    assert answer["_shards"] == direct["_shards"]
    assert answer["hits"]["max_score"] == reply.scores[0]
    natives = {hit["_id"]: hit for hit in direct["hits"]["hits"]}
    assert len(reply.ids) == 5
    for hit in answer["hits"]["hits"]:
        assert hit | {"_score": None} == natives[hit["_id"]] | {"_score": None}


def test_an_explanation_explains_the_score(behind: Behind) -> None:
    body = {"query": {"match": {"text": "cat"}}, "size": 60, "explain": True}
    reply = search(behind.gateway, behind.index, body | {"rescore": ours(score_mode="total")})
    natives = {hit["_id"]: hit for hit in search(behind.engine, behind.index, body).json()["hits"]["hits"]}
    assert len(reply.ids) > 5
    for hit in reply.json()["hits"]["hits"]:
        explanation = hit["_explanation"]
        assert explanation["value"] == hit["_score"]
        assert "[spectral]" in explanation["description"]
        method, first_pass = explanation["details"]
        assert method["value"] + first_pass["value"] == pytest.approx(hit["_score"], rel=1e-6)
        assert first_pass == natives[hit["_id"]]["_explanation"]


def test_detail_shows_rank_score_and_the_passage(behind: Behind) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ours(detail=True)}
    reply = search(behind.gateway, behind.index, body)
    native = search(behind.engine, behind.index, {"query": EVERYTHING, "size": 60})
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
def test_documents_are_judged_together_whatever_page_is_shown(behind: Behind, method: str, score: str) -> None:
    body = {"query": EVERYTHING, "rescore": ours(method, detail=True)}
    whole = search(behind.gateway, behind.index, body | {"size": 60})
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
    page = search(behind.gateway, behind.index, body | {"from": 2, "size": 5}).json()["hits"]["hits"]
    assert [(hit["_id"], hit["_score"], hit["_ttc"]) for hit in page] == [
        (hit["_id"], hit["_score"], hit["_ttc"]) for hit in hits[2:7]
    ]


def test_hits_hold_nothing_that_was_not_asked_for(behind: Behind) -> None:
    base = {"query": EVERYTHING, "size": 3}
    plain = search(behind.gateway, behind.index, base | {"rescore": ours()})
    assert all("fields" not in hit and "_ttc" not in hit for hit in plain.json()["hits"]["hits"])
    asked = search(behind.gateway, behind.index, base | {"docvalue_fields": ["ttc.hash"], "rescore": ours()})
    assert all(list(hit["fields"]) == ["ttc.hash"] for hit in asked.json()["hits"]["hits"])
    bare = search(behind.gateway, behind.index, base | {"stored_fields": "_none_", "rescore": ours()})
    assert bare.scores == plain.scores
    assert all(set(hit) == {"_index", "_score"} for hit in bare.json()["hits"]["hits"])


@pytest.mark.parametrize(
    "filter_path",
    ["hits.hits._id", "hits.hits._source.t*,took", "**._id", "-hits.hits._source,hits.hits", "-_shards,-**.text", "x"],
)
def test_filter_path_filters_as_the_engine_does(behind: Behind, filter_path: str) -> None:
    body = {"query": EVERYTHING, "size": 3, "_source": ["title", "text"]}
    whole = search(behind.engine, behind.index, body).json()
    native = search(behind.engine, behind.index, body, f"?filter_path={filter_path}").json()
    own = filtered(whole, filter_path, keep_empty=behind.product == "elasticsearch")
    assert own | {"took": 0} == native | {"took": 0}
    reply = search(behind.gateway, behind.index, body | {"rescore": ours()}, f"?filter_path={filter_path}").json()
    reply.pop("ttc", None)
    assert list(reply) == list(native)
    assert [list(hit) for hit in _hits(reply)] == [list(hit) for hit in _hits(native)]


def _hits(answer: dict[str, Any]) -> list[dict[str, Any]]:
    hits: list[dict[str, Any]] = answer.get("hits", {}).get("hits", [])
    return hits


def test_requests_come_in_many_forms(behind: Behind) -> None:
    body = {"query": EVERYTHING, "size": 4, "rescore": ours()}
    expected = search(behind.gateway, behind.index, body).ids
    raw = orjson.dumps(body)
    path = f"/{behind.index}/_search"
    as_json = {"content-type": "application/json"}
    forms: list[Reply] = [
        call(behind.gateway, "GET", path, raw, as_json),
        call(behind.gateway, "POST", path, gzip.compress(raw), as_json | {"content-encoding": "gzip"}),
        call(behind.gateway, "POST", path, [raw[:20], raw[20:]], as_json),
        call(behind.gateway, "POST", f"{path}?size=4&from=0", orjson.dumps(body | {"size": 50}), as_json),
        call(behind.gateway, "POST", path, raw, as_json | {"accept-encoding": "gzip", "accept": "*/*"}),
    ]
    source = f"{path}?source={quote(raw.decode())}&source_content_type=application/json"
    forms.append(call(behind.gateway, "GET", source))
    for form in forms:
        assert form.status == 200, form.body
        assert form.ids == expected
    pretty = call(behind.gateway, "POST", f"{path}?pretty", raw, as_json)
    assert pretty.body.startswith(b'{\n  "took"')


RGS = {"method": "rgs", "params": {"reranker": "dense"}}


@pytest.mark.parametrize(
    ("query", "section"),
    [
        (None, {}),
        ({"match_all": {}}, {}),
        ({"match_all": {}}, RGS),
        ({"match": {"text": {"query": "", "zero_terms_query": "all"}}}, {}),
        ({"bool": {"should": [{"match": {"text": "cat"}}, {"match": {"anyway": "dog creature"}}]}}, {}),
        (EVERYTHING, {"query_text": ""}),
        (EVERYTHING, {"query_texts": ["", " "]}),
        (EVERYTHING, RGS | {"query_text": " "}),
    ],
    ids=str,
)
def test_a_search_without_a_text_is_the_engines_own(
    behind: Behind, query: dict[str, Any] | None, section: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"from": 3, "size": 20} | ({} if query is None else {"query": query})
    plain = search(behind.engine, behind.index, body)
    for rescore in ({"ttc": section}, {"ttc": {**section, "passages": 2, "detail": "map"}}):
        reply = search(behind.gateway, behind.index, body | {"rescore": rescore})
        assert (reply.status, reply.ids, reply.scores) == (200, plain.ids, plain.scores)
        assert reply.headers["x-ttc-applied"] == "false"
        summary = reply.json()["ttc"]
        assert (summary["applied"], summary["scored"]) == (False, 0)
        assert "query_text" in summary["reason"]
    first = [{"ttc": section}, {"ttc": {"method": "dense", "query_text": CATS}}]
    second = [{"ttc": {"query_text": CATS}}, {"ttc": {"method": "dense", "query_text": " "}}]
    for items, applied in ((first, [False, True]), (second, [True, False])):
        if section.get("method") == "rgs":
            continue
        cascade = search(behind.gateway, behind.index, body | {"rescore": items})
        assert [one["applied"] for one in cascade.json()["ttc"]["items"]] == applied
    failing = search(behind.gateway, behind.index, body | {"rescore": {"ttc": {**section, "on_error": "fail"}}})
    assert (failing.status, failing.json()["error"]["type"]) == (400, "ttc_missing_text_exception")
    lines = [{"index": behind.index}, body | {"rescore": {"ttc": section}}]
    several = call(behind.gateway, "POST", "/_msearch", lines * 2)
    assert [[hit["_id"] for hit in one["hits"]["hits"]] for one in several.json()["responses"]] == [plain.ids] * 2


def test_features_that_are_missing_leave_the_first_pass(engine_url: str, index_name: str, behind: Behind) -> None:
    """An alias is switched to a new index without features."""
    alias = f"{index_name}-alias"
    documents = {name: {"anyway": " ".join(["creature"] * number)} for number, name in enumerate("abc", 1)}
    for name, document in documents.items():
        call(engine_url, "PUT", f"/{index_name}/_doc/{name}?refresh=true", document)

    def switch(old: str, new: str) -> None:
        actions: list[Any] = [{"add": {"index": new, "alias": alias}}]
        actions += [{"remove": {"index": old, "alias": alias}}] if old else []
        assert call(engine_url, "POST", "/_aliases", {"actions": actions}).status == 200

    switch("", behind.index)
    try:
        body = {"query": {"match": {"anyway": "creature"}}, "rescore": ours()}
        assert search(behind.gateway, alias, body).json()["ttc"]["applied"] is True
        switch(behind.index, index_name)
        plain = search(engine_url, alias, {"query": body["query"]})
        sections = [ours(), ours("rgs", params={"reranker": "dense"}), ours(passages=2), ours("maxsim")]
        for rescore in [*sections, [ours(), ours("dense")]]:
            reply = search(behind.gateway, alias, body | {"rescore": rescore})
            assert (reply.status, reply.ids, reply.scores) == (200, plain.ids, plain.scores), reply.body
            assert reply.json()["ttc"]["applied"] is False
            assert "es-ttc" in reply.json()["ttc"]["reason"]
        failing = search(behind.gateway, alias, body | {"rescore": ours(on_error="fail")})
        assert (failing.status, failing.json()["error"]["type"]) == (400, "ttc_missing_feature_exception")
        assert index_name in failing.reason
        assert "es-ttc index create" in failing.reason
        empty = search(behind.gateway, alias, {"query": {"match": {"anyway": "nothing"}}, "rescore": ours()})
        assert (empty.status, empty.json()["ttc"]["window"]) == (200, 0)
        malformed = search(behind.gateway, alias, body | {"rescore": ours(metod="x")})
        assert (malformed.status, malformed.json()["error"]["type"]) == (400, "illegal_argument_exception")
    finally:
        call(engine_url, "DELETE", f"/*/_alias/{alias}")


def test_an_encoder_that_is_loading_leaves_the_first_pass(
    engine_url: str, index_name: str, behind: Behind, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Encoders.__module__}._LOAD_AGAIN_SECONDS", 0.0)
    begun, go = threading.Event(), threading.Event()

    class Slow(Wrapped):
        @property
        def identity(self) -> EncoderIdentity:
            return replace(self.encoder.identity, model="slow")

    def load(name: str, _folder: Path) -> Encoder:
        if name != "slow":
            return encoder
        if not begun.is_set():  # a gateway that starts loads the encoders of all indices in the engine
            raise ConfigurationError("not yet")
        go.wait(60)
        return Slow(encoder)

    options = GatewaySettings(engine=engine_url, port=0, default_timeout_ms=300, encoders=("slow",))
    with running_gateway(options, load=load) as gateway:
        begun.set()
        make_index(engine_url, index_name, Slow(encoder))
        try:
            plain = search(engine_url, index_name, {"query": EVERYTHING})
            reply = search(gateway, index_name, {"query": EVERYTHING, "rescore": ours()})
            assert (reply.status, reply.ids, reply.json()["ttc"]["applied"]) == (200, plain.ids, False)
            failing = search(gateway, index_name, {"query": EVERYTHING, "rescore": ours(on_error="fail")})
            assert failing.status == 503
        finally:
            go.set()


def test_an_index_may_allow_less_than_the_gateway(engine_url: str, index_name: str, behind: Behind) -> None:
    call(engine_url, "PUT", f"/{index_name}", {"settings": {"index.max_rescore_window": 20}})
    reply = search(behind.gateway, index_name, {"query": EVERYTHING, "rescore": ours()})
    assert reply.status == 400
    assert "Rescore window [100] is too large" in reply.reason


@pytest.mark.parametrize("raw", [b'{"rescore":{"ttc":{', b'["ttc"]', b'"ttc"', b'{"rescore":{"ttc":' + b"[" * 5000])
def test_a_body_that_cannot_be_read_is_the_engines_to_refuse(behind: Behind, raw: bytes) -> None:
    reply = call(behind.gateway, "POST", f"/{behind.index}/_search", raw, {"content-type": "application/json"})
    assert reply.status == 400
    assert reply.json()["error"]["root_cause"]


def test_documents_that_changed_or_wait_follow_the_scored_ones(
    engine_url: str, index_name: str, behind: Behind, encoder: Encoder
) -> None:
    make_index(engine_url, index_name, encoder)
    changed = {"text": "Another animal.", "anyway": "creature creature creature"}
    call(engine_url, "POST", f"/{index_name}/_update/d3?refresh=true", {"doc": changed})
    call(engine_url, "PUT", f"/{index_name}/_doc/new?refresh=true", changed)
    reply = search(behind.gateway, index_name, {"query": EVERYTHING, "size": 61, "rescore": ours()})
    assert set(reply.ids[-3:]) == {"d3", "new", WITHOUT_TEXT}
    assert reply.json()["ttc"]["scored"] == 58
    only = {"query": {"ids": {"values": ["d3", "new"]}}, "rescore": ours()}
    waiting = search(behind.gateway, index_name, only)
    assert waiting.status == 200
    assert waiting.json()["ttc"]["applied"] is False
    assert "no document of the window has features yet" in waiting.json()["ttc"]["reason"]
    assert waiting.headers["x-ttc-applied"] == "false"
    assert set(waiting.ids) == {"d3", "new"}
    refused = search(behind.gateway, index_name, only | {"rescore": ours(on_error="fail")})
    assert refused.status == 503


def test_another_encoder_is_refused_and_so_are_two_in_one_window(
    engine_url: str, index_name: str, behind: Behind
) -> None:
    foreign = {"anyway": "creature", "ttc": {"hash": "h-doc_values", "encoder": "other-model@1/2x3"}}
    mappings = call(engine_url, "GET", f"/{behind.index}/_mapping").json()[behind.index]["mappings"]
    call(engine_url, "PUT", f"/{index_name}", {"mappings": mappings, "settings": _knn(behind)})
    assert call(engine_url, "PUT", f"/{index_name}/_doc/1?refresh=true", foreign).status == 201
    alone = search(behind.gateway, index_name, {"query": EVERYTHING, "rescore": ours(on_error="fail")})
    assert alone.status == 400
    assert alone.json()["error"]["type"] == "ttc_encoder_mismatch_exception"
    for word in ("other-model@1/2x3", behind.spec.encoder.key, index_name, "es-ttc serve --encoder other-model"):
        assert word in alone.reason
    both = search(behind.gateway, f"{index_name},{behind.index}", {"query": EVERYTHING, "rescore": ours()})
    assert (both.status, both.json()["ttc"]["applied"]) == (200, False)
    assert "two encoders" in both.json()["ttc"]["reason"]


def _knn(behind: Behind) -> dict[str, Any]:
    settings = call(behind.engine, "GET", f"/{behind.index}/_settings").json()[behind.index]["settings"]["index"]
    return {"index.knn": True} if "knn" in settings else {}


def test_several_indices_in_one_search(engine_url: str, index_name: str, behind: Behind, encoder: Encoder) -> None:
    make_index(engine_url, index_name, encoder)
    body = {"query": EVERYTHING, "size": 120, "rescore": ours() | {"window_size": 120}}
    reply = search(behind.gateway, f"{index_name},{behind.index}", body)
    expected = in_memory(encoder, behind, "spectral", [CATS])
    hits = [(hit["_index"], hit["_id"]) for hit in reply.json()["hits"]["hits"]]
    assert len(set(hits)) == 120
    for (_, one), score in zip(hits, reply.scores, strict=True):
        if one != WITHOUT_TEXT:
            assert score == pytest.approx(expected[one], abs=1e-4)


def test_every_item_of_an_msearch_stands_alone(behind: Behind) -> None:
    native = {"query": EVERYTHING, "size": 2}
    bodies: list[dict[str, Any]] = [
        native | {"rescore": ours()},
        native,
        native | {"rescore": {"ttc": {"metod": 1}}},
        native | {"rescore": ours("dense")},
        native | {"sort": ["number"], "rescore": ours()},
    ]
    lines = [line for body in bodies for line in ({"index": behind.index}, body)]
    reply = call(behind.gateway, "POST", "/_msearch", lines)
    assert reply.status == 200
    first, second, third, fourth, fifth = reply.json()["responses"]
    single = search(behind.gateway, behind.index, bodies[0])
    assert [hit["_id"] for hit in first["hits"]["hits"]] == single.ids
    assert first["ttc"]["applied"] is True
    assert "ttc" not in second
    assert [hit["_id"] for hit in second["hits"]["hits"]] == search(behind.engine, behind.index, native).ids
    assert third["status"] == 400
    assert "did you mean [method]?" in third["error"]["reason"]
    assert [hit["_id"] for hit in fourth["hits"]["hits"]] == search(behind.gateway, behind.index, bodies[3]).ids
    assert fifth["status"] == 400
    only = call(behind.gateway, "POST", f"/{behind.index}/_msearch", b'{}\n{"rescore":{"ttc":3}}\n')
    assert only.json()["responses"][0]["status"] == 400


def test_no_hits_and_no_page(behind: Behind) -> None:
    nothing = search(behind.gateway, behind.index, {"query": EVERYTHING, "size": 0, "rescore": ours()})
    assert nothing.status == 200
    assert nothing.json()["hits"]["hits"] == []
    assert nothing.json()["hits"]["total"]["value"] == 60
    beyond = search(behind.gateway, behind.index, {"query": EVERYTHING, "from": 80, "rescore": ours()})
    assert beyond.json()["hits"]["hits"] == []


def test_aliases_and_wildcards(behind: Behind, index_name: str) -> None:
    call(behind.engine, "POST", "/_aliases", {"actions": [{"add": {"index": behind.index, "alias": index_name}}]})
    body = {"query": EVERYTHING, "rescore": ours()}
    expected = search(behind.gateway, behind.index, body).json()["hits"]
    assert search(behind.gateway, index_name, body).json()["hits"] == expected
    assert search(behind.gateway, behind.index[:-1] + "*", body).json()["hits"] == expected
    actions = {"actions": [{"remove": {"index": behind.index, "alias": index_name}}]}
    assert call(behind.gateway, "POST", "/_aliases", actions).status == 200


def test_an_alias_filter_hides_its_documents(behind: Behind, index_name: str) -> None:
    only = {"add": {"index": behind.index, "alias": index_name, "filter": {"range": {"number": {"lt": 30}}}}}
    call(behind.engine, "POST", "/_aliases", {"actions": [only]})
    body = {"query": EVERYTHING, "size": 10, "rescore": ours()}
    ids = [one for start in (0, 10, 20, 30) for one in search(behind.gateway, index_name, body | {"from": start}).ids]
    assert sorted(ids) == sorted(document["_id"] for document in corpus() if document["number"] < 30)
    call(behind.engine, "POST", "/_aliases", {"actions": [{"remove": {"index": behind.index, "alias": index_name}}]})


def test_a_vector_search_is_a_first_pass_too(behind: Behind, encoder: Encoder) -> None:
    vector = encoder.encode([CATS], role="query", tokens=False).pooled[0].tolist()
    knn: dict[str, Any] = (
        {"query": {"knn": {"ttc.vector": {"vector": vector, "k": 40}}}}
        if behind.product == "opensearch"
        else {"knn": {"field": "ttc.vector", "query_vector": vector, "k": 40, "num_candidates": 60}}
    )
    reply = search(behind.gateway, behind.index, knn | {"size": 20, "rescore": ours()})
    assert reply.status == 200, reply.body
    expected = in_memory(encoder, behind, "spectral", [CATS])
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
        {one: expected[one] for one in reply.ids}, abs=1e-4
    )


def test_hits_of_another_cluster_leave_the_local_ones_scored(engine_url: str, index_name: str, behind: Behind) -> None:
    """The node is a remote cluster of its own, under the name of the test's index."""
    call(engine_url, "PUT", f"/{index_name}/_doc/1?refresh=true", {"anyway": "creature"})
    [node] = call(engine_url, "GET", "/_nodes/transport").json()["nodes"].values()

    def connect(seeds: list[str] | None) -> Reply:
        settings = {"persistent": {f"cluster.remote.{index_name}.seeds": seeds}}
        return call(engine_url, "PUT", "/_cluster/settings", settings)

    try:
        connected = connect([node["transport_address"]])
        assert connected.status == 200, connected.body
        body = {"query": EVERYTHING, "size": 70, "rescore": ours()}
        local = search(behind.gateway, behind.index, body)
        both = search(behind.gateway, f"{behind.index},{index_name}:{index_name}", body)
        summary = both.json()["ttc"]
        assert (both.status, summary["applied"], summary["scored"]) == (200, True, 59), both.body
        assert f"{index_name}:{index_name}" in {hit["_index"] for hit in both.json()["hits"]["hits"][59:]}
        assert both.ids[:59] == local.ids[:59]
        alone = search(behind.gateway, f"{index_name}:{index_name}", body)
        assert (alone.status, alone.ids, alone.json()["ttc"]["applied"]) == (200, ["1"], False)
    finally:
        connect(None)


@pytest.mark.parametrize("method", ["spectral", "blend"])
def test_searches_leave_nothing_to_a_garbage_collection(behind: Behind, method: str) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ours(method)}
    before = search(behind.gateway, behind.index, body)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            assert search(behind.gateway, behind.index, body).ids == before.ids
        assert gc.collect() < 5 * 20
    finally:
        gc.enable()
