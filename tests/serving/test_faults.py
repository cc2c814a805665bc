"""Late, failing and misbehaving parts: the engine's own ranking with a visible mark, or the error asked for."""

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import cbor2
import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import HASH
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.dense import DenseParams, DenseRescorer
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import EVERYTHING
from tests.serving.relay import Passed, Relay, relay
from tests.support.encoders import GatedEncoder
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

SECRET = "ApiKey c2VjcmV0LXNlY3JldA=="


@pytest.fixture(scope="module")
def gated(encoder: Encoder) -> GatedEncoder:
    return GatedEncoder(encoder)


@pytest.fixture(scope="module")
def relayed(stack: SearchStack) -> Iterator[Relay]:
    with relay(stack.engine) as state:
        yield state


@pytest.fixture(scope="module")
def gateway(relayed: Relay, gated: GatedEncoder) -> Iterator[str]:
    with gateway_to(relayed.url, gated, max_window=300) as url:
        yield url


@pytest.fixture(autouse=True)
def calm(relayed: Relay, gated: GatedEncoder) -> Iterator[None]:
    yield
    relayed.before = lambda _: None
    relayed.passed.clear()
    gated.gate.set()
    gated.fails = False


def ttc_rescore(text: str, **section: Any) -> dict[str, Any]:
    return {"ttc": {"method": "spectral", "query_text": text, **section}}


def assert_first_pass(reply: Reply, stack: SearchStack, reason: str) -> None:
    assert reply.status == 200
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 10})
    assert (reply.ids, reply.scores) == (native.ids, native.scores)
    assert reply.headers["x-ttc-applied"] == "false"
    ttc = reply.json()["ttc"]
    assert ttc["applied"] is False
    assert reason in ttc["reason"]
    assert all("fields" not in hit for hit in reply.json()["hits"]["hits"])


def test_late_scoring_gives_the_first_pass_and_the_next_request_finds_the_work_done(
    stack: SearchStack, gateway: str, gated: GatedEncoder
) -> None:
    gated.gate.clear()
    body = {"query": EVERYTHING, "rescore": ttc_rescore("a late query", timeout="60ms")}
    assert_first_pass(search(gateway, stack.index, body), stack, "budget of 60 ms")
    refused = search(
        gateway, stack.index, body | {"rescore": ttc_rescore("a late query", timeout="1ms", on_error="fail")}
    )
    assert refused.status == 503
    assert refused.json()["error"]["type"] == "ttc_deadline_exceeded_exception"
    gated.gate.set()
    assert (
        search(gateway, stack.index, body | {"rescore": ttc_rescore("a late query")}).json()["ttc"]["applied"] is True
    )
    again = search(gateway, stack.index, body | {"rescore": ttc_rescore("a late query", timeout="10s")})
    assert again.json()["ttc"]["applied"] is True
    assert again.json()["ttc"]["took"]["encode"] == 0


@pytest.mark.parametrize("where", ["body", "url"])
def test_the_callers_own_timeout_leaves_time_for_the_first_pass(
    stack: SearchStack, gateway: str, gated: GatedEncoder, where: str
) -> None:
    gated.gate.clear()
    body: dict[str, Any] = {"query": EVERYTHING, "rescore": ttc_rescore(f"in time, {where}", timeout="15s")}
    query = "?timeout=1500ms" if where == "url" else ""
    if where == "body":
        body["timeout"] = "1500ms"
    reply = search(gateway, stack.index, body, query)
    assert_first_pass(reply, stack, "scoring took longer than its budget")
    assert "budget of 15000 ms" not in reply.json()["ttc"]["reason"]


def test_encoder_that_fails_leaves_the_first_pass(stack: SearchStack, gateway: str, gated: GatedEncoder) -> None:
    gated.fails = True
    body = {"query": EVERYTHING, "rescore": ttc_rescore("it fails")}
    assert_first_pass(search(gateway, stack.index, body), stack, "out of memory")
    refused = search(gateway, stack.index, {"query": EVERYTHING, "rescore": ttc_rescore("it fails", on_error="fail")})
    assert refused.status == 500
    assert refused.json()["error"]["type"] == "ttc_encoder_exception"


