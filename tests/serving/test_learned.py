"""A model of trees on real engines: its ranking, what it says, and names that are refused."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers.learned.fields import NumericField
from es_ttc.rescorers.learned.rescorer import LearnedRescorer
from tests.conftest import PRODUCTS
from tests.rescorers.test_learned import params_of, stump, written
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import by_id
from tests.serving.relay import relay
from tests.serving.test_blend import BY_WORDS, WINDOW, blended, union_in_memory
from tests.support.learned import gateway_with, judged, learned_from, logged, require_served_as_logged

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

Serve = Callable[[Path], SearchStack]


@pytest.fixture
def serve(stack: SearchStack, encoder: Encoder) -> Iterator[Serve]:
    """Start gateways that serve the models of a folder."""
    with ExitStack() as exits:
        yield lambda folder: replace(stack, gateway=exits.enter_context(gateway_with(folder, stack.engine, encoder)))


def learned(**params: Any) -> dict[str, Any]:
    return blended(size=WINDOW, method="learned", params=params, detail=True)


@on_both
def test_the_ranking_is_the_models_own_over_the_union(
    stack: SearchStack, encoder: Encoder, serve: Serve, tmp_path: Path
) -> None:
    written(tmp_path, "mine", stump())
    stack = serve(tmp_path)
    query, window = union_in_memory(encoder, stack, WINDOW)
    values = LearnedRescorer().score(query, window, params_of(tmp_path))
    expected = dict(zip(window.ids, values.tolist(), strict=True))
    reply = search(stack.gateway, stack.index, learned())
    assert reply.status == 200, reply.body
    told = reply.json()["ttc"]
    assert (told["method"], told["model"], told["applied"]) == ("learned", "mine", True)
    assert told["scored"] == len(expected)
    assert told["signals"] == ["lexical", "dense", "spectral", "late_interaction"]
    best = sorted(expected, key=lambda name: -expected[name])[:WINDOW]
    assert reply.ids == best
    assert reply.scores == pytest.approx([expected[name] for name in best], abs=1e-4)
    signals = reply.json()["hits"]["hits"][0]["_ttc"]["signals"]
    assert set(signals) == set(told["signals"])


def test_a_request_names_a_model_and_nothing_else(stack: SearchStack, serve: Serve, tmp_path: Path) -> None:
    reply = search(stack.gateway, stack.index, learned())
    assert reply.status == 400
    assert "train rank" in reply.reason
    path = written(tmp_path, "mine", stump())
    stack = serve(tmp_path)
    for wrong in ("mien", str(path), "../mine", "http://127.0.0.1/mine.json"):
        reply = search(stack.gateway, stack.index, learned(model=wrong))
        assert reply.status == 400
        assert f"[{wrong}]" in reply.reason


def by_number(field: str = "number", **parts: Any) -> dict[str, Any]:
    """A model whose one tree lowers documents with small numbers, and lifts those without any."""
    return {**stump(feature=[4], threshold=[29.5], default_left=[False]), "fields": [{"name": field, **parts}]}


def alone(stack: SearchStack, index: str | None = None, **body: Any) -> Reply:
    """Search the window alone, without candidates."""
    section = {"method": "learned", "query_text": "cats", "candidates": {"knn": 0}}
    rescore = {"window_size": 62, "ttc": section}
    everything = {"query": {"match": {"kind": "animal"}}, "size": 60, "rescore": rescore}
    return search(stack.gateway, index or stack.index, everything | body)


@on_both
def test_a_numeric_field_is_read_with_the_windows_hits(
    stack: SearchStack, encoder: Encoder, serve: Serve, tmp_path: Path
) -> None:
    written(tmp_path, "mine", by_number())
    stack = serve(tmp_path)
    query, window = union_in_memory(encoder, stack, WINDOW)
    numbers = np.array([by_id(name)["number"] for name in window.ids], np.float64)
    values = LearnedRescorer().score(query, replace(window, numbers={"number": numbers}), params_of(tmp_path))
    expected = dict(sorted(zip(window.ids, values.tolist(), strict=True), key=lambda one: -one[1])[:WINDOW])
    whole = search(stack.gateway, stack.index, learned() | {"_source": ["number"]})
    assert dict(zip(whole.ids, whole.scores, strict=True)) == pytest.approx(expected, abs=1e-4)
    assert whole.json()["ttc"]["fields"] == ["number"]
    for hit in whole.json()["hits"]["hits"]:
        assert hit["_ttc"]["fields"] == {"number": hit["_source"]["number"]}
        assert "fields" not in hit
    in_two_steps = blended(size=2, method="learned") | {"fields": ["number"]}
    page = search(stack.gateway, stack.index, in_two_steps)
    assert page.ids == list(expected)[:2]
    assert page.scores == pytest.approx(list(expected.values())[:2], abs=1e-4)
    assert [hit["fields"] for hit in page.json()["hits"]["hits"]] == [
        {"number": [by_id(one)["number"]]} for one in page.ids
    ]
    plain = search(stack.gateway, stack.index, blended(size=2, method="learned"))
    assert plain.ids == page.ids
    assert not any("fields" in hit for hit in plain.json()["hits"]["hits"])
    lines = [{"index": stack.index}, in_two_steps, {"index": stack.index}, learned()]
    raw = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    several = call(stack.gateway, "POST", "/_msearch", raw, {"content-type": "application/x-ndjson"}).json()
    found = [[hit["_id"] for hit in one["hits"]["hits"]] for one in several["responses"]]
    assert found == [list(expected)[:2], list(expected)]


def test_a_document_without_the_field_goes_the_way_that_was_learned(
    stack: SearchStack, serve: Serve, tmp_path: Path
) -> None:
    document = {"title": "New", "text": "A cat.", "kind": "animal"}
    other = f"{stack.index}-other"
    written(tmp_path / "side", "mine", by_number())
    written(tmp_path / "filled", "mine", by_number(missing=3))
    try:
        call(stack.engine, "PUT", f"/{stack.index}/_doc/new?refresh=true", document)
        call(stack.engine, "PUT", f"/{other}/_doc/elsewhere?refresh=true", document)
        both = f"{stack.index},{other}"
        for folder, lifted in (("side", True), ("filled", False)):
            reply = alone(serve(tmp_path / folder), both, size=62)
            assert reply.status == 200, reply.body
            above = {one for one, score in zip(reply.ids, reply.scores, strict=True) if score > 0.5}
            assert ({"new", "elsewhere"} <= above) is lifted
            assert above - {"new", "elsewhere"} == {f"d{number}" for number in range(30, 60)}
            assert reply.json()["ttc"]["without_field"] == {"number": 2}
    finally:
        call(stack.engine, "DELETE", f"/{stack.index}/_doc/new?refresh=true")
        call(stack.engine, "DELETE", f"/{other}")


@on_both
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("nmber", "[nmber], and there is none that this caller may read in ["),
        ("group.keyword", "[group.keyword], which is of type [keyword] in ["),
        ("text", "[text], which is of type [text] in ["),
    ],
)
def test_an_index_without_the_numeric_field_is_refused(
    stack: SearchStack, serve: Serve, tmp_path: Path, field: str, words: str
) -> None:
    written(tmp_path, "mine", by_number(field))
    stack = serve(tmp_path)
    for _ in range(2):
        told = alone(stack).json()["ttc"]
        assert (told["applied"], words in told["reason"]) == (False, True), told
    section = learned()["rescore"]["ttc"] | {"on_error": "fail"}
    failing = search(stack.gateway, stack.index, learned() | {"rescore": {"ttc": section}})
    assert (failing.status, words in failing.reason) == (400, True), failing.body
    raw = b"".join(
        orjson.dumps(line) + b"\n" for line in ({"index": stack.index}, learned(), {"index": stack.index}, blended())
    )
    answer = call(stack.gateway, "POST", "/_msearch", raw, {"content-type": "application/x-ndjson"}).json()
    assert [one["ttc"]["applied"] for one in answer["responses"]] == [False, True]
    opening = f"/{stack.index}/_pit" if stack.product == "elasticsearch" else f"/{stack.index}/_search/point_in_time"
    opened = call(stack.gateway, "POST", f"{opening}?keep_alive=1m").json()
    pit = {"pit": {"id": opened.get("id") or opened["pit_id"]}}
    inside = call(stack.gateway, "POST", "/_search", {**learned(), **pit}).json()
    if field == "nmber":  # a point in time names no indices, so the engine itself refuses to read the others
        assert inside["ttc"]["applied"] is False


@on_both
def test_a_field_of_the_request_or_in_another_form(stack: SearchStack, serve: Serve, tmp_path: Path) -> None:
    written(tmp_path, "mine", by_number())
    stack = serve(tmp_path)
    formatted = alone(stack, docvalue_fields=[{"field": "number", "format": "0.0"}])
    assert formatted.scores == alone(stack).scores
    worded = alone(stack, docvalue_fields=[{"field": "number", "format": "no. 0"}])
    assert (worded.status, "another form" in worded.reason) == (400, True), worded.body
    if stack.product == "elasticsearch":
        written(tmp_path, "mine", by_number("minus"))
        stack = serve(tmp_path)
        defined = {"minus": {"type": "long", "script": "emit(59 - doc['number'].value)"}}
        reply = alone(stack, runtime_mappings=defined)
        above = {one for one, score in zip(reply.ids, reply.scores, strict=True) if score > 0.5}
        assert above == {f"d{number}" for number in range(30)}


def test_signals_logged_equal_signals_served(
    stack: SearchStack, encoder: Encoder, serve: Serve, tmp_path: Path
) -> None:
    texts = ["which cat drinks milk?", "the farmer watches before rain", "snow", "zebra", "an owl that sings"] * 12
    queries = judged(texts, [f"d{number}" for number in range(30)])
    with relay(stack.engine) as counted:
        pools = logged(counted.url, stack.index, encoder, queries, WINDOW, ["number"])
    searches = [one for one in counted.passed if "_msearch" in one.target]
    # one for the indices, and two for each 25 queries: first passes and kNN searches, then scores of what joins
    assert len(searches) == 1 + 2 * 3
    reads = [one for one in counted.passed if one.reads_features]
    assert len(reads) <= 2  # all documents of all queries, once
    assert len(counted.passed) < 20
    model = learned_from(pools, [NumericField("number")], tmp_path)
    few = replace(queries, queries=dict(list(queries.queries.items())[:5]))
    some = pools.some(range(5))
    require_served_as_logged(serve(tmp_path).gateway, stack.index, few, some, model, stack.spec.text_fields)
    assert search(stack.engine, stack.index, {"query": BY_WORDS}).status == 200
