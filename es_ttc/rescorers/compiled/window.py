"""From documents to what the compiled loops read: a table of addresses. Importing this imports numba."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.compiled import loops
from es_ttc.rescorers.scratch import Scratch
from es_ttc.vectors.tokens import Float32, TokenVectors

_FLOAT16 = np.dtype(np.float16)
_KINDS = {np.dtype(np.float32): loops.FLOAT32, np.dtype(np.int16): loops.FLOAT16, np.dtype(np.int8): loops.INT8}


_scratch = Scratch()


class Table:
    """The addresses of some documents' arrays, which it keeps alive.

    Args:
        tokens: k documents of one token or more.
        norms: For each ``(s, n)`` float32, the norms of the scales to be read at; nothing where none are needed.
        spectra: Gives the paired spectra of the kernels of a document's length; None where there are no kernels.

    Attributes:
        rows: ``(k, loops.COLUMNS)`` int64.
        lengths: ``(k,)`` int64, their numbers of tokens.
    """

    def __init__(
        self, tokens: Sequence[TokenVectors], norms: Sequence[Float32], spectra: Callable[[int], Float32] | None
    ) -> None:
        values, factors = [_known(document.values) for document in tokens], [document.scales for document in tokens]
        lengths = list(map(len, values))
        self.rows: NDArray[np.int64] = np.zeros((len(tokens), loops.COLUMNS), dtype=np.int64)
        rows, kept = self.rows, [values, factors, norms]
        rows[:, loops.VALUES] = [_address(array, kept) for array in values]
        rows[:, loops.FACTORS] = [0 if array is None else _address(array, kept) for array in factors]
        rows[:, loops.LENGTH] = lengths
        rows[:, loops.KIND] = [_KINDS[array.dtype] for array in values]
        if norms:
            rows[:, loops.NORMS] = [_address(array, kept) for array in norms]
        if spectra is not None:
            made = {length: _transforming(spectra(length), kept) for length in set(lengths)}
            rows[:, [loops.SPECTRA, loops.TWIDDLES, loops.SIZE]] = [made[length] for length in lengths]
        self.lengths = rows[:, loops.LENGTH]
        self._kept = kept


def _known(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of a kind that numba knows: float16 as the bits that it is made of."""
    return values.view(np.int16) if values.dtype == _FLOAT16 else values


def _address(array: NDArray[Any], kept: list[Any]) -> int:
    """Return where an array's data begins; that of a contiguous copy, which is kept, where the array has gaps."""
    try:
        return loops.address(array)  # type: ignore[no-any-return]
    except TypeError:  # no address of such an array is compiled
        kept.append(np.ascontiguousarray(array))
        return loops.address(kept[-1])  # type: ignore[no-any-return]


def _transforming(spectra: Float32, kept: list[Any]) -> tuple[int, int, int]:
    """Return the addresses of spectra and twiddles, and the transform's size."""
    size = spectra.shape[-1]
    kept += (spectra, twiddles(size))
    return loops.address(spectra), loops.address(kept[-1]), size


def greatest_cosines(
    table: Table,
    part: slice,
    vectors: Float32,
    out: Float32,
    *,
    identity: bool,
    smoothing: int,
    mean: bool,
    floor: np.float32,
) -> None:
    """Write the greatest cosines of some of a table's documents with every query vector.

    Args:
        table: k documents, in the order of their lengths, whose vectors have as many components as the query's.
        part: Which of them, with a start and a stop.
        vectors: ``(r, d)`` float32, C-contiguous.
        out: ``(k, r)`` float32, C-contiguous, of which this part is written.
        identity: Whether the tokens themselves count.
        smoothing: The number of finite scales above 1.
        mean: Whether the mean of all tokens counts.
        floor: Least length to divide by.
    """
    rows, lengths, pairs = table.rows[part], table.lengths[part], (smoothing + 1) // 2
    size = int(rows[-1, loops.SIZE])  # of the longest document
    buffers = _scratch.array("buffers", (4, max(loops.CELLS, size * pairs) if pairs else 0), np.float32)
    room = max(length * loops.together(size, pairs) for size, length in _longest(rows[:, loops.SIZE], lengths))
    found = _scratch.array("found", (len(vectors) * room,), np.float32)
    loops.greatest_cosines(rows, vectors, identity, smoothing, mean, floor, buffers, found, out[part])


def _longest(sizes: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield each transform size and the greatest length that has it; both ascend."""
    last = np.flatnonzero(np.diff(sizes, append=-1))
    yield from zip(sizes[last].tolist(), lengths[last].tolist(), strict=True)


@lru_cache(maxsize=64)
def twiddles(size: int) -> Float32:
    """Return the cosines and sines of a transform's angles, ``(2, size)`` float32."""
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)
