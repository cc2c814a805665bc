"""Late-interaction models through real engines: ingest, the rescore hook, and the library's own scores."""

import asyncio
import uuid
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from pydantic import SecretStr

from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SIDECAR_TOKEN, SearchStack, fill
from tests.serving.test_sidecar import answer, ask, first_pass, what_is_missing
from tests.support import late_models
from tests.support.late_models import DOCUMENTS, FORMS, QUERIES, Form
from tests.support.per_engine import PerEngine

ON_ONE_ENGINE = True

pytestmark = pytest.mark.slow

load = cache(lambda name, _folder: load_encoder(name))


@dataclass(frozen=True)
class Late:
    """A gateway with a model of each form, and an index of each; of one a second one with packed vectors."""

    engine: str
    gateway: str
    indices: dict[Form, str]
    packed: SearchStack


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Form, Path]:
    folder = tmp_path_factory.mktemp("late")
    return {form: late_models.late_model(form, folder / form) for form in FORMS}


@pytest.fixture(scope="session")
def all_late(models: dict[Form, Path]) -> Iterator[PerEngine[Late]]:
    with PerEngine(lambda engine: _late(engine, models)) as per_engine:
        yield per_engine


@pytest.fixture
def late(engine_url: str, all_late: PerEngine[Late]) -> Late:
    return all_late.of(engine_url)


@contextmanager
def _late(url: str, models: dict[Form, Path]) -> Iterator[Late]:
    """Token vectors are nested float32 vectors, so that nothing is rounded, except in the packed index."""
    indices: dict[Form, str] = {form: f"test-late-{uuid.uuid4().hex[:8]}" for form in FORMS}
    names = {form: f"{folder}@torch:float32" for form, folder in models.items()}
    documents = [{"_id": str(place), "text": text, "kind": "animal"} for place, text in enumerate(DOCUMENTS)]
    for form, index in indices.items():
        encoder = load(names[form], None)
        spec = IndexSpec(encoder.identity, text_fields=("text",), tokens="nested")
        asyncio.run(fill(url, index, spec, encoder, documents, shards=1))
    first, *others = names.values()
    packed = f"test-late-{uuid.uuid4().hex[:8]}"
    as_packed = IndexSpec(load(first, None).identity, text_fields=("text",))
    asyncio.run(fill(url, packed, as_packed, load(first, None), documents, shards=1))
    settings = GatewaySettings(
        engine=url,
        port=0,
        scoring_timeout_ms=20_000,
        encoder=first,
        encoders=tuple(others),
        max_window=100,
        sidecar_token=SecretStr(SIDECAR_TOKEN),
    )
    try:
        with running_gateway(settings, load=load) as gateway:
            yield Late(url, gateway, indices, SearchStack(url, gateway, packed, as_packed))
    finally:
        for index in (*indices.values(), packed):
            call(url, "DELETE", f"/{index}")


def scores(reply: Reply) -> list[float]:
    """Every document's score, in the corpus's order."""
    body = reply.json()
    assert body["ttc"]["applied"], body["ttc"]
    found = {hit["_id"]: hit["_score"] for hit in body["hits"]["hits"]}
    return [found[str(place)] for place in range(len(DOCUMENTS))]


def rescored(query: str, **section: Any) -> dict[str, Any]:
    own = {"window_size": 50, "ttc": {"query_text": query, **section}}
    return {"query": {"match_all": {}}, "rescore": own, "size": 50}


@pytest.mark.parametrize("form", FORMS)
def test_maxsim_is_the_librarys_own_score(form: Form, late: Late, models: dict[Form, Path]) -> None:
    library = late_models.library(models[form])
    encoded = library.encode_query(list(QUERIES))
    reference = library.similarity(encoded, library.encode_document(list(DOCUMENTS))).numpy()
    for query, sums, tokens in zip(QUERIES, reference, encoded, strict=True):
        found = scores(search(late.gateway, late.indices[form], rescored(query, method="maxsim")))
        # Theirs is a sum of cosines, ours their mean, shown as engines show a cosine.
        np.testing.assert_allclose(found, (1 + sums / len(tokens)) / 2, atol=1e-4)


