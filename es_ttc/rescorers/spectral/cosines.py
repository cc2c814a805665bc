"""The cosines of the query with every smoothed row of every document of a window: the kernel of the spectral score."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.cancellable_calls import stop_if_given_up
from es_ttc.rescorers.similarity import token_similarities
from es_ttc.rescorers.spectral.norms import norms_of_scales
from es_ttc.rescorers.spectral.smoothing import IDENTITY, MEAN, smooth, transform_size
from es_ttc.rescorers.threads import Scratch
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

NORM_FLOOR = np.float32(1e-5)
"""Least length that a smoothed row is divided by: where tokens cancel each other out only rounding is left, and the
cosine of a vanishing row is taken as 0, like that of a zero vector."""

_BLOCK_BYTES = 2**21
_LEAST_SIZE = 256  # a transform of short documents costs less than a block of their own

_scratch = Scratch()


@dataclass(frozen=True, slots=True)
class Block:
    """Documents of about the same length, at every scale."""

    documents: NDArray[np.intp]  # (b,) their places in the window
    lengths: NDArray[np.intp]  # (b,) their numbers of tokens, 1 or more
    cosines: Float32  # (b, r, s, width), NaN after the last position; valid until the next block is asked for


def blocks(
    vectors: Float32, tokens: Sequence[TokenVectors], norms: Sequence[ScaleNorms] | None, scales: tuple[float, ...]
) -> Iterator[Block]:
    """Yield the cosines of a window's documents with ``(r, d)`` vectors, those without any token left out."""
    for size, places in _by_transform_size(tokens).items():
        block = max(1, _BLOCK_BYTES // (4 * size * len(vectors) * len(scales)))
        for start in range(0, len(places), block):
            stop_if_given_up()
            documents = places[start : start + block]
            yield _block(
                vectors,
                [tokens[place] for place in documents],
                [None if norms is None else norms[place] for place in documents],
                scales,
                size,
                np.array(documents, dtype=np.intp),
            )


def _by_transform_size(tokens: Sequence[TokenVectors]) -> dict[int, list[int]]:
    """Return the places of the documents that share a transform size, equal lengths side by side."""
    shared: dict[int, list[int]] = defaultdict(list)
    for length, place in sorted((len(document), place) for place, document in enumerate(tokens)):
        if length:
            shared[max(_LEAST_SIZE, transform_size(length))].append(place)
    return shared


def _block(
    vectors: Float32,
    tokens: Sequence[TokenVectors],
    norms: Sequence[ScaleNorms | None],
    scales: tuple[float, ...],
    size: int,
    documents: NDArray[np.intp],
) -> Block:
    lengths = [len(document) for document in tokens]
    counts = np.array(lengths, dtype=np.intp)
    width = lengths[-1]
    narrowest, widest = scales[0] == IDENTITY, scales[-1] == MEAN
    smoothing = slice(int(narrowest), len(scales) - int(widest))

    signals: Float32 = _scratch.array("signals", (len(tokens), len(vectors), size), np.float32)
    signals[:, :, lengths[0] :] = 0
    token_similarities(vectors, tokens, [signal[:, :n] for signal, n in zip(signals, lengths, strict=True)])

    row_lengths = _row_lengths(tokens, norms, scales[int(narrowest) :], width)[:, None]
    cosines: Float32 = _scratch.array("cosines", (len(tokens), len(vectors), len(scales), width), np.float32)
    if narrowest:
        cosines[:, :, 0] = signals[..., :width]
    if scales[smoothing]:
        smoothed = smooth(signals, lengths, scales[smoothing], _scratch)[..., :width]
        np.divide(smoothed, row_lengths[:, :, : smoothed.shape[2]], out=cosines[:, :, smoothing])
    if widest:
        means = signals.sum(axis=-1, keepdims=True) / counts[:, None, None].astype(np.float32)
        np.divide(means, row_lengths[:, :, -1], out=cosines[:, :, -1])
    if lengths[0] < width:
        after_the_last = np.arange(width) >= counts[:, None]
        np.copyto(cosines, np.nan, where=after_the_last[:, None, None, :])
    return Block(documents, counts, cosines)


def _row_lengths(
    tokens: Sequence[TokenVectors], norms: Sequence[ScaleNorms | None], scales: tuple[float, ...], width: int
) -> Float32:
    """Return ``(b, s, width)`` lengths of the smoothed rows, floored; 1 after a document's last position."""
    padded: Float32 = _scratch.array("norms", (len(tokens), len(scales), width), np.float32)
    if scales:
        padded[:, :, len(tokens[0]) :] = 1  # the shortest document comes first
        for row, document, stored in zip(padded, tokens, norms, strict=True):
            np.maximum(norms_of_scales(document, stored, scales), NORM_FLOOR, out=row[:, : len(document)])
    return padded
