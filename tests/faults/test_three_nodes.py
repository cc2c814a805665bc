"""Three nodes of OpenSearch: they rank as one does, also while one is killed and returns; and the command for them."""

import asyncio
import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings
from tests.serving.client import call
from tests.serving.conftest import corpus, fill
from tests.support.cluster_searches import DFS, SEARCHES, WITHOUT_US
from tests.support.rankings import Ranking
from tests.support.three_nodes import ThreeNodes
from tests.support.verdicts import Verdict, verdict

pytestmark = pytest.mark.engine

NAME = f"tests-{os.getpid()}-up3"
ONE, THREE = (f"test-{shards}-{os.getpid()}" for shards in ("one-shard", "three-shards"))
TEXTS = ("a cat drinks milk before rain", "which animal hunts at night")
DOCUMENTS = 30
NOT_HERE = ("sira",)
"""A search that needs a language model."""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[ThreeNodes]:
    running = ThreeNodes(name=NAME, owned=False)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def es_ttc(capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*arguments: str) -> tuple[int, str, str]:
        status = run(["engine", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_they_rank_as_one_and_searches_survive_the_death_of_one(nodes: ThreeNodes, encoder: Encoder) -> None:
    asyncio.run(fill_and_link(nodes.urls[0], ONE, encoder, shards=1))
    asyncio.run(fill_and_link(nodes.urls[1], THREE, encoder, shards=3))
    call(nodes.urls[0], "PUT", f"/{THREE}/_settings", {"index": {"number_of_replicas": 1}})
    nodes.await_status()
    settings = GatewaySettings(engine=nodes.engine, port=0, default_timeout_ms=60_000)
    with (
        running_gateway(settings, load=lambda *_: encoder) as first,
        running_gateway(settings, load=lambda *_: encoder) as second,
    ):
        known = []
        for name, body_of in SEARCHES.items():
            for text in TEXTS if name not in NOT_HERE else ():
                one, three = (answered(first, index, body_of(text)) for index in (ONE, THREE))
                assert one.same(three), (name, text, one, three)
                known.append((name, body_of(text), one))
        engines_own = {json.dumps(body): right for name, body, right in known if name == WITHOUT_US}
        ends, found = threading.Event(), Counter[Verdict]()

        def client(gateway: str, start: int) -> list[object]:
            faults: list[object] = []
            for number in itertools.count(start):
                if ends.is_set():
                    return faults
                name, body, right = known[number % len(known)]
                first_pass = json.dumps({key: value for key, value in body.items() if key != "rescore"})
                reply = call(gateway, "POST", f"/{THREE}/_search?{DFS}", body)
                worth = verdict(reply.status, reply.json(), right, engines_own.get(first_pass))
                found[worth] += 1
                if worth.is_fault:
                    faults.append((name, worth, reply.body, right))
            raise AssertionError

        with ThreadPoolExecutor(2) as pool:
            clients = [pool.submit(client, gateway, start) for start, gateway in enumerate((first, second))]
            try:
                until_answered(found, 4)
                nodes.kill(1)
                until_answered(found, 10)
                nodes.restart()
                nodes.await_status()
            finally:
                ends.set()
            assert [fault for one in clients for fault in one.result()] == []
        assert found[Verdict.RIGHT] > found.total() / 2, found


def until_answered(found: "Counter[Verdict]", more: int) -> None:
    """Wait until the clients have so many more answers."""
    wanted, deadline = found.total() + more, time.monotonic() + 120
    while found.total() < wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


async def fill_and_link(url: str, index: str, encoder: Encoder, *, shards: int) -> None:
    """Make an index of a part of the corpus with its neighbour graph.

    Documents with equal scores in the first pass follow each other in another order where they are in other shards. So
    each text has a length of its own, and Lucene keeps lengths up to 40 tokens exactly.
    """
    documents = [{**one, "text": f"{one['text']}{' snow' * one['number']}"} for one in corpus()[:DOCUMENTS]]
    await fill(url, index, IndexSpec(encoder.identity, max_tokens=64), encoder, documents, shards)
    async with connected(EngineSettings(engine=url)) as engine:
        await build_graph(engine, index, GraphParams(degree=6, candidates=20))


def answered(gateway: str, index: str, body: dict[str, Any]) -> Ranking:
    """Return the ranking of a search that is answered in whole and by the method."""
    answer = call(gateway, "POST", f"/{index}/_search?{DFS}", body).json()
    assert not answer["_shards"]["failed"]
    assert answer.get("ttc", {"applied": True})["applied"], answer["ttc"]
    return Ranking.of(answer)


@pytest.mark.usefixtures("nodes")
def test_a_cluster_from_the_command_line(es_ttc: Command) -> None:
    up = ("up", "--name", NAME, "--nodes", "3", "--port", "0", "--json")
    status, out, err = es_ttc(*up)
    assert status == 0, err
    started = json.loads(out)
    assert started["reused"]
    urls = started["urls"]
    names = [NAME, f"{NAME}-2", f"{NAME}-3"]
    assert [node["name"] for node in started["nodes"]] == names
    assert started["url"] == urls[0]
    assert len(set(urls)) == 3
    for url in urls:
        health = call(url, "GET", "/_cluster/health").json()
        assert (health["number_of_nodes"], health["cluster_name"]) == (3, f"es-ttc-{NAME}")

    listed = json.loads(es_ttc("status", "--json")[1])
    [noted] = [one for one in listed["clusters"] if one["name"] == NAME]
    assert noted == {"name": NAME, "nodes": names, "urls": urls}
    assert f"of cluster {NAME}" in es_ttc("status")[1]
    assert "started" in es_ttc("logs", "--name", f"{NAME}-2")[1]
    for wrong in (("up", "--name", NAME, "--port", "0"), ("up", "--name", NAME, "--nodes", "2", "--port", "0")):
        status, _, err = es_ttc(*wrong)
        assert status == 1
        assert NAME in err

    index = {"settings": {"number_of_shards": 1, "number_of_replicas": 2}}
    assert call(urls[0], "PUT", "/kept", index).status == 200
    assert call(urls[1], "PUT", "/kept/_doc/1?refresh=true&wait_for_active_shards=3", {"text": "here"}).status == 201

    killed = psutil.Process(started["nodes"][0]["node"]["pid"])
    killed.kill()
    killed.wait(30)
    others = urls[1:]
    for url in others:
        assert until(url, "/kept/_doc/1")["_source"] == {"text": "here"}
        assert until(url, "/_cluster/health")["number_of_nodes"] in (2, 3)
    whole = json.loads(es_ttc(*up)[1])
    assert [node["reused"] for node in whole["nodes"]] == [False, True, True]

    for url in whole["urls"]:
        assert until(url, "/_cluster/health")["number_of_nodes"] == 3
        assert until(url, "/kept/_doc/1")["_source"] == {"text": "here"}
    dropped = json.loads(es_ttc("down", "--name", NAME, "--drop-data", "--json")[1])
    assert (dropped["stopped"], dropped["data_dropped"]) == (True, True)
    left = json.loads(es_ttc("status", "--json")[1])
    assert not [one for one in left["nodes"] if one["name"] in names]


def until(url: str, path: str) -> Any:
    """Return what is answered once the answer is no error: shards move and a master is elected meanwhile."""
    deadline = time.monotonic() + 60
    while True:
        try:
            reply = call(url, "GET", path)
            if reply.status == 200:
                return reply.json()
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)
