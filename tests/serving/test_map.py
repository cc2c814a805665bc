"""`"detail": "map"`: every hit's cosines with the query, token by token."""

import math
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EncoderError
from es_ttc.rescorers.spectral import DEFAULT_SCALES
from tests.serving.client import search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import corpus
from tests.support.encoders import Wrapped
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

QUERY = {"match": {"text": "cat drinks milk"}}
TEXTS = {document["_id"]: document for document in corpus()}

pytestmark = pytest.mark.engine


def body(**section: Any) -> dict[str, Any]:
    ours = {"timeout": "60s", "on_error": "fail", "detail": "map", **section}
    return {"query": QUERY, "size": 4, "rescore": {"window_size": 40, "ttc": ours}}


def greatest(part: dict[str, Any], columns: int) -> Any:
    """Each row's greatest cosine, also at tokens without text; and the width of a step."""
    levels = np.frombuffer(b64decode(part["values"]), np.uint8).reshape(-1, columns)
    step = (part["high"] - part["low"]) / 255
    return np.maximum((part["low"] + levels * step).max(axis=1), part["elsewhere"]), step


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("spectral", {"scales": [1, 4, "mean"]}),
        ("maxsim", {"query": "tokens"}),
        ("rr", {"reranker": "spectral", "reranker_params": {"scales": [2]}}),
    ],
)
def test_the_scores_are_the_greatest_cosines(stack: SearchStack, method: str, params: dict[str, Any]) -> None:
    asked = body(method=method, params=params) | {"_source": False}
    reply = search(stack.gateway, stack.index, asked).json()
    assert reply["ttc"]["took"]["map"] > 0
    scales = {"spectral": [1, 4, "mean"], "rr": [2]}.get(method, list(DEFAULT_SCALES))
    for hit in reply["hits"]["hits"]:
        shown, document = hit["_ttc"]["map"], TEXTS[hit["_id"]]
        assert hit["_ttc"]["first_pass_rank"]
        assert not {"_source", "fields"} & hit.keys()
        assert shown["fields"] == ["title", "text"]
        assert shown["spectral"]["scales"] == scales
        assert shown["late"]["query_tokens"] == [None, "cat", "drinks", "milk", None]
        tokens = shown["tokens"]
        text = [
            document[shown["fields"][field]][start:end]
            for field, start, end in zip(tokens["field"], tokens["start"], tokens["end"], strict=True)
        ]
        assert all(text)
        assert "".join(text) == "".join((document["title"] + document["text"]).replace("\x07", "").split())
        spectral, step = greatest(shown["spectral"], len(text))
        late, late_step = greatest(shown["late"], len(text))
        found = late.mean() if method == "maxsim" else spectral.max()
        assert hit["_score"] * 2 - 1 == pytest.approx(found, abs=max(step, late_step) + 1e-4)


def test_blend_shows_it_beside_its_signals_and_passages(stack: SearchStack) -> None:
    plain = search(stack.gateway, stack.index, body(detail=True)).json()
    reply = search(stack.gateway, stack.index, body(passages=1)).json()
    for hit, without in zip(reply["hits"]["hits"], plain["hits"]["hits"], strict=True):
        shown = hit["_ttc"].pop("map")
        [passage] = hit["_ttc"].pop("passages")
        assert hit == without
        signals = hit["_ttc"]["signals"]
        columns = len(shown["tokens"]["field"])
        spectral, step = greatest(shown["spectral"], columns)
        assert signals["spectral"]["score"] == pytest.approx(spectral.max(), abs=step + 1e-4)
        late, step = greatest(shown["late"], columns)
        assert signals["late_interaction"]["score"] == pytest.approx(late.mean(), abs=step + 1e-4)
        starts = zip(shown["tokens"]["field"], shown["tokens"]["start"], strict=True)
        assert (shown["fields"].index(passage["field"]), passage["start"]) in starts


def test_the_engines_order_can_be_kept_and_a_document_without_text_has_no_map(stack: SearchStack) -> None:
    asked = {"query": {"bool": {"should": [QUERY, {"terms": {"_id": ["d7", "d8"], "boost": 2}}]}}, "size": 60}
    native = search(stack.engine, stack.index, asked)
    kept = {"candidates": {"knn": 0}, "score_mode": "total", "rescore_query_weight": 0, "query_text": "cats"}
    reply = search(stack.gateway, stack.index, body(**kept) | asked)
    assert "d7" in reply.ids
    assert (reply.ids, reply.scores) == (native.ids, native.scores)
    assert [hit["_id"] for hit in reply.json()["hits"]["hits"] if "map" not in hit["_ttc"]] == ["d7"]


def test_the_page_stays_where_there_is_no_map(
    stack: SearchStack, index_name: str, encoder: Encoder, engine_url: str
) -> None:
    make_index(engine_url, index_name, encoder, tokens="none")
    reply = search(stack.gateway, index_name, body(method="dense"))
    assert reply.status == 200
    assert "[ttc.offsets, ttc.tokens]" in reply.json()["ttc"]["map"]["reason"]
    assert all("map" not in hit["_ttc"] for hit in reply.json()["hits"]["hits"])


class _PooledOnly(Wrapped):
    """Gives pooled vectors of queries and no token vectors, as some servers do."""

    def encode(self, texts: Any, *, role: Any = "document", tokens: bool = True, max_tokens: int = 1024) -> Any:
        if role == "query" and tokens:
            raise EncoderError("the server gave no token vectors")
        return self.encoder.encode(texts, role=role, tokens=tokens, max_tokens=max_tokens)


def test_without_the_querys_tokens_the_scales_remain(stack: SearchStack, encoder: Encoder) -> None:
    with gateway_to(stack.engine, _PooledOnly(encoder)) as url:
        reply = search(url, stack.index, body(method="dense"))
    for hit in reply.json()["hits"]["hits"]:
        assert "late" not in hit["_ttc"]["map"]
        assert math.isfinite(hit["_ttc"]["map"]["spectral"]["high"])
