import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import SpectralParams, SpectralRescorer
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Codec
from tests.rescorers import reference
from tests.rescorers.windows import query_of, random_documents, unit_rows, window_of

maxsim = MaxSimRescorer()
POOLED = MaxSimParams()
TOKENS = MaxSimParams(query="tokens")


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 50), max_size=6),
    codec=st.sampled_from(["float32", "float16", "int8"]),
)
def test_maxsim_equals_the_literal_maximum(seed: int, lengths: list[int], codec: Codec) -> None:
    random = np.random.default_rng(seed)
    documents = random_documents(random, lengths, 12, codec)
    vectors, tokens = unit_rows(random, 2, 12), unit_rows(random, 5, 12)
    pooled = maxsim.score(query_of(vectors), window_of(documents), POOLED)
    by_token = maxsim.score(query_of(vectors, tokens), window_of(documents), TOKENS)
    for place, document in enumerate(documents):
        matrix = dequantise(document)
        if not len(matrix):
            assert pooled[place] == by_token[place] == -1
            continue
        assert pooled[place] == pytest.approx(max(reference.maxsim(vector, matrix) for vector in vectors), abs=1e-6)
        assert by_token[place] == pytest.approx(reference.colbert(tokens, matrix) / len(tokens), abs=1e-6)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_long_documents_are_read_in_blocks(codec: Codec) -> None:
    random = np.random.default_rng(2)
    documents = random_documents(random, [5000], 64, codec)
    vector = unit_rows(random, 1, 64)
    wanted = reference.maxsim(vector[0], dequantise(documents[0]))
    assert maxsim.score(query_of(vector), window_of(documents), POOLED)[0] == pytest.approx(wanted, abs=1e-6)


def test_maxsim_equals_spectral_at_scale_one() -> None:
    random = np.random.default_rng(3)
    documents, vectors = random_documents(random, [3, 50, 400], 32, "int8"), unit_rows(random, 1, 32)
    np.testing.assert_array_equal(
        maxsim.score(query_of(vectors), window_of(documents), POOLED),
        SpectralRescorer().score(query_of(vectors), window_of(documents), SpectralParams(scales=(1,))),
    )


def test_a_query_without_tokens_scores_zero() -> None:
    random = np.random.default_rng(4)
    query = query_of(unit_rows(random, 1, 8), np.empty((0, 8), np.float32))
    np.testing.assert_array_equal(maxsim.score(query, window_of(random_documents(random, [4, 0], 8)), TOKENS), [0, -1])


def test_needs_follow_the_parameters() -> None:
    assert maxsim.needs(POOLED) == {Feature.TOKENS}
    assert maxsim.needs(TOKENS) == {Feature.TOKENS, Feature.QUERY_TOKENS}


def test_maxsim_has_no_detail() -> None:
    random = np.random.default_rng(5)
    window = window_of(random_documents(random, [4, 2], 8))
    assert maxsim.detail(query_of(unit_rows(random, 1, 8)), window, POOLED) == [{}, {}]
