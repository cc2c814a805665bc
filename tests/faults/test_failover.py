"""A node that drops packets: everything goes on through the others. One that is killed: see test_three_nodes.py."""

import asyncio
import contextlib

import pytest

from es_ttc.engine.addresses import EngineAddress, NodePool
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import GatewaySettings
from tests.serving.client import call
from tests.support.dropping import dropping_node
from tests.support.gateway import gateway_to


@pytest.mark.engine
def test_a_node_that_drops_packets_hangs_nobody(opensearch_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("es_ttc.engine.http._CONNECT_SECONDS", 0.5)
    with dropping_node() as dropped, dropping_node() as another:
        nodes = f"{dropped},{opensearch_url},{another}"
        with gateway_to(nodes) as gateway:
            assert [call(gateway, "GET", "/_ttc/ready").json()["engine"] for _ in range(6)] == [True] * 6
        with gateway_to(nodes) as gateway:
            assert [call(gateway, "GET", "/_cat/health").status for _ in range(6)] == [200] * 6


@pytest.mark.engine
async def test_a_connection_that_is_given_up_counts_as_failed(opensearch_url: str) -> None:
    with dropping_node() as dropped:
        async with Upstream(GatewaySettings(engine=f"{dropped},{opensearch_url}")) as upstream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await upstream.product()
            for _ in range(3):  # a new connection to the node would take 3 s
                async with asyncio.timeout(0.9), upstream.send("GET", b"/", b"", [], None) as response:
                    assert response.status == 200


def test_nodes_that_failed_rest_longer_each_time_and_are_last() -> None:
    now = 100.0
    one, two = EngineAddress("http", "one", 9200), EngineAddress("http", "two", 9200)
    pool = NodePool([one, two], clock=lambda: now)
    assert {pool.order()[0], pool.order()[0]} == {one, two}  # in turn
    pool.failed(one)
    assert [pool.order()[0] for _ in range(4)] == [two] * 4
    assert pool.order()[1] == one  # still tried where no other answers
    now += 1.5
    assert one in {pool.order()[0], pool.order()[0]}
    pool.failed(one)
    pool.failed(one)
    now += 3
    assert [pool.order()[0] for _ in range(2)] == [two] * 2
    pool.answered(one)
    assert one in {pool.order()[0], pool.order()[0]}
