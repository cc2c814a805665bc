"""Collapsing after rescoring: groups by the final score, and every group on one page, on real engines."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder
from es_ttc.serving.rescore.collapse import collapsed, window_groups
from es_ttc.serving.rescore.ranking import OrderedScores
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, fill
from tests.serving.corpus import CATS, EVERYTHING, corpus, in_memory, ttc_rescore

GROUP = "group.keyword"
GROUPS = {document["_id"]: document["group"] for document in corpus()}


def collapsing(field: str = GROUP, window: int = 100, **changes: Any) -> dict[str, Any]:
    body = {"query": EVERYTHING, "collapse": {"field": field}, "rescore": ttc_rescore() | {"window_size": window}}
    return body | changes


def groups_in(reply: Reply, field: str = GROUP) -> list[Any]:
    return [hit["fields"][field][0] for hit in reply.json()["hits"]["hits"]]


@pytest.mark.parametrize("size", [10, 60])  # in two steps, in one
def test_a_group_is_decided_by_its_best_final_score(stack: SearchStack, encoder: Encoder, size: int) -> None:
    scores = in_memory(encoder, stack.spec, "spectral", [CATS])
    best: dict[str, str] = {}
    for one in sorted(scores, key=lambda one: -scores[one]):
        best.setdefault(GROUPS[one], one)
    reply = search(stack.gateway, stack.index, collapsing(size=size, aggs={"n": {"terms": {"field": GROUP}}}))
    assert reply.status == 200, reply.body
    assert dict(zip(groups_in(reply), reply.ids, strict=True)) == best
    assert reply.ids == list(best.values())
    assert reply.scores == pytest.approx([scores[one] for one in best.values()], abs=1e-4)
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "collapse": {"field": GROUP}})
    assert set(reply.ids) != set(native.ids)
    answer = reply.json()
    assert answer["hits"]["total"] == native.json()["hits"]["total"]
    assert answer["hits"]["max_score"] == reply.scores[0]
    assert len(answer["aggregations"]["n"]["buckets"]) == 7
    shapes = {hit["_id"]: hit for hit in search(stack.engine, stack.index, {"size": 60}).json()["hits"]["hits"]}
    for hit in answer["hits"]["hits"]:
        shown = {key: value for key, value in hit.items() if key not in ("_score", "fields")}
        assert shown == {key: value for key, value in shapes[hit["_id"]].items() if key != "_score"}
        assert list(hit["fields"]) == [GROUP]


@pytest.mark.parametrize(
    ("field", "window", "size"), [("number", 20, 7), (GROUP, 5, 2), (GROUP, 5, 1), ("number", 7, 25)]
)
@pytest.mark.parametrize("query", [EVERYTHING, {"match": {"text": "the cat drinks milk for hours"}}])
def test_pages_hold_every_group_once_and_never_rise(
    stack: SearchStack, query: Any, field: str, window: int, size: int
) -> None:
    native = search(stack.engine, stack.index, {"query": query, "collapse": {"field": field}, "size": 60})
    groups: list[Any] = []
    ids: list[str] = []
    scores: list[float] = []
    for start in range(0, len(native.ids) + size, size):
        body = collapsing(field, window, query=query, size=size, **{"from": start})
        reply = search(stack.gateway, stack.index, body)
        assert reply.status == 200, reply.body
        groups += groups_in(reply, field)
        ids += reply.ids
        scores += reply.scores
    assert sorted(groups) == sorted(groups_in(native, field))
    assert scores == sorted(scores, reverse=True)
    first_pass = search(stack.engine, stack.index, {"query": query, "size": max(window, size)}).ids
    scored = {group for group, one in zip(groups, ids, strict=True) if one in first_pass}
    beyond = [one for group, one in zip(groups_in(native, field), native.ids, strict=True) if group not in scored]
    assert set(groups[: len(scored)]) == scored
    assert ids[len(scored) :] == beyond


def test_without_scores_the_groups_are_the_engines(stack: SearchStack) -> None:
    for start in (0, 2, 6):
        changes: dict[str, Any] = {
            "from": start,
            "size": 3,
            "query": {"match": {"text": "the cat drinks milk for hours"}},
        }
        native = {key: value for key, value in collapsing(**changes).items() if key != "rescore"}
        late = collapsing(**changes, rescore=ttc_rescore(timeout="1nanos") | {"window_size": 10})
        reply = search(stack.gateway, stack.index, late)
        assert reply.json()["ttc"]["applied"] is False
        direct = search(stack.engine, stack.index, native)
        assert (reply.ids, reply.scores) == (direct.ids, direct.scores)


def test_collapse_group_beyond_the_window_has_no_detail(stack: SearchStack) -> None:
    body = collapsing("number", 5, size=20, explain=True, rescore=ttc_rescore(detail=True) | {"window_size": 5})
    window = body | {"size": 5}
    inside = search(stack.gateway, stack.index, window).json()["hits"]["hits"]
    beyond = search(stack.gateway, stack.index, window | {"from": 5}).json()["hits"]["hits"]
    assert all("first_pass_rank" in hit["_ttc"] for hit in inside)
    for hit in beyond:
        assert hit["_explanation"]["value"] == hit["_score"] <= inside[-1]["_score"]
        assert "without a document in the window" in hit["_explanation"]["description"]
        assert hit["_ttc"].keys() == {"method", "applied", "first_pass_score"}


@pytest.mark.parametrize("field", ["nothing", "text"])
@pytest.mark.parametrize("size", [1, 10])
def test_a_field_that_cannot_be_collapsed_is_the_engines_to_refuse(stack: SearchStack, field: str, size: int) -> None:
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "collapse": {"field": field}})
    reply = search(stack.gateway, stack.index, collapsing(field, size=size))
    assert reply.status == native.status == 400


@pytest.mark.parametrize("window", [3, 100])
def test_documents_without_a_group_are_one(stack: SearchStack, index_name: str, encoder: Encoder, window: int) -> None:
    documents = [
        {**document, "group": None if document["group"] in ("g2", "g5") else document["group"]} for document in corpus()
    ]
    asyncio.run(fill(stack.engine, index_name, stack.spec, encoder, documents))
    body = collapsing(GROUP, window, size=3)
    pages = [search(stack.gateway, index_name, body | {"from": start}).json()["hits"]["hits"] for start in (0, 3, 6)]
    values = [hit.get("fields", {}).get(GROUP, [None])[0] for page in pages for hit in page]
    assert len(values) == 6
    assert set(values) == {"g0", "g1", "g3", "g4", "g6", None}


def test_an_item_of_an_msearch_collapses_alike(stack: SearchStack) -> None:
    bodies = [collapsing(GROUP, 3, size=7), collapsing(), collapsing("nothing")]
    lines = [line for body in bodies for line in ({"index": stack.index}, body)]
    reply = call(stack.gateway, "POST", "/_msearch", lines)
    first, second, third = reply.json()["responses"]
    assert first["hits"]["hits"] == search(stack.gateway, stack.index, bodies[0]).json()["hits"]["hits"]
    assert second["hits"]["hits"] == search(stack.gateway, stack.index, bodies[1]).json()["hits"]["hits"]
    assert third["status"] == 400


@pytest.mark.parametrize("changes", [{"sort": ["number"]}, {"collapse": {"field": GROUP, "inner_hits": {}}}])
def test_collapse_with_options_that_rescore_forbids_is_refused(stack: SearchStack, changes: dict[str, Any]) -> None:
    assert search(stack.gateway, stack.index, collapsing(**changes)).status == 400
    assert search(stack.gateway, stack.index, collapsing(), "?scroll=1m").status == 400


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1, width=32)), min_size=1, max_size=20))
def test_the_best_of_each_group_is_kept_in_order(documents: list[tuple[int, float]]) -> None:
    groups = [group for group, _ in documents]
    scores = np.array([score for _, score in documents], dtype=np.float32)
    order = np.argsort(-scores, kind="stable")
    kept = collapsed(OrderedScores(order, scores[order]), groups)
    assert {groups[place] for place in kept.order} == set(groups)
    assert len(kept.order) == len(set(groups))
    for place, score in zip(kept.order.tolist(), kept.scores.tolist(), strict=True):
        assert score == max(value for group, value in documents if group == groups[place])
    window = window_groups(groups, len(groups), scores, kept)
    assert scores.min() * window.factor <= window.floor * np.float32(1.000001)
    assert not window.complete
