import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.prepare import Prepared, prepare
from es_ttc.index.ingest.readers import Record
from es_ttc.index.mappings.spec import IndexSpec

SPEC = IndexSpec(EncoderIdentity("m", "r", 4, 16))


def prepared(document: dict[str, object], id_field: str | None = None) -> Prepared:
    return prepare(0, Record("a.jsonl", 1, document), SPEC, id_field)


def test_the_id_leaves_the_document_and_other_fields_stay_as_they_are() -> None:
    document = prepared({"_id": 7, "title": "a", "n": {"b": [1.5, None]}})
    assert document.id == "7"
    assert document.source == b'{"title":"a","n":{"b":[1.5,null]}}'


def test_an_id_field_stays_in_the_document() -> None:
    document = prepared({"_id": "x", "sku": "s1", "text": "t"}, "sku")
    assert document.id == "s1"
    assert document.source == b'{"sku":"s1","text":"t"}'


def test_without_an_id_the_content_names_the_document() -> None:
    assert prepared({"text": "a", "n": 1}).id == prepared({"text": "a", "n": 1}).id
    assert prepared({"text": "a", "n": 1}).id != prepared({"text": "a", "n": 2}).id


@pytest.mark.parametrize(
    ("document", "id_field", "message"),
    [
        ({"text": "a"}, "sku", r"no \[sku\].*--id-field"),
        ({"text": "a"}, "_id", r"no \[_id\]"),
        ({"_id": ""}, None, r"no \[_id\]"),
        ({"_id": 1.5}, None, "whole number"),
        ({"_id": True}, None, "whole number"),
        ({"_id": "x" * 513}, None, "513 bytes"),
        ({"_id": "\ud800"}, None, "Unicode"),
        ({"ttc": {"vector": [1]}}, None, "reserved"),
        ({"ttc.vector": [1]}, None, "reserved"),
        ({"text": "\udfff"}, None, "JSON form"),
        ({"text": {"a": 1}}, None, "holds a dict"),
    ],
)
def test_an_invalid_document_is_refused_with_the_reason(
    document: dict[str, object], id_field: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        prepared(document, id_field)


def test_a_record_that_could_not_be_read_keeps_its_reason() -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        prepare(0, Record("a.jsonl", 3, None, "the line is not JSON", "{"), SPEC, None)