def test_blend_takes_it_and_dense_is_the_mean_of_its_tokens(late: Late, models: dict[Form, Path]) -> None:
    index = late.indices["native"]
    blended = search(late.gateway, index, rescored(QUERIES[0], detail=True)).json()
    assert blended["ttc"]["signals"] == ["lexical", "dense", "spectral", "late_interaction"]
    by_itself = dict(enumerate(scores(search(late.gateway, index, rescored(QUERIES[0], method="maxsim")))))
    for hit in blended["hits"]["hits"]:
        signal = hit["_ttc"]["signals"]["late_interaction"]["score"]
        assert (1 + signal) / 2 == pytest.approx(by_itself[int(hit["_id"])], abs=1e-5)
    library = late_models.library(models["native"])
    rows = library.encode_document(list(DOCUMENTS), convert_to_numpy=True)
    (query,) = library.encode_query([QUERIES[0]], convert_to_numpy=True)
    means = np.stack([matrix.mean(axis=0) for matrix in [query, *rows]])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = scores(search(late.gateway, index, rescored(QUERIES[0], method="dense")))
    np.testing.assert_allclose(found, (1 + means[1:] @ means[0]) / 2, atol=1e-4)


def test_the_map_has_a_row_for_each_token_of_the_query_also_the_added_ones(late: Late) -> None:
    asked = rescored(QUERIES[0], method="maxsim", detail="map")
    punctuation = str(DOCUMENTS.index("...!"))  # the model keeps no vector of it, so nothing of it can be shown
    hits = search(late.gateway, late.indices["native"], asked).json()["hits"]["hits"]
    assert [hit["_id"] for hit in hits if "map" not in hit["_ttc"]] == [punctuation]
    for hit in hits:
        if hit["_id"] == punctuation:
            continue
        part, columns = hit["_ttc"]["map"]["late"], len(hit["_ttc"]["map"]["tokens"]["field"])
        rows = np.frombuffer(b64decode(part["values"]), np.uint8).reshape(len(part["query_tokens"]), columns)
        words = [word for word in part["query_tokens"] if word is not None]
        assert "".join(words) == QUERIES[0].replace(" ", "")
        assert len(words) < len(rows)
        step = (part["high"] - part["low"]) / 255
        found = np.maximum((part["low"] + rows * step).max(axis=1), part["elsewhere"]).mean()
        assert hit["_score"] * 2 - 1 == pytest.approx(found, abs=step)


def test_the_pooled_query_can_be_asked_for(late: Late) -> None:
    index = late.indices["native"]
    pooled = scores(search(late.gateway, index, rescored("dog", method="maxsim", params={"query": "pooled"})))
    tokens = scores(search(late.gateway, index, rescored("dog", method="maxsim", params={"query": "tokens"})))
    assert tokens == scores(search(late.gateway, index, rescored("dog", method="maxsim")))
    assert not np.allclose(pooled, tokens, atol=1e-3)


def test_spectral_and_knn_work(late: Late) -> None:
    index = late.indices["stanford"]
    assert len(set(scores(search(late.gateway, index, rescored("dog", method="spectral"))))) > 1
    clause = {"ttc": {"method": "dense"}, "query_text": "dog", "k": 3}
    opensearch = "x-elastic-product" not in call(late.gateway, "GET", "/").headers
    body: dict[str, Any] = (
        {"query": {"knn": {"ttc.vector": clause}}} if opensearch else {"knn": {"field": "ttc.vector", **clause}}
    )
    assert len(search(late.gateway, index, body).ids) == 3


def test_an_index_of_another_kind_is_refused(late: Late, engine_url: str) -> None:
    with running_gateway(
        GatewaySettings(engine=engine_url, port=0, encoder="minilm"), load=lambda name, _: load_encoder(name)
    ) as gateway:
        reply = search(gateway, late.indices["native"], rescored("dog", method="maxsim", on_error="fail"))
        assert reply.status == 400
        assert "was encoded by [native@" in reply.reason
        assert "late-" in reply.reason


