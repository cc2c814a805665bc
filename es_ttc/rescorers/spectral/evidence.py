"""What a spectral score came from: the scale, the position, and the text under the kernel's main lobe."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.spectral.smoothing import IDENTITY, MEAN
from es_ttc.vectors.tokens import Float32


def evidence(
    score: float, best: int, cosines: Float32, scales: tuple[float, ...], offsets: NDArray[np.int32] | None
) -> dict[str, Any]:
    """Describe one document's score for one query vector, from ``(s, n)`` cosines and ``(n, 3)`` offsets, JSON-ready.

    The ``scale`` with its greatest ``cosine``, the ``position`` of it, ``tokens`` ``[first, end)`` under the main lobe
    there, and, where a token has text, ``field`` (ordinal), ``start`` and ``end`` (characters).
    """
    position = int(np.argmax(cosines[best]))
    first, end = main_lobe(cosines.shape[1], scales[best], position)
    shown: dict[str, Any] = {
        "score": cosine_of(score),
        "scale": "mean" if scales[best] == MEAN else scales[best],
        "position": position,
        "cosine": cosine_of(cosines[best, position]),
        "tokens": [first, end],
    }
    return shown if offsets is None else shown | characters_under(offsets, first, end, position)


def main_lobe(length: int, scale: float, position: int) -> tuple[int, int]:
    """Return the tokens ``[first, end)`` that count positively and most: those nearer to the centre than L."""
    if scale == IDENTITY:
        return position, position + 1
    if scale == MEAN:
        return 0, length
    centre = position - (0.5 if length % 2 == 0 else 0.0)
    return max(0, math.floor(centre - scale) + 1), min(length, math.ceil(centre + scale))


def cosine_of(value: float | np.floating[Any]) -> float:
    """Return a cosine without what rounding puts beyond its range, as scores are."""
    return min(1.0, max(-1.0, float(value)))


def characters_under(offsets: NDArray[np.int32], first: int, end: int, position: int) -> dict[str, int]:
    """Return ``field``, ``start`` and ``end`` of the text under tokens, in the field nearest to the position."""
    spans = offsets[first:end]
    with_text = np.flatnonzero(spans[:, 2] > spans[:, 1])
    if not len(with_text):
        return {}
    nearest = with_text[np.argmin(np.abs(with_text + first - position))]
    field = int(spans[nearest, 0])
    inside = spans[with_text][spans[with_text, 0] == field]
    return {"field": field, "start": int(inside[:, 1].min()), "end": int(inside[:, 2].max())}
