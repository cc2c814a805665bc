"""The stored fields of each feature: the one table that index bodies, ingest and readers use.

The fields below ``ttc`` are not in ``_source``: hits stay small, and a write of the document by another client (an
index call, ``_update``, ``_reindex``) drops all of them at once. So a document never has the features of an earlier
text; it lacks them, which ``ttc.state`` shows and the next ingest repairs. The exception are token vectors of the type
``rank_vectors``, which engines return from ``_source`` only: such a write keeps them, but without their hash and
encoder, so they are never used for the new text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from es_ttc.engine.protocol import Capabilities
from es_ttc.engine.versions import RANK_VECTORS
from es_ttc.errors import ConfigurationError
from es_ttc.index.mappings.spec import (
    CHUNKS,
    DOCUMENT,
    ENCODER,
    HASH,
    NORMS,
    OFFSETS,
    POOLED,
    REVERSED,
    SPAN_END,
    SPAN_FIELD,
    SPAN_POSITION,
    SPAN_SCALE,
    SPAN_START,
    SPAN_VECTOR,
    SPANS,
    STATE,
    TOKEN_VECTOR,
    TOKENS,
    VECTOR,
    IndexSpec,
    TokenStorage,
)
from es_ttc.rescorers.base import Feature

FieldKind = Literal["vector", "blob", "keyword", "integer", "float", "nested", "rank_vectors"]

READY = "ready"  # `ttc.state` of a document with all its features
EMPTY = "empty"  # `ttc.state` of a document without text: it has no features, and needs none

_LICENCES_WITH_RANK_VECTORS = ("enterprise", "trial")


@dataclass(frozen=True, slots=True)
class Field:
    """One field below ``ttc``."""

    name: str
    kind: FieldKind
    children: tuple["Field", ...] = ()

    @property
    def leaf(self) -> str:
        """Its name inside its object."""
        return self.name.rpartition(".")[2]


FEATURES: Mapping[Feature, Field] = {
    Feature.POOLED: Field(POOLED, "blob"),
    Feature.TOKENS: Field(TOKENS, "blob"),
    Feature.NORMS: Field(NORMS, "blob"),
    Feature.OFFSETS: Field(OFFSETS, "blob"),
    Feature.CHUNKS: Field(CHUNKS, "blob"),
    Feature.REVERSED: Field(REVERSED, "blob"),
}
"""The field of each stored feature; token vectors have another one if they are not packed."""

_TOKENS_UNPACKED: Mapping[TokenStorage, Field] = {
    "nested": Field(TOKENS, "nested", (Field(TOKEN_VECTOR, "vector"),)),
    "rank_vectors": Field(TOKENS, "rank_vectors"),
}

BOOKKEEPING: tuple[Field, ...] = (
    Field(VECTOR, "vector"),
    *(Field(name, "keyword") for name in (HASH, ENCODER, STATE, DOCUMENT)),
)
"""Fields of every index in addition to its features: the vector for the engine's own kNN, and keywords."""

SPAN_OBJECTS = Field(
    SPANS,
    "nested",
    (
        Field(SPAN_VECTOR, "vector"),
        Field(SPAN_SCALE, "float"),
        Field(SPAN_POSITION, "integer"),
        Field(SPAN_FIELD, "keyword"),
        Field(SPAN_START, "integer"),
        Field(SPAN_END, "integer"),
    ),
)
"""Smoothed spans, if the spec has any."""


def carried(spec: IndexSpec) -> dict[Feature, Field]:
    """Return the features of an index with this spec, with their fields."""
    carries = {Feature.POOLED}
    if spec.tokens != "none":
        carries |= {Feature.TOKENS, Feature.OFFSETS} | ({Feature.NORMS} if stored_scales(spec) else set())
    if spec.chunks:
        carries.add(Feature.CHUNKS)
    if spec.reversed:
        carries.add(Feature.REVERSED)
    tokens = {Feature.TOKENS: _TOKENS_UNPACKED.get(spec.tokens, FEATURES[Feature.TOKENS])}
    return {feature: field for feature, field in {**FEATURES, **tokens}.items() if feature in carries}


