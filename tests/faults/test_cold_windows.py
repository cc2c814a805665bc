"""Many windows of long documents at once, none in memory: a small node survives, and every search is answered."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineUnavailable
from es_ttc.index.ingest.encode import DocumentFeatures, action_lines, token_features
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.readers import marked
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings, Settings
from tests.serving.client import Reply, call, search
from tests.support.gateway import gateway_to
from tests.support.memory import data_folder

pytestmark = pytest.mark.engine

INDEX = "cold-windows"
DOCUMENTS = 120
TOKENS = 1024
AT_ONCE = 16
"""Windows of 50 MB: together twice the node's heap."""


@pytest.fixture(scope="module")
def filled(encoder: Encoder) -> Iterator[str]:
    """The address of a node of 384 MB, started again after the writing: its heap holds nothing of that."""
    name = f"cold-{uuid.uuid4().hex[:6]}"
    spec = NodeSpec(Settings().cache_dir, name, 0, data_folder(name), heap="384m", owned=True, short_lived=True)
    with process.start_node(spec) as written:
        fill(written.url, encoder)
    node = process.start_node(spec)
    try:
        healthy = call(node.url, "GET", f"/_cluster/health/{INDEX}?wait_for_status=green&timeout=60s")
        assert healthy.status == 200
        yield node.url
    finally:
        node.stop(drop_data=True)


def fill(node: str, encoder: Encoder) -> None:
    spec = IndexSpec(encoder.identity, text_fields=("text",))
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((TOKENS, encoder.identity.dims)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    tokens = token_features(matrix, np.zeros((TOKENS, 3), np.int32), spec)

    async def write_all() -> None:
        async with connected(EngineSettings(engine=node)) as engine:
            await create_index(engine, INDEX, spec, IndexOptions(shards=1, replicas=0))
            for start in range(0, DOCUMENTS, 3):
                lines: list[bytes] = []
                for number in range(start, start + 3):
                    content = marked(f"hash{number}", spec.layout)
                    features = DocumentFeatures(content, matrix[0], tokens, truncated=False)
                    source = orjson.dumps({"text": f"document {number}", "number": number})
                    lines += action_lines(str(number), source, "", features, spec)
                await write(engine, lines)
            await engine.refresh(INDEX)

    asyncio.run(write_all())


async def write(engine: Engine, lines: list[bytes]) -> None:
    """Write documents, again where the node's circuit breaker counts memory that is yet to be collected."""
    for _ in range(100):
        try:
            items = await engine.bulk(INDEX, lines)
        except EngineUnavailable:
            await asyncio.sleep(0.3)
            continue
        assert all(item.ok for item in items)
        return
    raise AssertionError("the node takes no documents")


def windows_at_once(engine: str, encoder: Encoder, timeout: str) -> list[Reply]:

    def asked(url: str) -> Reply:
        ttc = {"method": "maxsim", "query_text": "which cat drinks milk?", "timeout": timeout}
        body = {"query": {"match_all": {}}, "size": 5, "rescore": {"window_size": DOCUMENTS, "ttc": ttc}}
        for _ in range(20):
            reply = search(url, INDEX, body)
            if reply.status != 429:  # the node's own answer to a first pass while its heap is yet to be collected
                break
            time.sleep(0.3)
        return reply

    with gateway_to(engine, encoder, feature_cache_mb=0) as url, ThreadPoolExecutor(AT_ONCE) as clients:
        replies = list(clients.map(asked, [url] * AT_ONCE))
        metrics = call(url, "GET", "/_ttc/metrics").body.decode()
    assert "es_ttc_feature_reads_capacity_bytes 2.5165824e+07" in metrics  # a sixteenth of the heap
    assert "es_ttc_feature_reads_waiting 0.0" in metrics
    return replies


@pytest.mark.parametrize("timeout", ["1500ms", "40s"])
def test_a_small_node_survives_and_every_search_is_rescored_or_marked(
    filled: str, encoder: Encoder, timeout: str
) -> None:
    replies = windows_at_once(filled, encoder, timeout)
    for reply in replies:
        assert reply.status == 200, reply.body
        told = reply.json()["ttc"]
        assert told["applied"] or "budget" in told["reason"] or "engine answered 429" in told["reason"], told
    applied = [reply.json()["ttc"]["applied"] for reply in replies]
    assert any(applied) or timeout != "40s"
    assert call(filled, "GET", "/_cluster/health").status == 200
