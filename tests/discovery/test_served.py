"""From a search to the gateway in front of a real engine: what is served scores as what was measured."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.discovery.evaluator import Limits
from es_ttc.lab.discovery.evaluator import run as sandboxed
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.tokens import Float32
from tests.discovery.conftest import BEES
from tests.discovery.test_promotion import BEGIN, CALIBRATED, WORDS
from tests.serving.client import Reply, call
from tests.serving.conftest import fill

NAMES = {"words-first": WORDS, "usual": CALIBRATED}
SAMPLE = ("what do bees eat", "how fast is a train", "hashing of keys", "when was Rome built")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs of a recorded search, promoted."""
    home = tmp_path_factory.mktemp("served")
    recording = home / "recording.jsonl"
    recording.write_text("\n".join(json.dumps({"source": one, "origin": "replay"}) for one in NAMES.values()))
    search, folder = str(home / "search"), home / "programs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_TTC_CACHE_DIR", str(home / "cache"))
        assert run(["discover", "run", search, *BEGIN, "--proposer", str(recording)]) == 0
        for place, name in enumerate(NAMES, 1):
            assert run(["discover", "promote", search, f"g00{place}", "--as", name, "--to", str(folder), "--yes"]) == 0
    return folder


def test_a_promoted_program_is_served_as_it_was_measured(
    opensearch_url: str, index_name: str, encoder: Encoder, programs: Path, bees: DiscoveryTask, tmp_path: Path
) -> None:
    spec = IndexSpec(encoder.identity, text_fields=("text",), tokens="none", codec="float16", chunks=True)
    documents = [{"_id": document.id, "text": document.text} for document in BEES.documents]
    asyncio.run(fill(opensearch_url, index_name, spec, encoder, documents))
    settings = GatewaySettings(engine=opensearch_url, port=0, scoring_timeout_ms=20_000, programs=programs)

    def asked(gateway: str, name: str, text: str) -> Reply:
        section = {"method": "program", "params": {"name": name}, "query_text": text, "detail": True}
        body: dict[str, Any] = {"query": {"match_all": {}}, "rescore": {"ttc": section}}
        return call(gateway, "POST", f"/{index_name}/_search", body)

    def served(gateway: str, name: str) -> Float32:
        rows = []
        for text in bees.query_texts:
            reply = asked(gateway, name, text)
            assert reply.status == 200, reply.body
            assert reply.json()["ttc"]["applied"], reply.body
            assert {hit["_ttc"]["program"] for hit in reply.json()["hits"]["hits"]} == {name}
            by_id = dict(zip(reply.ids, reply.scores, strict=True))
            rows.append([by_id[one] for one in bees.document_ids])
        return np.array(rows, np.float32)

    with running_gateway(settings, load=lambda _name, _folder: encoder) as gateway:
        (ran,) = sandboxed(WORDS, [bees], Limits())
        np.testing.assert_allclose(served(gateway, "words-first"), ran.scores, rtol=1e-5)
        lacking = asked(gateway, "usual", "insects")
        assert (lacking.status, lacking.json()["ttc"]["applied"]) == (200, False)
        assert f"`es-ttc calibrate queries {index_name} --queries FILE`" in lacking.json()["ttc"]["reason"]
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(SAMPLE))
    arguments = ["calibrate", "queries", index_name, "--queries", str(queries), "--engine", opensearch_url]
    assert run([*arguments, "--encoder", "minilm@onnx"]) == 0
    sample = encoder.encode(SAMPLE, role="query", tokens=False).pooled
    (ran,) = sandboxed(CALIBRATED, [replace(bees, sample=sample)], Limits())
    shifted = ran.scores - np.minimum(ran.scores.min(axis=1, keepdims=True), 0)
    with running_gateway(settings, load=lambda _name, _folder: encoder) as gateway:
        np.testing.assert_allclose(served(gateway, "usual"), shifted, atol=1e-3)