def test_encoder_that_cannot_be_loaded_leaves_the_first_pass(stack: SearchStack) -> None:
    def load(name: str, folder: object) -> Encoder:
        raise RuntimeError("no such model")

    with running_gateway(GatewaySettings(engine=stack.engine, port=0), load=load) as gateway:
        reply = search(gateway, stack.index, {"query": EVERYTHING, "rescore": ttc_rescore("x")})
        assert_first_pass(reply, stack, "no such model")
        assert call(gateway, "GET", "/_ttc/ready").json()["encoder"] is False


def _raises(documents: int) -> Any:
    raise ZeroDivisionError(f"division of {documents} by zero")


def _not_numbers(documents: int) -> Any:
    return np.full(documents, np.nan, np.float32)


def _too_few(documents: int) -> Any:
    return np.zeros(documents - 1, np.float32)


def _integers(documents: int) -> Any:
    return np.zeros(documents, np.int64)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (_raises, "ZeroDivisionError"),
        (_not_numbers, "not finite"),
        (_too_few, "must return 59 floating-point scores"),
        (_integers, "floating-point scores"),
    ],
)
def test_method_that_returns_invalid_scores_leaves_the_first_pass(
    stack: SearchStack, gateway: str, monkeypatch: pytest.MonkeyPatch, score: Callable[[int], Any], reason: str
) -> None:
    class Broken(DenseRescorer):
        def score(self, query: Query, window: Window, params: DenseParams) -> Any:
            return score(len(window))

    broken = Broken()
    monkeypatch.setattr(registry, "load", {"spectral": broken}.__getitem__)
    body = {"query": EVERYTHING, "rescore": ttc_rescore("x") | {"window_size": 60}}
    assert_first_pass(search(gateway, stack.index, body), stack, reason)
    refused = search(gateway, stack.index, {"query": EVERYTHING, "rescore": ttc_rescore("x", on_error="fail")})
    assert refused.status == 500
    assert "ttc" in refused.json()["error"]["type"]


def in_cbor(hit: Any, failed: int = 0) -> bytes:
    return cbor2.dumps({"_shards": {"total": 2, "failed": failed}, "hits": {"hits": [hit]}})


FORBIDDEN = b'{"error":{"type":"security_exception","reason":"action is unauthorized"},"status":403}'


@pytest.mark.parametrize(
    ("answer", "reason", "status"),
    [
        (Reply(429, {}, b"{}"), "the engine answered 429", 502),
        (Reply(403, {}, FORBIDDEN), "the engine answered 403", 502),
        (Reply(200, {}, b""), "features could not be read", 502),
        (Reply(200, {}, b"\xff\xff\xff"), "features could not be read", 502),
        (Reply(200, {}, b'{"took":1,"hits":{"hits":[]}}'), "features could not be read", 502),
        (Reply(200, {}, in_cbor({"_id": "d1"})[:-3]), "features could not be read", 502),
        (Reply(200, {}, in_cbor({"_id": "d1", "fields": 3})), "features could not be read", 502),
        (Reply(200, {}, in_cbor({"_id": "d1", "fields": {"ttc.hash": ["no one's"]}})), "features could not", 502),
        (Reply(200, {}, in_cbor({"_id": "d1"}, failed=1)), "shards failed", 502),
        (Reply(200, {}, cbor2.dumps(["no", "answer"])), "features could not be read", 502),
    ],
)
def test_features_that_cannot_be_read_leave_the_first_pass(
    stack: SearchStack, relayed: Relay, encoder: Encoder, answer: Reply, reason: str, status: int
) -> None:
    relayed.before = lambda request: answer if request.reads_features else None
    with gateway_to(relayed.url, encoder) as url:
        body = {"query": EVERYTHING, "rescore": ttc_rescore("cats")}
        assert_first_pass(search(url, stack.index, body), stack, reason)
        refused = search(url, stack.index, {"query": EVERYTHING, "rescore": ttc_rescore("cats", on_error="fail")})
        assert refused.status == status
        assert refused.json()["error"]["type"] == "ttc_engine_exception"


