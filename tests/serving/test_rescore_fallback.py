"""Searches whose documents cannot be scored: the engine's ranking with the reason, or an error."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import ConfigurationError
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import call, search
from tests.serving.conftest import Behind, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, ours
from tests.support.encoders import Wrapped

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
