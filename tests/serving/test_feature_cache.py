"""The cache of features gives back what was put into it, and drops what was not used for longest."""

from typing import Any

import numpy as np

from es_ttc.index.mappings.readers import ReadFeature, unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.cache import FeatureCache, KnownFeatures
from es_ttc.serving.features.decoding import ABSENT
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.vectors.chunks import no_chunks, pack_chunks
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

TOKENS = frozenset({Feature.TOKENS})


def key(number: int) -> DocumentKey:
    return DocumentKey("an-index", "an-encoder@0/8x64", f"hash{number}-doc_values", side=number % 2 == 1)


def known_of(cache: FeatureCache, document: DocumentKey, features: frozenset[Feature]) -> KnownFeatures:
    [known], [lacking] = cache.get([document], features)
    assert lacking == known.lacking(features)
    return known


def tokens_of(cache: FeatureCache, number: int) -> Any:
    return known_of(cache, key(number), TOKENS).stored.get(Feature.TOKENS)


def tokens(number: int, rows: int = 40) -> TokenVectors:
    rng = np.random.default_rng(number)
    return TokenVectors(rng.integers(-127, 127, (rows, 64), dtype=np.int8), rng.random(rows, dtype=np.float32), 0.5)


def read(blob: bytes, feature: Feature = Feature.TOKENS) -> ReadFeature:
    return ReadFeature(unpack_feature(feature, blob), len(blob))


def test_every_feature_comes_back() -> None:
    cache = FeatureCache(2**20)
    norms = ScaleNorms((2.0, float("inf")), np.ones((2, 3), np.float32)).in_steps()
    offsets = np.array([[0, 0, 4], [1, 2, 3], [1, 4, 5]], np.int32)
    features = {
        Feature.TOKENS: read(pack_tokens(tokens(1, rows=3))),
        Feature.POOLED: read(pack_tokens(tokens(2, rows=1)), Feature.POOLED),
        Feature.NORMS: read(pack_norms(norms), Feature.NORMS),
        Feature.OFFSETS: read(pack_offsets(offsets, ["title", "text"]), Feature.OFFSETS),
    }
    cache.put(
        {
            key(1): features,
            key(2): {Feature.TOKENS: ABSENT},
            key(3): {Feature.TOKENS: ReadFeature(tokens(3), tokens(3).nbytes)},  # of nested vectors: has no blob
        }
    )
    cache.put({key(1): {Feature.CHUNKS: read(pack_chunks(no_chunks(8)), Feature.CHUNKS)}})
    assert not known_of(cache, key(9), TOKENS).stored
    assert known_of(cache, key(9), TOKENS).lacking(TOKENS) == TOKENS
    for number, rows in ((1, 3), (3, 40)):
        found = tokens_of(cache, number)
        assert found.read == 0.5
        np.testing.assert_array_equal(found.values, tokens(number, rows).values)
        np.testing.assert_array_equal(found.scales, tokens(number, rows).scales)
    without = known_of(cache, key(2), TOKENS)
    assert not without.stored
    assert not without.lacking(TOKENS)
    every = frozenset({*features, Feature.CHUNKS})
    stored = known_of(cache, key(1), every).stored
    assert stored.keys() == every
    assert stored[Feature.NORMS].scales == norms.scales
    assert stored[Feature.OFFSETS][1] == ("title", "text")
    assert stored[Feature.POOLED].shape == (64,)
    assert stored[Feature.CHUNKS].text == ""
    assert (cache.hits, cache.misses, len(cache)) == (8, 2, 3)
    assert cache.capacity >= cache.nbytes > 0
    cache.peek(key(1)), cache.peek(key(9))
    assert (cache.hits, cache.misses) == (8, 2)


def test_norms_of_another_length_are_not_used_and_not_read_again() -> None:
    cache = FeatureCache(2**20)
    norms = ScaleNorms((2.0,), np.ones((1, 5), np.float32)).in_steps()
    cache.put({key(1): {Feature.NORMS: read(pack_norms(norms), Feature.NORMS)}})
    cache.put({key(1): {Feature.TOKENS: read(pack_tokens(tokens(1)))}})
    both = frozenset({Feature.TOKENS, Feature.NORMS})
    known = known_of(cache, key(1), both)
    assert known.stored.keys() == TOKENS
    assert not known.lacking(both)


def test_a_known_feature_does_not_count_twice() -> None:
    cache = FeatureCache(2**20)
    for _ in range(3):
        cache.put({key(1): {Feature.TOKENS: read(pack_tokens(tokens(1)))}})
        assert cache.nbytes == len(pack_tokens(tokens(1)))


def test_documents_that_are_used_stay() -> None:
    size = len(pack_tokens(tokens(0)))
    cache = FeatureCache(10 * size)
    for number in range(30):
        cache.put({key(number): {Feature.TOKENS: read(pack_tokens(tokens(number)))}})
        assert tokens_of(cache, 0) is not None, number
    assert tokens_of(cache, 1) is None
    assert tokens_of(cache, 29) is not None
    assert (len(cache), cache.nbytes) == (10, 10 * size)
