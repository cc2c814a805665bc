"""What features will take on an engine's disk, estimated from the first documents before anything is written."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import orjson

from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import SourceDocument, compose
from es_ttc.index.ingest.encode import encode_documents, feature_fields
from es_ttc.index.mappings.fields import stored_scales
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.codecs import StoredCodec
from es_ttc.vectors.tokens import row_bytes

DOCUMENTS = 8  # documents that are encoded for an estimate
_FLOAT32 = 4
_OFFSET = 2


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Mean size of the features of one document, and the seconds of encoding it; its own text is not counted."""

    tokens: float
    at_once: float
    merged: float
    seconds: float

    def as_dict(self, documents: int | None = None) -> dict[str, int | float | None]:
        """Return a JSON-ready form, with the bytes of some number of documents."""
        total = {} if documents is None else {"documents": documents, "bytes": round(documents * self.merged)}
        return {
            "tokens_a_document": round(self.tokens, 1),
            "bytes_a_document_at_once": round(self.at_once),
            "bytes_a_document": round(self.merged),
            "seconds_a_document": round(self.seconds, 4),
            **total,
        }


def estimate_size(documents: Sequence[SourceDocument], spec: IndexSpec, encoder: Encoder) -> SizeEstimate | None:
    """Encode the first documents that have text, and count the bytes of their features; None if none has text."""
    sample = list(islice((document for document in documents if _has_text(document, spec)), DOCUMENTS))
    if not sample:
        return None
    began = time.perf_counter()
    features = encode_documents(sample, spec, encoder)
    seconds = (time.perf_counter() - began) / len(sample)
    stored = [feature_fields(feature, spec) for feature in features]
    merged = [sum(map(_stored_bytes, fields.values())) for fields in stored]
    recovery = [len(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)) for fields in stored]
    tokens = [0 if feature.tokens is None else len(feature.tokens.vectors.values) for feature in features]
    return SizeEstimate(_mean(tokens), _mean(np.add(merged, recovery)), _mean(merged), seconds)


def _mean(values: Sequence[int] | np.ndarray[Any, Any]) -> float:
    return float(np.mean(values))


def token_bytes(spec: IndexSpec, codec: StoredCodec | None = None) -> int:
    """Return the stored bytes of a token of packed storage: its vector, norms and offset."""
    return row_bytes(codec or spec.codec, spec.encoder.of_tokens.dims) + len(stored_scales(spec)) + _OFFSET


def share_with_text(documents: Sequence[SourceDocument], spec: IndexSpec) -> float:
    """Return the share of documents that have text, in [0, 1]: the others get no features."""
    return sum(_has_text(document, spec) for document in documents) / len(documents) if documents else 0.0


def _has_text(document: SourceDocument, spec: IndexSpec) -> bool:
    try:
        return bool(compose(document, spec.text_fields)[0])
    except InvalidRequest:  # ingest rejects the document
        return False


def _stored_bytes(value: Any) -> int:
    """Return the bytes of one field: a blob's, four for each component of a vector, else those of its text."""
    if isinstance(value, np.ndarray):
        return int(value.size) * _FLOAT32
    if isinstance(value, str):
        return len(value) * 3 // 4  # base64 but for the hash and two short names
    if isinstance(value, Mapping):
        return sum(map(_stored_bytes, value.values()))
    if isinstance(value, Sequence):
        return sum(map(_stored_bytes, value))
    return _FLOAT32
