"""Stored features on their way from the engine: the request that reads them, and the decoding of its answer.

The answer is decoded on a thread. A document whose features are damaged, or of another layout, gets the reason in their
place.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from es_ttc.engine.versions import Product
from es_ttc.errors import EngineError
from es_ttc.index.mappings.readers import BlobReader, LayoutReader, ReadFeature, ReadQuery, StoredHit, layout_of
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.keys import DocumentKey, SentBlobs, reader_for, unsendable
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.logs import log
from es_ttc.vectors.chunks import DocumentChunks
from es_ttc.vectors.codes import steps_of
from es_ttc.vectors.packed import OtherLayout
from es_ttc.vectors.tokens import TokenVectors

_MAX_ROWS = 65_536
_MAX_COMPONENT = 2.0
"""Components of unit vectors are at most 1, apart from rounding; much larger ones make sums that are not finite."""

_SENT = BlobReader()
"""Reads what a plugin has sent: blobs, whatever the layout."""

ABSENT = ReadFeature(object(), 64)
"""In place of a feature that a document does not have."""

Stored = dict[Feature, Any]
"""The features of one document."""

Fetched = dict[DocumentKey, dict[Feature, ReadFeature | SkipReason]]
"""By document its features, or why one is not used."""


class ShardsFailed(EngineError):
    """The engine refused a search for features, or not all shards answered."""


def read_request(
    keys: Sequence[DocumentKey], features: Sequence[Feature], product: Product, *further: ReadQuery, bare: bool = False
) -> dict[str, Any]:
    """Return the search that reads stored features by content, for documents of one index, encoder and layout.

    It is a search and not an `_mget`, because hits of a window have no ids; it is as fast.
    """
    reader = reader_for(keys)
    request = reader.request(features, bare=bare)
    if "docvalue_fields" in request or "script_fields" in request:
        # Older engines cannot add the collapsed field to a list without it.
        request["docvalue_fields"] = [HASH, *request.get("docvalue_fields", ())]
    query: ReadQuery = {
        "bool": {
            "filter": [
                {"terms": {HASH: [key.hash for key in keys]}},
                {"term": {ENCODER: keys[0].encoder}},
                {"term": {"_index": keys[0].index}},
                *further,
            ]
        }
    }
    return {
        "query": reader.query(query, features, product),
        "collapse": {"field": HASH},
        "size": len(keys),
        "track_total_hits": False,
        **request,
    }


def decode_answer(raw: bytes, keys: Sequence[DocumentKey], features: Sequence[Feature]) -> Fetched:
    """Decode the answer to :func:`read_request`; a document that has changed since the first pass is left out."""
    answer = cbor2.loads(raw)
    if answer["_shards"]["failed"]:
        raise ShardsFailed("features could not be read: some of the index's shards failed")
    expected = {key.hash: key for key in keys}
    hits = ((expected[hit["fields"][HASH][0]], hit) for hit in answer["hits"]["hits"])
    return _decoded(hits, reader_for(keys), features)


def decode_sent(sent: SentBlobs, keys: Sequence[DocumentKey], features: Sequence[Feature]) -> Fetched:
    """Decode the blobs in a score request."""
    if (refusal := unsendable(keys[0])) is not None:
        raise refusal
    hits = ((key, {"fields": {name: [b] for name, b in sent[key.hash].items()}}) for key in keys)
    return _decoded(hits, _SENT, features)


def features_from_hit(key: DocumentKey, hit: StoredHit, features: Iterable[Feature]) -> Stored:
    """Return the features in a document's hit, without those that are missing or damaged."""
    reader = reader_for([key])
    stored: Stored = {}
    for feature in features:
        with suppress(ValueError, LookupError):
            decoded = _feature_of(reader, hit, feature, key)
            if isinstance(decoded, ReadFeature) and decoded is not ABSENT:
                stored[feature] = decoded.value
    return stored


