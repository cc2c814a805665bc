"""Requests at random from several clients for a while, beside one that only wants its answers.

ES_TTC_FUZZ_SECONDS makes it as long as wanted; ES_TTC_FUZZ_SEED repeats a run.
"""

import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http import protocol
from tests.faults.fuzz import attack
from tests.serving.client import call
from tests.serving.conftest import make_index
from tests.support.gateway import gateway_to

SECONDS = float(os.environ.get("ES_TTC_FUZZ_SECONDS", "8"))
ATTACKERS = 4
SEARCH = {
    "query": {"match": {"text": "cat"}},
    "rescore": {"window_size": 20, "ttc": {"method": "spectral", "timeout": "10s"}},
}


@pytest.fixture
def index(opensearch_url: str, encoder: Encoder, index_name: str) -> str:
    make_index(opensearch_url, index_name, encoder)
    return index_name


def test_no_request_harms_anybody_else(
    opensearch_url: str, encoder: Encoder, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_HEADER_SECONDS", 2)
    monkeypatch.setattr(protocol, "_MIN_BODY_RATE", 5000)
    seed = int(os.environ.get("ES_TTC_FUZZ_SEED", random.randrange(10**6)))
    with (
        gateway_to(opensearch_url, encoder, sidecar_token=SecretStr("a token")) as gateway,
        ProcessPoolExecutor(ATTACKERS, get_context("spawn")) as processes,
    ):
        expected = call(gateway, "POST", f"/{index}/_search", SEARCH).ids
        list(processes.map(attack, [gateway] * ATTACKERS, [index] * ATTACKERS, range(ATTACKERS), [0.0] * ATTACKERS))
        end = time.monotonic() + SECONDS
        attacks = [processes.submit(attack, gateway, index, seed + number, end) for number in range(ATTACKERS)]
        waits: list[float] = []
        while time.monotonic() < end:
            started = time.monotonic()
            reply = call(gateway, "POST", f"/{index}/_search", SEARCH)
            waits.append(time.monotonic() - started)
            assert reply.status == 200, (seed, reply.body[:500])
            if reply.json()["ttc"]["applied"]:
                assert reply.ids == expected
            time.sleep(0.02)
        sent = [one.result() for one in attacks]
        assert call(gateway, "GET", "/_ttc/ready").json()["ready"] is True
    defects = [defect for _, found in sent for defect in found]
    assert not defects, (seed, defects[:3])
    waits.sort()
    p99 = waits[int(len(waits) * 0.99)]
    print(f"seed {seed}: {sum(count for count, _ in sent)} requests, {len(waits)} answers, p99 {p99 * 1000:.0f} ms")  # noqa: T201
    assert p99 < 1.0, seed
