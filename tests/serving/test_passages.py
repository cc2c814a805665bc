"""Passages of hits, in `_ttc` and as fragments of `highlight`."""

from typing import Any

import pytest

from tests.serving.client import search
from tests.serving.conftest import SearchStack

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
