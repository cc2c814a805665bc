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
from typing import Any, Literal

import pytest

from es_ttc.common.files import remove
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.node import cluster, process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph
from es_ttc.settings import EngineSettings, Settings
from tests.conftest import Outcome
from tests.serving.client import Reply, call
from tests.serving.conftest import fill
from tests.serving.corpus import corpus
from tests.support.gateway import gateway_to
from tests.support.memory import data_folder
from tests.support.own_node import free_ports, kill

pytestmark = pytest.mark.engine

NODES = 3
NAME = f"tests-{os.getpid()}-up3"
ONE, THREE, WRITTEN = (f"test-{what}-{os.getpid()}" for what in ("one-shard", "three-shards", "written"))
DOCUMENTS = 30
FIELDS = ["title", "text"]
TEXT = "a cat drinks milk before rain"
DFS = "search_type=dfs_query_then_fetch"

Body = dict[str, Any]
Scores = dict[str, float]

FIRST_PASS: Body = {"query": {"multi_match": {"query": TEXT, "fields": FIELDS}}, "size": 10, "_source": False}


def section(method: str, **params: Any) -> Body:
    """The scoring budget is generous: what is late for want of processors says nothing about a cluster."""
    return {"method": method, "query_text": TEXT, "timeout": "60s", "params": params}


def rescored(method: str, **params: Any) -> Body:
    return {**FIRST_PASS, "rescore": {"window_size": 100, "ttc": section(method, **params)}}


def retrieved(method: str, **params: Any) -> Body:
    clause = section(method, **params)
    text = clause.pop("query_text")
    return {"knn": {"field": "ttc.vector", "k": 10, "query_text": text, "ttc": clause}, "size": 10, "_source": False}


