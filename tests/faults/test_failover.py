"""A node that the gateway is pointed at dies while others of its cluster live: everything goes on through those."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.addresses import EngineAddress, NodePool
from es_ttc.engine.connect import connected
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import EngineSettings, GatewaySettings
from tests.serving.client import call
from tests.serving.conftest import make_index
from tests.support.cluster import Cluster
from tests.support.dropping import dropping_node
from tests.support.gateway import gateway_to

INDEX = "test-failover"
SEARCH = {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {"method": "spectral", "timeout": "30s"}}}


@pytest.fixture(scope="module")
def cluster(encoder: Encoder) -> Iterator[Cluster]:
    running = Cluster("opensearch")
    try:
        running.start_second()
        make_index(running.first, INDEX, encoder)
        call(running.first, "PUT", f"/{INDEX}/_settings", {"index": {"number_of_replicas": 1}})
        running.wait(status="green")
        yield running
    finally:
        running.remove()


@pytest.mark.engine
def test_the_death_of_a_node_is_not_noticed(cluster: Cluster, encoder: Encoder) -> None:
    engine = f"{cluster.second},{cluster.first}"
    with (
        gateway_to(engine, encoder) as gateway,
        gateway_to(cluster.second, encoder) as alone,
    ):
        before = call(gateway, "POST", f"/{INDEX}/_search", SEARCH)
        assert before.json()["ttc"]["applied"] is True
        _kill(cluster.second)
        assert call(alone, "GET", "/").status == 503
        for number in range(20):
            after = call(gateway, "POST", f"/{INDEX}/_search", SEARCH)
            assert (after.ids, after.scores) == (before.ids, before.scores)
            assert after.json()["ttc"]["applied"] is True
            assert call(gateway, "PUT", f"/{INDEX}/_doc/new{number}", {"number": number}).status == 201
            assert call(gateway, "GET", f"/{INDEX}/_count").status == 200
        assert call(gateway, "GET", "/_ttc/ready").json()["engine"] is True
        asyncio.run(_through_the_client(engine))


async def _through_the_client(engine: str) -> None:
    """The command line's client writes and reads through the node that is left, too."""
    async with connected(EngineSettings(engine=engine)) as client:
        for number in range(6):
            await client.request("PUT", f"/{INDEX}/_doc/more{number}", body={"number": number})
        await client.refresh(INDEX)
        assert await client.count(INDEX) >= 66


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


def _kill(url: str) -> None:
    port = int(url.rpartition(":")[2])
    [process] = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.laddr and found.laddr.port == port and found.status == "LISTEN"
    }
    assert process is not None
    os.kill(process, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(process)] if psutil.pid_exists(process) else [], timeout=10)


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
