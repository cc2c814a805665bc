"""A trained encoder on the real engine: stored vectors are mapped, and scores are those of training."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.encoders.trained import TrainedEncoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderError
from es_ttc.index.attach import attach_beside
from es_ttc.index.ingest.encode import encode_documents
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.settings import EngineSettings
from es_ttc.vectors.quantise import dequantise
from tests.attach.conftest import put, remove_traces
from tests.serving.client import search
from tests.support.encoders import Watched
from tests.support.gateway import gateway_to
from tests.training.conftest import ASKED, NAME, TOOLS, write_seen

PENALTY = Penalty(0.05, 0.2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    """A trained encoder."""
    folder = tmp_path_factory.mktemp("trained")
    data, patch = write_seen(folder / "tools"), pytest.MonkeyPatch()
    patch.setenv("ES_TTC_CACHE_DIR", str(folder / "cache"))
    options = [
        "--metric",
        "ndcg@10",
        "--learning-rate",
        "0.01",
        "--l1",
        "0.05",
        "--l2",
        "0.2",
        "--epochs",
        "3",
        "--hidden",
        "64",
        "--steps",
        "10",
        "--batch",
        "4",
    ]
    assert run(["train", "nnn", str(data), "--out", str(folder / "made"), "--encoder", NAME, *options]) == 0
    patch.undo()
    assert json.loads((folder / "made" / "card.json").read_bytes())["course"]["best_epoch"] > 0
    return folder / "made"


@pytest.fixture
async def engine(opensearch_url: str) -> AsyncIterator[Engine]:
    client = await connect(EngineSettings(engine=opensearch_url))
    yield client
    await client.close()


@pytest.fixture
async def shop(engine: Engine, index_name: str) -> AsyncIterator[str]:
    """An index of somebody else's; one of its documents has no text."""
    mapping = {"dynamic": False, "properties": {"text": {"type": "text"}}}
    await engine.create_index(index_name, {"settings": {"index": {"number_of_replicas": 0}}, "mappings": mapping})
    await put(engine, index_name, {"nothing": {"price": 1}} | {t: {"text": f"{t}: {s}"} for t, s in TOOLS.items()})
    yield index_name
    await remove_traces(engine, index_name)


def exact(trained: Encoder, question: str, penalty: Penalty) -> dict[str, float]:
    """NNN's coefficients as training has them: offline, over the whole corpus."""
    texts = [f"{tool}: {text}" for tool, text in TOOLS.items()]
    documents = trained.encode(texts, tokens=False).pooled
    query = trained.encode([question], role="query", tokens=False).pooled[0]
    x = solve(Dictionary.of(documents), query, penalty).x
    return {tool: float(x[place]) for place, tool in enumerate(TOOLS) if x[place] > 0}


