"""What becomes of stored features when nodes restart, copies are made and others write: kept, or missed and mended."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from es_ttc.common.files import make_folder, remove
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.engine.node import account, process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import fill_attached
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.side_index import attach_beside
from es_ttc.index.ingest import DeadLetterList, Documents, IngestResult, Inputs, encode_documents, ingest
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.fields import carried
from es_ttc.index.mappings.index import IndexOptions, create_index, index_body
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import ENCODER, HASH, ROOT, SPAN_VECTOR, VECTOR, IndexSpec, SpanGrid
from es_ttc.rescorers.base import Feature
from es_ttc.settings import EngineSettings, Settings
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors
from tests.conftest import PRODUCTS
from tests.serving.client import call, search
from tests.support import shared_nodes
from tests.support.gateway import gateway_to
from tests.support.memory import data_folder
from tests.support.shared_nodes import await_licence

STORAGE: dict[str, dict[str, Any]] = {
    "recovery-packed": {"spans": (SpanGrid(10, 5),)},
    "recovery-int2": {"codec": "int2"},
    "recovery-nested": {"tokens": "nested"},
}
CACHE = Settings().cache_dir
SHORT = "recovery-short"
MANY, FEW = 60, 4  # so few that an engine replays operations rather than copies files: below a tenth

pytestmark = pytest.mark.engine

Features = dict[str, dict[str, bytes | None]]


def texts(start: int, stop: int, animal: str = "cat") -> list[dict[str, Any]]:
    return [
        {"_id": str(n), "title": f"Tale {n}", "text": f"The {animal} drinks {n} bowls."} for n in range(start, stop)
    ]


LATER = texts(MANY - FEW // 2, MANY + FEW // 2, "owl")


async def write(engine: Engine, index: str, encoder: Encoder, documents: list[dict[str, Any]]) -> IngestResult:
    letters = DeadLetterList()
    outcome = await ingest(engine, index, Inputs([Documents(documents)]), encoder, dead_letters=letters)
    assert not letters.letters
    return outcome


async def features_in(engine: Engine, index: str, spec: IndexSpec, **params: str) -> Features:
    """Every document's hash, encoder and features, as the copy that params choose gives them."""
    wanted = sorted(carried(spec))
    reader = reader_of(spec.layout)
    asked = reader.request(wanted)
    query = reader.query({"match_all": {}}, wanted, (await engine.capabilities()).product)
    body = {
        **asked,
        "query": query,
        "docvalue_fields": [*asked.get("docvalue_fields", ()), HASH, ENCODER],
        "size": 1000,
    }
    found: Features = {}
    for hit in (await engine.search(index, body, **params))["hits"]["hits"]:
        fields = hit.get("fields", {})
        read = {feature: reader.read(hit, feature) for feature in wanted}
        found[hit["_id"]] = {name: str(fields[name]).encode() if name in fields else None for name in (HASH, ENCODER)}
        found[hit["_id"]] |= {feature: None if one is None else as_bytes(one.value) for feature, one in read.items()}
    return found


def as_bytes(value: Any) -> bytes:
    match value:
        case TokenVectors(values=array) | ScaleNorms(values=array) | (array, _):
            return bytes(array.tobytes())
        case _:
            return bytes(value.tobytes())


async def nearest(engine: Engine, index: str, encoder: Encoder, field: str, **params: str) -> str:
    """The document that the engine's kNN finds first by a vector field."""
    text = f"{LATER[-1]['title']} {LATER[-1]['text']}"
    vector = encoder.encode([text], role="query", tokens=False).pooled[0].tolist()
    if (await engine.capabilities()).product == "elasticsearch":
        body: dict[str, Any] = {"knn": {"field": field, "query_vector": vector, "k": 5, "num_candidates": 500}}
    else:
        body = {"query": {"knn": {field: {"vector": vector, "k": 5}}}}
        path = field.rpartition(".")[0]
        if path != ROOT:
            body = {"query": {"nested": {"path": path, "score_mode": "max", **body}}}
    answer = await engine.search(index, {**body, "_source": False}, **params)
    return str(answer["hits"]["hits"][0]["_id"])


