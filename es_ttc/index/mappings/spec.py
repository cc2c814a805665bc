"""The spec of an index: stored in its mapping's ``_meta.ttc``, read by ingest, gateway and commands."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, Self

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.vectors.codecs import DEFAULT_CODEC, SkipTokens, StoredCodec

VERSION = 2

ROOT = "ttc"
CALIBRATION = "calibration"  # key of `_meta.ttc` with the calibration; written later, not part of the spec
VECTOR = "ttc.vector"
POOLED = "ttc.pooled"  # a packed blob: OpenSearch returns no knn_vector outside of `_source`
TOKENS = "ttc.tokens"  # a blob; objects with `TOKEN_VECTOR`; or one list of vectors: depending on the storage
TOKEN_VECTOR = "ttc.tokens.v"
NORMS = "ttc.norms"
OFFSETS = "ttc.offsets"
CHUNKS = "ttc.chunks"  # sentences, pairs of sentences and paragraphs with their vectors, for programs
REVERSED = "ttc.reversed"  # the pooled vector of the document encoded as a query, as a packed blob
HASH = "ttc.hash"  # of the text and of the storage: with the same encoder, equal ones have equal features
ENCODER = "ttc.encoder"
STATE = "ttc.state"
SPANS = "ttc.spans"  # nested: one object per span, with the fields below it
SPAN_VECTOR = "ttc.spans.v"
SPAN_SCALE = "ttc.spans.scale"
SPAN_POSITION = "ttc.spans.position"  # the token at the span's centre, from 0
SPAN_FIELD = "ttc.spans.field"  # name of the text field at the span's centre, whose characters are stored too
SPAN_START = "ttc.spans.start"
SPAN_END = "ttc.spans.end"
ENRICHMENT = "ttc.enrichment"  # a model's phrases, in a field of their own: users' fields keep their statistics
ENRICHED = "ttc.enriched"  # key of the plan (prompt, model, parameters) of the enrichment, if there is one
ENRICHED_BY = "ttc.enriched_by"  # the job that wrote the enrichment
ENRICHED_TEXT = "ttc.enriched_text"  # SHA-256, cut to 16 bytes, of the text that the model read
ENRICHMENT_FIELDS = (ENRICHMENT, ENRICHED, ENRICHED_BY, ENRICHED_TEXT)
"""The fields of enrichment; like all fields below ``ttc`` they are outside ``_source``."""
DOCUMENT = "ttc.document"  # SHA-256, cut to 16 bytes, of the document as sent, which shows unchanged ones

TokenStorage = Literal["packed", "nested", "rank_vectors", "none"]
DEFAULT_FIELDS = ("title", "text")  # the fields that are encoded if none are named
Layout = Literal["doc_values", "nested", "nested_vectors", "rank_vectors"]
"""How features are read; ``nested``: of an index whose nested token vectors are in ``_source``, as they once were."""

_OUTSIDE = "outside_source"
_MAKE_ANEW = "make it anew, with `es-ttc index create` and `es-ttc ingest`, or `es-ttc detach` and `es-ttc attach`"
MEAN_SCALE = "mean"  # the scale L = inf in JSON and on the command line

STORED_SCALES: tuple[float, ...] = (1, 3, 5, 7, 10, 15, 20, 30, math.inf)
"""Spectral Retrieval's default grid, section III-C, and the mean, so that a request may add it at no cost."""


