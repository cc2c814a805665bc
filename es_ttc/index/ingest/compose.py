"""Compose a document's text for the encoder: join the fields, keep their positions, hash the content."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from es_ttc.common import exact_numbers
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.readers import marked
from es_ttc.index.mappings.spec import IndexSpec

SourceDocument = Mapping[str, Any]

_HASH_DIGITS = 32


class FieldSpan(NamedTuple):
    """Position of one field's text in the composed text."""

    field: int
    start: int
    end: int


def compose(document: SourceDocument, text_fields: Sequence[str]) -> tuple[str, tuple[FieldSpan, ...]]:
    """Join a document's non-empty text fields by one space; return the text, and the position of each field in it.

    A field is text, a number, a boolean, or a list of them (joined by one space, as one text); a dotted name also
    addresses objects and lists of objects. Absent, null and empty fields are skipped.
    """
    parts: list[str] = []
    spans: list[FieldSpan] = []
    position = 0
    for ordinal, name in enumerate(text_fields):
        text = _text(value_at(document, name), name)
        if not text:
            continue
        parts.append(text)
        spans.append(FieldSpan(ordinal, position, position + len(text)))
        position += len(text) + 1
    return " ".join(parts), tuple(spans)


def content_hash(text: str, spans: Sequence[FieldSpan], spec: IndexSpec) -> str:
    """Return the content hash of a composed text, with the mark of the index's layout.

    It covers the storage of features and the (field name, text) pairs, so a cache by hash never mixes storages.
    """
    state = sha256(spec.storage)
    for span in spans:
        for part in (spec.text_fields[span.field], text[span.start : span.end]):
            # A lone surrogate is rejected elsewhere, with a reason; hashing must not fail.
            encoded = part.encode("utf-8", "surrogatepass")
            # Lengths before contents: different lists of pairs give different bytes.
            state.update(len(encoded).to_bytes(8, "little"))
            state.update(encoded)
    return marked(state.hexdigest()[:_HASH_DIGITS], spec.layout)


def document_hash(source: bytes) -> str:
    """Return the hash of a whole document's JSON: the first 16 bytes of its SHA-256 as 32 hex digits."""
    return sha256(source).hexdigest()[:_HASH_DIGITS]


def document_json(document: SourceDocument) -> bytes:
    """Return a document's JSON, keys in their own order."""
    try:
        # orjson's result keeps the memory reserved for escapes, eight times the text's size: copy the used part.
        return bytes(memoryview(orjson.dumps(document, default=exact_numbers.default)))
    except TypeError as error:
        raise InvalidRequest(f"the document has no JSON form: {error}") from error


def locate(offsets: NDArray[np.int32], spans: Sequence[FieldSpan]) -> NDArray[np.int32]:
    """Convert character offsets in the composed text, ``(n, 2)``, to field ordinals and offsets there, ``(n, 3)``.

    A token without characters is (0, 0, 0). One that reaches over a joining space is cut to the field it ends in.
    """
    located = np.zeros((len(offsets), 3), dtype=np.int32)
    with_text = offsets[:, 1] > offsets[:, 0]
    if not spans or not with_text.any():
        return located
    fields, starts, ends = np.array(spans, dtype=np.int32).T
    owner = np.searchsorted(starts, offsets[with_text, 1] - 1, side="right") - 1
    located[with_text, 0] = fields[owner]
    located[with_text, 1] = np.maximum(offsets[with_text, 0], starts[owner]) - starts[owner]
    located[with_text, 2] = np.minimum(offsets[with_text, 1], ends[owner]) - starts[owner]
    located[:, 1] = np.minimum(located[:, 1], located[:, 2])
    return located


def value_at(document: SourceDocument, name: str) -> Any:
    """Return a field's value by its literal name, else by its path through objects and lists; None if it is absent."""
    if name in document:
        return document[name]
    head, dot, rest = name.partition(".")
    inner = document.get(head)
    if not dot:
        return None
    if isinstance(inner, list | tuple):
        return [value_at(item, rest) for item in inner if isinstance(item, Mapping)]
    return value_at(inner, rest) if isinstance(inner, Mapping) else None


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | exact_numbers.ExactNumber):
        return str(value)
    if isinstance(value, list | tuple):
        return " ".join(text for item in value if (text := _text(item, name)))
    raise InvalidRequest(f"text field [{name}] holds a {type(value).__name__}: it must be text, or a list of texts")
