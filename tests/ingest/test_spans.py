"""Spans of real texts in real engines, found by the engines' own kNN."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, encode_documents, ingest
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import (
    SPAN_END,
    SPAN_FIELD,
    SPAN_POSITION,
    SPAN_SCALE,
    SPAN_START,
    SPAN_VECTOR,
    SPANS,
    IndexSpec,
    SpanGrid,
    TokenStorage,
)


@pytest.mark.parametrize("tokens", ["packed", "none"])
async def test_the_engine_finds_spans_and_where_they_stand(
    engine: Engine, index_name: str, encoder: Encoder, tokens: TokenStorage
) -> None:
    grids = (SpanGrid(3, 2), SpanGrid(10, 5))
    spec = IndexSpec(encoder.identity, tokens=tokens, spans=grids, max_tokens=128)
    await create_index(engine, index_name, spec)
    texts = ["The fox sleeps. " * 6 + "Bread is baked from flour. " + "The train leaves at noon. " * 6, "A fox.", ""]
    documents = [{"_id": str(n), "title": "Tales", "text": text} for n, text in enumerate(texts)]
    letters = DeadLetterList()
    inputs = Inputs([Documents([*documents, {"_id": "3"}])])
    await ingest(engine, index_name, inputs, encoder, dead_letters=letters)
    assert not letters.letters

    vector = encoder.encode(["baking bread"], role="query", tokens=False).pooled[0]
    shown = [SPAN_SCALE, SPAN_POSITION, SPAN_FIELD, SPAN_START, SPAN_END]
    inner = {"_source": False, "docvalue_fields": shown}
    if (await engine.capabilities()).product == "opensearch":
        knn = {"knn": {SPAN_VECTOR: {"vector": vector.tolist(), "k": 3}}}
        body: dict[str, Any] = {"query": {"nested": {"path": SPANS, "query": knn, "score_mode": "max"}}}
        body["query"]["nested"]["inner_hits"] = inner
    else:
        body = {"field": SPAN_VECTOR, "query_vector": vector.tolist(), "k": 3, "num_candidates": 50}
        body = {"knn": {**body, "inner_hits": inner}}
    hits = (await engine.search(index_name, body))["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["0", "2", "1"]
    assert hits[0]["_source"] == {"title": "Tales", "text": texts[0]}

    best = hits[0]["inner_hits"][SPANS]["hits"]["hits"][0]
    found = {name: values[0] for name, values in best["fields"].items()}
    assert "Bread is baked" in texts[0][found[SPAN_START] : found[SPAN_END]]
    assert found[SPAN_FIELD] == "text"
    [features] = encode_documents([{"title": "Tales", "text": texts[0]}], spec, encoder)
    assert features.spans is not None
    places = list(zip(features.spans.scales, features.spans.positions, strict=True))
    nearest = features.spans.vectors[places.index((found[SPAN_SCALE], found[SPAN_POSITION]))]
    assert best["_score"] == pytest.approx((1 + float(nearest @ vector)) / 2, abs=1e-5)
    assert best["_score"] == pytest.approx((1 + float((features.spans.vectors @ vector).max())) / 2, abs=1e-5)