def test_a_document_that_changes_between_both_passes_is_not_scored(
    stack: SearchStack, relayed: Relay, gateway: str, index_name: str, encoder: Encoder
) -> None:
    make_index(stack.engine, index_name, encoder)

    def change(request: Passed) -> None:
        if request.reads_features:
            call(stack.engine, "POST", f"/{index_name}/_update/d2?refresh=true", {"doc": {"text": "changed"}})
            call(stack.engine, "DELETE", f"/{index_name}/_doc/d4?refresh=true")

    relayed.before = change
    reply = search(gateway, index_name, {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("cats")})
    assert reply.json()["ttc"]["applied"] is True
    assert reply.json()["ttc"]["scored"] == 57
    assert set(reply.ids[-3:]) == {"d2", "d4", "d7"}


def test_a_damaged_blob_is_no_feature(stack: SearchStack, gateway: str, index_name: str, encoder: Encoder) -> None:
    make_index(stack.engine, index_name, encoder)
    body = {"query": {"ids": {"values": ["d1"]}}, "docvalue_fields": ["ttc.hash", "ttc.encoder"]}
    [hit] = search(stack.engine, index_name, body).json()["hits"]["hits"]
    damaged = {
        "kind": "animal",
        "ttc": {
            "hash": "damaged-doc_values",
            "encoder": hit["fields"]["ttc.encoder"][0],
            "tokens": "VFRDAQECAwQ=",
            "norms": "VFRDAQECAwQ=",
        },
    }
    assert call(stack.engine, "PUT", f"/{index_name}/_doc/d1?refresh=true", damaged).status == 200
    reply = search(gateway, index_name, {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("cats")})
    assert reply.json()["ttc"]["scored"] == 58
    assert set(reply.ids[-2:]) == {"d1", "d7"}


def test_features_are_read_once_and_only_what_is_needed(stack: SearchStack, relayed: Relay, encoder: Encoder) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("cats") | {"window_size": 60}}
    with gateway_to(relayed.url, encoder) as url:
        cold, warm = search(url, stack.index, body), search(url, stack.index, body)
    assert cold.scores == warm.scores
    assert (cold.json()["ttc"]["features_from_memory"], warm.json()["ttc"]["features_from_memory"]) == (0, 60)
    reads = [request for request in relayed.passed if request.reads_features]
    assert len(reads) == 2  # halves, at the same time
    asked = [json.loads(read.body)["query"]["bool"]["filter"][0]["terms"][HASH] for read in reads]
    assert set(asked[0]).isdisjoint(asked[1])
    for read in reads:
        assert b'"ttc.offsets"' not in read.body
        assert read.headers["accept"] == "application/cbor"
        assert read.headers["accept-encoding"] == "identity"


NO_SCRIPTS = b'{"error":{"type":"search_phase_execution_exception","reason":"all shards failed"},"status":400}'


def test_features_are_read_without_scripts_where_the_engine_allows_none(
    stack: SearchStack, relayed: Relay, encoder: Encoder
) -> None:
    refused = Reply(400, {}, NO_SCRIPTS)  # as engines answer with `script.allowed_types: none`
    relayed.before = lambda request: refused if b'"script"' in request.body else None
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("cats") | {"window_size": 20}}
    expected = search(stack.gateway, stack.index, body).scores
    with gateway_to(relayed.url, encoder, feature_cache_mb=0) as url:
        assert search(url, stack.index, body).scores == expected
        relayed.passed.clear()
        assert search(url, stack.index, body).scores == expected
    assert not [one for one in relayed.passed if b'"script"' in one.body]  # they are not tried again