def fields(spec: IndexSpec) -> tuple[Field, ...]:
    """Return all fields below ``ttc`` of an index with this spec."""
    return (*carried(spec).values(), *((SPAN_OBJECTS,) if spec.spans else ()), *BOOKKEEPING)


def kept_in_source(spec: IndexSpec) -> tuple[Field, ...]:
    """Return the fields below ``ttc`` that are in ``_source``, because engines do not return them otherwise."""
    kinds: tuple[FieldKind, ...] = ("rank_vectors",) if spec.outside_source else ("rank_vectors", "nested")
    return tuple(field for field in carried(spec).values() if field.kind in kinds)


def stored_scales(spec: IndexSpec) -> tuple[float, ...]:
    """Return the scales whose norms are stored: all but L = 1, whose norms are those of the tokens."""
    return tuple(scale for scale in spec.scales if scale != 1)


def field_mapping(field: Field, spec: IndexSpec, capabilities: Capabilities) -> dict[str, Any]:
    """Return one field's mapping."""
    match field.kind:
        case "vector":
            encoder = spec.encoder.of_tokens if field.name == TOKEN_VECTOR else spec.encoder
            return _vector(encoder.dims, capabilities)
        case "blob":
            # Hits of kNN return the pooled vector as a stored field; it is short.
            doc_values = spec.layout == "doc_values"
            return {"type": "binary", "store": not doc_values or field.name == POOLED, "doc_values": doc_values}
        case "rank_vectors":
            return _rank_vectors(spec.encoder.of_tokens.dims, capabilities)
        case "keyword":
            return {"type": "keyword"}
        case "float":
            return {"type": "float"}
        case "integer":
            return {"type": "integer", "index": False}
        case "nested":
            children = {child.leaf: field_mapping(child, spec, capabilities) for child in field.children}
            return {"type": "nested", "dynamic": "strict", "properties": children}


def _vector(dims: int, capabilities: Capabilities) -> dict[str, Any]:
    """Return a kNN field with cosine similarity: a kNN score is (1 + cosine) / 2 on both products.

    The algorithm is always named: Elasticsearch's default quantises to one bit and reduces recall, and OpenSearch's
    default engine is faiss, which crashes the shard if its native library is absent.
    """
    if not capabilities.vectors:
        raise ConfigurationError(
            f"this {capabilities.product} has no vector field: install the k-NN plugin (opensearch-plugin install "
            "opensearch-knn)"
        )
    if dims > capabilities.max_dims:
        raise ConfigurationError(
            f"the encoder's vectors have {dims} dimensions, and this {capabilities.product} takes up to "
            f"{capabilities.max_dims}: choose fewer with --dims"
        )
    if capabilities.product == "elasticsearch":
        return {
            "type": "dense_vector",
            "dims": dims,
            "index": True,
            "similarity": "cosine",
            "index_options": {"type": "hnsw"},
        }
    method = {"name": "hnsw", "engine": capabilities.knn_engine, "space_type": "cosinesimil"}
    return {"type": "knn_vector", "dimension": dims, "method": method}


def _rank_vectors(dims: int, capabilities: Capabilities) -> dict[str, Any]:
    if not capabilities.has(RANK_VECTORS):
        raise ConfigurationError(
            f"this {capabilities.product} has no rank_vectors field, which Elasticsearch has from 9.0 on: choose "
            "--tokens packed or nested"
        )
    if capabilities.licence not in _LICENCES_WITH_RANK_VECTORS:
        raise ConfigurationError(
            f"Elasticsearch's rank_vectors field needs an Enterprise licence, and this one is [{capabilities.licence}]"
            ": choose --tokens packed or nested"
        )
    return {"type": "rank_vectors", "dims": dims}
