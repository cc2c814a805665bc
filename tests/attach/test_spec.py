"""The spec of an attach: options that are given, else the present features, else defaults."""

from dataclasses import replace
from typing import Any

import pytest

from es_ttc.cli.attach import merged_spec
from es_ttc.cli.options import with_storage
from es_ttc.encoders.base import EncoderIdentity
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.codecs import DEFAULT_CODEC

OLD = EncoderIdentity("old", "1", 384, 256)
NEW = EncoderIdentity("new", "1", 384, 256)
PRESENT = IndexSpec(OLD, text_fields=("body",), codec="int2", chunks=True, max_tokens=99)
SMALL = replace(PRESENT, skip_tokens="stop_words")
DEFAULTS = IndexSpec(NEW)


@pytest.mark.parametrize(
    ("options", "present", "encoder", "expected"),
    [
        ({}, None, NEW, DEFAULTS),
        ({"text_fields": ("body",)}, None, NEW, replace(DEFAULTS, text_fields=("body",))),
        ({"chunks": True}, None, NEW, replace(DEFAULTS, chunks=True, reversed=True)),
        ({}, PRESENT, OLD, PRESENT),  # without reversed readings, as an earlier release made them
        ({"chunks": True}, PRESENT, OLD, replace(PRESENT, reversed=True)),
        ({"chunks": False}, replace(PRESENT, reversed=True), OLD, replace(PRESENT, chunks=False)),
        ({}, PRESENT, NEW, replace(PRESENT, encoder=NEW, reversed=True)),
        ({"codec": "int8"}, PRESENT, OLD, replace(PRESENT, codec="int8")),
        ({"tokens": "none"}, SMALL, OLD, replace(PRESENT, tokens="none", codec=DEFAULT_CODEC)),
        (with_storage({"storage": "small", "dims": None}), PRESENT, OLD, SMALL),
        (with_storage({"storage": "small", "codec": "int4"}), PRESENT, OLD, replace(SMALL, codec="int4")),
        (with_storage({"storage": "default"}), SMALL, OLD, replace(PRESENT, codec=DEFAULT_CODEC)),
        (with_storage({"text_fields": ("body",)}), SMALL, OLD, SMALL),
    ],
)
def test_merged_prefers_options_to_present_features_to_defaults(
    options: dict[str, Any], present: IndexSpec | None, encoder: EncoderIdentity, expected: IndexSpec
) -> None:
    assert merged_spec(options, present, encoder, distinguishes_roles=True) == expected


def test_merged_stores_no_reversed_readings_for_an_encoder_without_roles() -> None:
    assert merged_spec({"chunks": True}, None, NEW, distinguishes_roles=False) == replace(DEFAULTS, chunks=True)
