"""The extension module by itself: what it refuses, and when it is used."""

import subprocess
import sys

import numpy as np
import pytest

from es_ttc.rescorers import compiled
from es_ttc.rescorers.compiled.frequencies import half_frequencies, in_frequency, transform_plan

loops = pytest.importorskip("es_ttc.rescorers.compiled.loops", reason="es-ttc was installed without a C compiler")

DIMS = 8


def arrays(documents: int = 0, roles: int = 2) -> tuple[bytes, bytes, bytearray]:
    """Rows of documents, query vectors and room for the scores of one scale."""
    row = np.zeros((documents, 8), np.int64)
    return row.tobytes(), np.ones((roles, DIMS), np.float32).tobytes(), bytearray(4 * documents * roles)


def test_a_build_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"\[abacus\]"):
        loops.use("abacus")


def test_the_quickest_build_is_the_last(build: str) -> None:
    assert loops.builds()[0] == "portable"
    assert build in loops.builds()


@pytest.mark.parametrize(
    ("cut", "dims", "plain", "scales"),
    [
        (("documents", 1), DIMS, 0, 1),  # half a row
        (("queries", 4), DIMS, 0, 1),
        (("out", 4), DIMS, 0, 1),
        ((None, 0), 0, 0, 1),
        ((None, 0), -1, 0, 1),
        ((None, 0), DIMS, 3, 1),  # more than there are
        ((None, 0), DIMS, -1, 1),
        ((None, 0), DIMS, 0, 0),
        ((None, 0), DIMS, 0, 2),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(
    cut: tuple[str | None, int], dims: int, plain: int, scales: int
) -> None:
    documents, queries, out = arrays(documents=1)
    name, size = cut
    if name == "documents":
        documents = documents[:-size]
    elif name == "queries":
        queries = queries[:-size]
    elif name == "out":
        out = out[:-size]
    with pytest.raises(ValueError, match="fit together"):
        loops.greatest_cosines(documents, queries, out, bytearray(64), dims, plain, 0, True, False, 1e-6, scales)


def test_without_room_nothing_is_written() -> None:
    tokens, scores = np.ones((3, DIMS), np.float32), np.full((1, 1, 2), 7, np.float32)
    row = np.array([[tokens.ctypes.data, 0, 0, 0, 0, 0, 3, 0, 0]], np.int64)
    queries = np.ones((2, DIMS), np.float32)
    given = (DIMS, 0, 0, True, False, 1e-6, 1)
    needed = loops.greatest_cosines(row, queries, scores, bytearray(1), *given)
    assert needed > 1
    assert scores.tolist() == [[[7, 7]]]
    assert loops.greatest_cosines(row, queries, scores, bytearray(needed), *given) == needed
    assert scores.tolist() == [[[DIMS, DIMS]]]


PLAN = 2 * 8 + 4 * 5
"""Numbers of a plan for transforms of eight elements, which have five frequencies from 0 to half their size."""


@pytest.mark.parametrize(
    ("rows", "spectra", "plan", "out", "scales", "size"),
    [
        (3 * DIMS - 1, 10, PLAN, 6, 2, 8),
        (3 * DIMS, 9, PLAN, 6, 2, 8),
        (3 * DIMS, 10, PLAN - 1, 6, 2, 8),
        (3 * DIMS, 10, PLAN, 5, 2, 8),
        (3 * DIMS, 10, PLAN, 6, 3, 8),
        (3 * DIMS, 10, PLAN, 6, 2, 6),
        (9 * DIMS, 10, PLAN, 18, 2, 8),  # more tokens than the transform has elements
        (3 * DIMS, 0, PLAN, 0, 0, 8),
    ],
)
def test_lengths_of_what_does_not_fit_together_are_refused(
    rows: int, spectra: int, plan: int, out: int, scales: int, size: int
) -> None:
    given = bytes(4 * rows), bytes(4 * spectra), bytes(4 * plan), bytearray(4 * out), bytearray(10_000)
    with pytest.raises(ValueError, match="fit together"):
        loops.smoothed_lengths(*given, DIMS, scales, size)


def test_lengths_are_written_where_there_is_room() -> None:
    out = np.full(6, 7, np.float32)
    arrays = np.ones(3 * DIMS, np.float32), np.zeros(10, np.float32), transform_plan(8), out
    needed = loops.smoothed_lengths(*arrays, bytearray(1), DIMS, 2, 8)
    assert out.tolist() == [7] * 6
    assert loops.smoothed_lengths(*arrays, bytearray(needed), DIMS, 2, 8) == needed
    assert out.tolist() == [0] * 6  # kernels of zeros


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 12, 16, 24, 32, 96, 128, 768])
def test_half_of_the_frequencies_and_their_mirrors_are_all(size: int) -> None:
    frequencies, places, mirrors = half_frequencies(size)
    order = in_frequency(size)
    assert sorted(order.tolist()) == [*range(size)]
    assert sorted(frequencies.tolist()) == [*range(size // 2 + 1)]
    assert order[places].tolist() == frequencies.tolist()
    assert ((order[places] + order[mirrors]) % size == 0).all()
    assert (np.diff(places) > 0).all()  # they are moved to the front in place


def test_numpy_scores_where_the_loops_are_not_compiled() -> None:
    code = """
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "es_ttc.rescorers.compiled.loops":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Without())
import numpy as np
from es_ttc.cli import doctor
from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import SpectralParams, SpectralRescorer
from es_ttc.vectors.tokens import TokenVectors

one = np.eye(4, dtype=np.float32)
window = Window(["a"], np.zeros(1, np.float32), tokens=[TokenVectors(one)])
print(SpectralRescorer().score(Query("", one[:1]), window, SpectralParams()), compiled.enable())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["[1.]", "False"]


def test_loops_are_used_unless_they_are_switched_off() -> None:
    assert compiled.enable()
    assert compiled.enabled()
    assert not compiled.enable(False)
    assert not compiled.enabled()
