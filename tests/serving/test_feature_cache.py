"""The cache of features: one process's own, and the one in shared memory, give back what was put into them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from es_ttc.common.shared_log import make_shared_log
from es_ttc.index.mappings.readers import ReadFeature, unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.cache import FeatureCache, KnownFeatures, PrivateFeatureCache, SharedFeatureCache
from es_ttc.serving.features.decoding import ABSENT
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.vectors.chunks import no_chunks, pack_chunks
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

SEGMENT = 65536
TOKENS = frozenset({Feature.TOKENS})


def shared(segments: int = 4) -> SharedFeatureCache:
    log = make_shared_log(SEGMENT * segments, processes=1, segments=segments)
    log.join()
    return SharedFeatureCache(log, private=SEGMENT)


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
    return ReadFeature(unpack_feature(feature, blob), len(blob), blob)


@pytest.mark.parametrize("make", [lambda: PrivateFeatureCache(2**20), shared])
def test_every_feature_comes_back(make: Callable[[], FeatureCache]) -> None:
    cache = make()
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
    cache.peek(key(1), every), cache.peek(key(9), every)
    assert (cache.hits, cache.misses) == (8, 2)


@pytest.mark.parametrize("make", [lambda: PrivateFeatureCache(2**20), shared])
def test_norms_of_another_length_are_not_used_and_not_read_again(make: Callable[[], FeatureCache]) -> None:
    cache = make()
    norms = ScaleNorms((2.0,), np.ones((1, 5), np.float32)).in_steps()
    cache.put({key(1): {Feature.NORMS: read(pack_norms(norms), Feature.NORMS)}})
    cache.put({key(1): {Feature.TOKENS: read(pack_tokens(tokens(1)))}})
    both = frozenset({Feature.TOKENS, Feature.NORMS})
    known = known_of(cache, key(1), both)
    assert known.stored.keys() == TOKENS
    assert not known.lacking(both)


def test_a_known_feature_does_not_count_twice() -> None:
    cache = PrivateFeatureCache(2**20)
    for _ in range(3):
        cache.put({key(1): {Feature.TOKENS: read(pack_tokens(tokens(1)))}})
        assert cache.nbytes == len(pack_tokens(tokens(1)))


def test_the_oldest_make_room_but_those_that_are_used_stay() -> None:
    cache = shared()
    cache.put({key(0): {Feature.TOKENS: read(pack_tokens(tokens(0)))}})
    for number in range(1, 400):
        assert tokens_of(cache, 0) is not None, number
        cache.put({key(number): {Feature.TOKENS: read(pack_tokens(tokens(number)))}})
    np.testing.assert_array_equal(tokens_of(cache, 0).values, tokens(0).values)
    assert tokens_of(cache, 1) is None
    assert tokens_of(cache, 399) is not None
    assert len(cache) < 100


def test_features_in_use_are_not_written_over() -> None:
    cache = shared()
    cache.put({key(0): {Feature.TOKENS: read(pack_tokens(tokens(0)))}})
    held: Any = tokens_of(cache, 0)
    for number in range(1, 400):
        cache.put({key(number): {Feature.TOKENS: read(pack_tokens(tokens(number)))}})
    np.testing.assert_array_equal(held.values, tokens(0).values)
    found = [tokens_of(cache, number) for number in range(400)]
    for number, value in enumerate(found):
        if value is not None:
            np.testing.assert_array_equal(value.values, tokens(number).values)


def test_a_record_that_nobody_can_read_is_skipped_alone() -> None:
    log = make_shared_log(SEGMENT * 4, processes=1, segments=4)
    log.join()
    cache = SharedFeatureCache(log, private=SEGMENT)
    for junk in (b"a\0b", b"\xff", b"[1]", b'["i","e","h",false,"no feature"]', b'[[],"e","h",false,"tokens"]', b"{}"):
        cache._learn(log.append([(junk, b"x")]))  # as another process's record
    cache.put({key(1): {Feature.TOKENS: read(pack_tokens(tokens(1)))}})
    cache.refresh()
    assert tokens_of(cache, 1) is not None


@pytest.mark.parametrize("content", ["a\0b-doc_values", "side", '"', "\\", "中 文\n"])
def test_marks_of_any_characters_come_back(content: str) -> None:
    cache, odd = shared(), DocumentKey(f"i{content}", f"e{content}", content)
    cache.put({odd: {Feature.TOKENS: read(pack_tokens(tokens(5)))}})
    assert Feature.TOKENS in known_of(cache, odd, TOKENS).stored
