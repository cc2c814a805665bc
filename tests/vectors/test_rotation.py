import numpy as np
import pytest
from scipy.linalg import hadamard

from es_ttc.vectors.rotation import rotate, rotate_back, rotated_columns

DIMS = (1, 2, 3, 64, 96, 100, 312, 384, 768)


@pytest.mark.parametrize("dims", DIMS)
def test_a_rotation_keeps_inner_products_and_can_be_undone(dims: int) -> None:
    rows = np.random.default_rng(dims).standard_normal((300, dims)).astype(np.float32)
    rotated = rotate(rows)
    np.testing.assert_allclose(rotated[:9] @ rotated.T, rows[:9] @ rows.T, atol=2e-5 * dims)
    np.testing.assert_allclose(rotate_back(rotated), rows, atol=1e-5)


def test_a_rows_rotation_does_not_depend_on_the_rows_beside_it() -> None:
    rows = np.random.default_rng(0).standard_normal((600, 48)).astype(np.float32)
    np.testing.assert_array_equal(rotate(rows)[511:513], rotate(rows[511:513]))


def test_rotation_equals_signs_and_hadamard_transforms() -> None:
    """The transform by its definition: a Sylvester matrix over the first, then over the last power of two."""
    dims, size = 12, 8
    matrix = rotate(np.eye(dims, dtype=np.float32)).T.astype(np.float64)
    first, last = np.eye(dims), np.eye(dims)
    first[:size, :size] = last[dims - size :, dims - size :] = hadamard(size) / np.sqrt(size)
    # Undone step by step, what is left is a diagonal of signs.
    from es_ttc.vectors.rotation import _steps

    for place, step in reversed([*enumerate(_steps(dims))]):
        matrix = (last if place % 2 else first) @ matrix
        matrix = np.diag(step.signs[:, 0]) @ matrix
    np.testing.assert_allclose(matrix, np.eye(dims), atol=1e-6)


@pytest.mark.parametrize("dims", [128, 384, 768])
def test_one_large_component_is_spread_over_all(dims: int) -> None:
    """A Gaussian's fourth moment is 3 times its squared second; a vector of one component has `dims` times."""
    rows = np.random.default_rng(1).standard_normal((200, dims)).astype(np.float32)
    rows[:, 0] *= 100
    rotated = rotate(rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float64)
    assert 2.5 < np.mean(rotated**4) / np.mean(rotated**2) ** 2 < 3.5


@pytest.mark.parametrize("dims", DIMS)
def test_a_query_is_rotated_as_documents_are(dims: int) -> None:
    rows = np.random.default_rng(dims).standard_normal((9, dims)).astype(np.float32)
    [(_, columns)] = rotated_columns(rows)
    np.testing.assert_allclose(rotate(rows), columns.T, atol=1e-5)
