"""Encoders behind a server: here one that runs MiniLM on ONNX Runtime and speaks as vLLM does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pytest

from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.windows import InputWindow
from es_ttc.errors import ConfigurationError, EncoderError
from tests.support.servers import server_beside

TEXTS = ["A cat sleeps on the sofa.", "", "Owls hunt at night. " * 40]


@dataclass
class Server:
    """What it is asked, and how it answers.

    Attributes:
        url: Its base URL.
        asked: Paths and numbers of inputs.
        answer: What it says in place of vectors, where that is not None.
    """

    model: Any
    url: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    answer: Any = None

    def vectors(self, path: str, body: dict[str, Any]) -> Any:
        nothing = np.zeros((0, 2), np.int32)
        windows = [InputWindow(ids, [0] * len(ids), nothing, 0) for ids in body["input"]]
        found = self.model.run(windows, role="document", tokens=True)
        if path == "/pooling":
            return {"data": [{"index": n, "data": one.tokens.tolist()} for n, one in enumerate(found)][::-1]}
        return {"data": [{"index": n, "embedding": one.pooled.tolist()} for n, one in enumerate(found)]}


@pytest.fixture
def server(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    local: Any = load_encoder("minilm@onnx")
    state = Server(local._model)

    def answer(path: str, raw: bytes) -> tuple[int, Any]:
        body = orjson.loads(raw)
        state.asked.append((path, len(body["input"])))
        return (200, state.vectors(path, body)) if state.answer is None else state.answer

    with server_beside(answer) as url:
        state.url = f"{url}/v1"
        monkeypatch.setenv("ES_TTC_ENCODER_URL", state.url)
        yield state


def test_vectors_and_identity_are_those_of_the_model_itself(server: Server) -> None:
    local, remote = load_encoder("minilm@onnx"), load_encoder("minilm@vllm")
    assert remote.identity == local.identity
    here, there = local.encode(TEXTS), remote.encode(TEXTS)
    np.testing.assert_allclose(there.pooled, here.pooled, atol=1e-6)
    for one, other in zip(there.tokens, here.tokens, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for spans, others in zip(there.offsets, here.offsets, strict=True):
        np.testing.assert_array_equal(spans, others)


def test_pooled_vectors_alone_need_no_token_vectors(server: Server) -> None:
    remote = load_encoder("minilm@vllm")
    server.asked.clear()
    remote.encode(["a text"] * 70, tokens=False)
    assert sorted(server.asked) == [("/v1/embeddings", 6), ("/v1/embeddings", 32), ("/v1/embeddings", 32)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((400, {"error": {"message": "task not supported"}}), "task not supported"),
        ((200, {"data": []}), "no vectors in the form"),
        ((200, {"data": [{"index": 0, "embedding": [[1.0]], "data": [1.0]}]}), "no vectors in the form"),
        ((200, {"data": [{"index": 0, "embedding": [1.0] * 384, "data": [[1.0] * 384]}]}), "another number of token"),
    ],
)
def test_an_invalid_answer_of_the_server_is_an_error(server: Server, answer: Any, why: str) -> None:
    remote = load_encoder("minilm@vllm")
    server.answer = answer
    with pytest.raises(EncoderError, match=why):
        remote.encode(["a text of several tokens"])


def test_another_model_is_refused(server: Server) -> None:
    server.answer = (200, {"data": [{"index": 0, "embedding": [1.0] * 768}]})
    with pytest.raises(ConfigurationError, match="another model"):
        load_encoder("minilm@vllm")


def test_without_an_address_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ES_TTC_ENCODER_URL", raising=False)
    with pytest.raises(ConfigurationError, match="ES_TTC_ENCODER_URL"):
        load_encoder("minilm@vllm")
