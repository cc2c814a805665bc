"""An index of vectors on each engine, made without an encoder: a graph depends on vectors alone."""

import base64
from collections.abc import AsyncIterator, Mapping

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.packed import pack_tokens
from es_ttc.vectors.tokens import Float32, TokenVectors

DIMS = 16
SPEC = IndexSpec(EncoderIdentity("made", "1", DIMS, 64), text_fields=("text",), tokens="none")


def vectors(count: int, seed: int = 0) -> Float32:
    """Return unit vectors around a few centres, as texts have them."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((12, DIMS))
    rows = centres[generator.integers(0, 12, count)] + 0.7 * generator.standard_normal((count, DIMS))
    unit: Float32 = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


async def put(engine: Engine, index: str, documents: Mapping[str, tuple[str, Float32]]) -> None:
    """Write documents as ingest does: id -> content hash and vector."""
    lines = []
    for identifier, (content, vector) in documents.items():
        ttc = {
            "hash": content,
            "encoder": SPEC.encoder.key,
            "state": "ready",
            "vector": vector.tolist(),
            "pooled": base64.b64encode(pack_tokens(TokenVectors(vector[np.newaxis]))).decode(),
        }
        lines += [orjson.dumps({"index": {"_id": identifier}}), orjson.dumps({"text": identifier, "ttc": ttc})]
    for start in range(0, len(lines), 1000):
        assert all(item.ok for item in await engine.bulk(index, lines[start : start + 1000]))
    await engine.refresh(index)


@pytest.fixture
async def corpus(engine: Engine, index_name: str) -> AsyncIterator[str]:
    """An index of 600 documents, and afterwards none of its graphs."""
    from es_ttc.reranking.index_graph import delete_graphs

    await create_index(engine, index_name, SPEC, IndexOptions(shards=2, replicas=0))
    await put(engine, index_name, {f"d{at}": (f"h{at}", row) for at, row in enumerate(vectors(600))})
    yield index_name
    await delete_graphs(engine, index_name)
