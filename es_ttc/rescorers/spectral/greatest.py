"""Each document's greatest cosine over positions, of all scales or of each; compiled loops where at hand."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.cancellable_calls import current, stop_if_given_up
from es_ttc.common.processors import processor_count
from es_ttc.rescorers import compiled
from es_ttc.rescorers.similarity import EMPTY_DOCUMENT, require_dims
from es_ttc.rescorers.spectral.aggregation import maximum
from es_ttc.rescorers.spectral.cosines import NORM_FLOOR, blocks
from es_ttc.rescorers.spectral.norms import norms_of_scales
from es_ttc.rescorers.spectral.smoothing import IDENTITY, MEAN, half_spectra, transform_size
from es_ttc.rescorers.threads import share
from es_ttc.vectors.rotation import rotate
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

if TYPE_CHECKING:
    from es_ttc.rescorers.compiled.window import KernelTable

_PARTS_A_CORE = 1  # so that cores end at about the same time
_LEAST_PART = 3 * 2**19  # components, some 150 us: less is done sooner than another thread wakes up and is waited for
_MAX_COSINE = 1.01  # cosines of stored vectors and norms are at most 1, apart from their rounding
_TOKENS_AT_ONCE = 65_536  # number of tokens that are compared before it is asked whether anybody still waits
_TILED = 8  # components that tiles multiply while one is read, and multiplied by a vector or two


def greatest_cosines(
    vectors: Float32,
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms] | None,
    scales: tuple[float, ...],
    *,
    plain: Float32 | None = None,
) -> Float32:
    """Return the greatest cosine of every document with every query vector, ``(k, r)``; -1 for an empty document.

    `plain`, ``(p, d)`` unit rows, are compared with the tokens themselves alone; their cosines follow, ``(k, r + p)``.
    """
    plain_rows = 0 if plain is None else len(plain)
    every = vectors if plain is None else np.concatenate([vectors, plain])
    best = np.full((len(tokens), len(every)), EMPTY_DOCUMENT, dtype=np.float32)
    if compiled.enabled():
        _compiled(best[:, None], every, plain_rows, tokens, norms, scales)
    else:
        for block in blocks(vectors, tokens, norms, scales):  # one pass over scales and positions together
            best[block.documents, : len(vectors)] = maximum(block.cosines.reshape(*block.cosines.shape[:2], -1))
        for block in blocks(every[len(vectors) :], tokens, None, (IDENTITY,)) if plain_rows else ():
            best[block.documents, len(vectors) :] = maximum(block.cosines.reshape(*block.cosines.shape[:2], -1))
    if norms is not None and len(odd := with_wrong_norms(best[:, : len(vectors)])):
        best[odd] = greatest_cosines(vectors, [tokens[place] for place in odd], None, scales, plain=plain)
    return best


def greatest_by_scale(
    vectors: Float32,
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms] | None,
    scales: tuple[float, ...],
) -> Float32:
    """Return the greatest cosine over positions at each scale, ``(k, r, s)``; see :func:`greatest_cosines`."""
    best = np.full((len(tokens), len(scales), len(vectors)), EMPTY_DOCUMENT, dtype=np.float32)
    if compiled.enabled():
        _compiled(best, vectors, 0, tokens, norms, scales)
    else:
        for block in blocks(vectors, tokens, norms, scales):
            best[block.documents] = maximum(block.cosines).swapaxes(1, 2)
    if norms is not None and len(odd := with_wrong_norms(best)):
        computed = greatest_by_scale(vectors, [tokens[place] for place in odd], None, scales)
        best[odd] = computed.swapaxes(1, 2)
    return np.ascontiguousarray(best.swapaxes(1, 2))


def with_wrong_norms(cosines: Float32) -> NDArray[np.intp]:
    """Return the places of documents with a cosine above 1: their stored norms are not those of their vectors."""
    return np.flatnonzero((cosines > _MAX_COSINE).any(axis=tuple(range(1, cosines.ndim))))


def _compiled(
    best: Float32,
    vectors: Float32,
    plain: int,
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms] | None,
    scales: tuple[float, ...],
) -> None:
    """Write the greatest cosines, ``(k, c, r)``: over all scales where c = 1, otherwise those of each scale."""
    require_dims(tokens, vectors)
    for coded in (False, True):  # documents in codes are compared with rotated vectors
        places = [place for place, document in enumerate(tokens) if (document.coded > 0) is coded]
        if places:
            _compiled_alike(
                best,
                places,
                rotate(vectors) if coded else vectors,
                plain,
                [tokens[place] for place in places],
                None if norms is None else [norms[place] for place in places],
                scales,
            )


def _compiled_alike(
    best: Float32,
    places: Sequence[int],
    vectors: Float32,
    plain: int,
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms] | None,
    scales: tuple[float, ...],
) -> None:
    """Write the greatest cosines of the documents at some places, all of them in codes or none."""
    from es_ttc.rescorers.compiled import window

    identity, mean = scales[0] == IDENTITY, scales[-1] == MEAN
    beyond = scales[int(identity) :]
    smoothing = beyond[: len(beyond) - int(mean)]
    # Transforms of one size side by side, and equal lengths, so that spectra are read from the cache.
    table = window.WindowTable(
        tokens,
        norms,
        beyond,
        norms_of_scales,
        _kernel_table(smoothing) if smoothing else None,
    )
    if not len(table.places):
        return
    queries = np.ascontiguousarray(vectors, dtype=np.float32)
    found = np.empty((len(table.places), *best.shape[1:]), dtype=np.float32)

    call = current()

    def work(part: slice) -> None:
        for some in _short_parts(ends, part):
            if call.given_up.done():  # the rest would be computed for nobody
                return
            window.greatest_cosines(
                table,
                some,
                queries,
                found,
                plain=plain,
                identity=identity,
                smoothing=len(smoothing),
                mean=mean,
                floor=float(NORM_FLOOR),
            )

    ends = np.cumsum(table.lengths)
    tiled = plain * vectors.shape[1]
    components = vectors.size - tiled + tiled // _TILED
    share(work, _parts(ends, components))
    stop_if_given_up()
    best[np.asarray(places)[table.places]] = found


@lru_cache(maxsize=4)
def _kernel_table(scales: tuple[float, ...]) -> "KernelTable":
    """Return the table of the kernels of all lengths at finite scales above 1."""
    from es_ttc.rescorers.compiled.window import KernelTable

    def spectra(length: int) -> tuple[Float32, int]:
        size = transform_size(length)
        return half_spectra(length, scales, size), size

    return KernelTable(spectra)


def _short_parts(ends: NDArray[np.int64], part: slice) -> Iterator[slice]:
    """Yield parts of a part of a window that are computed in a few milliseconds each."""
    start = part.start
    while start < part.stop:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + _TOKENS_AT_ONCE, side="right"))
        stop = min(max(stop, start + 1), part.stop)
        yield slice(start, stop)
        start = stop


def _parts(ends: NDArray[np.int64], components: int) -> list[slice]:
    """Return parts of about the same work each, a few a core, given the sum of tokens up to each document's end."""
    whole = int(ends[-1])
    number = max(1, min(processor_count() * _PARTS_A_CORE, whole * components // _LEAST_PART))
    bounds = [*np.searchsorted(ends, np.arange(number) * (whole / number)).tolist(), len(ends)]
    return [slice(first, last) for first, last in pairwise(bounds) if first < last]