@dataclass(frozen=True, slots=True)
class SpanGrid:
    """Positions of spans in a document: width L in tokens of the kernel, and tokens from one centre to the next."""

    scale: float
    stride: int


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The features of an index."""

    encoder: EncoderIdentity
    # The document's fields that are encoded, in this order, the non-empty ones joined by one space
    text_fields: tuple[str, ...] = DEFAULT_FIELDS
    # Storage of token vectors: `packed` (one blob per document), `nested` (one nested vector per token), `rank_vectors`
    # (Elasticsearch's own field) or `none` (pooled vectors only)
    tokens: TokenStorage = "packed"
    codec: StoredCodec = DEFAULT_CODEC  # of packed token vectors; the other kinds of storage use float32
    skip_tokens: SkipTokens = "none"  # tokens without a vector; see `es_ttc.index.ingest.skip_tokens`
    # The scales whose norms are stored (L = 1 needs none); norms of other scales are computed on request
    scales: tuple[float, ...] = STORED_SCALES
    max_tokens: int = 1024  # maximum number of rows of one document's token matrix
    # Grids of smoothed spans that are stored as nested vectors for the engine's own kNN; may be empty
    spans: tuple[SpanGrid, ...] = ()
    chunks: bool = False  # whether vectors of sentences, pairs of sentences and paragraphs are stored, for programs
    # Whether each document's vector as a query is stored, for programs. For an encoder that does not distinguish roles
    # it would be the pooled vector again.
    reversed: bool = False
    # Whether nested token vectors are outside `_source`, as all other features are. Those of indices made by earlier
    # releases are in it.
    outside_source: bool = True
    strip_html: bool = False  # whether markup is left out of what is encoded; offsets still point into the stored text

    def __post_init__(self) -> None:
        if self.spans and self.encoder.tokens is not None:
            raise InvalidRequest(
                "[spans] are means of token vectors that kNN compares with pooled ones, and the token vectors are "
                "another encoder's: leave spans out, or take one encoder"
            )

    def as_meta(self) -> dict[str, Any]:
        """Return the JSON-ready value of ``_meta.ttc``."""
        meta: dict[str, Any] = {
            "version": VERSION,
            "encoder": self.encoder.as_dict(),
            "text_fields": list(self.text_fields),
            "tokens": self.tokens,
            "codec": self.codec,
            "scales": [MEAN_SCALE if math.isinf(scale) else scale for scale in self.scales],
            "max_tokens": self.max_tokens,
        }
        if self.spans:
            meta["spans"] = [asdict(grid) for grid in self.spans]
        if self.chunks:
            meta["chunks"] = True
        if self.reversed:
            meta["reversed"] = True
        if self.tokens == "nested" and self.outside_source:
            meta[_OUTSIDE] = True
        if self.skip_tokens != "none":
            meta["skip_tokens"] = self.skip_tokens
        if self.strip_html:
            meta["strip_html"] = True
        return meta

    @property
    def layout(self) -> Layout:
        """The layout of a document's features; see :mod:`es_ttc.index.mappings.readers`."""
        match self.tokens:
            case "nested":
                return "nested_vectors" if self.outside_source else "nested"
            case "rank_vectors":
                return "rank_vectors"
            case _:
                return "doc_values"

    @property
    def encodes_tokens(self) -> bool:
        """Whether token vectors are needed to compute the stored features."""
        return self.tokens != "none" or bool(self.spans)

    @property
    def tokens_read(self) -> int:
        """Maximum number of tokens of a text that are read: for token vectors, without these for the pooled one."""
        encoder = self.encoder.of_tokens
        if not self.encodes_tokens:
            return self.encoder.max_length
        return min(self.max_tokens, encoder.max_length) if encoder.late else self.max_tokens

    @property
    def storage(self) -> bytes:
        """A hash of 16 bytes of everything that a text's features depend on, except the text and the encoder."""
        return _storage(self)

    @classmethod
    def from_mapping(cls, index: str, mapping: Mapping[str, Any]) -> Self:
        """Return the spec in an index's mapping."""
        meta = mapping.get("_meta", {}).get(ROOT)
        if meta is None:
            raise InvalidRequest(
                f"index [{index}] was not made by `es-ttc index create` (no [_meta.{ROOT}] in its mapping): "
                "`es-ttc attach` and `es-ttc detach` manage the features of such an index"
            )
        try:
            return cls._from_meta(index, meta)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"[_meta.{ROOT}] of index [{index}] is not as es-ttc writes it ({type(error).__name__}: {error}): "
                "someone has changed it; put it back from another copy of the index, or make the index anew"
            ) from error

    @classmethod
    def _from_meta(cls, index: str, meta: Mapping[str, Any]) -> Self:
        refuse_in_index_features(index, meta)
        if meta["version"] > VERSION:
            raise InvalidRequest(
                f"index [{index}] was written by a newer es-ttc (layout {meta['version']}, this one reads up to "
                f"{VERSION}): upgrade es-ttc"
            )
        if meta["version"] < VERSION:
            raise InvalidRequest(
                f"index [{index}] was written by an earlier es-ttc (layout {meta['version']}, this one reads "
                f"{VERSION}): {_MAKE_ANEW}"
            )
        if meta.get("token_pooling", 1) != 1:
            raise InvalidRequest(
                f"index [{index}] has one vector for {meta['token_pooling']} tokens (its [token_pooling]), and this "
                f"es-ttc reads one for each: {_MAKE_ANEW}"
            )
        return cls(
            encoder=EncoderIdentity.from_dict(meta["encoder"]),
            text_fields=tuple(meta["text_fields"]),
            tokens=meta["tokens"],
            codec=meta["codec"],
            skip_tokens=meta.get("skip_tokens", "none"),
            scales=tuple(math.inf if scale == MEAN_SCALE else scale for scale in meta["scales"]),
            max_tokens=meta["max_tokens"],
            spans=tuple(SpanGrid(**grid) for grid in meta.get("spans", ())),
            chunks=meta.get("chunks", False),
            reversed=meta.get("reversed", False),
            outside_source=meta.get(_OUTSIDE, meta["tokens"] != "nested"),
            strip_html=meta.get("strip_html", False),
        )


def own_meta(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of es-ttc in an index's mapping; empty if there is none."""
    meta: Mapping[str, Any] = mapping.get("_meta", {}).get(ROOT, {})
    return meta


def refuse_in_index_features(index: str, meta: Mapping[str, Any]) -> None:
    """Raise an error for an index to whose documents an earlier es-ttc has attached features."""
    if "inside" in meta:
        raise InvalidRequest(
            f"the documents of index [{index}] have features that an earlier es-ttc attached, and this one attaches "
            f"them in a side index: reindex it without [{ROOT}], delete it and its pipeline [ttc-stamp-{index}], and "
            "run `es-ttc attach`"
        )


def spec_of_own(index: str, mapping: Mapping[str, Any]) -> IndexSpec:
    """Return the spec of an index that es-ttc created."""
    if "source" in own_meta(mapping):
        raise InvalidRequest(
            f"index [{index}] was not made by es-ttc, features were attached: its documents are written as ever, "
            "`es-ttc fill` brings features up to date, and `es-ttc detach` takes them away"
        )
    return IndexSpec.from_mapping(index, mapping)


@lru_cache(maxsize=64)
def _storage(spec: IndexSpec) -> bytes:
    meta = spec.as_meta()
    kept = {key: value for key, value in meta.items() if key not in ("encoder", "text_fields")}
    return sha256(json.dumps(kept, sort_keys=True).encode()).digest()[:16]
