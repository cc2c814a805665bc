"""Late, failing and lying parts of the knn hook: the engine's own kNN with a visible mark, or the error asked for."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers.base import Query
from es_ttc.retrievers import registry
from es_ttc.retrievers.base import Retrieved, Search
from es_ttc.retrievers.dense import DenseRetriever, DenseRetrieverParams
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS
from tests.serving.knn.test_knn import asked, knn_clause, native
from tests.serving.relay import Passed, Relay
from tests.support.encoders import GatedEncoder
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

SMALL_STEPS = {"candidates": 2, "batch": 1, "l1": 0.05, "exact": True}


def is_round(request: Passed) -> bool:
    """Whether a request is one of the rounds of a retrieval."""
    return request.target.endswith("/_msearch") and b'"docvalue_fields":["ttc.hash"' in request.body


def failing(which: int, relayed: Relay, reply: Reply) -> None:
    """Answer the engine's part of one round by something else."""
    seen = 0

    def before(request: Passed) -> Reply | None:
        nonlocal seen
        seen += is_round(request)
        return reply if is_round(request) and seen == which else None

    relayed.before = before


def answer(status: int, body: Any) -> Reply:
    return Reply(status, {"content-type": "application/json"}, json.dumps(body).encode())


def assert_native(reply: Reply, stack: SearchStack, reason: str) -> None:
    assert reply.status == 200
    direct = search(stack.gateway, stack.index, native(stack, {"query_text": CATS}))
    assert reply.ids == direct.ids
    assert reply.scores == pytest.approx(direct.scores, abs=1e-6)
    assert reply.headers["x-ttc-applied"] == "false"
    ttc = reply.json()["ttc"]
    assert ttc["applied"] is False
    assert reason in ttc["reason"]


LOST_SHARD = {
    "responses": [{"timed_out": False, "_shards": {"total": 2, "failed": 1}, "hits": {"hits": []}, "status": 200}]
}
REFUSED = {"responses": [{"error": {"root_cause": [{"reason": "no more memory"}]}, "status": 429}]}


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(503, {"error": "busy"}), "busy"),
        (answer(200, LOST_SHARD), "part of the documents only"),
        (answer(200, REFUSED), "no more memory"),
        (answer(200, "nonsense"), "a kNN search failed: [the answer] of the engine's answer is"),
    ],
)
def test_an_engine_that_fails_in_the_middle_of_the_rounds(
    spanned: SearchStack, through_relay: str, relayed: Relay, which: int, reply: Reply, reason: str
) -> None:
    body = {"knn": knn_clause("nnn", ttc={"params": SMALL_STEPS})}
    strict = {"knn": knn_clause("nnn", ttc={"params": SMALL_STEPS, "on_error": "fail"})}
    failing(which, relayed, reply)
    assert_native(search(through_relay, spanned.index, body), spanned, reason)
    failing(which, relayed, reply)
    refused = search(through_relay, spanned.index, strict)
    assert refused.status >= 429
    assert reason in refused.reason
    relayed.before = lambda _: None
    assert search(through_relay, spanned.index, body).json()["ttc"]["applied"] is True


def test_one_items_failure_leaves_the_others_alone(spanned: SearchStack, through_relay: str, relayed: Relay) -> None:
    def before(request: Passed) -> Reply | None:
        if not is_round(request):
            return None
        lines = [json.loads(line) for line in request.body.splitlines()]
        lines[0] = {"index": "there-is-no-such-index"}
        return call(spanned.engine, request.method, request.target, lines)

    relayed.before = before
    lines = [line for method in ("nnn", "dense") for line in ({}, {"knn": knn_clause(method)})]
    reply = call(through_relay, "POST", f"/{spanned.index}/_msearch", lines)
    first, second = reply.json()["responses"]
    assert first["ttc"]["applied"] is False
    assert "no such index" in first["ttc"]["reason"]
    assert second["ttc"]["applied"] is True
    assert [hit["_id"] for hit in second["hits"]["hits"]] == asked(spanned, knn_clause("dense")).ids
    assert reply.headers["x-ttc-applied"] == "false"