def group_by_layout(keys: Sequence[DocumentKey]) -> Iterator[Sequence[DocumentKey]]:
    """Yield groups of documents of one index, encoder and layout."""
    groups: dict[tuple[str, str, str], list[DocumentKey]] = defaultdict(list)
    for key in keys:
        groups[key.index, key.encoder, layout_of(key.hash)].append(key)
    yield from groups.values()


def _decoded(
    hits: Iterable[tuple[DocumentKey, Mapping[str, Any]]],
    reader: LayoutReader,
    features: Sequence[Feature],
) -> Fetched:
    fetched: Fetched = {}
    for key, hit in hits:
        fetched[key] = stored = {}
        for feature in features:
            try:
                stored[feature] = _feature_of(reader, hit, feature, key)
            except OtherLayout:
                stored[feature] = SkipReason.LAYOUT
            except ValueError as error:
                log.warning("damaged features", index=key.index, hash=key.hash, error=str(error))
                stored[feature] = SkipReason.DAMAGED
    return fetched


def _feature_of(reader: LayoutReader, hit: StoredHit, feature: Feature, key: DocumentKey) -> ReadFeature | SkipReason:
    read = reader.read(hit, feature)
    if read is None:
        return ABSENT
    return _fault_in(feature, read.value, key.token_dims if feature is Feature.TOKENS else key.dims) or read


def consistent(stored: Mapping[Feature, Any]) -> dict[Feature, Any]:
    """Return a document's features without norms and offsets that do not have the length of its token vectors."""
    tokens = stored.get(Feature.TOKENS)
    usable = dict(stored)
    if tokens is None:
        return usable
    norms, offsets = usable.get(Feature.NORMS), usable.get(Feature.OFFSETS)
    if norms is not None and norms.values.shape[1] != len(tokens):
        del usable[Feature.NORMS]
    if offsets is not None and len(offsets[0]) != len(tokens):
        del usable[Feature.OFFSETS]
    return usable


def _fault_in(feature: Feature, value: Any, dims: int | None) -> SkipReason | None:
    """Return why a decoded feature cannot be used, or None."""
    if feature is Feature.TOKENS:
        return _of_tokens(value, dims)
    if feature is Feature.POOLED or feature is Feature.REVERSED:
        return _of_rows(value[np.newaxis], dims)
    if feature is Feature.CHUNKS:
        return _of_chunks(value, dims)
    return None


def _of_chunks(chunks: DocumentChunks, dims: int | None) -> SkipReason | None:
    faults = (_of_tokens(vectors, dims) for vectors in (chunks.topic, *chunks.vectors.values()))
    return next(filter(None, faults), None)


def _of_tokens(tokens: TokenVectors, dims: int | None) -> SkipReason | None:
    if len(tokens) > _MAX_ROWS:
        return SkipReason.DIMENSIONS
    if tokens.scales is None:
        return _of_rows(tokens.values, dims)
    if dims is not None and tokens.dims != dims:
        return SkipReason.DIMENSIONS
    if 127 * float(np.abs(tokens.scales).max(initial=0)) <= _MAX_COMPONENT:
        return None
    steps = steps_of(tokens) if tokens.coded else tokens.values
    maxima = np.abs(steps.astype(np.int16)).max(axis=1, initial=0) * np.abs(tokens.scales)
    return SkipReason.VALUES if float(maxima.max(initial=0)) > _MAX_COMPONENT else None


def _of_rows(rows: NDArray[Any], dims: int | None) -> SkipReason | None:
    if dims is not None and rows.shape[1] != dims:
        return SkipReason.DIMENSIONS
    if rows.dtype == np.float16:  # compared as integers without the sign, which is many times faster
        bits = int(np.max(rows.view(np.uint16) & np.uint16(0x7FFF), initial=0))
        return SkipReason.VALUES if bits > int(np.float16(_MAX_COMPONENT).view(np.uint16)) else None
    maximum = max(float(rows.max(initial=0)), -float(rows.min(initial=0)))
    return None if maximum <= _MAX_COMPONENT else SkipReason.VALUES
