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


def test_a_record_that_could_not_be_read_keeps_its_reason() -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        prepare(0, Record("a.jsonl", 3, None, "the line is not JSON", "{"), SPEC, None)