def slow(relayed: Relay, seconds: float, *, after: int = 0) -> None:
    seen = 0

    def before(request: Passed) -> None:
        nonlocal seen
        seen += is_round(request)
        if is_round(request) and seen > after:
            time.sleep(seconds)

    relayed.before = before


def test_a_retrieval_that_is_late(spanned: SearchStack, through_relay: str, relayed: Relay) -> None:
    slow(relayed, 1.0)
    body = {"knn": knn_clause("dense", ttc={"timeout": "150ms"})}
    assert_native(search(through_relay, spanned.index, body), spanned, "took longer than its budget of 1")
    refused = search(
        through_relay, spanned.index, {"knn": knn_clause("dense", ttc={"timeout": "50ms", "on_error": "fail"})}
    )
    assert refused.status == 503
    assert refused.json()["error"]["type"] == "ttc_deadline_exceeded_exception"


def test_the_callers_own_timeout_bounds_it_too(spanned: SearchStack, through_relay: str, relayed: Relay) -> None:
    slow(relayed, 1.5)
    reply = search(through_relay, spanned.index, {"knn": knn_clause("dense"), "timeout": "600ms"})
    assert_native(reply, spanned, "took longer than its budget")


def test_column_generation_ends_in_time_with_what_it_has(
    spanned: SearchStack, through_relay: str, relayed: Relay
) -> None:
    slow(relayed, 1.5)
    reply = search(
        through_relay, spanned.index, {"knn": knn_clause("nnn", ttc={"params": SMALL_STEPS, "timeout": "2700ms"})}
    )
    ttc = reply.json()["ttc"]
    assert ttc["applied"] is True
    assert ttc["certified"] is False
    assert ttc["stopped_by"] == "time"
    assert ttc["duality_gap"] > 0


@pytest.fixture
def gated(encoder: Encoder) -> GatedEncoder:
    return GatedEncoder(encoder)


@pytest.fixture
def gated_gateway(spanned: SearchStack, gated: GatedEncoder) -> Iterator[str]:
    with gateway_to(spanned.engine, gated, max_window=300) as url:
        yield url


def test_an_encoder_that_fails(spanned: SearchStack, gated_gateway: str, gated: GatedEncoder) -> None:
    gated.fails = True
    for body in ({"knn": knn_clause("nnn")}, native(spanned, {"query_text": CATS})):
        refused = search(gated_gateway, spanned.index, body)
        assert refused.status == 500
        assert "out of memory" in refused.reason


def test_an_encoder_that_hangs(
    spanned: SearchStack, gated_gateway: str, gated: GatedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_ttc.serving.knn.retrieval._ENCODING_SECONDS", 0.1)
    gated.gate.clear()
    refused = search(gated_gateway, spanned.index, {"knn": knn_clause("nnn")})
    assert refused.status == 503
    assert "0.1 s" in refused.reason


class Misbehaving(DenseRetriever):
    """Returns what no retriever may."""

    scores: Sequence[float] = ()
    error: Exception | None = None

    async def retrieve(self, query: Query, search: Search, k: int, params: DenseRetrieverParams) -> Retrieved:
        if self.error is not None:
            raise self.error
        found = await super().retrieve(query, search, k, params)
        scores = found.scores.copy()
        scores[: len(self.scores)] = self.scores
        return Retrieved(found.documents, scores)


@pytest.mark.parametrize(
    ("scores", "error", "reason"),
    [
        ((float("nan"),), None, "one finite score a document"),
        ((0.1, 0.9), None, "never rising"),
        ((), ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_retriever_that_misbehaves(
    spanned: SearchStack, monkeypatch: pytest.MonkeyPatch, scores: Sequence[float], error: Exception | None, reason: str
) -> None:
    retriever = Misbehaving()
    retriever.scores, retriever.error = scores, error
    monkeypatch.setattr(registry, "load", lambda _: retriever)
    reply = asked(spanned, knn_clause("dense"))
    monkeypatch.undo()
    assert_native(reply, spanned, reason)
