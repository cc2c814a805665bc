"""The sidecar protocol: scores of windows that someone else has found, and what bad frames are answered."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http import raw_request
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SIDECAR_TOKEN, SearchStack
from tests.serving.corpus import CATS, EVERYTHING
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

NOWHERE = "http://127.0.0.1:9"
DEFAULTS = {"version": 1, "deadline_ms": 20_000, "window_size": 100}
FIELDS = ("ttc.pooled", "ttc.tokens", "ttc.norms")


@pytest.fixture(scope="module")
def alone(encoder: Encoder) -> Iterator[str]:
    """A gateway whose engine is not there: what it scores was sent to it."""
    with gateway_to(NOWHERE, encoder, max_window=100, sidecar_token=SecretStr(SIDECAR_TOKEN)) as url:
        yield url


def ask(url: str, frame: Any, token: str = SIDECAR_TOKEN, **headers: str) -> Reply:
    body = frame if isinstance(frame, bytes) else cbor2.dumps(frame)
    sent = {"authorization": f"Bearer {token}", "content-type": "application/cbor", "accept": "application/cbor"}
    return call(url, "POST", "/_ttc/score", body, sent | headers)


def answer(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/cbor"
    found: dict[str, Any] = cbor2.loads(reply.body)
    assert found["version"] == 1
    return found


def reason(reply: Reply) -> tuple[int, str, str]:
    error = cbor2.loads(reply.body)
    assert error["status"] == reply.status
    return reply.status, error["error"]["type"], error["error"]["reason"]


def first_pass(stack: SearchStack, index: str = "") -> tuple[list[dict[str, Any]], dict[str, dict[str, bytes]]]:
    """The documents of a search as a frame tells of them, and their blobs as they are stored."""
    body = {"query": EVERYTHING, "size": 100, "_source": False, "docvalue_fields": [*FIELDS, "ttc.hash", "ttc.encoder"]}
    documents, blobs = [], {}
    for hit in search(stack.engine, index or stack.index, body).json()["hits"]["hits"]:
        fields = hit.get("fields", {})
        content = fields.get("ttc.hash", [None])[0]
        told = {"hash": content, "encoder": fields.get("ttc.encoder", [None])[0], "score": hit["_score"]}
        documents.append(told | {"index": hit["_index"]})
        if content is not None:
            blobs[content] = {name: b64decode(fields[name][0] + "==") for name in FIELDS if name in fields}
    return documents, blobs


def frame_of(documents: list[dict[str, Any]], **section: Any) -> dict[str, Any]:
    return {**DEFAULTS, "ttc": {"method": "spectral", "query_text": CATS, **section}, "documents": documents}


def what_is_missing(found: dict[str, Any], blobs: dict[str, dict[str, bytes]]) -> dict[str, dict[str, bytes]]:
    return {key: {name: blobs[key][name] for name in found["fields"] if name in blobs[key]} for key in found["missing"]}


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"method": "dense"},
        {"method": "maxsim", "score_mode": "total", "query_weight": 0.2},
        {"method": "spectral", "params": {"scales": [1, 3, "mean"]}, "query_text": None, "query_texts": [CATS, "owl"]},
        {"method": "spectral", "params": {"query": "tokens", "pool": "softmax", "temperature": 0.1}},
        {"method": "mmr"},
        {"method": "nnn", "score_mode": "max", "rescore_query_weight": 3.0},
    ],
    ids=str,
)
def test_scores_are_the_gateways(stack: SearchStack, alone: str, section: dict[str, Any]) -> None:
    documents, blobs = first_pass(stack)
    frame = frame_of(documents, **section)
    frame["ttc"] = {key: value for key, value in frame["ttc"].items() if value is not None}
    rescore = {"window_size": 100, "ttc": frame["ttc"]}
    expected = search(stack.gateway, stack.index, {"query": EVERYTHING, "size": 60, "rescore": rescore})
    ids = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 100}).ids

    first = answer(ask(alone, frame))
    if "missing" in first:
        assert "scores" not in first
        sent = what_is_missing(first, blobs)
        first = answer(ask(alone, frame | {"features": sent}))
    warm = answer(ask(alone, frame))
    shared = answer(ask(stack.gateway, frame))  # what a search has brought into memory is there for engines too
    for found in (first, warm, shared):
        assert [ids[place] for place in found["order"]] == expected.ids
        assert found["final"] == pytest.approx(expected.scores, abs=1e-6)
        assert [number for number, score in enumerate(found["scores"]) if score is None] == [ids.index("d7")]
    assert warm["from_memory"] == shared["from_memory"] == 60
    assert warm["encoder"] == expected.json()["ttc"]["encoder"]


def test_sidecar_asks_for_missing_features_once(stack: SearchStack, encoder: Encoder) -> None:
    documents, blobs = first_pass(stack)
    with gateway_to(NOWHERE, encoder, sidecar_token=SecretStr(SIDECAR_TOKEN), feature_cache_mb=0) as forgetful:
        asked = answer(ask(forgetful, frame_of(documents)))
        hashes = {document["hash"] for document in documents if document["hash"]}
        assert set(asked["missing"]) == hashes
        assert len(asked["missing"]) == len(hashes)
        assert set(asked["fields"]) == {"ttc.tokens", "ttc.norms"}
        sent = what_is_missing(asked, blobs)
        assert len(answer(ask(forgetful, frame_of(documents) | {"features": sent}))["final"]) == 60
        some, gone, damaged = sorted(hash_ for hash_ in hashes if blobs[hash_])[:3]
        partly = answer(ask(forgetful, frame_of(documents) | {"features": {some: sent[some]}}))
        assert set(partly["missing"]) == hashes  # nothing is kept here
        spoilt = sent | {gone: {}, damaged: {name: blob[:-1] for name, blob in sent[damaged].items()}}
        found = answer(ask(forgetful, frame_of(documents) | {"features": spoilt}))
        unscored = {one["hash"] for one, score in zip(documents, found["scores"], strict=True) if score is None}
        without_text = documents[[not blobs[one["hash"]] for one in documents].index(True)]["hash"]
        assert unscored == {gone, damaged, without_text}
        late = frame_of(documents, query_text="a text that is new") | {"features": sent, "deadline_ms": 0.5}
        assert reason(ask(forgetful, late))[:2] == (503, "ttc_deadline_exceeded_exception")
        nothing = frame_of(documents) | {"features": {key: {} for key in hashes}}
        assert reason(ask(forgetful, nothing))[:2] == (503, "ttc_pending_features_exception")


def test_a_method_without_features_needs_no_hash(alone: str) -> None:
    documents = [{"hash": None, "encoder": None, "score": 2.0 - place, "index": "any"} for place in range(3)]
    status, kind, _ = reason(ask(alone, frame_of(documents)))
    assert (status, kind) == (503, "ttc_pending_features_exception")


@pytest.mark.parametrize(
    ("changes", "status", "kind", "words"),
    [
        ({"version": 2}, 400, "ttc_protocol_version_exception", "this gateway speaks [1]"),
        ({"version": True}, 400, "ttc_protocol_version_exception", "[True]"),
        ({"extra": 1}, 400, "ttc_protocol_exception", "unknown field [extra]"),
        ({"documents": []}, 400, "ttc_protocol_exception", "[frame.documents]"),
        ({"deadline_ms": 0}, 400, "ttc_protocol_exception", "[frame.deadline_ms]"),
        ({"window_size": 1.5}, 400, "ttc_protocol_exception", "[frame.window_size]"),
        ({"features": {"a": {"ttc.tokens": "text"}}}, 400, "ttc_protocol_exception", "[frame.features]"),
        ({"ttc": {"method": "spectrl"}}, 400, "ttc_missing_text_exception", "[ttc.query_text] is missing"),
        ({"ttc": {"method": "spectrl", "query_text": "x"}}, 400, "illegal_argument_exception", "[spectral]"),
        ({"ttc": {"metod": "dense", "query_text": "x"}}, 400, "illegal_argument_exception", "[method]"),
        ({"ttc": {"method": "rgs", "query_text": "x"}}, 400, "illegal_argument_exception", "through the gateway"),
        (
            {"ttc": {"method": "dense", "query_text": "x", "params": {"scale": 1}}},
            400,
            "illegal_argument_exception",
            "[scale]",
        ),
        (
            {"ttc": {"query_texts": ["x", "y"], "parts": "each"}},
            400,
            "illegal_argument_exception",
            "[ttc.parts] needs a search through the gateway",
        ),
    ],
    ids=str,
)
def test_sidecar_invalid_request_is_refused(
    alone: str, changes: dict[str, Any], status: int, kind: str, words: str
) -> None:
    documents = [{"hash": "a", "encoder": "b", "score": 1.0, "index": "c"}]
    got = reason(ask(alone, frame_of(documents) | changes))
    assert got[:2] == (status, kind)
    assert words in got[2]


def test_documents_are_checked(alone: str) -> None:
    good = {"hash": "a-doc_values", "encoder": "b", "score": 1.0, "index": "c"}
    for change in ({"score": -1.0}, {"score": float("nan")}, {"hash": ""}, {"hash": "a" * 201}, {"id": "d"}):
        assert reason(ask(alone, frame_of([good | change])))[:2] == (400, "ttc_protocol_exception")
    status, kind, words = reason(ask(alone, frame_of([good] * 101)))
    assert (status, kind) == (400, "illegal_argument_exception")
    assert "at most [100]" in words
    two = [good, good | {"encoder": "other"}]
    assert reason(ask(alone, frame_of(two)))[:2] == (503, "ttc_pending_features_exception")
    nested = frame_of([good | {"hash": "a-nested"}]) | {"features": {"a-nested": {}}}
    status, _, words = reason(ask(alone, nested))
    assert status == 502
    assert "store its tokens as [packed]" in words


def test_documents_to_encode_are_checked(alone: str, stack: SearchStack) -> None:
    headers = {"authorization": f"Bearer {SIDECAR_TOKEN}", "accept": "application/cbor"}
    frame: dict[str, Any] = {"version": 1, "deadline_ms": 20_000, "index": stack.index, "documents": [{"text": "a"}]}

    def encode(url: str = stack.gateway, **changes: Any) -> Reply:
        return call(url, "POST", "/_ttc/encode", cbor2.dumps(frame | changes), headers)

    found = cbor2.loads(encode(documents=[{"text": "a cat"}, {"text": {"no": "text"}}, {}]).body)["documents"]
    assert found[0]["ttc"]["state"] == "ready"
    assert found[0]["ttc"]["encoder"] == stack.spec.encoder.key
    assert "text field [text]" in found[1]["error"]
    assert found[2]["ttc"]["state"] == "empty"
    assert reason(encode(version=2))[1] == "ttc_protocol_version_exception"
    assert reason(encode(documents=[]))[1] == "ttc_protocol_exception"
    assert reason(encode(documents=[{"text": "a"}] * 65))[1] == "ttc_protocol_exception"
    assert reason(encode(documents=[{"ttc": {}}]))[:2] == (400, "illegal_argument_exception")
    assert reason(encode(documents=[{"text": "a new text"}] * 9, deadline_ms=1))[1] == "ttc_deadline_exceeded_exception"
    assert reason(encode(index="no-such-index"))[0] == 502
    assert reason(encode(alone))[0] == 503
    headers["authorization"] = "Bearer wrong"
    assert reason(encode())[0] == 401


def test_sidecar_malformed_frames_are_refused(alone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_request, "MAX_BODY", 2**20)
    whole = cbor2.dumps(frame_of([{"hash": "a", "encoder": "b", "score": 1.0, "index": "c"}]))
    for bad in (b"", b"\xff", b"{}", whole[: len(whole) // 2], whole + b"\x00", cbor2.dumps([1]), b"\x9f" * 100_000):
        status, kind, _ = reason(ask(alone, bad))
        assert (status, kind) == (400, "ttc_protocol_exception"), bad[:20]
    assert reason(ask(alone, b"\x00" * (2**20 + 1)))[0] == 413


def test_the_token_guards_it(alone: str, encoder: Encoder) -> None:
    for token in ("", "wrong", SIDECAR_TOKEN + "x", "ü"):
        assert reason(ask(alone, b"", token))[:2] == (401, "security_exception")
    in_json = call(alone, "POST", "/_ttc/score", b"")
    assert (in_json.status, in_json.json()["error"]["type"]) == (401, "security_exception")
    with gateway_to(NOWHERE, encoder) as closed:
        status, _, words = reason(ask(closed, b""))
        assert status == 401
        assert "ES_TTC_SIDECAR_TOKEN" in words
        assert call(closed, "GET", "/_ttc/").json()["score_protocol"] == 1
