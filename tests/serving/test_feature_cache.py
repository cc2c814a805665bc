"""The cache of features: one process's own, and the one in shared memory, give back what was put into them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from es_ttc.common.shared_log import make_shared_log
from es_ttc.index.mappings.readers import ReadFeature, unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.cache import CacheKey, FeatureCache, PrivateFeatureCache, SharedFeatureCache
from es_ttc.serving.features.decoding import ABSENT
from es_ttc.vectors.chunks import no_chunks, pack_chunks
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

SEGMENT = 65536


def shared(segments: int = 4) -> SharedFeatureCache:
    log = make_shared_log(SEGMENT * segments, processes=1, segments=segments)
    log.join()
    return SharedFeatureCache(log, private=SEGMENT)


def key(number: int, feature: Feature = Feature.TOKENS) -> CacheKey:
    return "an-index", "an-encoder@0/8x64", f"hash{number}-doc_values", feature


def tokens(number: int, rows: int = 40) -> TokenVectors:
    rng = np.random.default_rng(number)
    return TokenVectors(rng.integers(-127, 127, (rows, 64), dtype=np.int8), rng.random(rows, dtype=np.float32), 0.5)


def read(blob: bytes, feature: Feature = Feature.TOKENS) -> ReadFeature:
    return ReadFeature(unpack_feature(feature, blob), len(blob), blob)


@pytest.mark.parametrize("make", [lambda: PrivateFeatureCache(2**20), shared])
def test_every_feature_comes_back(make: Callable[[], FeatureCache]) -> None:
    cache = make()
    norms = ScaleNorms((2.0, float("inf")), np.ones((2, 3), np.float32))
    offsets = np.array([[0, 0, 4], [1, 2, 3]], np.int32)
    cache.put(
        {
            key(1): read(pack_tokens(tokens(1))),
            key(1, Feature.POOLED): read(pack_tokens(tokens(2, rows=1)), Feature.POOLED),
            key(1, Feature.NORMS): read(pack_norms(norms), Feature.NORMS),
            key(1, Feature.OFFSETS): read(pack_offsets(offsets, ["title", "text"]), Feature.OFFSETS),
            key(1, Feature.CHUNKS): read(pack_chunks(no_chunks(8)), Feature.CHUNKS),
            key(2): ABSENT,
            key(3): ReadFeature(tokens(3), tokens(3).nbytes),  # decoded with a codebook, so it has no blob
        }
    )
    assert cache.get(key(9)) is None
    for number in (1, 3):
        found = cache.get(key(number))
        assert found.read == 0.5
        np.testing.assert_array_equal(found.values, tokens(number).values)
        np.testing.assert_array_equal(found.scales, tokens(number).scales)
    assert cache.get(key(2)) is ABSENT.value
    assert cache.get(key(1, Feature.NORMS)).scales == norms.scales
    assert cache.get(key(1, Feature.OFFSETS))[1] == ("title", "text")
    assert cache.get(key(1, Feature.POOLED)).shape == (64,)
    assert cache.get(key(1, Feature.CHUNKS)).text == ""
    assert (cache.hits, cache.misses, len(cache)) == (7, 1, 7)
    assert cache.capacity >= cache.nbytes > 0
    cache.peek(key(1)), cache.peek(key(9))
    assert (cache.hits, cache.misses) == (7, 1)


def test_the_oldest_make_room_but_those_that_are_used_stay() -> None:
    cache = shared()
    cache.put({key(0): read(pack_tokens(tokens(0)))})
    for number in range(1, 400):
        assert cache.get(key(0)) is not None, number
        cache.put({key(number): read(pack_tokens(tokens(number)))})
    np.testing.assert_array_equal(cache.get(key(0)).values, tokens(0).values)
    assert cache.get(key(1)) is None
    assert cache.get(key(399)) is not None
    assert len(cache) < 100


def test_features_in_use_are_not_written_over() -> None:
    cache = shared()
    cache.put({key(0): read(pack_tokens(tokens(0)))})
    held: Any = cache.get(key(0))
    for number in range(1, 400):
        cache.put({key(number): read(pack_tokens(tokens(number)))})
    np.testing.assert_array_equal(held.values, tokens(0).values)
    found = [cache.get(key(number)) for number in range(400)]
    for number, value in enumerate(found):
        if value is not None:
            np.testing.assert_array_equal(value.values, tokens(number).values)
