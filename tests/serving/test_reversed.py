"""Documents as queries: made wherever documents are encoded, if the encoder distinguishes roles; read by programs."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from pydantic import SecretStr

from es_ttc.cli.app import run
from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.trained import ROLES
from es_ttc.engine.connect import connected
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest.encode import encode_documents, feature_fields
from es_ttc.index.mappings.calibration import calibrate
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.readers import unpack_feature
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.evaluation.plan import EvaluationPlan
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.programs.rescorers import LexicalParams, ProgramParams, rescorer_of
from es_ttc.settings import EngineSettings
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SIDECAR_TOKEN, fill
from tests.serving.writes.conftest import JSON, fill_pending, follow, unfollow
from tests.support.encoders import prompted
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine

TEXTS = (
    "The heron stands in shallow water. It waits for fish.",
    "Pumps move water uphill.\n\nA heron was seen near one of them.",
    "Rust compiles to machine code. Its borrow checker finds many errors.",
    "Fishing quotas were cut again. Boats stayed in the harbour.",
    "Rivers carry sediment to the sea. Gulls nest at their mouths.",
    "The compiler reports an error. Nobody reads it.",
)
DOCUMENTS = [{"_id": f"d{place}", "text": text} for place, text in enumerate(TEXTS)]
QUERIES = ("what does a heron eat", "compiler errors", "how do rivers end", "who may fish")
EVERYTHING: dict[str, Any] = {"match_all": {}}
READ = frozenset({Feature.POOLED, Feature.CHUNKS, Feature.REVERSED})
LACKING = "index [{name}] has none (no [ttc.reversed]): make the index anew with `es-ttc index create --chunks`"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompted")


@pytest.fixture(scope="module")
def two_roles(folder: Path) -> Encoder:
    """MiniLM with E5's prompts; it encodes each text once."""
    return CachedEncoder(prompted(folder / "model", query="query: ", document="passage: "), folder / "encodings")


@pytest.fixture(scope="module")
def spec(two_roles: Encoder) -> IndexSpec:
    return IndexSpec(two_roles.identity, text_fields=("text",), tokens="none", chunks=True, reversed=True)


@pytest.fixture(scope="module")
def gateways(two_roles: Encoder) -> Iterator[PerEngine[str]]:
    settings: dict[str, Any] = {"write_timeout_ms": 60_000, "sidecar_token": SecretStr(SIDECAR_TOKEN)}
    with PerEngine(lambda engine: gateway_to(engine, two_roles, **settings)) as per_engine:
        yield per_engine


@pytest.fixture
def gateway(engine_url: str, gateways: PerEngine[str]) -> str:
    return gateways.of(engine_url)


def rescored(gateway: str, index: str, method: str, query: str = QUERIES[0], **params: Any) -> Reply:
    section = {"method": method, "query_text": query, "params": params}
    return search(gateway, index, {"query": EVERYTHING, "size": 10, "rescore": {"window_size": 10, "ttc": section}})


def stored(url: str, index: str) -> dict[str, Float32]:
    """Return the documents as queries, as an index stores them."""
    call(url, "POST", f"/{index}/_refresh")
    body = {"query": EVERYTHING, "size": 100, "docvalue_fields": ["ttc.reversed"]}
    hits = call(url, "POST", f"/{index}/_search", body).json()["hits"]["hits"]
    blobs = {hit["_id"]: hit["fields"]["ttc.reversed"][0] for hit in hits if "fields" in hit}
    return {name: unpack_feature(Feature.REVERSED, b64decode(blob + "==")) for name, blob in blobs.items()}


def as_queries(encoder: Encoder, texts: tuple[str, ...] = TEXTS) -> Float32:
    return encoder.encode(texts, role="query", tokens=False).pooled


def literal_bidirzscore(encoder: Encoder) -> list[list[float]]:
    """B.1 word for word: of each query and document two z-scores along the queries, added."""
    questions = encoder.encode(QUERIES, role="query", tokens=False).pooled.astype(np.float64)
    found = [[0.0] * len(TEXTS) for _ in QUERIES]
    for place, text in enumerate(TEXTS):
        for role in ROLES:
            [document] = encoder.encode([text], role=role, tokens=False).pooled.astype(np.float64)
            column = [float(question @ document) for question in questions]
            mean = sum(column) / len(column)
            deviation = (sum((score - mean) ** 2 for score in column) / len(column)) ** 0.5
            for row, score in enumerate(column):
                found[row][place] += (score - mean) / deviation
    return found


async def calibrated(url: str, index: str, encoder: Encoder) -> Moments:
    async with connected(EngineSettings(engine=url)) as engine:
        return await calibrate(engine, index, QUERIES, encoder)