async def copies(engine: Engine) -> list[dict[str, str]]:
    """The parameters that choose each node's copy."""
    return [{"preference": f"_only_nodes:{node}"} for node in (await engine.request("GET", "/_nodes/http"))["nodes"]]


class Cluster:
    """Two nodes with a repository for snapshots: the first is the master, the second only holds data."""

    def __init__(self, product: str) -> None:
        self.product = product
        self._name = f"tests-{os.getpid()}-{product[:4]}"
        self._repositories = account.base_folder(CACHE, account.run_as()) / f"{self._name}-repositories"
        self._second: process.Node | None = None
        trial = {} if product == "opensearch" else {"xpack.license.self_generated.type": "trial"}
        self._first = self._start("first", {"cluster.initial_master_nodes": f"{self._name}-first", **trial})
        if trial:
            await_licence(self.first)

    @property
    def first(self) -> str:
        """The first node's address."""
        return self._first.url

    def start_second(self) -> None:
        """Start the second node, with the data that it had."""
        [node] = call(self.first, "GET", "/_nodes/_local/transport").json()["nodes"].values()
        seed = node["transport"]["publish_address"]
        self._second = self._start("second", {"discovery.seed_hosts": seed, "node.roles": "data"})
        self.wait(nodes=2)

    def stop_second(self) -> None:
        """Stop the second node; its data stay."""
        assert self._second is not None
        self._second.stop()
        self.wait(nodes=1)

    def wait(self, **wanted: str | int) -> None:
        """Wait for `_cluster/health` to show a number of nodes, a status."""
        asked = urlencode({"timeout": "50s", **{f"wait_for_{name}": value for name, value in wanted.items()}})
        replies = (
            call(self.first, "GET", f"/_cluster/health?wait_for_no_relocating_shards=true&{asked}") for _ in "four"
        )
        assert any(reply.status == 200 for reply in replies), "the cluster does not get there"

    def remove(self) -> None:
        """Stop both nodes and drop what they wrote."""
        for part in ("second", "first"):
            process.stop(f"{self._name}-{part}", CACHE, drop_data=True)
        remove([process.node_folder(f"{self._name}-second", CACHE).path, self._repositories])

    def _start(self, part: str, extra: dict[str, str]) -> process.Node:
        account.give(make_folder(self._repositories), account.run_as())
        made: Any = shared_nodes.PRODUCTS[self.product]()
        settings = {
            **made.settings(),
            "cluster.name": self._name,
            "discovery.type": {"opensearch": "zen", "elasticsearch": "multi-node"}[self.product],
            "discovery.seed_hosts": "",
            "path.repo": str(self._repositories),
            **extra,
        }
        made.settings = lambda: settings
        name = f"{self._name}-{part}"
        spec = NodeSpec(CACHE, name, 0, data_folder(name), heap="512m", owned=True, short_lived=True)
        return process.start_node(spec, distribution=made)