def test_a_memory_smaller_than_one_window_still_serves(stack: SearchStack, encoder: Encoder, index_name: str) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("cats") | {"window_size": 60}}
    expected = search(stack.gateway, stack.index, body).scores
    with gateway_to(stack.engine, encoder, feature_cache_mb=0) as url:
        for _ in range(2):
            reply = search(url, stack.index, body)
            assert reply.scores == expected
            assert reply.json()["ttc"]["features_from_memory"] == 0
        call(stack.engine, "PUT", f"/{index_name}/_doc/1?refresh=true", {"text": "no features here"})
        both = [{"add": {"index": name, "alias": f"{index_name}-both"}} for name in (stack.index, index_name)]
        call(stack.engine, "POST", "/_aliases", {"actions": both})
        reply = search(url, f"{index_name}-both", body)
        own = {"index": stack.index, "alias": f"{index_name}-both"}  # else the index goes with this test's own
        call(stack.engine, "POST", "/_aliases", {"actions": [{"remove": own}]})
        assert reply.scores == expected


def test_credentials_go_on_every_call_and_into_no_log(
    stack: SearchStack, gateway: str, relayed: Relay, index_name: str
) -> None:
    logged = io.StringIO()
    configure_logs(logging.DEBUG)
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(logged)
    try:
        call(stack.engine, "PUT", f"/{index_name}/_doc/1?refresh=true", {"kind": "animal"})
        headers = {"authorization": SECRET, "es-security-runas-user": "ann-secret", "cookie": "sid=secret-cookie"}
        body = {"query": EVERYTHING, "rescore": ttc_rescore("secret-words") | {"window_size": 60}}
        for target in (f"/{stack.index}/_search", f"/{index_name}/_search", f"/{index_name}/_count?q=secret-words"):
            call(gateway, "POST", target, body if "_search" in target else None, headers)
    finally:
        handler.setStream(io.StringIO())
    targets = (f"/{stack.index}/", f"/{index_name}/")  # the gateway's warm-up has no caller
    kinds = [request for request in relayed.passed if request.target.startswith(targets)]
    assert any("_field_caps" in request.target for request in kinds)
    assert len(kinds) >= 4
    for request in kinds:
        for name, value in headers.items():
            assert request.headers[name] == value
    text = logged.getvalue()
    assert "answered" in text
    assert "secret" not in text
    assert "c2VjcmV0" not in text


def test_concurrent_searches_each_get_their_own_answer(stack: SearchStack) -> None:
    bodies = [
        {
            "query": EVERYTHING,
            "size": 12,
            "rescore": {"ttc": {"method": method, "query_text": f"query number {number % 7}"}},
        }
        for number in range(40)
        for method in ("spectral", "dense", "maxsim")
    ]
    expected = {str(body): search(stack.gateway, stack.index, body).scores for body in bodies}
    with ThreadPoolExecutor(16) as clients:
        replies = clients.map(lambda body: search(stack.gateway, stack.index, body), bodies)
    for body, reply in zip(bodies, replies, strict=True):
        assert reply.scores == expected[str(body)]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("_shards", None),
        ("_shards.failed", "none"),
        ("took", {}),
        ("aggregations", []),
        ("hits.total", "many"),
        ("hits.total.value", "many"),
        ("hits.hits", [None]),
        ("hits.hits._index", 7),
        ("hits.hits._id", {}),
        ("hits.hits._score", "high"),
        ("hits.hits._score", None),
        ("hits.hits.fields", None),
        ("hits.hits.fields.ttc.hash", [None]),
        ("hits.hits.fields._seq_no", []),
    ],
)
def test_malformed_engine_answer_is_a_502_naming_the_field(
    stack: SearchStack, gateway: str, relayed: Relay, place: str, value: Any
) -> None:
    body = {
        "query": EVERYTHING,
        "rescore": ttc_rescore("cats", method="blend"),
        "aggs": {"a": {"value_count": {"field": "number"}}},
    }
    search(gateway, stack.index, body)  # the engine's version is known from now on
    relayed.before = malforming(stack, "_search", place, value)
    reply = search(gateway, stack.index, body)
    assert (reply.status, reply.json()["error"]["type"]) == (502, "ttc_engine_exception")
    assert f"[{place}] of the engine's answer" in reply.reason


