"""Features for documents as clients send them: added to the JSON object's bytes, which otherwise stay as they are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from es_ttc.common import exact_numbers
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import Span, compose, content_hash, document_hash, document_json
from es_ttc.index.ingest.encode import encode_apart, feature_fields, features_of
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.index.mappings.write_options import KEY


class Pending(StrEnum):
    """Why a document is sent as it came, so that a worker encodes it later."""

    OWN_FIELDS = "own_fields"
    """The client sent fields below ``ttc``, which are the pipeline's matter."""
    NO_OBJECT = "no_object"
    """It is not a JSON object, or has a key twice."""
    TEXT = "text"
    """A text field cannot be encoded, or has a number that the engine rounds."""
    UPDATE = "update"
    """It is a part of a document."""
    PIPELINE = "pipeline"
    """A pipeline of the user's may change its text."""
    SIZE = "size"
    """It is too long, or the features would make the request too long."""
    FORMAT = "format"
    """The request's body is not JSON, or compressed in another way than gzip."""
    LATE = "late"
    """The time for encoding was over."""
    BUSY = "busy"
    """Too many documents were waiting."""
    LEFT = "left"
    """It was to be encoded right after its write, and was not in time, or another write came in between."""
    ENCODER = "encoder"
    """The encoder could not be loaded, or failed."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    text: str
    spans: Sequence[Span]
    hash: str
    digest: str
    empty: bool


def with_features(lines: Sequence[bytes], spec: IndexSpec, key: str, encoder: Encoder) -> list[bytes | Pending]:
    """Return each document with its features and the key, or why it has none."""
    prepared = [_prepared(line, spec) for line in lines]
    results: list[bytes | Pending] = [one if isinstance(one, Pending) else Pending.TEXT for one in prepared]
    usable = [(place, one) for place, one in enumerate(prepared) if isinstance(one, _Prepared)]
    done, _ = encode_apart([(one.text, one.spans) for _, one in usable], spec, encoder)
    for part, encoded in done:
        some = usable[part.start : part.stop]
        features = features_of(encoded, [one.spans for _, one in some], [one.hash for _, one in some], spec)
        for (place, one), own in zip(some, features, strict=True):
            fields = {**feature_fields(own, spec), "document": one.digest, KEY.removeprefix(f"{ROOT}."): key}
            added = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
            results[place] = spliced(lines[place], added, empty=one.empty)
    return results


def spliced(document: bytes, fields: bytes, *, empty: bool) -> bytes:
    """Return a JSON object with one more key, ``ttc``, at its end; all its bytes are kept."""
    end = document.rindex(b"}")
    return b"".join((document[:end], b"" if empty else b",", b'"ttc":', fields, document[end:]))


def _prepared(line: bytes, spec: IndexSpec) -> _Prepared | Pending:
    try:
        document = exact_numbers.loads(line)
        json.loads(line, object_pairs_hook=_unique)  # the engine refuses such a document, and quotes it as it came
    except (ValueError, RecursionError):
        return Pending.NO_OBJECT
    if not isinstance(document, dict):
        return Pending.NO_OBJECT
    if any(name == ROOT or name.startswith(f"{ROOT}.") for name in document):
        return Pending.OWN_FIELDS
    if _rounded(document, spec):
        return Pending.TEXT
    try:
        text, spans = compose(document, spec.text_fields)
        digest = document_hash(document_json(document))
    except InvalidRequest:
        return Pending.TEXT
    return _Prepared(text, spans, content_hash(text, spans, spec), digest, not document)


def _rounded(document: Mapping[str, Any], spec: IndexSpec) -> bool:
    """Return whether a text field has a decimal that the engine stores as another number, so as another text."""
    heads = {head for name in spec.text_fields for head in (name, name.partition(".")[0])}
    values = {name: document[name] for name in heads if name in document}
    return any(not number.integer for _, number in exact_numbers.exact_numbers_in(values))


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) != len({name for name, _ in pairs}):
        raise ValueError("a key twice")
