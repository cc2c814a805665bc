"""Check a record: return a document with id, JSON and text, or the reason why it is rejected."""

from dataclasses import dataclass
from typing import NamedTuple

from es_ttc.common.exact_numbers import ExactNumber, exact_numbers_in
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import FieldSpan, SourceDocument, compose, content_hash, document_hash, document_json
from es_ttc.index.ingest.readers import Record
from es_ttc.index.mappings.spec import ROOT, IndexSpec

ID_FIELD = "_id"
_MAX_NUMBER_LENGTH = 60
MAX_ID_BYTES = 512  # both engines reject a whole bulk because of one longer id


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document that is ready to be encoded."""

    sequence: int
    record: Record
    id: str
    source: bytes
    digest: str
    text: str
    spans: tuple[FieldSpan, ...]
    hash: str


def prepare(sequence: int, record: Record, spec: IndexSpec, id_field: str | None) -> Prepared:
    """Check a record; its id is ``id_field``'s value, else ``_id``'s, else a hash of its content."""
    identified = _identified(record, id_field)
    text, spans = compose(identified.document, spec.text_fields)
    text_hash = content_hash(text, spans, spec)
    return Prepared(sequence, record, identified.id, identified.source, identified.digest, text, spans, text_hash)


def id_of(record: Record, id_field: str | None) -> str:
    """Return the id of a record, as :func:`prepare` does."""
    return _identified(record, id_field).id


def raw_document(record: Record) -> SourceDocument | str | None:
    """Return the document of a rejected record for the dead-letter file, or its line if it could not be decoded."""
    return record.document if record.document is not None else record.raw


class _Identified(NamedTuple):
    id: str
    document: SourceDocument
    source: bytes
    digest: str


def _identified(record: Record, id_field: str | None) -> _Identified:
    if record.error is not None or record.document is None:
        raise InvalidRequest(record.error or "the record holds no document")
    document = dict(record.document)
    for name in document:
        if name == ROOT or name.startswith(f"{ROOT}."):
            raise InvalidRequest(f"field [{name}] is reserved for es-ttc's own features: rename or remove it")
    own_id = document.pop(ID_FIELD, None)
    _refuse_long_decimals(document)
    source = document_json(document)
    digest = document_hash(source)
    if id_field is not None and id_field != ID_FIELD:
        identifier = _identifier(document.get(id_field), id_field)
    else:
        identifier = digest if own_id is None and id_field is None else _identifier(own_id, ID_FIELD)
    return _Identified(identifier, document, source, digest)


def _refuse_long_decimals(document: SourceDocument) -> None:
    """Reject decimals that are not exact as doubles: engines rewrite them when they exclude `ttc` from `_source`."""
    for name, number in exact_numbers_in(document):
        if not number.integer:
            raise InvalidRequest(
                f"field [{name}] holds [{number.text[:_MAX_NUMBER_LENGTH]}], which the engine would change to the "
                "nearest double: give it as text, or with fewer digits"
            )


def _identifier(value: object, name: str) -> str:
    if value is None or value == "":
        raise InvalidRequest(f"the document has no [{name}]: give it one, or name the right field with --id-field")
    if isinstance(value, ExactNumber) and value.integer:
        value = value.text
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest(f"id [{name}] must be text or a whole number, got a {type(value).__name__}")
    identifier = str(value)
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"id [{name}] is not valid Unicode: {error.reason}") from error
    if size > MAX_ID_BYTES:
        raise InvalidRequest(f"id [{name}] has {size} bytes, and the engines take up to {MAX_ID_BYTES}")
    return identifier
