import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.index.mappings.calibration import RANK, calibration_meta, calibration_of
from es_ttc.vectors.moments import Moments
from tests.rescorers.windows import unit_rows


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 80))
def test_a_calibration_is_read_back_up_to_its_rounding(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    moments = Moments.of(unit_rows(random, size, 64), RANK)
    read = calibration_of(calibration_meta(moments, "minilm"), "minilm")
    assert read is not None
    assert read.size == size
    assert len(read.factor) == min(size, RANK, 64)
    documents = unit_rows(random, 5, 64)
    for own, reference in zip(read.similarities(documents), moments.similarities(documents), strict=True):
        np.testing.assert_allclose(own, reference, atol=1e-3)


def test_another_encoders_calibration_is_none() -> None:
    meta = calibration_meta(Moments.of(unit_rows(np.random.default_rng(1), 4, 8)), "minilm")
    assert calibration_of(meta, "mpnet") is None
    assert calibration_of({}, "minilm") is None


@pytest.mark.parametrize("damage", [{"moments": "AAAA"}, {"moments": "?"}, {"moments": 3}, {"queries": "many"}])
def test_a_damaged_calibration_is_refused(damage: dict[str, object]) -> None:
    meta = calibration_meta(Moments.of(unit_rows(np.random.default_rng(1), 4, 8)), "minilm")
    with pytest.raises(ValueError, match=r"\w"):
        calibration_of({**meta, **damage}, "minilm")
