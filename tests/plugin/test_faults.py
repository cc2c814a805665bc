"""Whatever happens to the sidecar, the first pass is answered in time, with a mark, and counted."""

import time
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from tests.plugin.conftest import CODED, DOC_VALUES, Plugged
from tests.plugin.test_rescore import applied
from tests.serving.client import Reply, call, search
from tests.serving.corpus import EVERYTHING, ttc_rescore
from tests.support.plugin import NOWHERE, Fault

PAUSE_SECONDS = 0.4
Right = Callable[[], Reply]


def _garbage(_: Right) -> Reply:
    return Reply(200, {"content-type": "text/html"}, b"<html>It works!</html>")


def _half(right: Right) -> Reply:
    whole = right()
    return Reply(whole.status, whole.headers, whole.body[: len(whole.body) // 2])


def _version(right: Right) -> Reply:
    whole = right()
    return Reply(200, whole.headers, cbor2.dumps(cbor2.loads(whole.body) | {"version": 2}))


def _hangs_up(_: Right) -> Reply:
    raise ConnectionError


def _sleeps(right: Right) -> Reply:
    time.sleep(1.5)
    return right()


def _no_permutation(right: Right) -> Reply:
    whole = cbor2.loads(right().body)
    return Reply(
        200, {}, cbor2.dumps(whole | {"order": [0] * len(whole.get("order", "x"))} if "order" in whole else {})
    )


def _away(_: Right) -> Reply:
    return call(NOWHERE, "GET", "/")  # as a gateway that was killed: the relay's connection breaks


FAULTS: list[tuple[Fault, str]] = [
    (_garbage, "protocol"),
    (_half, "protocol"),
    (_version, "protocol"),
    (_no_permutation, "protocol"),
    (_hangs_up, "unavailable"),
    (_away, "unavailable"),
    (_sleeps, "late"),
]


def first_pass(plugged: Plugged, index: str) -> list[str]:
    return search(plugged.url, index, {"query": EVERYTHING, "size": 60}).ids


def recovered(plugged: Plugged) -> None:
    """The sidecar is asked again after the breaker's pause."""
    time.sleep(PAUSE_SECONDS)
    assert applied(search(plugged.url, CODED, {"query": EVERYTHING, "rescore": ttc_rescore()})) == "true"


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=lambda one: getattr(one, "__name__", one))
def test_a_fault_leaves_the_first_pass(plugged: Plugged, fault: Fault, reason: str) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(timeout="500ms")}
    expected = first_pass(plugged, CODED)
    recovered(plugged)
    before, lines = plugged.stats(), plugged.node.log().count("\n")
    with plugged.sidecar.failing(fault):
        started = time.perf_counter()
        reply = search(plugged.url, CODED, body)
        assert time.perf_counter() - started < 5
        assert (reply.status, reply.ids) == (200, expected)
        assert applied(reply) == f"false; reason={reason}"
        assert reply.json()["_shards"]["failed"] == 0
        for _ in range(2 if reason == "late" else 10):
            assert search(plugged.url, CODED, body).ids == expected
        failed = search(plugged.url, CODED, body | {"rescore": ttc_rescore(timeout="500ms", on_error="fail")})
        assert failed.status == 503
    after = plugged.stats()
    assert after[reason] > before[reason]
    assert after["first_pass"] - before["first_pass"] == after["windows"] - before["windows"]
    if reason != "late":
        assert after["breaker_open"] > before["breaker_open"]
    recovered(plugged)
    # Two lines of ours at most, and the engine's own about the one search that asked to fail.
    said = plugged.node.log().splitlines()[lines:]
    assert len([line for line in said if "esttc.sidecar" in line]) <= 3
    assert len(said) < 100


def test_plugin_with_a_wrong_token_leaves_the_first_pass(plugged: Plugged) -> None:
    def refused(_: Right) -> Reply:
        return call(plugged.gateway, "POST", "/_ttc/score", b"", {"accept": "application/cbor"})

    with plugged.sidecar.failing(refused):
        reply = search(plugged.url, CODED, {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert applied(reply) == "false; reason=unauthorized"
    recovered(plugged)


def test_an_index_without_features(plugged: Plugged) -> None:
    index = "without-features"
    for number in range(3):
        call(plugged.url, "PUT", f"/{index}/_doc/{number}?refresh=true", {"kind": "animal", "number": number})
    reply = search(plugged.url, index, {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert (reply.status, applied(reply)) == (200, "false; reason=no_features")
    assert sorted(reply.ids) == ["0", "1", "2"]
    both = search(plugged.url, f"{CODED},{index}", {"query": EVERYTHING, "size": 100, "rescore": ttc_rescore()})
    assert both.status == 200
    assert len(both.ids) == 63
    # Someone else's fields of our names are no features.
    other = {"kind": "animal", "ttc": {"hash": "a text", "encoder": 7, "tokens": "another"}}
    call(plugged.url, "PUT", f"/{index}-of-another/_doc/1?refresh=true", other)
    foreign = search(plugged.url, f"{index}-of-another", {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert (foreign.status, foreign.ids, applied(foreign)) == (200, ["1"], "false; reason=no_features")
    for name in (index, f"{index}-of-another"):
        call(plugged.url, "DELETE", f"/{name}")


def test_the_java_agent_of_opensearch_refuses_nothing(opensearch_plugged: Plugged) -> None:
    """All tests here run under it, as clusters of the official archive do."""
    [node] = call(opensearch_plugged.url, "GET", "/_nodes/jvm").json()["nodes"].values()
    assert any(argument.startswith("-javaagent:") for argument in node["jvm"]["input_arguments"])
    assert "SecurityException" not in opensearch_plugged.node.log()


def test_the_node_is_killed_and_comes_back(plugged: Plugged) -> None:
    """Features, pipelines and settings are there; the very first search is rescored."""
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    before = [search(plugged.url, index, body) for index in (CODED, DOC_VALUES)]
    stamped: dict[str, Any] = {"processors": [{"ttc": {}}]}
    assert call(plugged.url, "PUT", "/_ingest/pipeline/survives", stamped).status == 200
    call(plugged.url, "PUT", "/written-before?wait_for_active_shards=1", {"settings": {"final_pipeline": "survives"}})
    plugged.node.kill()
    plugged.node.restart()
    after = [search(plugged.url, index, body) for index in (CODED, DOC_VALUES)]
    assert [applied(reply) for reply in after] == ["true", "true"]
    assert [reply.ids for reply in after] == [reply.ids for reply in before]
    assert [reply.scores for reply in after] == [pytest.approx(reply.scores, abs=1e-4) for reply in before]
    assert plugged.stats()["applied"] == 2
    assert call(plugged.url, "PUT", "/written-before/_doc/1?refresh=true", {"text": "after it"}).status == 201
    assert call(plugged.url, "GET", "/written-before/_source/1").json()["ttc"] == {"state": "pending"}
    for path in ("/written-before", "/_ingest/pipeline/survives"):
        call(plugged.url, "DELETE", path)