def test_the_plugins_endpoints_serve_it(late: Late) -> None:
    index = late.packed.index
    documents, blobs = first_pass(late.packed)
    section = {"method": "maxsim", "query_text": QUERIES[0]}
    frame = {"version": 1, "deadline_ms": 20_000, "window_size": 100, "ttc": section, "documents": documents}
    found = answer(ask(late.gateway, frame))
    if "missing" in found:
        found = answer(ask(late.gateway, frame | {"features": what_is_missing(found, blobs)}))
    expected = search(late.gateway, index, rescored(QUERIES[0], method="maxsim"))
    assert found["final"] == pytest.approx(expected.scores, abs=1e-6)
    # The codec int4 rounds what the other index holds as it is: most for few components, as this model has.
    exact = scores(search(late.gateway, late.indices["native"], rescored(QUERIES[0], method="maxsim")))
    np.testing.assert_allclose(scores(expected), exact, atol=0.02)

    body = {"version": 1, "deadline_ms": 20_000, "index": index, "documents": [{"text": DOCUMENTS[0]}]}
    headers = {"authorization": f"Bearer {SIDECAR_TOKEN}", "accept": "application/cbor"}
    reply = call(late.gateway, "POST", "/_ttc/encode", cbor2.dumps(body), headers)
    (encoded,) = answer(reply)["documents"]
    assert encoded["ttc"]["encoder"] == late.packed.spec.encoder.key
    stored = {document["hash"]: blobs[document["hash"]] for document in documents}
    assert b64decode(encoded["ttc"]["tokens"]) == stored[encoded["ttc"]["hash"]]["ttc.tokens"]


def test_pooled_vectors_of_one_encoder_and_token_vectors_of_another(engine_url: str, models: dict[Form, Path]) -> None:
    """Blend's signals are those of the two encoders alone; their vectors have different numbers of components."""
    name = f"minilm|{models[FORMS[0]]}@torch:float32"
    dense, late, both = load("minilm", None), load(name.partition("|")[2], None), load(name, None)
    index, query = f"test-two-{uuid.uuid4().hex[:8]}", QUERIES[0]
    documents = [{"_id": str(place), "text": text, "kind": "animal"} for place, text in enumerate(DOCUMENTS)]
    spec = IndexSpec(both.identity, text_fields=("text",), tokens="nested")
    asyncio.run(fill(engine_url, index, spec, both, documents, shards=1))
    settings = GatewaySettings(engine=engine_url, port=0, scoring_timeout_ms=20_000, encoder=name)
    try:
        with running_gateway(settings, load=load) as gateway:
            found = call(gateway, "POST", f"/{index}/_search", rescored(query, detail=True)).json()
            near = call(gateway, "POST", f"/{index}/_search", rescored(query, method="dense")).json()
    finally:
        call(engine_url, "DELETE", f"/{index}")
    assert both.identity == EncoderIdentity.from_dict(both.identity.as_dict())
    assert (found["ttc"]["applied"], near["ttc"]["applied"]) == (True, True)
    assert found["ttc"]["signals"] == ["lexical", "dense", "spectral", "late_interaction"]
    pooled = dense.encode(list(DOCUMENTS)).pooled @ dense.encode([query], role="query").pooled[0]
    rows = late.encode([query], role="query").tokens[0]
    greatest = [(tokens @ rows.T).max(axis=0).mean() for tokens in late.encode(list(DOCUMENTS)).tokens]
    signals = {int(hit["_id"]): hit["_ttc"]["signals"] for hit in found["hits"]["hits"]}
    for place in range(len(DOCUMENTS)):
        assert signals[place]["dense"]["score"] == pytest.approx(pooled[place], abs=2e-3)
        assert signals[place]["late_interaction"]["score"] == pytest.approx(greatest[place], abs=2e-3)
    with pytest.raises(InvalidRequest, match="spans"):
        IndexSpec(both.identity, spans=(SpanGrid(10, 5),))