def test_programs_read_documents_as_queries(
    engine_url: str, gateway: str, index_name: str, two_roles: Encoder, spec: IndexSpec
) -> None:
    asyncio.run(fill(engine_url, index_name, spec, two_roles, DOCUMENTS, 1))
    moments = asyncio.run(calibrated(engine_url, index_name, two_roles))
    found = stored(engine_url, index_name)
    expected = as_queries(two_roles)
    assert sorted(found) == [document["_id"] for document in DOCUMENTS]
    np.testing.assert_allclose([found[document["_id"]] for document in DOCUMENTS], expected, atol=1e-6)

    # In memory: the same features, the same rescorers.
    features = encode_corpus([Document(one["_id"], "", one["text"]) for one in DOCUMENTS], spec, two_roles)
    assert features.reversed is not None
    queries = encode_queries(QUERIES, two_roles, tokens=False)
    whole = features.window(np.arange(len(TEXTS)), np.zeros(len(TEXTS), np.float32), READ)
    paper = LexicalParams(lexical="paper")
    for method in ("lexhybridrrf", "consensusrocchio"):
        rescorer = rescorer_of(method)
        reply = rescored(gateway, index_name, method, lexical="paper")
        scores = dict(zip(reply.ids, reply.scores, strict=True))
        ours = rescorer.score(queries[0], whole, paper)
        np.testing.assert_allclose([scores[name] for name in features.ids], ours, atol=1e-4)
        once = rescorer.score(queries[0], replace(whole, reversed=None), paper)
        assert not np.allclose(ours, once, atol=1e-3)

    bidirzscore = rescorer_of("bidirzscore")
    batch = bidirzscore.batch(queries, whole, ProgramParams())
    np.testing.assert_allclose(batch, literal_bidirzscore(two_roles), atol=1e-4)
    batch = bidirzscore.batch(queries, replace(whole, calibration=moments), ProgramParams())
    for query, row in zip(QUERIES, batch, strict=True):
        reply = rescored(gateway, index_name, "bidirzscore", query)
        scores = dict(zip(reply.ids, reply.scores, strict=True))
        np.testing.assert_allclose([scores[name] for name in features.ids], row - min(0, row.min()), atol=1e-4)


def test_program_over_an_index_without_query_side_vectors_is_refused(
    engine_url: str, gateway: str, index_name: str, two_roles: Encoder, spec: IndexSpec
) -> None:
    earlier = replace(spec, reversed=False)
    asyncio.run(fill(engine_url, index_name, earlier, two_roles, DOCUMENTS[:2], 1))
    for method in ("bidirzscore", "lexhybridrrf"):
        reply = rescored(gateway, index_name, method)
        told = reply.json()["ttc"]
        assert (reply.status, told["applied"]) == (200, False)
        assert told["reason"].startswith(f"method [{method}] compares the query with documents encoded as queries too")
        assert LACKING.format(name=index_name) in told["reason"]
    assert rescored(gateway, index_name, "covtriple").json()["ttc"]["applied"] is True

    # A plugin asks for both vectors, and is refused in the same words.
    features = [feature_fields(one, earlier) for one in encode_documents(DOCUMENTS[:2], earlier, two_roles)]
    documents = [
        {"hash": one["hash"], "encoder": spec.encoder.key, "score": 1.0, "index": "elsewhere"} for one in features
    ]
    frame = {
        "version": 1,
        "deadline_ms": 20_000,
        "window_size": 10,
        "ttc": {"method": "bidirzscore", "query_text": QUERIES[0]},
        "documents": documents,
    }
    first = cbor2.loads(score(gateway, frame).body)
    assert set(first["fields"]) == {"ttc.pooled", "ttc.reversed"}
    sent = {str(one["hash"]): {"ttc.pooled": b64decode(str(one["pooled"]))} for one in features}
    refused = score(gateway, frame | {"features": sent})
    assert refused.status == 503
    assert LACKING.format(name="elsewhere") in cbor2.loads(refused.body)["error"]["reason"]


def score(gateway: str, frame: dict[str, Any]) -> Reply:
    sent = {"content-type": "application/cbor", "accept": "application/cbor"}
    headers = sent | {"authorization": f"Bearer {SIDECAR_TOKEN}"}
    return call(gateway, "POST", "/_ttc/score", cbor2.dumps(frame), headers)


