import math
from dataclasses import replace
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.fields import fields
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid

SPEC = IndexSpec(
    EncoderIdentity("m", "r", 4, 16, prompts="p"),
    ("a", "b.c"),
    codec="float16",
    scales=(1, 2.5, math.inf),
    max_tokens=7,
    spans=(SpanGrid(10, 5), SpanGrid(2.5, 1)),
)


def test_spec_survives_json() -> None:
    mapping = {"_meta": {"ttc": orjson.loads(orjson.dumps(SPEC.as_meta()))}}
    assert IndexSpec.from_mapping("articles", mapping) == SPEC


def test_spec_of_every_storage_survives_json() -> None:
    for spec, layout in (
        (SPEC, "doc_values"),
        (replace(SPEC, codec="int2", skip_tokens="stop_words"), "doc_values"),
        (replace(SPEC, tokens="none"), "doc_values"),
        (replace(SPEC, tokens="nested"), "nested_vectors"),
        (replace(SPEC, tokens="nested", outside_source=False), "nested"),
        (replace(SPEC, tokens="rank_vectors"), "rank_vectors"),
        (replace(SPEC, chunks=True, reversed=True), "doc_values"),
    ):
        mapping = {"_meta": {"ttc": orjson.loads(orjson.dumps(spec.as_meta()))}}
        assert IndexSpec.from_mapping("articles", mapping) == spec
        assert spec.layout == layout


def test_documents_as_queries_are_known_by_the_mapping_and_change_no_other_index() -> None:
    chunks = replace(SPEC, chunks=True)
    assert "reversed" not in chunks.as_meta()
    assert not IndexSpec.from_mapping("articles", {"_meta": {"ttc": chunks.as_meta()}}).reversed
    both = replace(chunks, reversed=True)
    assert both.storage != chunks.storage
    assert {field.name for field in fields(both)} - {field.name for field in fields(chunks)} == {"ttc.reversed"}


def test_nested_tokens_of_an_earlier_release_are_read_where_they_are() -> None:
    """Its mapping does not say that they are outside `_source`, and its content hashes are as they were."""
    earlier = replace(SPEC, tokens="nested", outside_source=False)
    meta = replace(SPEC, tokens="nested").as_meta()
    assert meta.pop("outside_source") is True
    assert IndexSpec.from_mapping("articles", {"_meta": {"ttc": meta}}) == earlier
    assert earlier.storage != replace(SPEC, tokens="nested").storage


def test_an_index_without_or_of_another_release_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\[articles\].*es-ttc index create"):
        IndexSpec.from_mapping("articles", {"properties": {}})
    with pytest.raises(InvalidRequest, match="newer es-ttc"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": {**SPEC.as_meta(), "version": 3}}})
    residual = {**SPEC.as_meta(), "version": 1, "codec": "residual2", "codebook": "AA=="}
    with pytest.raises(InvalidRequest, match=r"\[articles\].*earlier es-ttc"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": residual}})
    assert IndexSpec.from_mapping("articles", {"_meta": {"ttc": {**SPEC.as_meta(), "token_pooling": 1}}}) == SPEC
    with pytest.raises(InvalidRequest, match=r"\[articles\].*es-ttc index create"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": {**SPEC.as_meta(), "token_pooling": 3}}})


@pytest.mark.parametrize("damage", [{"version": None}, {"scales": 3}, {"encoder": {}}, {"spans": [{"step": 1}]}])
def test_changed_metadata_of_an_index_is_refused_with_the_reason(damage: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"\[_meta.ttc\].*\[articles\]"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": {**SPEC.as_meta(), **damage}}})
    with pytest.raises(InvalidRequest, match=r"KeyError: 'version'"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": {"steps": 3}}})


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": "none"},
        {"codec": "int8"},
        {"codec": "int2"},
        {"skip_tokens": "punctuation"},
        {"scales": (1, 2.5)},
        {"max_tokens": 8},
        {"spans": (SpanGrid(10, 4),)},
    ],
)
def test_storage_tells_whatever_changes_what_is_stored_of_a_text(change: dict[str, Any]) -> None:
    assert replace(SPEC, **change).storage != SPEC.storage
    same = replace(SPEC, encoder=replace(SPEC.encoder, dims=3), text_fields=("c",))
    assert same.storage == SPEC.storage
