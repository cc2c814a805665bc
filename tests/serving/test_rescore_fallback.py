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
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, ttc_rescore
from tests.support.encoders import Wrapped

RGS = {"method": "rgs", "params": {"reranker": "dense"}}


@pytest.mark.parametrize(
    ("query", "section"),
    [
        (None, {}),
        ({"match_all": {}}, {}),
        ({"match_all": {}}, RGS),
        ({"match": {"text": {"query": "", "zero_terms_query": "all"}}}, {}),
        ({"bool": {"should": [{"match": {"text": "cat"}}, {"match": {"kind": "dog animal"}}]}}, {}),
        (EVERYTHING, {"query_text": ""}),
        (EVERYTHING, {"query_texts": ["", " "]}),
        (EVERYTHING, RGS | {"query_text": " "}),
    ],
    ids=str,
)
def test_a_search_without_a_text_is_the_engines_own(
    stack: SearchStack, query: dict[str, Any] | None, section: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"from": 3, "size": 20} | ({} if query is None else {"query": query})
    plain = search(stack.engine, stack.index, body)
    for rescore in ({"ttc": section}, {"ttc": {**section, "passages": 2, "detail": "map"}}):
        reply = search(stack.gateway, stack.index, body | {"rescore": rescore})
        assert (reply.status, reply.ids, reply.scores) == (200, plain.ids, plain.scores)
        assert reply.headers["x-ttc-applied"] == "false"
        summary = reply.json()["ttc"]
        assert (summary["applied"], summary["scored"]) == (False, 0)
        assert "query_text" in summary["reason"]
        outcome = {name: summary[name] for name in ("method", "applied", "reason") if "detail" in rescore["ttc"]}
        assert all(outcome.items() <= hit.get("_ttc", {}).items() for hit in reply.json()["hits"]["hits"])
    first = [{"ttc": section}, {"ttc": {"method": "dense", "query_text": CATS}}]
    second = [{"ttc": {"query_text": CATS}}, {"ttc": {"method": "dense", "query_text": " "}}]
    for items, applied in ((first, [False, True]), (second, [True, False])):
        if section.get("method") == "rgs":
            continue
        cascade = search(stack.gateway, stack.index, body | {"rescore": items})
        assert [one["applied"] for one in cascade.json()["ttc"]["items"]] == applied
    failing = search(stack.gateway, stack.index, body | {"rescore": {"ttc": {**section, "on_error": "fail"}}})
    assert (failing.status, failing.json()["error"]["type"]) == (400, "ttc_missing_text_exception")
    lines = [{"index": stack.index}, body | {"rescore": {"ttc": section}}]
    several = call(stack.gateway, "POST", "/_msearch", lines * 2)
    assert [[hit["_id"] for hit in one["hits"]["hits"]] for one in several.json()["responses"]] == [plain.ids] * 2


def test_features_that_are_missing_leave_the_first_pass(engine_url: str, index_name: str, stack: SearchStack) -> None:
    """An alias is switched to a new index without features."""
    alias = f"{index_name}-alias"
    documents = {name: {"kind": " ".join(["animal"] * number)} for number, name in enumerate("abc", 1)}
    for name, document in documents.items():
        call(engine_url, "PUT", f"/{index_name}/_doc/{name}?refresh=true", document)

    def switch(old: str, new: str) -> None:
        actions: list[Any] = [{"add": {"index": new, "alias": alias}}]
        actions += [{"remove": {"index": old, "alias": alias}}] if old else []
        assert call(engine_url, "POST", "/_aliases", {"actions": actions}).status == 200

    switch("", stack.index)
    try:
        body = {"query": {"match": {"kind": "animal"}}, "rescore": ttc_rescore()}
        assert search(stack.gateway, alias, body).json()["ttc"]["applied"] is True
        switch(stack.index, index_name)
        plain = search(engine_url, alias, {"query": body["query"]})
        sections = [
            ttc_rescore(),
            ttc_rescore("rgs", params={"reranker": "dense"}),
            ttc_rescore(passages=2),
            ttc_rescore("maxsim"),
            ttc_rescore("blend"),
        ]
        for rescore in [*sections, [ttc_rescore(), ttc_rescore("dense")]]:
            reply = search(stack.gateway, alias, body | {"rescore": rescore})
            assert (reply.status, reply.ids, reply.scores) == (200, plain.ids, plain.scores), reply.body
            assert reply.json()["ttc"]["applied"] is False
            assert "es-ttc" in reply.json()["ttc"]["reason"]
        failing = search(stack.gateway, alias, body | {"rescore": ttc_rescore(on_error="fail")})
        assert (failing.status, failing.json()["error"]["type"]) == (400, "ttc_missing_feature_exception")
        assert index_name in failing.reason
        assert "es-ttc index create" in failing.reason
        empty = search(stack.gateway, alias, {"query": {"match": {"kind": "nothing"}}, "rescore": ttc_rescore()})
        assert (empty.status, empty.json()["ttc"]["window"]) == (200, 0)
        malformed = search(stack.gateway, alias, body | {"rescore": ttc_rescore(metod="x")})
        assert (malformed.status, malformed.json()["error"]["type"]) == (400, "illegal_argument_exception")
    finally:
        call(engine_url, "DELETE", f"/*/_alias/{alias}")


