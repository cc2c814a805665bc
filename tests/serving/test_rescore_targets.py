"""What a rescored search may search: several indices, aliases, wildcards, other clusters, items of an `_msearch`."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, corpus, in_memory, ttc_rescore


def test_several_indices_in_one_search(engine_url: str, index_name: str, stack: SearchStack, encoder: Encoder) -> None:
    make_index(engine_url, index_name, encoder)
    body = {"query": EVERYTHING, "size": 120, "rescore": ttc_rescore() | {"window_size": 120}}
    reply = search(stack.gateway, f"{index_name},{stack.index}", body)
    expected = in_memory(encoder, stack.spec, "spectral", [CATS])
    hits = [(hit["_index"], hit["_id"]) for hit in reply.json()["hits"]["hits"]]
    assert len(set(hits)) == 120
    for (_, one), score in zip(hits, reply.scores, strict=True):
        if one != WITHOUT_TEXT:
            assert score == pytest.approx(expected[one], abs=1e-4)


def test_every_item_of_an_msearch_stands_alone(stack: SearchStack) -> None:
    native = {"query": EVERYTHING, "size": 2}
    bodies: list[dict[str, Any]] = [
        native | {"rescore": ttc_rescore()},
        native,
        native | {"rescore": {"ttc": {"metod": 1}}},
        native | {"rescore": ttc_rescore("dense")},
        native | {"sort": ["number"], "rescore": ttc_rescore()},
    ]
    lines = [line for body in bodies for line in ({"index": stack.index}, body)]
    reply = call(stack.gateway, "POST", "/_msearch", lines)
    assert reply.status == 200
    first, second, third, fourth, fifth = reply.json()["responses"]
    single = search(stack.gateway, stack.index, bodies[0])
    assert [hit["_id"] for hit in first["hits"]["hits"]] == single.ids
    assert first["ttc"]["applied"] is True
    assert "ttc" not in second
    assert [hit["_id"] for hit in second["hits"]["hits"]] == search(stack.engine, stack.index, native).ids
    assert third["status"] == 400
    assert "did you mean [method]?" in third["error"]["reason"]
    assert [hit["_id"] for hit in fourth["hits"]["hits"]] == search(stack.gateway, stack.index, bodies[3]).ids
    assert fifth["status"] == 400
    only = call(stack.gateway, "POST", f"/{stack.index}/_msearch", b'{}\n{"rescore":{"ttc":3}}\n')
    assert only.json()["responses"][0]["status"] == 400


def test_aliases_and_wildcards(stack: SearchStack, index_name: str) -> None:
    call(stack.engine, "POST", "/_aliases", {"actions": [{"add": {"index": stack.index, "alias": index_name}}]})
    body = {"query": EVERYTHING, "rescore": ttc_rescore()}
    expected = search(stack.gateway, stack.index, body).json()["hits"]
    assert search(stack.gateway, index_name, body).json()["hits"] == expected
    assert search(stack.gateway, stack.index[:-1] + "*", body).json()["hits"] == expected
    actions = {"actions": [{"remove": {"index": stack.index, "alias": index_name}}]}
    assert call(stack.gateway, "POST", "/_aliases", actions).status == 200


def test_an_alias_filter_hides_its_documents(stack: SearchStack, index_name: str) -> None:
    only = {"add": {"index": stack.index, "alias": index_name, "filter": {"range": {"number": {"lt": 30}}}}}
    call(stack.engine, "POST", "/_aliases", {"actions": [only]})
    body = {"query": EVERYTHING, "size": 10, "rescore": ttc_rescore()}
    ids = [one for start in (0, 10, 20, 30) for one in search(stack.gateway, index_name, body | {"from": start}).ids]
    assert sorted(ids) == sorted(document["_id"] for document in corpus() if document["number"] < 30)
    call(stack.engine, "POST", "/_aliases", {"actions": [{"remove": {"index": stack.index, "alias": index_name}}]})


def test_hits_of_another_cluster_leave_the_local_ones_scored(
    engine_url: str, index_name: str, stack: SearchStack
) -> None:
    """The node is a remote cluster of its own, under the name of the test's index."""
    call(engine_url, "PUT", f"/{index_name}/_doc/1?refresh=true", {"kind": "animal"})
    [node] = call(engine_url, "GET", "/_nodes/transport").json()["nodes"].values()

    def connect(seeds: list[str] | None) -> Reply:
        settings = {"persistent": {f"cluster.remote.{index_name}.seeds": seeds}}
        return call(engine_url, "PUT", "/_cluster/settings", settings)

    try:
        connected = connect([node["transport_address"]])
        assert connected.status == 200, connected.body
        body = {"query": EVERYTHING, "size": 70, "rescore": ttc_rescore()}
        local = search(stack.gateway, stack.index, body)
        both = search(stack.gateway, f"{stack.index},{index_name}:{index_name}", body)
        summary = both.json()["ttc"]
        assert (both.status, summary["applied"], summary["scored"]) == (200, True, 59), both.body
        assert f"{index_name}:{index_name}" in {hit["_index"] for hit in both.json()["hits"]["hits"][59:]}
        assert both.ids[:59] == local.ids[:59]
        alone = search(stack.gateway, f"{index_name}:{index_name}", body)
        assert (alone.status, alone.ids, alone.json()["ttc"]["applied"]) == (200, ["1"], False)
    finally:
        connect(None)
