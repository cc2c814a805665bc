"""Another encoder takes over while searches go on: each is answered by the one or by the other, none fails."""

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.encoders.registry import load_encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import attach_beside
from es_ttc.index.mappings.indices import Index, sides_of
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import attach
from tests.attach.test_beside import ask
from tests.attach.test_knn import find
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True


async def test_searches_get_the_old_encoder_or_the_new_one(
    engine: Engine, engine_url: str, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    other = load_encoder("minilm@onnx", dims=128)
    new = replace(spec, encoder=other.identity)
    await attach(engine, shop, spec, encoder)
    found: list[tuple[str, dict[str, Any]]] = []
    by_knn: list[tuple[str, dict[str, Any]]] = []
    ended = threading.Event()

    def search_all_the_time(gateway: str) -> None:
        while not ended.is_set():
            reply = ask(gateway, shop, size=40)
            found.append((str(reply.status), reply.json()))
            near = find(gateway, shop, "nnn", k=40, ttc={"on_error": "fail", "params": {"exact": True}})
            by_knn.append((str(near.status), near.json()))

    # A memory too small for a window: features are read anew at every search, out of the index that may be going.
    with gateway_to(engine_url, encoder, encoder="minilm@onnx", feature_cache_mb=0) as gateway:
        expected = {encoder.identity.key: ask(gateway, shop)}
        searchers = [threading.Thread(target=search_all_the_time, args=(gateway,)) for _ in range(3)]
        for searcher in searchers:
            searcher.start()
        try:
            for wanted, with_encoder in [(new, other), (spec, encoder)] * 2:
                [source] = await Index.behind(engine, shop)
                await attach_beside(engine, source, wanted, with_encoder)
                expected.setdefault(wanted.encoder.key, await asyncio.to_thread(ask, gateway, shop))
                await asyncio.sleep(0.3)
        finally:
            ended.set()
            for searcher in searchers:
                searcher.join()
    assert len(await sides_of(engine, shop)) == 1
    by_encoder = {key: dict(zip(reply.ids, reply.scores, strict=True)) for key, reply in expected.items()}
    assert len(by_encoder) == 2
    served: Counter[str] = Counter()
    for status, answer in found:
        assert status == "200", answer
        ttc = answer["ttc"]
        assert (ttc["applied"], ttc["scored"], ttc.get("stale")) == (True, 19, None)
        scores = {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}
        assert scores == pytest.approx(by_encoder[ttc["encoder"]], abs=1e-5)
        served[ttc["encoder"]] += 1
    assert set(served) == set(by_encoder)
    retrieved = Counter[str]()
    for status, answer in by_knn:
        assert status == "200", answer
        ttc = answer["ttc"]
        assert (ttc["applied"], ttc["retrieved"], ttc.get("stale")) == (True, 19, None)
        retrieved[ttc["encoder"]] += 1
    assert set(retrieved) == set(by_encoder)