def test_an_encoder_that_is_loading_leaves_the_first_pass(
    engine_url: str, index_name: str, stack: SearchStack, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
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

    options = GatewaySettings(engine=engine_url, port=0, scoring_timeout_ms=300, encoders=("slow",))
    with running_gateway(options, load=load) as gateway:
        begun.set()
        make_index(engine_url, index_name, Slow(encoder))
        try:
            plain = search(engine_url, index_name, {"query": EVERYTHING})
            reply = search(gateway, index_name, {"query": EVERYTHING, "rescore": ttc_rescore()})
            assert (reply.status, reply.ids, reply.json()["ttc"]["applied"]) == (200, plain.ids, False)
            failing = search(gateway, index_name, {"query": EVERYTHING, "rescore": ttc_rescore(on_error="fail")})
            assert failing.status == 503
        finally:
            go.set()


def test_an_index_may_allow_less_than_the_gateway(engine_url: str, index_name: str, stack: SearchStack) -> None:
    call(engine_url, "PUT", f"/{index_name}", {"settings": {"index.max_rescore_window": 20}})
    reply = search(stack.gateway, index_name, {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert reply.status == 400
    assert "[100]" in reply.reason


@pytest.mark.parametrize("raw", [b'{"rescore":{"ttc":{', b'["ttc"]', b'"ttc"', b'{"rescore":{"ttc":' + b"[" * 5000])
def test_a_body_that_cannot_be_read_is_the_engines_to_refuse(stack: SearchStack, raw: bytes) -> None:
    reply = call(stack.gateway, "POST", f"/{stack.index}/_search", raw, {"content-type": "application/json"})
    assert reply.status == 400
    assert reply.json()["error"]["root_cause"]


def test_documents_that_changed_or_wait_follow_the_scored_ones(
    engine_url: str, index_name: str, stack: SearchStack, encoder: Encoder
) -> None:
    make_index(engine_url, index_name, encoder)
    changed = {"text": "Another animal.", "kind": "animal animal animal"}
    call(engine_url, "POST", f"/{index_name}/_update/d3?refresh=true", {"doc": changed})
    call(engine_url, "PUT", f"/{index_name}/_doc/new?refresh=true", changed)
    reply = search(stack.gateway, index_name, {"query": EVERYTHING, "size": 61, "rescore": ttc_rescore()})
    assert set(reply.ids[-3:]) == {"d3", "new", WITHOUT_TEXT}
    assert reply.json()["ttc"]["scored"] == 58
    only = {"query": {"ids": {"values": ["d3", "new"]}}, "rescore": ttc_rescore()}
    waiting = search(stack.gateway, index_name, only)
    assert waiting.status == 200
    assert waiting.json()["ttc"]["applied"] is False
    assert "no document of the window has features yet" in waiting.json()["ttc"]["reason"]
    assert waiting.headers["x-ttc-applied"] == "false"
    assert set(waiting.ids) == {"d3", "new"}
    refused = search(stack.gateway, index_name, only | {"rescore": ttc_rescore(on_error="fail")})
    assert refused.status == 503


def test_another_encoder_is_refused_and_so_are_two_in_one_window(
    engine_url: str, index_name: str, stack: SearchStack
) -> None:
    foreign = {"kind": "animal", "ttc": {"hash": "h-doc_values", "encoder": "other-model@1/2x3"}}
    mappings = call(engine_url, "GET", f"/{stack.index}/_mapping").json()[stack.index]["mappings"]
    call(engine_url, "PUT", f"/{index_name}", {"mappings": mappings, "settings": _knn(stack)})
    assert call(engine_url, "PUT", f"/{index_name}/_doc/1?refresh=true", foreign).status == 201
    alone = search(stack.gateway, index_name, {"query": EVERYTHING, "rescore": ttc_rescore(on_error="fail")})
    assert alone.status == 400
    assert alone.json()["error"]["type"] == "ttc_encoder_mismatch_exception"
    for word in ("other-model@1/2x3", stack.spec.encoder.key, index_name, "es-ttc serve --encoder other-model"):
        assert word in alone.reason
    both = search(stack.gateway, f"{index_name},{stack.index}", {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert (both.status, both.json()["ttc"]["applied"]) == (200, False)
    assert "two encoders" in both.json()["ttc"]["reason"]


def _knn(stack: SearchStack) -> dict[str, Any]:
    settings = call(stack.engine, "GET", f"/{stack.index}/_settings").json()[stack.index]["settings"]["index"]
    return {"index.knn": True} if "knn" in settings else {}
