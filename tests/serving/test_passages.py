"""Passages of hits, in `_ttc` and as fragments of `highlight`."""

from dataclasses import replace
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.serving.test_engine_requests_of_a_search import attached

ON_ONE_ENGINE = True

QUERY = {"match": {"text": "cat drinks milk"}}
MARKED = {"type": "ttc", "number_of_fragments": 1, "pre_tags": ["<b>"], "post_tags": ["</b>"]}


def body(highlight: Any = None, **section: Any) -> dict[str, Any]:
    rescore = {"window_size": 40, "ttc": {"timeout": "60s", "on_error": "fail", **section}}
    return {"query": QUERY, "size": 4, "rescore": rescore} | ({} if highlight is None else {"highlight": highlight})


@pytest.mark.engine
@pytest.mark.parametrize("method", ["blend", "dense", "hybrid"])
def test_every_method_has_passages_of_the_hits_own_fields(stack: SearchStack, method: str) -> None:
    reply = search(stack.gateway, stack.index, body(method=method, passages=2)).json()
    assert reply["ttc"]["applied"] is True
    assert reply["ttc"]["took"]["passages"] > 0
    for hit in reply["hits"]["hits"]:
        assert set(hit["_ttc"]) == {"passages"}
        assert 1 <= len(hit["_ttc"]["passages"]) <= 2
        for passage in hit["_ttc"]["passages"]:
            assert hit["_source"][passage["field"]][passage["start"] : passage["end"]].strip()
            assert -1 <= passage["score"] <= 1
        assert "fields" not in hit


@pytest.mark.engine
@pytest.mark.parametrize("engine_url", ["opensearch", "elasticsearch"], indirect=True)
async def test_context_has_the_text_also_of_hits_without_it(
    stack: SearchStack, encoder: Encoder, index_name: str
) -> None:
    """Of documents with features of their own, and of an attached index: several values with markup, in an object."""
    values = ["Our <b>cat</b> drinks milk.", "It &amp; the farmer watch the rain and the snow for hours and hours."]
    lines = [line for name in ("a", "b") for line in ({"index": {"_id": name}}, {"note": {"text": [name, *values]}})]
    call(stack.engine, "POST", f"/{index_name}/_bulk?refresh=true", lines)
    await attached(stack.engine, index_name, replace(stack.spec, text_fields=("note.text",), strip_html=True), encoder)
    try:
        for index, query in ((stack.index, QUERY), (index_name, {"match": {"note.text": "cat drinks milk"}})):
            asked = body(passages=3, context=2) | {"query": query}
            whole = search(stack.gateway, index, asked).json()["hits"]["hits"]
            narrow = search(stack.gateway, index, body(passages=3) | {"query": query}).json()["hits"]["hits"]
            for hit, positions in zip(whole, narrow, strict=True):
                shown, source = hit["_ttc"]["passages"], hit["_source"]
                for passage in shown:
                    text = source[passage["field"]] if "title" in source else " ".join(source["note"]["text"])
                    assert passage["text"] == text[passage["start"] : passage["end"]]
                    assert passage["length"] == len(text)
                assert positions["_ttc"]["passages"]
                for inner in positions["_ttc"]["passages"]:
                    around = [one for one in shown if one["field"] == inner["field"] and one["end"] >= inner["end"]]
                    assert any(one["start"] <= inner["start"] for one in around)
            for changes, url in (
                ({"_source": False}, ""),
                ({"_source": ["number"]}, ""),
                ({}, "?_source=false"),
                ({}, "?stored_fields=_none_&_source=false"),
            ):
                reply = call(stack.gateway, "POST", f"/{index}/_search{url}", asked | changes).json()["hits"]["hits"]
                assert [hit["_ttc"] for hit in reply] == [hit["_ttc"] for hit in whole], (changes, url)
                assert not any("fields" in hit or "text" in hit.get("_source", {}) for hit in reply)
    finally:
        call(stack.engine, "DELETE", f"/ttc-*-{index_name}")


def unmarked(hit: dict[str, Any]) -> str:
    """Return a hit's first fragment of the field `text` without its marks."""
    fragment: str = hit["highlight"]["text"][0]
    return fragment.replace("<b>", "").replace("</b>", "")


@pytest.mark.engine
def test_fragments_mark_whole_words_of_the_text(stack: SearchStack) -> None:
    highlight = {"fields": {"text": MARKED, "title": {"type": "plain"}}, "require_field_match": False}
    fields = {"_source": False, "fields": ["title"]}
    reply = search(stack.gateway, stack.index, body(highlight) | fields).json()
    # The two best hits are close, and change places with the statistics of the words.
    text = "Our cat drinks milk, and the farmer watches it for 5 hours."
    [first] = [hit for hit in reply["hits"]["hits"] if unmarked(hit) in text]
    assert first["fields"] == {"title": ["The cat"]}
    assert first["highlight"]["title"] == ["The <em>cat</em>"]  # the engine's own
    [fragment] = first["highlight"]["text"]
    assert "drinks milk" in unmarked(first)
    before, match, after = fragment.replace("</b>", "<b>").split("<b>")
    assert match
    assert not (before[-1:] + match[:1]).isalnum() or not before
    assert not (match[-1:] + after[:1]).isalnum() or not after
    assert "_ttc" not in first


@pytest.mark.engine
def test_text_is_escaped_as_html_and_the_caller_s_own_fields_stay(stack: SearchStack) -> None:
    highlight = {"type": "ttc", "encoder": "html", "fields": [{"text": {}}]}
    for hit in search(stack.gateway, stack.index, body(highlight) | {"fields": ["te*"]}).json()["hits"]["hits"]:
        assert hit["fields"]["text"] == [hit["_source"]["text"]]
        assert "<em>" in hit["highlight"]["text"][0]


@pytest.mark.engine
def test_a_field_without_token_vectors_is_named(stack: SearchStack) -> None:
    reply = search(stack.gateway, stack.index, body({"fields": {"group": {"type": "ttc"}}}))
    assert (reply.status, "[group]" in reply.reason) == (400, True), reply.body


@pytest.mark.engine
def test_top_hits_would_show_the_texts_too(stack: SearchStack) -> None:
    aggregation = {"aggs": {"groups": {"terms": {"field": "group"}, "aggs": {"best": {"top_hits": {}}}}}}
    reply = search(stack.gateway, stack.index, body({"fields": {"text": MARKED}}) | aggregation)
    assert reply.status == 400
    assert "[top_hits]" in reply.json()["error"]["reason"]
