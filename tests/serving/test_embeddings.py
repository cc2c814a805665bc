"""The endpoint for embeddings: OpenAI's form, the vectors of ingest and of searches, bounds."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder, Encodings, Role
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call
from tests.support.gateway import gateway_to

NOWHERE = "http://127.0.0.1:9"
TEXTS = ["Our trout swims.", "Which cat drinks milk?"]


class WithRoles:
    """An encoder whose queries have other vectors than documents, as with prompts."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.identity, self.backend = encoder.identity, encoder.backend

    def encode(self, texts: Any, *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024) -> Encodings:
        found = self._encoder.encode(texts, role=role, tokens=tokens, max_tokens=max_tokens)
        return found if role == "document" else replace(found, pooled=-found.pooled)


@pytest.fixture(scope="module")
def gateway(encoder: Encoder) -> Iterator[str]:
    """A gateway whose engine is not there: nothing of it is needed."""
    models = {"text-embedding-3-small": "minilm", "rerank-v3.5": "spectral"}
    options = GatewaySettings(engine=NOWHERE, port=0, model_names=models, rerank_timeout_ms=60_000)
    with running_gateway(options, load=lambda _name, _folder: WithRoles(encoder)) as url:  # type: ignore[arg-type,return-value]
        yield url


def embed(url: str, **body: Any) -> Reply:
    return call(url, "POST", "/_ttc/v1/embeddings", {"model": "minilm", "input": TEXTS} | body)


def vectors_of(reply: Reply) -> np.ndarray[Any, Any]:
    assert reply.status == 200, reply.body
    body = reply.json()
    assert (body["object"], [one["index"] for one in body["data"]]) == ("list", list(range(len(body["data"]))))
    return np.array([one["embedding"] for one in body["data"]], np.float32)


def test_vectors_are_those_of_ingest_and_of_queries(gateway: str, encoder: Encoder) -> None:
    expected = encoder.encode(TEXTS, tokens=False).pooled
    np.testing.assert_allclose(vectors_of(embed(gateway)), expected, atol=1e-6)
    for query in ("query", "search_query"):
        np.testing.assert_allclose(vectors_of(embed(gateway, input_type=query)), -expected, atol=1e-6)
    one = vectors_of(embed(gateway, input=TEXTS[1], model="text-embedding-3-small", user="me"))
    np.testing.assert_allclose(one, expected[1:], atol=1e-6)
    shown = embed(gateway, encoding_format="base64", dimensions=encoder.identity.dims).json()["data"]
    raw = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in shown]
    np.testing.assert_allclose(raw, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "rerank-v3.5"}, "[text-embedding-3-small]"),
        ({"input": ["x"] * 2049}, "[embeddings.input]"),
        ({"input": "x" * 100_001}, "[embeddings.input] 0"),
    ],
)
def test_embeddings_with_invalid_input_is_a_400(gateway: str, changes: dict[str, Any], words: str) -> None:
    reply = embed(gateway, **changes)
    assert (reply.status, words in reply.reason) == (400, True), reply.body


def test_a_token_protects_both_endpoints(encoder: Encoder) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/_ttc/v1/embeddings", {"model": "minilm", "input": TEXTS}),
        ("/_ttc/v2/rerank", {"query": "milk", "documents": TEXTS}),
        ("/_ttc/rerank", {"query": "milk", "texts": TEXTS}),
    ]
    with gateway_to(NOWHERE, encoder, model_token=SecretStr("secret"), rerank_timeout_ms=60_000) as url:
        for path, body in requests:
            for wrong in ({}, {"authorization": "Bearer other"}, {"authorization": "secret"}):
                reply = call(url, "POST", path, body, wrong)
                assert (reply.status, "model_token" in reply.reason) == (401, True), reply.body
            assert call(url, "POST", path, body, {"authorization": "Bearer secret"}).status == 200
