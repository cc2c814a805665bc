"""`es-ttc engine up --nodes 3`: one command for a cluster, which outlives one of its nodes and comes back whole."""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from es_ttc.cli.app import run
from es_ttc.engine.node import cluster, process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings
from tests.serving.client import call

pytestmark = pytest.mark.engine

NAME = f"tests-{os.getpid()}-up3"

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def _removed() -> Iterator[None]:
    yield
    process.stop(NAME, Settings().cache_dir, drop_data=True)


@pytest.fixture
def es_ttc(capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*arguments: str) -> tuple[int, str, str]:
        status = run(["engine", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_a_cluster_from_the_command_line(es_ttc: Command) -> None:
    spec = NodeSpec(Settings().cache_dir, NAME, 0, heap="384m", short_lived=True)
    assert not cluster.start(spec, 3).reused
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