@pytest.fixture(scope="module", params=PRODUCTS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(request.param)
    yield made
    made.remove()


async def test_copies_restarts_and_snapshots_keep_every_feature(cluster: Cluster, encoder: Encoder) -> None:
    storage = dict(STORAGE)
    if cluster.product == "elasticsearch":  # under its trial licence
        storage["recovery-rank-vectors"] = {"tokens": "rank_vectors"}
    specs = {name: IndexSpec(encoder.identity, max_tokens=64, **chosen) for name, chosen in storage.items()}
    async with connected(EngineSettings(engine=cluster.first, request_timeout=120)) as engine:
        for name, spec in specs.items():
            await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))
            await write(engine, name, encoder, texts(0, MANY))
        before = {name: await features_in(engine, name, spec) for name, spec in specs.items()}
        for name, spec in specs.items():
            assert_right(before[name], spec, encoder)

        cluster.start_second()  # copies by files
        for name in specs:
            await engine.request("PUT", f"/{name}/_settings", body={"index": {"number_of_replicas": 1}})
        cluster.wait(status="green")
        for name, spec in specs.items():
            for copy in await copies(engine):
                assert await features_in(engine, name, spec, **copy) == before[name]

        cluster.stop_second()  # copies by replaying what was written meanwhile
        for name in specs:
            await write(engine, name, encoder, LATER)
        cluster.start_second()
        cluster.wait(status="green")
        after = {name: await features_in(engine, name, spec) for name, spec in specs.items()}
        for name, spec in specs.items():
            shards = (await engine.request("GET", f"/{name}/_recovery"))[name]["shards"]
            assert FEW in [shard["translog"]["recovered"] for shard in shards]  # Elasticsearch may copy files first
            assert all(None not in found.values() for found in after[name].values())
            for copy in await copies(engine):
                assert await features_in(engine, name, spec, **copy) == after[name]
                assert await nearest(engine, name, encoder, VECTOR, **copy) == LATER[-1]["_id"]
                if spec.spans:
                    assert await nearest(engine, name, encoder, SPAN_VECTOR, **copy) == LATER[-1]["_id"]

        if cluster.product == "opensearch":
            await why_the_recovery_source_is_kept(engine, cluster, encoder)

        repository = {"type": "fs", "settings": {"location": "all"}}
        await engine.request("PUT", "/_snapshot/all", body=repository)
        names = {"indices": ",".join(specs), "include_global_state": False}
        await engine.request("PUT", "/_snapshot/all/one", params={"wait_for_completion": "true"}, body=names)
        renamed = {**names, "rename_pattern": "(.+)", "rename_replacement": "$1-again"}
        await engine.request(
            "POST", "/_snapshot/all/one/_restore", params={"wait_for_completion": "true"}, body=renamed
        )
        for name, spec in specs.items():
            assert await features_in(engine, name, spec) == after[name]
            assert (await Index.own(engine, f"{name}-again")).spec == spec
            assert await features_in(engine, f"{name}-again", spec) == after[name]


async def why_the_recovery_source_is_kept(engine: Engine, cluster: Cluster, encoder: Encoder) -> None:
    """OpenSearch alone can leave fields out of what it replays for a copy: it then lacks them, and nobody is told."""
    spec = IndexSpec(encoder.identity, max_tokens=64)
    body = index_body(spec, await engine.capabilities(), IndexOptions(shards=1, replicas=0))
    body["mappings"]["_source"]["recovery_source_excludes"] = [ROOT]
    await engine.create_index(SHORT, body)
    await write(engine, SHORT, encoder, texts(0, 3))
    await engine.request("PUT", f"/{SHORT}/_settings", body={"index": {"number_of_replicas": 1}})
    cluster.wait(status="green")
    found = [await features_in(engine, SHORT, spec, **copy) for copy in await copies(engine)]
    lacking = [sum(None in document.values() for document in copy.values()) for copy in found]
    assert sorted(lacking) == [0, 3]
    await engine.delete_index(SHORT)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with its side index"])
