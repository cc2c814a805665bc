"""Row norms of smoothed token matrices: the part of the spectral score that does not depend on the query.

``<q, (k_L * E)[i]> = (k_L * E q)[i]``, so only the length of the smoothed row is missing to make it the cosine of
section III-C. Ingest computes and stores it once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np

from es_ttc.common.cancellable_calls import stop_if_given_up
from es_ttc.rescorers import compiled
from es_ttc.rescorers.spectral.smoothing import IDENTITY, MEAN, half_spectra, is_smoothing, smooth, transform_size
from es_ttc.rescorers.threads import Scratch
from es_ttc.vectors.quantise import as_stored
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

_CHUNK_BYTES = 2**20

_scratch = Scratch()


class _Kept(NamedTuple):
    document: ref[TokenVectors]
    wanted: tuple[bool, tuple[float, ...]]
    norms: ScaleNorms


_kept: dict[int, _Kept] = {}  # computed norms by the identity of the document's vectors


def scale_norms(tokens: Float32, scales: Sequence[float]) -> ScaleNorms:
    """Return ``||(k_L * E)[i]||`` for every position of ``(n, d)`` tokens and every scale but L = 1, whose norms are 1.

    Scores equal those of stored vectors if the tokens are ``as_stored(quantise(matrix, codec))``.
    """
    kept = tuple(scale for scale in scales if scale != IDENTITY)
    values = np.empty((len(kept), len(tokens)), dtype=np.float32)
    if len(tokens):
        smoothing = [row for row, scale in enumerate(kept) if is_smoothing(scale)]
        if smoothing:
            values[smoothing] = _lengths(tokens, tuple(kept[row] for row in smoothing))
        for row, scale in enumerate(kept):
            if scale == MEAN:
                values[row] = np.linalg.norm(np.full(len(tokens), 1 / len(tokens), np.float32) @ tokens)
    return ScaleNorms(kept, values)


def norms_of_scales(tokens: TokenVectors, stored: ScaleNorms | None, scales: Sequence[float]) -> Float32:
    """Return the norms of the wanted scales, ``(s, n)`` float32: those that are stored, the rest from the tokens."""
    if stored is None:
        return _computed(tokens, scales).lengths()
    lengths = stored.lengths()
    if stored.is_of(tokens, scales):  # the whole grid, or all but the mean at its end
        return lengths[: len(scales)]
    missing = [scale for scale in scales if scale not in stored.scales]
    computed = _computed(tokens, missing) if missing else ScaleNorms((), lengths[:0])
    rows = dict(zip(stored.scales + computed.scales, (*lengths, *computed.lengths()), strict=True))
    return np.array([rows[scale] for scale in scales], dtype=np.float32).reshape(len(scales), len(tokens))


def _computed(tokens: TokenVectors, scales: Sequence[float]) -> ScaleNorms:
    """Return norms that are not stored; they are kept as long as the document's vectors."""
    place, wanted = id(tokens), (compiled.enabled(), tuple(scales))
    known = _kept.get(place)
    if known is None or known.wanted != wanted:
        stop_if_given_up()
        made = scale_norms(as_stored(tokens), scales)
        known = _kept[place] = _Kept(ref(tokens, lambda _: _kept.pop(place, None)), wanted, made)
    return known.norms


def _lengths(tokens: Float32, scales: tuple[float, ...]) -> Float32:
    """Return the lengths of smoothed rows, ``(s, n)``, by the compiled loops where they are used."""
    if compiled.enabled():
        from es_ttc.rescorers.compiled import loops
        from es_ttc.rescorers.compiled.frequencies import transform_plan
        from es_ttc.rescorers.compiled.room import compute_in_room

        (length, dims), size = tokens.shape, transform_size(len(tokens))
        lengths = np.empty((len(scales), length), dtype=np.float32)
        given = np.ascontiguousarray(tokens), half_spectra(length, scales, size), transform_plan(size), lengths
        compute_in_room(lambda room: loops.smoothed_lengths(*given, room, dims, len(scales), size))
        return lengths
    squares = np.zeros((len(scales), len(tokens)))
    for _, smoothed in smoothed_columns(tokens, scales):
        squares += np.einsum("csn,csn->sn", smoothed, smoothed)
    return np.sqrt(squares).astype(np.float32)


def smoothed_columns(tokens: Float32, scales: tuple[float, ...]) -> Iterator[tuple[slice, Float32]]:
    """Yield ``k_L * E`` of ``(n, d)`` tokens, some components at a time, ``(c, s, n)``, valid until the next."""
    length, dims = tokens.shape
    size = transform_size(length)
    chunk = max(1, _CHUNK_BYTES // (4 * size * len(scales)))
    for start in range(0, dims, chunk):
        components = slice(start, min(start + chunk, dims))
        columns = tokens[:, components].T
        signals = _scratch.array("columns", (1, len(columns), size), np.float32)
        signals[0, :, :length] = columns
        signals[0, :, length:] = 0
        yield components, smooth(signals, (length,), scales, _scratch)[0, :, :, :length]
