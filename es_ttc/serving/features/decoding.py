"""Stored features on their way from the engine: the request that reads them, and the decoding of its answer.

The answer is decoded on a thread. A document whose features are damaged, or name an unknown codebook, gets the reason
in their place.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cbor2

from es_ttc.engine.versions import Product
from es_ttc.errors import EngineError
from es_ttc.index.mappings.readers import (
    BlobReader,
    FeatureReader,
    Hit,
    Query,
    ReadFeature,
    layout_of,
)
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.columns import Stored
from es_ttc.serving.features.keys import DocumentKey, SentBlobs, reader_for, unsendable
from es_ttc.serving.features.skip_reasons import SkipReason, fault_in
from es_ttc.serving.logs import log
from es_ttc.vectors.packed import NO_CODEBOOKS, Codebooks, UnknownCodebook

_SENT = BlobReader()
"""Reads what a plugin has sent: blobs, whatever the layout."""

ABSENT = ReadFeature(object(), 64)
"""In place of a feature that a document does not have."""

Fetched = dict[DocumentKey, dict[Feature, ReadFeature | SkipReason]]
"""By document its features, or why one is not used."""


Decoded = tuple[Fetched, set[str]]
"""Decoded features, and the codebooks that they need and that were not given."""


class ShardsFailed(EngineError):
    """The engine refused a search for features, or not all shards answered."""


def read_request(
    keys: Sequence[DocumentKey], features: Sequence[Feature], product: Product, *further: Query, bare: bool = False
) -> dict[str, Any]:
    """Return the search that reads stored features by content, for documents of one index, encoder and layout.

    It is a search and not an `_mget`, because hits of a window have no ids; it is as fast.
    """
    reader = reader_for(keys)
    request = reader.request(features, bare=bare)
    if "docvalue_fields" in request or "script_fields" in request:
        # Older engines cannot add the collapsed field to a list without it.
        request["docvalue_fields"] = [HASH, *request.get("docvalue_fields", ())]
    query: Query = {
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


def decode_answer(
    raw: bytes, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks
) -> Decoded:
    """Decode the answer to :func:`read_request`; a document that has changed since the first pass is left out.

    Raises:
        ShardsFailed: Not all shards answered.
    """
    answer = cbor2.loads(raw)
    if answer["_shards"]["failed"]:
        raise ShardsFailed("features could not be read: some of the index's shards failed")
    expected = {key.hash: key for key in keys}
    hits = ((expected[hit["fields"][HASH][0]], hit) for hit in answer["hits"]["hits"])
    return _decoded(hits, reader_for(keys), features, codebooks)


def decode_sent(
    sent: SentBlobs, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks
) -> Decoded:
    """Decode the blobs in a score request.

    Raises:
        EngineError: The documents' layout is one that only the gateway reads.
    """
    if (refusal := unsendable(keys[0])) is not None:
        raise refusal
    hits = ((key, {"fields": {name: [b] for name, b in sent[key.hash].items()}}) for key in keys)
    return _decoded(hits, _SENT, features, codebooks)


def features_from_hit(key: DocumentKey, hit: Hit, features: Iterable[Feature]) -> Stored:
    """Return the features in a document's hit, without those that are missing or damaged."""
    reader = reader_for([key])
    stored: Stored = {}
    for feature in features:
        with suppress(ValueError, LookupError):
            found = _feature_of(reader, hit, feature, NO_CODEBOOKS, key.dims)
            if isinstance(found, ReadFeature) and found is not ABSENT:
                stored[feature] = found.value
    return stored


def group_by_layout(keys: Sequence[DocumentKey]) -> Iterator[Sequence[DocumentKey]]:
    """Yield groups of documents of one index, encoder and layout."""
    groups: dict[tuple[str, str, str], list[DocumentKey]] = defaultdict(list)
    for key in keys:
        groups[key.index, key.encoder, layout_of(key.hash)].append(key)
    yield from groups.values()


def _decoded(
    hits: Iterable[tuple[DocumentKey, Mapping[str, Any]]],
    reader: FeatureReader,
    features: Sequence[Feature],
    codebooks: Codebooks,
) -> Decoded:
    fetched: Fetched = {}
    unknown: set[str] = set()
    for key, hit in hits:
        dims = key.dims
        fetched[key] = stored = {}
        for feature in features:
            try:
                stored[feature] = _feature_of(reader, hit, feature, codebooks, dims)
            except UnknownCodebook as error:
                unknown.add(error.identifier)
                stored[feature] = SkipReason.CODEBOOK
            except ValueError as error:
                log.warning("damaged features", index=key.index, hash=key.hash, error=str(error))
                stored[feature] = SkipReason.DAMAGED
    return fetched, unknown


def _feature_of(
    reader: FeatureReader, hit: Hit, feature: Feature, codebooks: Codebooks, dims: int | None
) -> ReadFeature | SkipReason:
    read = reader.read(hit, feature, codebooks)
    if read is None:
        return ABSENT
    return fault_in(feature, read.value, dims) or read