async def test_an_attached_index_that_is_restored_needs_no_new_features(
    cluster: Cluster, encoder: Encoder, together: bool
) -> None:
    shop, snapshot = f"shop-{together}".lower(), f"/_snapshot/attached-{together}".lower()
    engine = await connect(EngineSettings(engine=cluster.first, request_timeout=120))
    waits = {"wait_for_completion": "true"}
    try:
        properties = {"title": {"type": "text"}, "text": {"type": "text"}}
        await engine.create_index(shop, {"mappings": {"properties": properties}})
        for document in texts(0, FEW):
            body = {field: document[field] for field in properties}
            await engine.request("PUT", f"/{shop}/_doc/{document['_id']}", params={"refresh": "true"}, body=body)
        spec = IndexSpec(encoder.identity, max_tokens=64)
        [source] = await Index.behind(engine, shop)
        await attach_beside(engine, source, spec, encoder)
        side = (await Indices.behind(engine, shop)).only().holder
        with gateway_to(cluster.first, encoder) as gateway:
            before = await asyncio.to_thread(rescored, gateway, shop)
            await engine.request("PUT", snapshot, body={"type": "fs", "settings": {"location": snapshot[11:]}})
            names = {"indices": f"{shop},{side.index}", "include_global_state": False}
            await engine.request("PUT", f"{snapshot}/one", params=waits, body=names)
            gone = [shop, side.index] if together else [shop]
            for name in gone:
                await engine.delete_index(name)
            chosen = {**names, "indices": ",".join(gone)}
            await engine.request("POST", f"{snapshot}/one/_restore", params=waits, body=chosen)
            assert await asyncio.to_thread(rescored, gateway, shop) == before
        [filled] = await fill_attached(engine, shop, encoder)
        assert (filled.written, filled.failed, filled.removed) == (0, 0, 0)
    finally:
        await engine.close()


def rescored(gateway: str, index: str) -> dict[str, float]:
    ours = {"window_size": 10, "ttc": {"method": "spectral", "query_text": "which cat?", "on_error": "fail"}}
    reply = search(gateway, index, {"query": {"match_all": {}}, "rescore": ours})
    ttc = reply.json()["ttc"]
    assert (ttc["scored"], ttc.get("stale")) == (FEW, None)
    return dict(zip(reply.ids, reply.scores, strict=True))


def assert_right(found: Features, spec: IndexSpec, encoder: Encoder) -> None:
    """What is read is what was made: to the bit, where numbers did not go through text."""
    documents = texts(0, MANY)
    for document, features in zip(documents, encode_documents(documents, spec, encoder), strict=True):
        assert features.tokens is not None
        read = found[document["_id"]]
        tokens = read[Feature.TOKENS]
        assert tokens is not None
        if spec.tokens == "packed":
            assert tokens == features.tokens.vectors.values.tobytes()
        else:
            written: Float32 = dequantise(features.tokens.vectors)
            np.testing.assert_allclose(np.frombuffer(tokens, np.float32).reshape(written.shape), written, atol=1e-6)
        assert read[Feature.NORMS] == features.tokens.norms.values.tobytes()
        assert read[Feature.OFFSETS] == features.tokens.offsets.tobytes()


@pytest.mark.parametrize("storage", [{"spans": (SpanGrid(10, 5),)}, {"tokens": "nested"}], ids=["packed", "nested"])
async def test_documents_that_others_overwrote_are_written_again(
    engine: Engine, index_name: str, encoder: Encoder, storage: dict[str, Any]
) -> None:
    spec = IndexSpec(encoder.identity, max_tokens=64, **storage)
    other = f"{index_name}-b"
    for name in (index_name, other):
        await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))
    await write(engine, index_name, encoder, texts(0, 6))
    before = await features_in(engine, index_name, spec)
    refresh = {"refresh": "true"}
    await engine.request("POST", f"/{index_name}/_update/1", params=refresh, body={"doc": {"price": 3}})
    some = {"query": {"ids": {"values": ["2", "3"]}}}
    await engine.request("POST", f"/{index_name}/_update_by_query", params=refresh, body=some)
    await engine.request(
        "POST", "/_reindex", params=refresh, body={"source": {"index": index_name}, "dest": {"index": other}}
    )
    for name, touched in ((index_name, {"1", "2", "3"}), (other, set(before))):
        found = await features_in(engine, name, spec)
        assert {one for one, features in found.items() if features[HASH] is None} == touched
        assert {one for one, features in found.items() if features[Feature.POOLED] is None} == touched
        assert (await contents(engine, name, spec)).lacking == len(touched)
        assert (await write(engine, name, encoder, texts(0, 6))).written == len(touched)
        assert await features_in(engine, name, spec) == before
        assert (await contents(engine, name, spec)).lacking == 0
