"""What an index carries for es-ttc: written into its mapping's ``_meta.ttc``, read back by ingest, gateway and CLI."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, Self

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest

VERSION = 1

ROOT = "ttc"
VECTOR = "ttc.vector"
POOLED = "ttc.pooled"
"""The pooled vector again, as a packed blob: OpenSearch gives a knn_vector outside of `_source` to no reader."""
TOKENS = "ttc.tokens"
NORMS = "ttc.norms"
OFFSETS = "ttc.offsets"
HASH = "ttc.hash"
"""Of the text and of how its features are stored: documents of equal hash and encoder have equal features."""
ENCODER = "ttc.encoder"
STATE = "ttc.state"
SPANS = "ttc.spans"
"""Nested: one object a span, with the fields below it."""
SPAN_VECTOR = "ttc.spans.v"
SPAN_SCALE = "ttc.spans.scale"
SPAN_POSITION = "ttc.spans.position"
"""The token at the span's centre, from 0."""
SPAN_FIELD = "ttc.spans.field"
"""Name of the text field under the span's centre; with it go the characters of that field under its main lobe."""
SPAN_START = "ttc.spans.start"
SPAN_END = "ttc.spans.end"
DOCUMENT = "ttc.document"
"""blake2b-128 of the whole document as it was sent: tells ingest that nothing of it has changed."""

TokenStorage = Literal["packed", "none"]
Codec = Literal["float16", "int8"]

MEAN = "mean"
"""How the scale L = inf is written in JSON and on the command line."""

DEFAULT_SCALES: tuple[float, ...] = (1, 3, 5, 7, 10, 15, 20, 30, math.inf)
"""Spectral Retrieval's default grid, section III-C, and the mean endpoint, so that a request may add it at no cost."""


@dataclass(frozen=True, slots=True)
class SpanGrid:
    """Where spans are taken of a document.

    Attributes:
        scale: Width L in tokens of the smoothing kernel (Spectral Retrieval, section III-B), finite, 1 or more.
        stride: Tokens from one span's centre to the next, 1 or more.
    """

    scale: float
    stride: int


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """What an index carries.

    Attributes:
        encoder: The identity of the encoder that every vector of the index comes from.
        text_fields: The document's fields that are encoded, in this order, the non-empty ones joined by one space.
        tokens: Storage strategy of token vectors; ``none`` keeps pooled vectors only.
        codec: Storage type of token vectors.
        scales: The grid whose norms are stored (L = 1 needs none); other scales are computed when asked for.
        max_tokens: Rows kept of one document's token matrix.
        spans: Grids of smoothed spans that are kept as nested vectors for the engine's own kNN; none where empty.
    """

    encoder: EncoderIdentity
    text_fields: tuple[str, ...] = ("title", "text")
    tokens: TokenStorage = "packed"
    codec: Codec = "int8"
    scales: tuple[float, ...] = DEFAULT_SCALES
    max_tokens: int = 1024
    spans: tuple[SpanGrid, ...] = ()

    def as_meta(self) -> dict[str, Any]:
        """Return the JSON-ready value of ``_meta.ttc``."""
        meta: dict[str, Any] = {
            "version": VERSION,
            "encoder": self.encoder.as_dict(),
            "text_fields": list(self.text_fields),
            "tokens": self.tokens,
            "codec": self.codec,
            "scales": [MEAN if math.isinf(scale) else scale for scale in self.scales],
            "max_tokens": self.max_tokens,
        }
        if self.spans:
            meta["spans"] = [asdict(grid) for grid in self.spans]
        return meta

    @property
    def encodes_tokens(self) -> bool:
        """Whether token vectors are needed to make what is stored."""
        return self.tokens != "none" or bool(self.spans)

    @property
    def storage(self) -> bytes:
        """16 bytes that stand for all that a text's features depend on beside the text and the encoder."""
        return _storage(self)

    @classmethod
    def from_mapping(cls, index: str, mapping: Mapping[str, Any]) -> Self:
        """Read the spec from an index's mapping.

        Raises:
            InvalidRequest: The index was not made for es-ttc, or by a newer release.
        """
        meta = mapping.get("_meta", {}).get(ROOT)
        if meta is None:
            raise InvalidRequest(
                f"index [{index}] carries nothing of es-ttc (no [_meta.{ROOT}] in its mapping): "
                f"make one with `es-ttc index create`"
            )
        if meta["version"] > VERSION:
            raise InvalidRequest(
                f"index [{index}] was written by a newer es-ttc (layout {meta['version']}, this one reads up to "
                f"{VERSION}): upgrade es-ttc"
            )
        return cls(
            encoder=EncoderIdentity.from_dict(meta["encoder"]),
            text_fields=tuple(meta["text_fields"]),
            tokens=meta["tokens"],
            codec=meta["codec"],
            scales=tuple(math.inf if scale == MEAN else scale for scale in meta["scales"]),
            max_tokens=meta["max_tokens"],
            spans=tuple(SpanGrid(**grid) for grid in meta.get("spans", ())),
        )


@lru_cache(maxsize=64)
def _storage(spec: IndexSpec) -> bytes:
    meta = spec.as_meta()
    kept = {key: value for key, value in meta.items() if key not in ("encoder", "text_fields")}
    return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=blake2b.PERSON_SIZE).digest()
