"""What a rescored search may search: several indices, aliases, wildcards, other clusters, items of an `_msearch`."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import Reply, call, search
from tests.serving.conftest import Behind, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, corpus, in_memory, ours


def test_several_indices_in_one_search(engine_url: str, index_name: str, behind: Behind, encoder: Encoder) -> None:
    make_index(engine_url, index_name, encoder)
    body = {"query": EVERYTHING, "size": 120, "rescore": ours() | {"window_size": 120}}
    reply = search(behind.gateway, f"{index_name},{behind.index}", body)
    expected = in_memory(encoder, behind.spec, "spectral", [CATS])
    hits = [(hit["_index"], hit["_id"]) for hit in reply.json()["hits"]["hits"]]
    assert len(set(hits)) == 120
    for (_, one), score in zip(hits, reply.scores, strict=True):
        if one != WITHOUT_TEXT:
            assert score == pytest.approx(expected[one], abs=1e-4)


def test_every_item_of_an_msearch_stands_alone(behind: Behind) -> None:
    native = {"query": EVERYTHING, "size": 2}
    bodies: list[dict[str, Any]] = [
        native | {"rescore": ours()},
        native,
        native | {"rescore": {"ttc": {"metod": 1}}},
        native | {"rescore": ours("dense")},
        native | {"sort": ["number"], "rescore": ours()},
    ]
    lines = [line for body in bodies for line in ({"index": behind.index}, body)]
    reply = call(behind.gateway, "POST", "/_msearch", lines)
    assert reply.status == 200
    first, second, third, fourth, fifth = reply.json()["responses"]
    single = search(behind.gateway, behind.index, bodies[0])
    assert [hit["_id"] for hit in first["hits"]["hits"]] == single.ids
    assert first["ttc"]["applied"] is True
    assert "ttc" not in second
    assert [hit["_id"] for hit in second["hits"]["hits"]] == search(behind.engine, behind.index, native).ids
    assert third["status"] == 400
    assert "did you mean [method]?" in third["error"]["reason"]
    assert [hit["_id"] for hit in fourth["hits"]["hits"]] == search(behind.gateway, behind.index, bodies[3]).ids
    assert fifth["status"] == 400
    only = call(behind.gateway, "POST", f"/{behind.index}/_msearch", b'{}\n{"rescore":{"ttc":3}}\n')
    assert only.json()["responses"][0]["status"] == 400


def test_aliases_and_wildcards(behind: Behind, index_name: str) -> None:
    call(behind.engine, "POST", "/_aliases", {"actions": [{"add": {"index": behind.index, "alias": index_name}}]})
    body = {"query": EVERYTHING, "rescore": ours()}
    expected = search(behind.gateway, behind.index, body).json()["hits"]
    assert search(behind.gateway, index_name, body).json()["hits"] == expected
    assert search(behind.gateway, behind.index[:-1] + "*", body).json()["hits"] == expected
    actions = {"actions": [{"remove": {"index": behind.index, "alias": index_name}}]}
    assert call(behind.gateway, "POST", "/_aliases", actions).status == 200


def test_an_alias_filter_hides_its_documents(behind: Behind, index_name: str) -> None:
    only = {"add": {"index": behind.index, "alias": index_name, "filter": {"range": {"number": {"lt": 30}}}}}
    call(behind.engine, "POST", "/_aliases", {"actions": [only]})
    body = {"query": EVERYTHING, "size": 10, "rescore": ours()}
    ids = [one for start in (0, 10, 20, 30) for one in search(behind.gateway, index_name, body | {"from": start}).ids]
    assert sorted(ids) == sorted(document["_id"] for document in corpus() if document["number"] < 30)
    call(behind.engine, "POST", "/_aliases", {"actions": [{"remove": {"index": behind.index, "alias": index_name}}]})


def test_hits_of_another_cluster_leave_the_local_ones_scored(engine_url: str, index_name: str, behind: Behind) -> None:
    """The node is a remote cluster of its own, under the name of the test's index."""
    call(engine_url, "PUT", f"/{index_name}/_doc/1?refresh=true", {"anyway": "creature"})
    [node] = call(engine_url, "GET", "/_nodes/transport").json()["nodes"].values()

    def connect(seeds: list[str] | None) -> Reply:
        settings = {"persistent": {f"cluster.remote.{index_name}.seeds": seeds}}
        return call(engine_url, "PUT", "/_cluster/settings", settings)

    try:
        connected = connect([node["transport_address"]])
        assert connected.status == 200, connected.body
        body = {"query": EVERYTHING, "size": 70, "rescore": ours()}
        local = search(behind.gateway, behind.index, body)
        both = search(behind.gateway, f"{behind.index},{index_name}:{index_name}", body)
        summary = both.json()["ttc"]
        assert (both.status, summary["applied"], summary["scored"]) == (200, True, 59), both.body
        assert f"{index_name}:{index_name}" in {hit["_index"] for hit in both.json()["hits"]["hits"][59:]}
        assert both.ids[:59] == local.ids[:59]
        alone = search(behind.gateway, f"{index_name}:{index_name}", body)
        assert (alone.status, alone.ids, alone.json()["ttc"]["applied"]) == (200, ["1"], False)
    finally:
        connect(None)