SEARCHES: dict[str, Body] = {
    "bm25": FIRST_PASS,
    **{method: rescored(method) for method in ("dense", "spectral", "nnn", "hybrid", "blend")},
    **{method: rescored(method, budget=50) for method in ("rr", "gar", "rgs")},
    **{f"knn:{method}": retrieved(method) for method in ("dense", "nnn", "softcentroid")},
    **{f"knn:{method}, exact": retrieved(method, exact=True) for method in ("dense", "nnn")},
    "rm3": {**FIRST_PASS, "query": {"ttc": section("rm3", text_fields=FIELDS, weight=0.5)}},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[cluster.Cluster]:
    try:
        yield start_nodes(free_ports(NODES))
    finally:
        process.stop(NAME, Settings().cache_dir, drop_data=True)
        if (folder := data_folder(NAME)) is not None:
            remove([folder])


def start_nodes(port: int) -> cluster.Cluster:
    """Start those nodes that do not run, on this port and the next ones."""
    spec = NodeSpec(Settings().cache_dir, NAME, port, data_folder(NAME), heap="384m", short_lived=True, timeout=400)
    return cluster.start_cluster(spec, NODES)


def await_status(url: str, status: str, nodes: int = NODES) -> None:
    """Wait for the indices that have copies."""
    asked = f"wait_for_status={status}&wait_for_nodes={nodes}&timeout=50s"
    reply = call(url, "GET", f"/_cluster/health/{THREE},{WRITTEN}?{asked}")
    assert reply.status == 200, reply.body


def test_three_nodes_rank_as_one_and_survive_the_death_of_one(nodes: cluster.Cluster, encoder: Encoder) -> None:
    urls = nodes.urls
    asyncio.run(fill_and_link(urls[0], ONE, encoder, shards=1))
    asyncio.run(fill_and_link(urls[1], THREE, encoder, shards=3))
    call(urls[0], "PUT", f"/{THREE}/_settings", {"index": {"number_of_replicas": 1}})
    shared = {"settings": {"number_of_shards": 3, "number_of_replicas": 1}}
    assert call(urls[0], "PUT", f"/{WRITTEN}", shared).status == 200
    await_status(urls[0], "green")
    with (
        gateway_to(",".join(urls), encoder, scoring_timeout_ms=60_000) as first,
        gateway_to(",".join(urls), encoder, scoring_timeout_ms=60_000) as second,
        gateway_to(urls[1], encoder) as alone,
    ):
        known = []
        for name, body in SEARCHES.items():
            one, three = (answered(first, index, body) for index in (ONE, THREE))
            assert same(one, three), (name, one, three)
            known.append((name, body, one))
        assert call(alone, "GET", "/").status == 200
        ends, found = threading.Event(), Counter[str]()

        def client(gateway: str, start: int) -> list[object]:
            faults: list[object] = []
            for number in itertools.count(start):
                if ends.is_set():
                    return faults
                name, body, right = known[number % len(known)]
                engines_own = known[0][2] if "rescore" in body else None
                reply = call(gateway, "POST", f"/{THREE}/_search?{DFS}", body)
                worth = verdict(reply, right, engines_own)
                found[worth] += 1
                if worth == "fault":
                    faults.append((name, reply.body, right))
            raise AssertionError

        with ThreadPoolExecutor(2) as pool:
            clients = [pool.submit(client, gateway, start) for start, gateway in enumerate((first, second))]
            try:
                until_answered(found, 4)
                kill(nodes.nodes[1])
                nodes.nodes[1].stop()  # what watched it
                until_answered(found, 10)
                await_status(urls[0], "yellow", NODES - 1)
                assert call(alone, "GET", "/").status == 503
                asyncio.run(everything_goes_on(first, f"{urls[1]},{urls[0]}", known[1][2]))
                again = start_nodes(int(urls[0].rpartition(":")[2]))
                assert (again.urls, [node.reused for node in again.nodes]) == (urls, [True, False, True])
                await_status(urls[0], "green")
            finally:
                ends.set()
            assert [fault for one in clients for fault in one.result()] == []
        assert found["right"] > found.total() / 2, found


async def everything_goes_on(gateway: str, engine: str, right: Scores) -> None:
    """Search, write and read through the gateway and the command line's client, both pointed at a dead node too."""
    for number in range(6):
        assert same(answered(gateway, THREE, SEARCHES["dense"]), right)
        assert call(gateway, "PUT", f"/{WRITTEN}/_doc/{number}", {"number": number}).status == 201
        assert call(gateway, "GET", f"/{WRITTEN}/_count").status == 200
    assert call(gateway, "GET", "/_ttc/ready").json()["engine"] is True
    async with connected(EngineSettings(engine=engine)) as client:
        for number in range(6, 12):
            await client.request("PUT", f"/{WRITTEN}/_doc/{number}", body={"number": number})
        await client.refresh(WRITTEN)
        assert await client.count(WRITTEN) == 12


def until_answered(found: Counter[str], more: int) -> None:
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


def answered(gateway: str, index: str, body: Body) -> Scores:
    """Return the ranking of a search that is answered in whole and by the method."""
    answer = call(gateway, "POST", f"/{index}/_search?{DFS}", body).json()
    assert not answer["_shards"]["failed"]
    assert answer.get("ttc", {"applied": True})["applied"], answer["ttc"]
    return scores_of(answer)


def scores_of(answer: Any) -> Scores:
    return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def same(one: Scores, other: Scores) -> bool:
    """Whether two rankings are equal; ties may stand in any order, and for one another at the end of the page."""
    last = min([*one.values(), *other.values()], default=0.0)
    pairs = [(one.get(name, last), other.get(name, last)) for name in one.keys() | other.keys()]
    if len(one) != len(other):
        return False
    return all(abs(a - b) <= 1e-4 for a, b in (*pairs, *zip(one.values(), other.values(), strict=True)))


def verdict(reply: Reply, right: Scores, engines_own: Scores | None) -> Literal["right", "marked", "fault"]:
    """Return what an answer is worth while nodes come and go.

    An error and a part of the shards must be the engine's, and another ranking than the right one must have a reason:
    the engine's own, where that is known, or one with some documents or methods left out.
    """
    answer = reply.json()
    if reply.status != 200:
        kind = answer["error"]["type"]
        return "fault" if kind.startswith("ttc_") else "marked"
    if answer["_shards"]["failed"] or answer["timed_out"]:
        return "marked"
    ranking, ttc = scores_of(answer), answer.get("ttc", {"applied": True})
    if ttc["applied"] and same(ranking, right):
        return "right"
    reasons = [part.get("reason") for part in (ttc, ttc.get("candidates", {}), *ttc.get("items", ()))]
    possible = ttc["applied"] or engines_own is None or same(ranking, engines_own)
    return "marked" if any(reasons) and possible else "fault"


@pytest.mark.usefixtures("nodes")
def test_a_cluster_from_the_command_line(es_ttc: Callable[..., Outcome]) -> None:
    up = ("up", "--name", NAME, "--nodes", "3", "--port", "0", "--json")
    status, out, err = es_ttc("engine", *up)
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

    listed = json.loads(es_ttc("engine", "status", "--json")[1])
    [noted] = [one for one in listed["clusters"] if one["name"] == NAME]
    assert noted == {"name": NAME, "nodes": names, "urls": urls}
    assert f"of cluster {NAME}" in es_ttc("engine", "status")[1]
    assert "started" in es_ttc("engine", "logs", "--name", f"{NAME}-2")[1]
    for wrong in (("up", "--name", NAME, "--port", "0"), ("up", "--name", NAME, "--nodes", "2", "--port", "0")):
        status, _, err = es_ttc("engine", *wrong)
        assert status == 1
        assert NAME in err

    index = {"settings": {"number_of_shards": 1, "number_of_replicas": 2}}
    assert call(urls[0], "PUT", "/kept", index).status == 200
    assert call(urls[1], "PUT", "/kept/_doc/1?refresh=true&wait_for_active_shards=3", {"text": "here"}).status == 201
    assert call(urls[2], "GET", "/kept/_doc/1").json()["_source"] == {"text": "here"}
    dropped = json.loads(es_ttc("engine", "down", "--name", NAME, "--drop-data", "--json")[1])
    assert (dropped["stopped"], dropped["data_dropped"]) == (True, True)
    left = json.loads(es_ttc("engine", "status", "--json")[1])
    assert not [one for one in left["nodes"] if one["name"] in names]