@pytest.mark.parametrize(
    ("api", "place", "value", "status"),
    [("_search", "hits.total", None, 502), ("_analyze", "tokens", ["x"], 200), ("_field_caps", "indices", None, 502)],
)
def test_explanations_and_rewritten_queries_read_no_malformed_answers(
    stack: SearchStack, gateway: str, relayed: Relay, api: str, place: str, value: Any, status: int
) -> None:
    relayed.before = malforming(stack, api, place, value)
    if api == "_field_caps":
        rewritten = {"ttc": {"method": "rm3", "query_text": "cats"}}
        reply = search(gateway, stack.index, {"query": rewritten})
    else:
        asked = {"index": stack.index, "id": "d0", "search": {"query": {"match": {"text": "cat"}}}}
        reply = call(gateway, "POST", "/_ttc/explain", asked)
    assert reply.status == status, reply.body
    assert (f"[{place}] of the engine's answer" in reply.body.decode()) == (status == 502)


def malforming(stack: SearchStack, api: str, place: str, value: Any) -> Callable[[Passed], Reply]:
    """Return what answers for the engine, with another value in a place of the answers of an API."""

    def answer(passed: Passed) -> Reply:
        headers = {name: text for name, text in passed.headers.items() if name not in ("host", "content-length")}
        reply = call(stack.engine, passed.method, passed.target, passed.body, headers)
        return replaced(reply, place, value) if api in passed.target and reply.status == 200 else reply

    return answer


def replaced(reply: Reply, place: str, value: Any) -> Reply:
    """Return an answer to a search with another value in a place, of the first hit where it is below hits."""
    answer = reply.json()
    below, _, field = place.partition("fields.")
    keys: list[Any] = [*below.rstrip(".").split("."), *(["fields", field] if field else [])]
    keys = ["hits", "hits", 0, *keys[2:]] if keys[:2] == ["hits", "hits"] and len(keys) > 2 else keys
    found: Any = answer
    for key in keys[:-1]:
        found = found[key]
    found[keys[-1]] = value
    return Reply(200, reply.headers, json.dumps(answer).encode())


@contextmanager
def client_of(gateway: str, path: str, body: Any) -> Iterator[None]:
    """Send a request, and leave without its answer."""
    address, sent = urlsplit(gateway), json.dumps(body).encode()
    headers = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}"
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + sent)
        yield


def test_an_explanation_ends_when_its_client_leaves(stack: SearchStack, gateway: str, relayed: Relay) -> None:
    asked = {"index": stack.index, "id": "d0", "search": {"query": {"match": {"text": "cat"}}}}
    arrived, released = threading.Event(), threading.Event()

    def hold(_: Passed) -> None:
        arrived.set()
        released.wait(20)

    relayed.before = hold
    with client_of(gateway, "/_ttc/explain", asked):
        assert arrived.wait(20)
    time.sleep(0.5)  # until the gateway knows
    begun = len(relayed.passed)
    released.set()
    time.sleep(0.7)
    assert len(relayed.passed) == begun


@pytest.mark.parametrize(
    ("path", "kind", "asked"),
    [
        ("/_ttc/rerank", "rerank", {"query": "a cat", "documents": ["one", "two"], "model": "spectral"}),
        ("/_ttc/v1/embeddings", "embeddings", {"input": "a cat", "model": "minilm"}),
    ],
)
def test_texts_are_not_encoded_to_the_end_for_a_client_that_leaves(
    gateway: str, gated: GatedEncoder, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, asked: Any
) -> None:
    arrived, released = threading.Event(), threading.Event()

    def hold(_: Sequence[str]) -> None:
        arrived.set()
        released.wait(30)

    monkeypatch.setattr(gated, "before", hold)
    with client_of(gateway, path, asked):
        assert arrived.wait(20)
    ended, deadline = f'kind="{kind}",outcome="gone"', time.monotonic() + 10
    while not (gone := ended in call(gateway, "GET", "/_ttc/metrics").body.decode()) and time.monotonic() < deadline:
        time.sleep(0.05)
    released.set()
    assert gone
