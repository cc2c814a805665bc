"""The greatest window there is, 10,000 documents: all of them scored, whatever of them the memory holds."""

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.engine.connect import connected
from es_ttc.index.ingest.compose import FieldSpan, content_hash
from es_ttc.index.ingest.encode import Encoded, action_lines, document_features
from es_ttc.index.mappings.index import IndexOptions, index_body
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.settings import EngineSettings
from es_ttc.vectors.tokens import Float32
from tests.serving.client import search
from tests.serving.corpus import CATS
from tests.support.gateway import gateway_to

DOCUMENTS = 10_000


@pytest.fixture
async def vectors(opensearch_url: str, index_name: str, encoder: Encoder) -> Float32:
    """An index of documents with random vectors, one token each; with nothing for kNN, which takes most of a minute."""
    rng = np.random.default_rng(3)
    spec = IndexSpec(encoder.identity, scales=(1,))
    tokens = rng.standard_normal((DOCUMENTS, 1, encoder.identity.dims)).astype(np.float32)
    tokens /= np.linalg.norm(tokens, axis=2, keepdims=True)
    pooled: Float32 = tokens[:, 0]
    offsets = [np.zeros((1, 2), dtype=np.int32)] * DOCUMENTS
    encodings = Encodings(pooled=pooled, tokens=list(tokens), offsets=offsets, truncated=np.zeros(DOCUMENTS, bool))
    hashes = [content_hash(str(place), [FieldSpan(0, 0, len(str(place)))], spec) for place in range(DOCUMENTS)]
    features = document_features(Encoded(encodings), [[]] * DOCUMENTS, hashes, spec)
    async with connected(EngineSettings(engine=opensearch_url)) as engine:
        body = index_body(spec, await engine.capabilities(), IndexOptions(shards=2, replicas=0))
        body["mappings"]["properties"][ROOT]["properties"]["vector"] = {"type": "object", "enabled": False}
        await engine.create_index(index_name, body)
        for start in range(0, DOCUMENTS, 500):
            lines: list[bytes] = []
            for place in range(start, start + 500):
                lines += action_lines(str(place), b'{"text":"all"}', "digest", features[place], spec)
            assert all(item.ok for item in await engine.bulk(index_name, lines))
        await engine.refresh(index_name)
    return pooled


def test_window_of_ten_thousand_documents_is_rescored(
    opensearch_url: str, index_name: str, encoder: Encoder, vectors: Float32
) -> None:
    query = encoder.encode([CATS], role="query", tokens=False).pooled[0]
    expected = shown_similarity(vectors @ query)
    rescore = {"window_size": DOCUMENTS, "ttc": {"method": "dense", "query_text": CATS}}
    body = {"query": {"match_all": {}}, "rescore": rescore}
    for memory_mb in (512, 1):  # one window of pooled vectors is 15 MB
        with gateway_to(
            opensearch_url, encoder, max_window=DOCUMENTS, scoring_timeout_ms=60_000, feature_cache_mb=memory_mb
        ) as gateway:
            cold, warm = (search(gateway, index_name, body | {"size": 20}) for _ in range(2))
            last = search(gateway, index_name, body | {"from": DOCUMENTS - 20, "size": 20})
        for reply in (cold, warm, last):
            assert reply.status == 200, reply.body
            assert reply.json()["ttc"]["scored"] == reply.json()["ttc"]["window"] == DOCUMENTS
        kept = warm.json()["ttc"]["features_from_memory"]
        assert kept == DOCUMENTS if memory_mb == 512 else kept < DOCUMENTS / 10
        order = np.argsort(-expected, kind="stable")
        for reply, best in ((cold, order[:20]), (warm, order[:20]), (last, order[-20:])):
            assert reply.scores == pytest.approx(expected[best].tolist(), abs=1e-5)
            assert {int(one) for one in reply.ids} == set(best.tolist())
