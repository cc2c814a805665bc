"""What a blob gives that is not as ingest wrote it: a vector, or an error that a skipped document is made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from es_ttc.index.mappings.readers import unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.packed import pack_tokens
from es_ttc.vectors.tokens import Float32, TokenVectors

ROWS = (Feature.POOLED, Feature.REVERSED)
vectors = arrays.arrays(np.float32, st.integers(1, 64), elements=st.floats(-1, 1, width=32))


@pytest.mark.parametrize("feature", ROWS)
@given(vectors)
def test_a_vector_comes_back_bit_for_bit(feature: Feature, vector: Float32) -> None:
    found = unpack_feature(feature, pack_tokens(TokenVectors(vector[np.newaxis])))
    np.testing.assert_array_equal(found, vector)


@pytest.mark.parametrize("feature", ROWS)
@given(vectors, st.data())
def test_a_damaged_vector_is_a_value_error_or_a_vector(feature: Feature, vector: Float32, data: st.DataObject) -> None:
    blob = bytearray(pack_tokens(TokenVectors(vector[np.newaxis])))
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
        with pytest.raises(ValueError, match="packed"):
            unpack_feature(feature, bytes(blob))
        return
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack_feature(feature, bytes(blob))
    except ValueError as error:
        assert "packed" in str(error)  # noqa: PT017 - most damage is seen, and none ends otherwise
    else:
        assert found.ndim == 1


@pytest.mark.parametrize("feature", ROWS)
@pytest.mark.parametrize("rows", [0, 2])
def test_more_or_less_than_one_vector_is_a_value_error(feature: Feature, rows: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows, where one is expected"):
        unpack_feature(feature, pack_tokens(TokenVectors(np.zeros((rows, 4), np.float32))))
