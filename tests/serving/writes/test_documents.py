"""Features of documents as clients send them: those of an ingest, in bytes that are otherwise unchanged."""

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EncoderError
from es_ttc.index.ingest.encode import action_lines, encode_documents
from es_ttc.index.ingest.prepare import prepare
from es_ttc.index.ingest.readers import Documents, Inputs
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.writes.encoding import NotEncodedReason, spliced, with_features
from tests.serving.corpus import corpus
from tests.support.encoders import Wrapped

_SPACE = st.text(alphabet=" \t\r", max_size=3)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text().filter(lambda name: name != "ttc"), _VALUES, max_size=4)


@given(_OBJECTS, _SPACE, _SPACE, st.booleans(), st.booleans())
def test_a_key_is_added_and_no_byte_is_changed(
    document: dict[str, Any], before: str, after: str, ascii_only: bool, indented: bool
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=2 if indented else None)
    line = (before + text + after + "\n").encode("utf-8", "surrogatepass")
    added = spliced(line, b'{"a":[1]}', empty=not document)
    assert json.loads(added) == document | {"ttc": {"a": [1]}}
    end = line.rindex(b"}")
    assert (added[:end], added[len(added) - len(line) + end :]) == (line[:end], line[end:])


def test_fields_are_those_of_an_ingest(encoder: Encoder, spec: IndexSpec) -> None:
    documents = [*corpus()[:12], {"_id": "e"}, {"_id": "n", "title": 12345678901234567890}]
    expected, lines = [], []
    for sequence, record in enumerate(Inputs([Documents(documents)]).records()):
        one = prepare(sequence, record, spec, None)
        [features] = encode_documents([record.document or {}], spec, encoder)
        line = action_lines(one.id, one.source, one.digest, features, spec)[1]
        expected.append(orjson.loads(line)["ttc"])
        lines.append(one.source + b"\r\n")
    results = with_features(lines, spec, "the key", encoder)
    for line, result, ours in zip(lines, results, expected, strict=True):
        assert isinstance(result, bytes)
        assert orjson.loads(result)["ttc"] == ours | {"key": "the key"}
        assert result.startswith(line.rstrip()[:-1])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{broken\n", NotEncodedReason.NO_OBJECT),
        (b"", NotEncodedReason.NO_OBJECT),
        (b"[1]", NotEncodedReason.NO_OBJECT),
        (b'{"text":"a"} {}', NotEncodedReason.NO_OBJECT),
        (b'{"text":"\xff"}', NotEncodedReason.NO_OBJECT),
        (b'{"text":"a","ttc":null}', NotEncodedReason.OWN_FIELDS),
        (b'{"text":"a","\\u0074tc":{"state":"ready"}}', NotEncodedReason.OWN_FIELDS),
        (b'{"text":"a","ttc.state":"ready"}', NotEncodedReason.OWN_FIELDS),
        (b'{"text":{"an":"object"}}', NotEncodedReason.TEXT),
        (b'{"text":1.00000000000000000001}', NotEncodedReason.TEXT),
        (b'{"text":"\\ud800 alone","n":1e99}', NotEncodedReason.TEXT),
    ],
)
def test_documents_that_go_as_they_came(
    encoder: Encoder, spec: IndexSpec, line: bytes, reason: NotEncodedReason
) -> None:
    good = b'{"text":"The cat drinks milk."}'
    before, found, after = with_features([good, line, good], spec, "k", encoder)
    assert found is reason
    assert before == after
    assert isinstance(before, bytes)


class Picky(Wrapped):
    """Refuses one text, as an encoder does that overflows."""

    def before(self, texts: Sequence[str]) -> None:
        if any("trout" in text for text in texts):
            raise EncoderError("no trout")


def test_a_text_that_cannot_be_encoded_concerns_its_document_only(encoder: Encoder, spec: IndexSpec) -> None:
    lines = [b'{"text":"The cat"}', b'{"text":"The trout"}', b'{"text":"The owl"}', b'{"text":""}']
    results = with_features(lines, spec, "k", Picky(encoder))
    assert [isinstance(one, bytes) for one in results] == [True, False, True, True]
    assert results[1] is NotEncodedReason.TEXT
