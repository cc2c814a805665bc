"""What features will take on an engine's disk, estimated from the first documents before anything is written."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson

from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import SourceDocument, compose
from es_ttc.index.ingest.encode import (
    Composed,
    Encoded,
    document_features,
    encode_whole_texts,
    feature_fields,
    with_tokens_skipped,
)
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.codecs import PROFILES

DOCUMENTS = 8  # documents that are encoded for an estimate
_FLOAT32 = 4
_HASH = "0" * 32


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Mean size of the features of one document, and the seconds of encoding it; its own text is not counted.

    Attributes:
        tokens: Tokens of its text.
        vectors: Token vectors that are stored.
        token_bytes: Bytes of these.
        at_once: Bytes of all features before segments are merged.
        merged: Bytes of all features after that.
        seconds: Seconds of encoding.
        sample: Number of documents that were encoded.
        truncated: Number of these that are longer than what is read.
        others: Estimates for other options, by option, the smallest first.
    """

    tokens: float
    vectors: float
    token_bytes: float
    at_once: float
    merged: float
    seconds: float
    sample: int
    truncated: int
    others: Mapping[str, "SizeEstimate"] = field(default_factory=dict)

    def as_dict(self, documents: int | None = None) -> dict[str, Any]:
        """Return a JSON-ready form, with the bytes of some number of documents."""
        total = {} if documents is None else {"documents": documents, "bytes": round(documents * self.merged)}
        others = {option: size.as_dict(documents) for option, size in self.others.items()}
        return {
            "tokens_a_document": round(self.tokens, 1),
            "vectors_a_document": round(self.vectors, 1),
            "bytes_a_document_at_once": round(self.at_once),
            "bytes_a_document": round(self.merged),
            "seconds_a_document": round(self.seconds, 4),
            "sample": self.sample,
            "truncated": self.truncated,
            **total,
            **({"others": others} if others else {}),
        }


def estimate_size(documents: Sequence[SourceDocument], spec: IndexSpec, encoder: Encoder) -> SizeEstimate | None:
    """Encode the first documents that have text, and count the bytes of their features; None if none has text."""
    sample = list(islice((document for document in documents if _has_text(document, spec)), DOCUMENTS))
    if not sample:
        return None
    composed = [compose(document, spec.text_fields) for document in sample]
    began = time.perf_counter()
    encoded = encode_whole_texts(composed, spec, encoder)
    seconds = (time.perf_counter() - began) / len(sample)

    def estimated(stored: IndexSpec) -> SizeEstimate:
        return _estimate(encoded, composed, stored, encoder, seconds)

    others = {option: estimated(stored) for option, stored in _others(spec).items()}
    return replace(estimated(spec), others=dict(sorted(others.items(), key=lambda item: item[1].merged)))


def _others(spec: IndexSpec) -> dict[str, IndexSpec]:
    """Return other ways to store what an index stores, by option."""
    if spec.tokens != "packed":
        return {}
    profiles = {f"--storage {name}": replace(spec, **storage._asdict()) for name, storage in PROFILES.items()}
    others = {option: stored for option, stored in profiles.items() if stored != spec}
    return others if spec.spans else {**others, "--tokens none": replace(spec, tokens="none")}


def _estimate(
    encoded: Encoded, composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder, seconds: float
) -> SizeEstimate:
    skipped = with_tokens_skipped(encoded, composed, spec, encoder)
    features = document_features(skipped, [fields for _, fields in composed], [_HASH] * len(composed), spec)
    stored = [feature_fields(feature, spec) for feature in features]
    merged = [sum(map(_stored_bytes, fields.values())) for fields in stored]
    recovery = [len(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)) for fields in stored]
    of_tokens = [
        sum(_stored_bytes(fields.get(name, "")) for name in ("tokens", "norms", "offsets")) for fields in stored
    ]
    return SizeEstimate(
        _mean([*map(len, encoded.encodings.tokens)] or [0]),
        _mean([0 if feature.tokens is None else len(feature.tokens.vectors) for feature in features]),
        _mean(of_tokens),
        _mean(np.add(merged, recovery)),
        _mean(merged),
        seconds,
        len(features),
        sum(feature.truncated for feature in features),
    )


def _mean(values: Sequence[int] | np.ndarray[Any, Any]) -> float:
    return float(np.mean(values))


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
