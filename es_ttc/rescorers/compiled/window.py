"""From documents to what the compiled loops read: a table of addresses."""

from collections.abc import Callable, Sequence
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple, Self
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.compiled import loops
from es_ttc.rescorers.compiled.frequencies import transform_plan
from es_ttc.rescorers.compiled.room import compute_in_room
from es_ttc.vectors.tokens import CODECS, Float32, ScaleNorms, TokenVectors

_VALUES, _FACTORS, _NORMS, _RANGES, _SPECTRA, _PLAN, _LENGTH, _SIZE, _KIND = range(9)
"""Columns of a row, int64, as ``source/kernels.h`` has them."""
_COLUMNS = 9
_KINDS = {codec: kind for kind, codec in enumerate(CODECS)}
NormsOfScales = Callable[[TokenVectors, ScaleNorms | None, Sequence[float]], Float32]

_PACKED = Struct(f"={_COLUMNS}q")


class WindowTable:
    """The addresses of a window's documents that have tokens, in the order of their lengths; it keeps them alive."""

    def __init__(
        self,
        tokens: Sequence[TokenVectors],
        norms: Sequence[ScaleNorms] | None,
        scales: tuple[float, ...],
        norms_of_scales: NormsOfScales,
        kernels: "KernelTable | None",
    ) -> None:
        self._kept: list[Any] = [tokens, norms]
        read = _rows_of(tokens, [None] * len(tokens) if norms is None else norms, scales, norms_of_scales, self._kept)
        order = np.argsort(read[:, _LENGTH], kind="stable")
        # (k,) which documents these are
        self.places: NDArray[np.intp] = order[np.count_nonzero(read[:, _LENGTH] == 0) :]
        self.rows = read[self.places]  # (k, _COLUMNS) int64. The arrays behind the addresses live as long as the table.
        self.lengths = self.rows[:, _LENGTH]  # (k,) int64, their numbers of tokens
        if kernels is not None and len(self.rows):
            self.rows[:, [_SPECTRA, _PLAN, _SIZE]], kept = kernels.of(self.lengths)
            self._kept.append(kept)


class KernelTable:
    """The addresses of the kernels of documents' lengths at some scales, and of the plans of their transforms.

    A window of a thousand documents has hundreds of lengths, so they are read in one step, by length. Beyond
    ``MAX_BYTES`` of spectra it begins anew.
    """

    MAX_BYTES = 32 * 2**20

    def __init__(self, spectra: Callable[[int], tuple[Float32, int]]) -> None:
        self._spectra = spectra
        self._lock = Lock()
        self._clear()

    def of(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], Sequence[Any]]:
        """Return ``(k, 3)`` addresses of spectra and plan, and the size, by ascending lengths; and the arrays there."""
        with self._lock:
            if self._bytes > self.MAX_BYTES:
                self._clear()
            if lengths[-1] >= len(self._rows):
                self._rows.resize((int(lengths[-1]) + 1, 3), refcheck=False)  # new elements are zeros
            rows = self._rows[lengths]
            if not rows[:, 2].all():
                for length in np.unique(lengths[rows[:, 2] == 0]).tolist():
                    self._rows[length] = self._made(length)
                rows = self._rows[lengths]
            return rows, self._kept

    def _made(self, length: int) -> tuple[int, int, int]:
        spectra, size = self._spectra(length)
        plan = transform_plan(size)
        self._kept += (spectra, plan)
        self._bytes += spectra.nbytes
        return spectra.ctypes.data, plan.ctypes.data, size

    def _clear(self) -> None:
        self._rows = np.zeros((0, 3), dtype=np.int64)  # by length
        self._kept: list[Any] = []
        self._bytes = 0


class _Row(NamedTuple):
    """A document's row without what belongs to its length; it holds as long as the document and the norms do."""

    document: "_Key"
    norms: ScaleNorms | None
    scales: tuple[float, ...]
    row: bytes


class _Key(ref[TokenVectors]):
    """A weak reference that knows the key of the document's row."""

    __slots__ = ("place",)
    place: int

    def __new__(cls, document: TokenVectors, callback: Callable[["_Key"], object]) -> Self:
        made = super().__new__(cls, document, callback)
        made.place = id(document)
        return made


_rows: dict[int, _Row] = {}
"""The rows made last, by the document's identity: asking for an address takes half a microsecond, and a window has up
to 10,000 of them."""


def _rows_of(
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms | None],
    scales: tuple[float, ...],
    norms_of_scales: NormsOfScales,
    kept: list[Any],
) -> NDArray[np.int64]:
    """Return a row for every document; what they hold the addresses of besides the documents' own is kept."""
    rows = []
    for document, stored, known in zip(tokens, norms, map(_rows.get, map(id, tokens)), strict=True):
        if known is not None and (not scales or (known.norms is stored and known.scales == scales)):
            rows.append(known.row)
        else:
            rows.append(_made(document, stored, scales, norms_of_scales, kept))
    return np.frombuffer(b"".join(rows), dtype=np.int64).reshape(-1, _COLUMNS)


def _made(
    document: TokenVectors,
    stored: ScaleNorms | None,
    scales: tuple[float, ...],
    norms_of_scales: NormsOfScales,
    kept: list[Any],
) -> bytes:
    """Return a document's row, and remember it where all that it holds is the document's own."""
    own: list[Any] = []
    row = [0] * _COLUMNS
    row[_VALUES] = _address(document.values, own)
    row[_LENGTH] = len(document)
    row[_KIND] = _KINDS[document.codec]
    if document.scales is not None:
        row[_FACTORS] = _address(document.scales, own)
    if scales and len(document):
        if stored is not None and stored.ranges is not None and stored.is_of(document, scales):
            row[_NORMS], row[_RANGES] = _address(stored.values, own), _address(stored.ranges, own)
        else:
            read = norms_of_scales(document, stored, scales)
            row[_NORMS] = _address(read, own)
            if stored is None or not np.shares_memory(read, stored.values):
                own.append(read)
    packed = _PACKED.pack(*row)
    if own:
        kept += own
    else:
        key = _Key(document, _forget)
        _rows[key.place] = _Row(key, stored if scales else None, scales, packed)
    return packed


def _forget(key: _Key, rows: dict[int, _Row] = _rows) -> None:  # bound: at exit a module's names are gone
    rows.pop(key.place, None)


def _address(array: NDArray[Any], kept: list[Any]) -> int:
    """Return where an array's data begins; that of a contiguous copy, which is kept, where the array has gaps."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
        kept.append(array)
    return array.ctypes.data


def greatest_cosines(
    table: WindowTable,
    part: slice,
    vectors: Float32,  # (r, d) float32, C-contiguous
    out: Float32,  # (k, c, r) float32, C-contiguous: c = 1 for the greatest over all scales, or one row for each scale
    *,
    plain: int,  # how many of the query vectors, the last ones, are compared with the tokens themselves alone
    identity: bool,  # whether the tokens themselves count for the others
    smoothing: int,
    mean: bool,  # whether the mean of all tokens counts
    floor: float,
) -> None:
    """Write the greatest cosines of some of a table's documents with every query vector."""
    given = vectors.shape[1], plain, smoothing, identity, mean, floor, out.shape[1]
    compute_in_room(lambda room: loops.greatest_cosines(table.rows[part], vectors, out[part], room, *given))
