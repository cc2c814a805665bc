from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose, content_hash, document_json, locate
from es_ttc.index.ingest.encode import share_of_text_read
from es_ttc.index.mappings.spec import IndexSpec

FIELDS = ("title", "text")
SPEC = IndexSpec(EncoderIdentity("m", "r", 4, 16), FIELDS)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"title": "A", "text": "b c"}, "A b c"),
        ({"title": "", "text": "b"}, "b"),
        ({"title": None, "text": "b"}, "b"),
        ({"text": "b"}, "b"),
        ({}, ""),
        ({"title": ["A", "", "B"], "text": ["c"]}, "A B c"),
        ({"title": 7, "text": True}, "7 true"),
        ({"other": "x"}, ""),
    ],
)
def test_joins_the_fields_that_hold_text(document: dict[str, object], text: str) -> None:
    assert compose(document, FIELDS)[0] == text


def test_spans_tell_where_each_field_stands() -> None:
    text, spans = compose({"c": "three", "a": "one", "b": ""}, ("a", "b", "c"))
    assert [(span.field, text[span.start : span.end]) for span in spans] == [(0, "one"), (2, "three")]


def test_dotted_names_reach_into_objects_and_literal_names_come_first() -> None:
    assert compose({"body": {"text": "inner"}}, ("body.text",))[0] == "inner"
    assert compose({"body": {"text": "inner"}, "body.text": "literal"}, ("body.text",))[0] == "literal"
    assert compose({"body": "plain"}, ("body.text",))[0] == ""


def test_an_object_where_text_should_be_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"\[text\] holds a dict"):
        compose({"text": {"a": 1}}, FIELDS)


def test_content_hash_is_stable_and_depends_on_text_field_and_storage_only() -> None:
    def hashed(document: dict[str, object], spec: IndexSpec = SPEC) -> str:
        return content_hash(*compose(document, FIELDS), spec)

    parts = b"".join(len(part).to_bytes(8, "little") + part for part in (b"title", b"a", b"text", "ไ".encode()))
    digest = sha256(SPEC.storage + parts).hexdigest()[:32]
    assert hashed({"title": "a", "text": "ไ"}) == f"{digest}-doc_values"
    assert hashed({"title": "a", "text": "b", "price": 3}) == hashed({"text": "b", "title": "a"})
    assert hashed({"text": "a"}, replace(SPEC, codec="float16")) != hashed({"text": "a"})
    assert hashed({"title": "a b"}) != hashed({"text": "a b"})
    assert hashed({"title": "a", "text": "b"}) != hashed({"title": "a b"})


@given(st.dictionaries(st.sampled_from(FIELDS), TEXTS), st.data())
def test_located_tokens_are_the_same_characters(document: dict[str, str], data: st.DataObject) -> None:
    text, spans = compose(document, FIELDS)
    span = data.draw(st.sampled_from(spans)) if spans else None
    if span is None:
        return
    start = data.draw(st.integers(span.start, span.end - 1))
    end = data.draw(st.integers(start + 1, span.end))
    [field, first, last] = locate(np.array([[start, end]], dtype=np.int32), spans)[0]
    assert document[FIELDS[field]][first:last] == text[start:end]


def test_special_tokens_and_tokens_over_the_joining_space() -> None:
    _, spans = compose({"title": "ab", "text": "cd"}, FIELDS)
    offsets = np.array([[0, 0], [0, 2], [2, 5], [2, 3], [0, 0]], dtype=np.int32)
    assert locate(offsets, spans).tolist() == [[0, 0, 0], [0, 0, 2], [1, 0, 2], [0, 2, 2], [0, 0, 0]]


@pytest.mark.parametrize("value", ["\ud800", 2**64, object(), {1: "a"}])
def test_a_value_without_json_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="no JSON form"):
        document_json({"a": value})


def test_a_field_in_a_list_of_objects_is_one_text() -> None:
    document = {"authors": [{"name": "Ada"}, {"name": ["Bob", "Bo"]}, {"other": 1}, 7], "title": "T"}
    text, _ = compose(document, ["title", "authors.name"])
    assert text == "T Ada Bob Bo"


def test_the_share_read_ends_with_the_last_stored_token() -> None:
    _, spans = compose({"title": "Bees", "text": "dance in the dark"}, FIELDS)
    offsets = np.array([[0, 0], [0, 4], [5, 10], [0, 0]], np.int32)
    assert share_of_text_read(offsets, spans) == 10 / 22
    assert share_of_text_read(offsets[:1], spans) == 1  # no token has text: nothing is known