async def test_stored_vectors_are_mapped_and_serve_with_the_scores_of_training(
    engine: Engine, opensearch_url: str, shop: str, encoder: Encoder, made: Path
) -> None:
    grids = (SpanGrid(3, 2),)
    spec = IndexSpec(encoder.identity, text_fields=("text",), codec="float16", chunks=True, reversed=True, spans=grids)
    [source] = await Index.behind(engine, shop)
    await attach_beside(engine, source, spec, encoder)
    trained = load_encoder(f"{made}@onnx")
    assert isinstance(trained, TrainedEncoder)

    def none(texts: Any) -> None:
        raise EncoderError(f"{len(texts)} texts are encoded again")

    mapping = trained.over(lambda base: Watched(base, none))
    wanted = replace(spec, encoder=trained.identity)
    filled = await attach_beside(engine, source, wanted, mapping)
    assert (filled.carried, filled.written, filled.failed) == (len(TOOLS) + 1, 0, 0)
    assert (await attach_beside(engine, source, wanted, mapping)).written == 0

    # A document that has changed since is encoded, by the next fill.
    await put(engine, shop, {"weather": {"text": "weather: Tells of storms."}})
    again = await attach_beside(engine, source, wanted, trained)
    assert (again.written, again.carried) == (1, 0)
    await put(engine, shop, {"weather": {"text": f"weather: {TOOLS['weather']}"}})
    await attach_beside(engine, source, wanted, trained)

    with gateway_to(opensearch_url, trained, encoder=f"{made}@onnx") as gateway:
        for question in list(ASKED)[:4]:
            params = {"l1": PENALTY.l1, "l2": PENALTY.l2}
            section = {"method": "nnn", "query_text": question, "params": params, "detail": True}
            reply = search(gateway, shop, {"query": {"match_all": {}}, "size": 20, "rescore": {"ttc": section}})
            answer = reply.json()
            assert answer["ttc"]["applied"], answer
            expected = exact(trained, question, PENALTY)
            served = {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"][: len(expected)]}
            assert served == pytest.approx(expected, abs=1e-4)

    # What is mapped is what would have been written by encoding, but for the rounding of what was stored.
    features = (Feature.POOLED, Feature.TOKENS, Feature.NORMS, Feature.CHUNKS, Feature.REVERSED)
    reader = reader_of(wanted.layout)
    body = {"query": {"term": {"ttc.id": "music"}}, **reader.request(features)}
    body["docvalue_fields"] = [*body["docvalue_fields"], "ttc.hash"]
    [hit] = (await engine.search(side_alias(shop), body))["hits"]["hits"]
    [fresh] = encode_documents([{"text": f"music: {TOOLS['music']}"}], wanted, trained)
    assert hit["fields"]["ttc.hash"] == [fresh.hash]
    stored = {feature: found.value for feature in features if (found := reader.read(hit, feature))}
    assert fresh.pooled is not None
    assert fresh.tokens is not None
    assert fresh.chunks is not None
    assert fresh.reversed is not None
    assert trained.distinguishes_roles
    np.testing.assert_allclose(stored[Feature.POOLED], fresh.pooled, atol=1e-6)
    np.testing.assert_allclose(stored[Feature.REVERSED], fresh.reversed, atol=1e-6)
    tokens, norms = stored[Feature.TOKENS], stored[Feature.NORMS]
    np.testing.assert_allclose(dequantise(tokens), dequantise(fresh.tokens.vectors), atol=2e-3)
    np.testing.assert_allclose(norms.values, fresh.tokens.norms.values, atol=2e-3)
    for name, rows in fresh.chunks.vectors.items():
        np.testing.assert_allclose(dequantise(stored[Feature.CHUNKS].vectors[name]), dequantise(rows), atol=0.02)


def test_an_index_is_made_filled_and_searched_with_it(
    opensearch_url: str,
    index_name: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ES_TTC_ENGINE", opensearch_url)
    file = tmp_path / "tools.jsonl"
    file.write_text("\n".join(json.dumps({"_id": tool, "text": f"{tool}: {text}"}) for tool, text in TOOLS.items()))
    create = ["index", "create", index_name, "--encoder", f"{made}@onnx", "--tokens", "none", "--text-fields", "text"]
    assert run(create) == 0
    assert run(["ingest", index_name, str(file), "--encoder", f"{made}@onnx"]) == 0
    capsys.readouterr()
    assert run(["index", "show", index_name, "--json"]) == 0
    trained = load_encoder(f"{made}@onnx")
    assert json.loads(capsys.readouterr().out)["spec"]["encoder"] == trained.identity.as_dict()
    question = next(iter(ASKED))
    clause = {"ttc": {"method": "nnn", "params": {"exact": True}}, "query_text": question, "k": 8}
    with gateway_to(opensearch_url, trained, encoder=f"{made}@onnx", tuned=[made / "nnn.json"]) as gateway:
        answer = search(gateway, index_name, {"query": {"knn": {"ttc.vector": clause}}, "size": 8}).json()
        expected = exact(trained, question, PENALTY)
        served = {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"][: len(expected)]}
        assert served == pytest.approx(expected, abs=1e-4), answer
    plain = load_encoder(NAME)
    with gateway_to(opensearch_url, plain, encoder=NAME) as gateway:
        section = {"method": "nnn", "query_text": question}
        unranked = search(gateway, index_name, {"query": {"match_all": {}}, "rescore": {"ttc": section}})
        assert (unranked.status, unranked.json()["ttc"]["applied"]) == (200, False)
        assert trained.identity.key in unranked.json()["ttc"]["reason"]
        section["on_error"] = "fail"
        refused = search(gateway, index_name, {"query": {"match_all": {}}, "rescore": {"ttc": section}})
        assert refused.status == 400
        assert trained.identity.key in json.dumps(refused.json())
