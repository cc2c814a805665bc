"""Write a document again with something added, without changing its features.

The fields below ``ttc`` are not in ``_source``, so an `_update` would drop them. A document is therefore read
completely: its ``_source``, its blobs from the fields that store them, its keywords from doc values, its nested token
vectors. Fields that engines do not return are computed again: the kNN vector from the pooled blob (float32, the same
numbers), spans from the stored token vectors. The document is written in one action with the version that was read, so
either all of it is replaced or nothing, and no other write is overwritten.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from es_ttc.common.exact_numbers import default
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.by_id import ReadDocument, hits_by_id, whole_source
from es_ttc.index.ingest.encode import span_features, span_objects
from es_ttc.index.mappings.fields import carried, kept_in_source
from es_ttc.index.mappings.ingest_pipeline import NO_PIPELINE
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import (
    DOCUMENT,
    ENCODER,
    ENRICHED,
    ENRICHED_BY,
    ENRICHED_TEXT,
    ENRICHMENT,
    HASH,
    POOLED,
    ROOT,
    STATE,
    IndexSpec,
    Layout,
)
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import TokenVectors

_KEYWORDS = (HASH, ENCODER, STATE, DOCUMENT, ENRICHED, ENRICHED_BY, ENRICHED_TEXT)
_LAYOUTS_WITH_TOKENS: tuple[Layout, ...] = ("doc_values", "nested_vectors")  # with tokens beside spans


@dataclass(frozen=True, slots=True)
class FullDocument(ReadDocument):
    """A document with all its fields below ``ttc``."""

    ours: Mapping[str, Any]  # the fields below `ttc`, ready to be written again
    pipeline_key: str = ""  # the key with which the index's pipeline lets features pass; empty if it has none

    def lines(self, added: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the two lines of a bulk that write it again, with more fields below ``ttc``."""
        # The source has passed the index's default pipeline already.
        action = {"index": {**self.target, "pipeline": NO_PIPELINE}}
        ours = {**self.ours, **added, **({"key": self.pipeline_key} if self.pipeline_key else {})}
        document = {**self.source, ROOT: ours}
        return orjson.dumps(action), orjson.dumps(document, default=default, option=orjson.OPT_SERIALIZE_NUMPY)


class DocumentRewriter:
    """Reads complete documents of one index."""

    def __init__(self, engine: Engine, index: str, spec: IndexSpec, key: str = "") -> None:
        if spec.spans and (spec.tokens == "none" or spec.layout not in _LAYOUTS_WITH_TOKENS):
            # Without tokens, spans cannot be computed. If spans are stored outside `_source`, Elasticsearch 9.4
            # does not return token vectors in it (a null pointer in its loader).
            raise InvalidRequest(
                f"index [{index}] keeps spans, and tokens as [{spec.tokens}]: engines give spans to no reader, so its "
                "documents cannot be written again with something added; make the index with packed tokens"
            )
        self._engine = engine
        self._index = index
        self._spec = spec
        self._key = key
        self._features = carried(spec)
        self._sourced = {field.name for field in kept_in_source(spec)}
        self._reader = reader_of(spec.layout)

    async def read(self, ids: Sequence[str]) -> list[FullDocument]:
        """Return the documents of some ids, as of the last refresh, without deleted ones.

        Raises:
            EngineUnavailable: A part of the index returned no answer.
            ValueError: A stored field is damaged.
        """
        blobs = [field.name for field in self._features.values() if field.kind == "blob"]
        stored = [] if self._spec.layout == "doc_values" else blobs
        capabilities = await self._engine.capabilities()
        parts: dict[str, Any] = {
            "query": self._reader.query({"ids": {"values": list(ids)}}, list(self._features), capabilities.product),
            "seq_no_primary_term": True,
            "_source": whole_source(capabilities),
            "stored_fields": [*stored, ENRICHMENT],
            "docvalue_fields": [*_KEYWORDS, *(blobs if not stored else ())],
        }
        return [self._whole(hit) for hit in await hits_by_id(self._engine, self._index, ids, parts)]

    def _whole(self, hit: Mapping[str, Any]) -> FullDocument:
        fields: Mapping[str, Sequence[Any]] = hit.get("fields", {})
        source = dict(hit.get("_source") or {})
        ours: dict[str, Any] = {}
        for name in self._sourced:
            value = source.get(ROOT, {}).get(_leaf(name), source.get(name))
            if value is not None:
                ours[_leaf(name)] = value
            source.pop(name, None)
        source.pop(ROOT, None)
        for name in _KEYWORDS:
            if name in fields:
                ours[_leaf(name)] = fields[name][0]
        if ENRICHMENT in fields:
            ours[_leaf(ENRICHMENT)] = list(fields[ENRICHMENT])
        for field in self._features.values():
            if field.name in fields:
                ours[_leaf(field.name)] = _padded(fields[field.name][0])
        if POOLED in fields:
            pooled = self._reader.read(hit, Feature.POOLED)
            ours["vector"] = pooled.value if pooled else None
            if self._spec.layout == "nested_vectors":
                ours["tokens"] = [{"v": vector} for vector in self._tokens(hit).values]
            if self._spec.spans:
                ours["spans"] = self._spans(hit)
        return FullDocument(
            hit["_id"], hit.get("_routing"), hit["_seq_no"], hit["_primary_term"], source, ours, self._key
        )

    def _tokens(self, hit: Mapping[str, Any]) -> TokenVectors:
        tokens = self._reader.read(hit, Feature.TOKENS)
        if tokens is None:
            raise ValueError(f"document [{hit['_id']}] has lost its token vectors")
        found: TokenVectors = tokens.value
        return found

    def _spans(self, hit: Mapping[str, Any]) -> list[dict[str, object]]:
        tokens = self._tokens(hit)
        offsets = self._reader.read(hit, Feature.OFFSETS)
        if offsets is None:
            raise ValueError(f"document [{hit['_id']}] has lost the offsets of its tokens")
        return span_objects(span_features(dequantise(tokens), offsets.value[0], self._spec.spans), self._spec)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _padded(value: str) -> str:
    """Return base64 as engines accept it; OpenSearch returns doc values without its padding."""
    plain = value.rstrip("=")
    base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    return plain + "=" * (-len(plain) % 4)
