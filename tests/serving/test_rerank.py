"""The rerank endpoint: Cohere's shape, as ml-commons sends it; the scores of a rescored search; bounds."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.admin.models import MAX_CHARACTERS
from tests.serving.client import Reply, call
from tests.serving.corpus import CATS, corpus, in_memory
from tests.support.gateway import gateway_to

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rerank-endpoint.md"
NOWHERE = "http://127.0.0.1:9"
JSON = {"content-type": "application/json"}
TEXTS = ["Our trout swims.", "Which cat drinks milk? Ours does.", "", "The owl sings before rain."]


@pytest.fixture(scope="module")
def gateway(encoder: Encoder) -> Iterator[str]:
    """A gateway whose engine is not there: nothing of it is needed."""
    with gateway_to(NOWHERE, encoder, rerank_timeout_ms=60_000, max_window=100) as url:
        yield url


def rerank(url: str, **body: Any) -> Reply:
    return call(url, "POST", "/_ttc/rerank", {"model": "spectral", "query": CATS, "documents": TEXTS} | body)


def scores_of(reply: Reply) -> dict[int, float]:
    assert reply.status == 200, reply.body
    return {result["index"]: result["relevance_score"] for result in reply.json()["results"]}


@pytest.mark.parametrize("model", ["spectral", "dense", "maxsim"])
def test_texts_score_as_the_documents_of_a_search_do(gateway: str, encoder: Encoder, model: str) -> None:
    stored_exactly = IndexSpec(encoder.identity, max_tokens=64, tokens="nested")
    expected = in_memory(encoder, stored_exactly, model, [CATS])
    documents = corpus()
    texts = [" ".join(filter(None, (document["title"], document["text"]))) for document in documents]
    got = scores_of(rerank(gateway, documents=texts, model=model))
    assert list(got.values()) == sorted(got.values(), reverse=True)
    by_id = {documents[place]["_id"]: score for place, score in got.items()}
    assert by_id.pop("d7") == 0
    assert by_id == pytest.approx(expected, abs=1e-3)  # norms are stored in a byte each


def test_a_request_of_ml_commons_through_the_connector_of_the_how_to_page(gateway: str) -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)]
    connector = next(block for block in blocks if "actions" in block)
    [action] = connector["actions"]
    # What `connector.pre_process.cohere.rerank` makes of a first pass: lists and numbers as JSON, text escaped.
    query = 'which "cat" drinks milk?'
    parameters = connector["parameters"] | {
        "endpoint": gateway,
        "query": json.dumps(query)[1:-1],
        "documents": json.dumps(TEXTS),
        "top_n": len(TEXTS),
    }
    names = {f"parameters.{name}": value for name, value in parameters.items()}
    url = Parameters(action["url"]).substitute(names)
    body = Parameters(action["request_body"]).substitute(names).encode()
    reply = call(gateway, action["method"], url.removeprefix(gateway), body, action["headers"])
    # What `connector.post_process.cohere.rerank` takes from the answer: a score for the index of every document.
    scores = scores_of(reply)
    assert sorted(scores) == list(range(len(TEXTS)))
    assert all(0 <= score <= 1 for score in scores.values())
    assert next(iter(scores)) == 1
    assert scores == scores_of(rerank(gateway, query=query))


def test_without_a_model_the_cross_encoder_judges(gateway: str) -> None:
    """In both forms of a request."""
    texts = ["Berlin has 3.7 million inhabitants.", "New York is big", ""]
    query = "how many people live in berlin"
    reply = call(gateway, "POST", "/_ttc/rerank", {"query": query, "documents": texts})
    scores = scores_of(reply)
    assert next(iter(scores)) == 0
    assert scores[0] > 0.99 > 0.01 > scores[1]
    plain = call(gateway, "POST", "/_ttc/rerank", {"query": query, "texts": texts})
    assert {one["index"]: one["score"] for one in plain.json()} == scores
    assert scores_of(rerank(gateway, query=query, documents=texts, model="msmarco-minilm")) == scores


class Parameters(Template):
    """`${parameters.name}`."""

    idpattern = r"[a-z_.]+"


def test_rerank_takes_objects_top_n_and_gzip(gateway: str) -> None:
    everything = scores_of(rerank(gateway))
    assert next(iter(everything)) == 1
    assert everything[2] == 0
    as_objects: list[Any] = [{"text": TEXTS[0]}, *TEXTS[1:]]
    best = rerank(gateway, documents=as_objects, top_n=2, return_documents=True).json()["results"]
    assert [result["document"]["text"] for result in best] == [TEXTS[result["index"]] for result in best]
    assert {result["index"]: result["relevance_score"] for result in best} == dict(list(everything.items())[:2])
    assert len(scores_of(rerank(gateway, top_n=99))) == len(TEXTS)
    assert scores_of(rerank(gateway, documents=["", "\u0007"])) == {0: 0, 1: 0}
    raw = gzip.compress(orjson.dumps({"model": "spectral", "query": CATS, "documents": TEXTS}))
    assert scores_of(call(gateway, "POST", "/_ttc/rerank", raw, JSON | {"content-encoding": "gzip"})) == everything


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"documents": ["x"] * 101}, "[100]"),
        ({"documents": ["fine", "x" * (MAX_CHARACTERS + 1)]}, f"{MAX_CHARACTERS + 1}"),
    ],
)
def test_rerank_with_invalid_input_is_a_400(gateway: str, changes: dict[str, Any], words: str) -> None:
    reply = rerank(gateway, **changes)
    assert reply.status == 400
    assert words in reply.reason


UNREADABLE = [
    b"",
    b"[]",
    b"{",
    b'{"documents": ["x"]}',
    b'{"query": "\xff"}',
    b'{"query": "a", "query": "b", "documents": ["x"]}',
]


@pytest.mark.parametrize("raw", UNREADABLE)
def test_a_body_that_cannot_be_read_is_a_400(gateway: str, raw: bytes) -> None:
    assert call(gateway, "POST", "/_ttc/rerank", raw, JSON).status == 400


def test_rerank_beyond_its_timeout_is_a_503(encoder: Encoder) -> None:
    with gateway_to(NOWHERE, encoder, rerank_timeout_ms=1) as url:
        reply = rerank(url, documents=[f"A text that nobody has encoded yet, number {number}." for number in range(50)])
        assert reply.status == 503
        assert reply.json()["error"]["type"] == "ttc_deadline_exceeded_exception"
        assert 'kind="rerank",outcome="error"' in call(url, "GET", "/_ttc/metrics").body.decode()


def test_clients_of_cohere_jina_and_vllm_find_it_below_their_base_url(gateway: str) -> None:
    everything = scores_of(rerank(gateway))
    for path in ("/_ttc/v1/rerank", "/_ttc/v2/rerank"):
        body = {"model": "spectral", "query": CATS, "documents": TEXTS, "top_n": 9, "max_tokens_per_doc": 4096}
        reply = call(gateway, "POST", path, body)
        assert scores_of(reply) == everything
        assert (reply.json()["model"], len(reply.json()["id"])) == ("spectral", 36)


def test_the_form_of_text_embeddings_inference(gateway: str) -> None:
    everything = scores_of(rerank(gateway, model="auto"))
    body = {"query": CATS, "texts": TEXTS, "raw_scores": False, "return_text": True, "truncate": True}
    found = call(gateway, "POST", "/_ttc/rerank", body).json()
    assert {one["index"]: one["score"] for one in found} == everything
    assert [one["text"] for one in found] == [TEXTS[one["index"]] for one in found]
    assert "text" not in call(gateway, "POST", "/_ttc/rerank", {"query": CATS, "texts": TEXTS}).json()[0]
    reply = call(gateway, "POST", "/_ttc/rerank", {"query": CATS, "texts": ["x"] * 101})
    assert (reply.status, "[rerank.texts]" in reply.reason) == (400, True), reply.body


AS_OBJECTS = [{"title": "", "body": text, "url": f"http://x/{place}"} for place, text in enumerate(TEXTS)]
BODIES: dict[str, dict[str, Any]] = {
    "Cohere v1": {"documents": AS_OBJECTS, "rank_fields": ["title", "body"], "max_chunks_per_doc": 10},
    "Cohere v2": {"documents": TEXTS, "top_n": 4, "max_tokens_per_doc": 4096, "priority": 0},
    "Jina": {"documents": [{"text": text} for text in TEXTS], "top_n": None, "truncation": True},
    "TEI": {"texts": TEXTS, "raw_scores": False, "truncate": True, "truncation_direction": "Right"},
    "Elasticsearch's hugging_face": {"texts": TEXTS, "return_text": True, "top_n": 4},
}


@pytest.mark.parametrize("client", BODIES)
def test_a_model_of_any_other_name_ranks_by_blend(gateway: str, client: str) -> None:
    """In the body that each client sends, also where only words tell texts apart."""
    name = {"model": "BAAI/bge-reranker-v2-m3", "query": "Which cat drinks milk?"}
    answer = call(gateway, "POST", "/_ttc/rerank", BODIES[client] | name).json()
    found = answer if isinstance(answer, list) else answer["results"]
    scores = {one["index"]: one.get("score", one.get("relevance_score")) for one in found}
    assert scores == scores_of(rerank(gateway, query=name["query"], model="blend"))
    assert next(iter(scores)) == 1
    if isinstance(answer, dict):
        assert (answer["model"], answer["ttc"], "usage" in answer) == (name["model"], {"method": "blend"}, True)


def test_blend_reads_the_words_of_texts(gateway: str) -> None:
    texts = [f"Part {number} of the engine, made of steel." for number in ("AX-1170", "AX-1171", "AX-1172", "AX-1173")]
    scores = scores_of(rerank(gateway, query="AX-1172", documents=texts, model="rerank-v3.5"))
    assert next(iter(scores)) == 2
    assert scores[2] > max(score for place, score in scores.items() if place != 2) + 0.3
    kept = rerank(gateway, documents=AS_OBJECTS, rank_fields=["body"], return_documents=True).json()["results"]
    assert all(one["document"] == AS_OBJECTS[one["index"]] for one in kept)


def test_names_of_models_may_be_those_that_clients_send(encoder: Encoder) -> None:
    with gateway_to(NOWHERE, encoder, model_names={"rerank-v3.5": "dense"}, rerank_timeout_ms=60_000) as url:
        assert scores_of(rerank(url, model="rerank-v3.5")) == scores_of(rerank(url, model="dense"))
