import math
from dataclasses import replace
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.mappings.spec import IndexSpec, SpanGrid

SPEC = IndexSpec(
    EncoderIdentity("m", "r", 4, 16, prompts="p"),
    ("a", "b.c"),
    codec="float16",
    scales=(1, 2.5, math.inf),
    max_tokens=7,
    spans=(SpanGrid(10, 5), SpanGrid(2.5, 1)),
)


def test_comes_back_from_json() -> None:
    mapping = {"_meta": {"ttc": orjson.loads(orjson.dumps(SPEC.as_meta()))}}
    assert IndexSpec.from_mapping("articles", mapping) == SPEC


def test_an_index_without_or_from_a_newer_release_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\[articles\] carries nothing of es-ttc.*es-ttc index create"):
        IndexSpec.from_mapping("articles", {"properties": {}})
    with pytest.raises(InvalidRequest, match="newer es-ttc"):
        IndexSpec.from_mapping("articles", {"_meta": {"ttc": {**SPEC.as_meta(), "version": 2}}})


@pytest.mark.parametrize(
    "change",
    [{"tokens": "none"}, {"codec": "int8"}, {"scales": (1, 2.5)}, {"max_tokens": 8}, {"spans": (SpanGrid(10, 4),)}],
)
def test_storage_tells_whatever_changes_what_is_stored_of_a_text(change: dict[str, Any]) -> None:
    assert replace(SPEC, **change).storage != SPEC.storage
    same = replace(SPEC, encoder=replace(SPEC.encoder, dims=3), text_fields=("c",))
    assert same.storage == SPEC.storage
