"""Several items with a section in one `rescore` list, on a real engine: order, marks, deadline, pages."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.encode import encode_documents
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Query, Window
from es_ttc.serving.plan.plan import plan_search
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, corpus, in_memory
from tests.support.gateway import gateway_to
from tests.support.servers import server_beside

ON_ONE_ENGINE = True

RR: dict[str, Any] = {"method": "rr", "params": {"reranker": "maxsim", "budget": 15}}
MMR: dict[str, Any] = {"method": "mmr", "params": {"lambda": 0.6}}
SPECTRAL: dict[str, Any] = {"method": "spectral", "query_text": CATS}


def item(window: int, section: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"window_size": window, "ttc": section | changes}


THREE = [item(48, SPECTRAL), item(15, RR), item(6, MMR)]


@pytest.fixture(scope="module")
def hanging(stack: SearchStack, encoder: Encoder) -> Iterator[str]:
    """A gateway with a reranker that does not answer, and one that is not there."""
    released = threading.Event()

    def wait(_path: str, _body: bytes) -> tuple[int, bytes]:
        released.wait(60)
        return 503, b""

    with server_beside(wait) as url:
        try:
            with gateway_to(
                stack.engine,
                encoder,
                max_window=300,
                rerankers={
                    "hanging": {"kind": "http", "url": url, "timeout_ms": 50_000},
                    "nobody": {"kind": "http", "url": "http://127.0.0.1:9/"},
                },
            ) as gateway:
                yield gateway
        finally:
            released.set()


def search(url: str, stack: SearchStack, rescore: Any, **changes: Any) -> Reply:
    body = {"query": EVERYTHING, "size": 60, "rescore": rescore} | changes
    reply = call(url, "POST", f"/{stack.index}/_search", body)
    assert reply.status == 200, reply.body
    return reply


def composed(stack: SearchStack, encoder: Encoder, first: list[str]) -> list[str]:
    """Return the order of :data:`THREE`, from the methods themselves in memory."""

    def ahead(order: list[str], window: int, scores: dict[str, float]) -> list[str]:
        head = sorted(order[:window], key=lambda one: -scores.get(one, -1.0))  # sorted is stable
        return [*head, *order[window:]]

    window = ahead(first, 48, in_memory(encoder, stack.spec, "spectral", [CATS]))
    judged = ahead(window, 15, in_memory(encoder, stack.spec, "maxsim", [CATS]))
    documents = {document["_id"]: document for document in corpus()}
    features = encode_documents([documents[one] for one in judged[:6]], stack.spec, encoder)
    pooled = np.stack([one.pooled for one in features if one.pooled is not None])
    best = Window(judged[:6], np.ones(6, np.float32), pooled=pooled)
    mmr = registry.load("mmr")
    encoded = encoder.encode([CATS], role="query")
    picked = mmr.score(Query(CATS, encoded.pooled), best, registry.parse_params(mmr, MMR["params"]))
    return ahead(judged, 6, dict(zip(judged[:6], picked.tolist(), strict=True)))


def test_items_run_in_order_as_their_methods_do_in_memory(stack: SearchStack, encoder: Encoder) -> None:
    first = search(stack.engine, stack, []).ids
    reply = search(stack.gateway, stack, THREE)
    assert reply.ids == composed(stack, encoder, first)
    assert reply.ids != search(stack.gateway, stack, THREE[:2]).ids != search(stack.gateway, stack, THREE[:1]).ids
    assert reply.scores == sorted(reply.scores, reverse=True)
    answer = reply.json()
    assert answer["hits"]["max_score"] == reply.scores[0]
    told = answer["ttc"]
    assert told["method"] == "spectral>rr>mmr"
    assert told["applied"]
    assert reply.headers["x-ttc-applied"] == "true"
    assert [one["method"] for one in told["items"]] == ["spectral", "rr", "mmr"]
    assert [one["window"] for one in told["items"]] == [48, 15, 6]
    assert all(one["applied"] and "first_pass" not in one["took"] for one in told["items"])
    two = search(stack.gateway, stack, [item(48, SPECTRAL), item(15, {"method": "maxsim"})]).json()["ttc"]
    assert two["items"][1]["features_from_memory"] == 15, "token vectors are read once"


def test_every_page_is_of_the_same_order(stack: SearchStack) -> None:
    """Pages of ten come of a bare window, whose first hits are completed; the page of forty comes of one request."""
    whole = search(stack.gateway, stack, THREE, size=40)
    pages = [search(stack.gateway, stack, THREE, size=10, **{"from": start}) for start in range(0, 40, 10)]
    assert [one for page in pages for one in page.ids] == whole.ids
    assert [one for page in pages for one in page.scores] == pytest.approx(whole.scores, rel=1e-6)
    sources = [hit["_source"]["number"] for hit in pages[1].json()["hits"]["hits"]]
    assert sources == [int(one[1:]) for one in pages[1].ids]


def test_a_failing_item_leaves_the_order_before_it_and_says_so(stack: SearchStack, hanging: str) -> None:
    away = item(15, RR, params={"reranker": "nobody", "budget": 15})
    reply = search(hanging, stack, [THREE[0], away, THREE[2]])
    assert reply.ids == search(hanging, stack, [THREE[0], THREE[2]]).ids
    told = reply.json()["ttc"]
    assert [one["applied"] for one in told["items"]] == [True, False, True]
    assert not told["applied"]
    assert told["reason"] == told["items"][1]["reason"]
    assert reply.headers["x-ttc-applied"] == "false"
    away["ttc"]["on_error"] = "fail"
    body = {"query": EVERYTHING, "rescore": [THREE[0], away]}
    assert call(hanging, "POST", f"/{stack.index}/_search", body).status >= 500


def test_one_deadline_holds_for_all_items(stack: SearchStack, hanging: str) -> None:
    late = item(15, RR, params={"reranker": "hanging", "budget": 15})
    reply = search(hanging, stack, [item(48, SPECTRAL, timeout="3s"), late, THREE[2]])
    told = reply.json()["ttc"]
    assert [one["applied"] for one in told["items"]] == [True, False, False]
    assert reply.ids == search(hanging, stack, THREE[0]).ids
    assert told["items"][1]["took"]["total"] < 3_500


def test_details_and_explanations_tell_of_every_item(stack: SearchStack) -> None:
    shown = [item(48, SPECTRAL, detail="map"), item(15, RR, detail=True), item(6, MMR, passages=2)]
    plain = search(stack.gateway, stack, THREE, size=20)
    reply = search(stack.gateway, stack, shown, size=20, explain=True)
    assert reply.ids == plain.ids
    first = search(stack.engine, stack, []).ids
    for rank, hit in enumerate(reply.json()["hits"]["hits"], 1):
        details = hit["_ttc"]
        assert details["first_pass_rank"] == first.index(hit["_id"]) + 1
        assert [one["method"] for one in details["items"]] == (["spectral", "rr"] if rank <= 15 else ["spectral"])
        assert hit["_explanation"]["value"] == hit["_score"]
        if hit["_id"] != WITHOUT_TEXT:
            assert details["map"]["fields"]
            assert details["passages"]
    assert "ttc [rr]" in orjson.dumps(reply.json()["hits"]["hits"][0]["_explanation"]).decode()


def test_groups_msearch_and_candidates(stack: SearchStack) -> None:
    groups = search(stack.gateway, stack, THREE, collapse={"field": "group.keyword"}, size=5)
    names = [hit["fields"]["group.keyword"][0] for hit in groups.json()["hits"]["hits"]]
    assert len(set(names)) == len(names) == 5
    assert groups.scores == sorted(groups.scores, reverse=True)
    body = {"query": {"match": {"text": "milk"}}, "size": 8, "rescore": [
        item(20, {"method": "blend", "candidates": {"knn": 30}}), item(12, RR), item(4, MMR)
    ]}  # fmt: skip
    one = call(stack.gateway, "POST", f"/{stack.index}/_search", body).json()
    assert one["ttc"]["items"][0]["candidates"]["joined"] > 0
    assert all(hit["_source"]["title"] for hit in one["hits"]["hits"])
    several = call(stack.gateway, "POST", "/_msearch", [{"index": stack.index}, body, {}, {"query": EVERYTHING}]).json()
    of = [hit["_id"] for hit in several["responses"][0]["hits"]["hits"]]
    assert of == [hit["_id"] for hit in one["hits"]["hits"]]
    assert several["responses"][0]["ttc"]["applied"]


def test_later_items_inherit_text_timeout_and_window() -> None:
    rescore = [item(9, SPECTRAL, timeout="3s"), {"ttc": {"method": "blend"}}, item(4, MMR, timeout="5s")]
    plan = plan_search({"rescore": rescore}, [], max_window=300)
    assert plan is not None
    blend, mmr = plan.later
    assert (blend.texts, blend.section.timeout, blend.page.window) == ((CATS,), "3s", 9)
    assert (mmr.texts, mmr.section.timeout, mmr.page.window) == ((CATS,), "5s", 4)


def test_a_reranker_is_a_signal_of_blend(stack: SearchStack) -> None:
    """Its z-scores over blend's first documents are added to blend's; those below keep blend's order."""
    reranker = {"signals": {"reranker": 2}, "reranker": {"top": 8}}
    alone = search(stack.gateway, stack, item(48, {"query_text": CATS}))
    body = item(48, {"query_text": CATS, "params": reranker, "detail": True, "timeout": "20s"})
    reply = search(stack.gateway, stack, body)
    told = reply.json()["ttc"]
    assert (told["applied"], told["method"]) == (True, "blend>rr")
    assert told["items"][1]["strategy"]["reranker"] == "msmarco-minilm"
    steps = {hit["_id"]: hit["_ttc"]["items"][1] for hit in reply.json()["hits"]["hits"][:8]}

    def z(values: list[float]) -> Any:
        return (np.array(values) - np.mean(values)) / np.std(values)

    first = alone.ids[:8]
    scores = z([steps[one]["score_before"] for one in first]) + 2 * z([steps[one]["reranker_score"] for one in first])
    assert reply.ids[:8] == [first[place] for place in np.argsort(-scores)]
    assert reply.ids[8:] == alone.ids[8:]
    assert reply.scores[:8] == pytest.approx(sorted(1 / (1 + np.exp(-scores / 3)), reverse=True), rel=1e-4)


def test_rr_without_settings_judges_by_the_cross_encoder(stack: SearchStack) -> None:
    told = search(stack.gateway, stack, item(48, {"method": "rr", "query_text": CATS, "timeout": "20s"})).json()["ttc"]
    walk = told["strategy"]
    assert (told["applied"], walk["reranker"], walk["budget"], walk["spent"]) == (True, "msmarco-minilm", 20, 20)