@pytest.mark.processors
def test_query_side_vectors_are_written_by_every_writer(
    engine_url: str, gateway: str, index_name: str, two_roles: Encoder, spec: IndexSpec
) -> None:
    asyncio.run(follow(engine_url, index_name, spec, "now"))
    try:
        source = {"text": TEXTS[0]}
        written = call(gateway, "PUT", f"/{index_name}/_doc/through?refresh=true", json.dumps(source).encode(), JSON)
        assert written.headers["x-ttc-encoded"] == "true"
        call(engine_url, "PUT", f"/{index_name}/_doc/around?refresh=true", {"text": TEXTS[1]})
        asyncio.run(fill_pending(engine_url, index_name, two_roles))
        found = stored(engine_url, index_name)
        np.testing.assert_allclose([found["through"], found["around"]], as_queries(two_roles, TEXTS[:2]), atol=1e-6)
        headers = {"authorization": f"Bearer {SIDECAR_TOKEN}", "content-type": "application/cbor"}
        frame = {"version": 1, "deadline_ms": 20_000, "index": index_name, "documents": [{"text": TEXTS[2]}]}
        reply = call(gateway, "POST", "/_ttc/encode", cbor2.dumps(frame), headers | {"accept": "application/cbor"})
        [encoded] = cbor2.loads(reply.body)["documents"]
        vector = unpack_feature(Feature.REVERSED, b64decode(encoded["ttc"]["reversed"]))
        np.testing.assert_allclose(vector, as_queries(two_roles, TEXTS[2:3])[0], atol=1e-6)
    finally:
        unfollow(engine_url, index_name)


def test_attach_with_chunks_adds_query_side_vectors(
    opensearch_url: str,
    gateways: PerEngine[str],
    index_name: str,
    folder: Path,
    two_roles: Encoder,
    spec: IndexSpec,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call(opensearch_url, "PUT", f"/{index_name}", {"mappings": {"properties": {"text": {"type": "text"}}}})
    call(opensearch_url, "PUT", f"/{index_name}/_doc/d0?refresh=true", {"text": TEXTS[0]})

    async def attached(new: IndexSpec | None = None) -> IndexSpec:
        async with connected(EngineSettings(engine=opensearch_url)) as engine:
            if new is not None:
                [source] = await Index.behind(engine, index_name)
                await attach_beside(engine, source, new, two_roles)
            return (await Indices.behind(engine, index_name)).only().spec

    asyncio.run(attached(replace(spec, reversed=False)))
    gateway = gateways.of(opensearch_url)
    reason = rescored(gateway, index_name, "bidirzscore").json()["ttc"]["reason"]
    assert reason.endswith(f"(no [ttc.reversed]): add them with `es-ttc attach {index_name} --chunks`")
    options = ["--engine", opensearch_url, "--encoder", f"{folder / 'model'}@onnx"]
    try:
        assert run(["attach", index_name, *options]) == 0
        assert not asyncio.run(attached()).reversed  # as it was: nothing is encoded again unasked
        assert run(["attach", index_name, *options, "--chunks"]) == 0
        assert asyncio.run(attached()).reversed
        assert rescored(gateway, index_name, "bidirzscore").json()["ttc"]["applied"] is True
    finally:
        run(["detach", index_name, "--yes", "--engine", opensearch_url])
        capsys.readouterr()


def test_evaluation_makes_query_side_vectors_for_methods_that_read_them(two_roles: Encoder, encoder: Encoder) -> None:
    document = Document("d", "", TEXTS[0])
    collection = Collection("one", "test", (document,), {"q": QUERIES[0]}, {"q": {"d": 1}})
    for methods, one, chunks, made in (
        ("bidirzscore", two_roles, False, True),
        ("lexhybridrrf", two_roles, True, True),
        ("covtriple", two_roles, True, False),
        ("bidirzscore", encoder, False, False),
    ):
        spec = EvaluationPlan(tuple(resolve([methods]))).spec(collection, one)
        assert (spec.chunks, spec.reversed) == (chunks, made)
        assert ("reversed" in feature_fields(encode_documents([document.source], spec, one)[0], spec)) == made


def test_texts_of_a_rerank_request_are_encoded_in_both_roles(two_roles: Encoder) -> None:
    with gateway_to("http://127.0.0.1:9", two_roles, rerank_timeout_ms=60_000) as url:
        reply = call(url, "POST", "/_ttc/rerank", {"query": QUERIES[1], "documents": TEXTS, "model": "bidirzscore"})
    scores = {result["index"]: result["relevance_score"] for result in reply.json()["results"]}
    question = two_roles.encode([QUERIES[1]], role="query", tokens=False).pooled[0]
    both = (two_roles.encode(TEXTS, tokens=False).pooled + as_queries(two_roles)) @ question
    np.testing.assert_allclose([scores[place] for place in range(len(TEXTS))], both - min(0, both.min()), atol=1e-4)
