"""The passages of a document that match a query best: places of the greatest cosines of smoothed token vectors.

A passage is the text under the main lobe of a kernel that is wide enough to be read, in one field. Its match is the
narrower text inside it that is nearest to the query.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.spectral.cosines import blocks
from es_ttc.rescorers.spectral.evidence import main_lobe
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

PASSAGE_SCALE = 15.0  # scale of a passage: its main lobe has 29 or 30 tokens, about 130 characters of English
MATCH_SCALE = 3.0  # scale of the match inside a passage: 5 or 6 tokens
_MAX_PARTS = 6  # tokens of one word before a passage's first; more belong to scripts without spaces


@dataclass(frozen=True, slots=True)
class BestPassage:
    """A stretch of one text field, by characters; `match` is the text inside it that is nearest to the query."""

    field: int
    start: int
    end: int
    score: float
    match: tuple[int, int]


def best_passages(
    vectors: Float32, tokens: TokenVectors, norms: ScaleNorms | None, offsets: NDArray[np.int32], count: int
) -> list[BestPassage]:
    """Return a document's best passages for the best of ``(r, d)`` rows; those of one field do not overlap."""
    for block in blocks(vectors, [tokens], None if norms is None else [norms], (MATCH_SCALE, PASSAGE_SCALE)):
        narrow, wide = block.cosines[0].max(axis=0)
        return [_passage(narrow, wide, offsets, position) for position in _apart(wide, offsets, count)]
    return []  # no token


def _apart(wide: Float32, offsets: NDArray[np.int32], count: int) -> list[int]:
    """Return positions of the greatest cosines whose main lobes share no token of their field, greatest first."""
    left: Float32 = np.where(offsets[:, 2] > offsets[:, 1], wide, np.float32(-np.inf))
    reach = math.ceil(PASSAGE_SCALE) + _MAX_PARTS
    positions: list[int] = []
    while len(positions) < count and left.max() > -np.inf:
        position = int(np.argmax(left))
        positions.append(position)
        first, end = main_lobe(len(wide), PASSAGE_SCALE, position)
        near = slice(max(0, first - reach), end + reach)
        left[near][offsets[near, 0] == offsets[position, 0]] = -np.inf
    return positions


def _passage(narrow: Float32, wide: Float32, offsets: NDArray[np.int32], position: int) -> BestPassage:
    """Return the passage at a position whose token has text."""
    inside = _inside(offsets, PASSAGE_SCALE, position)
    peak = int(inside[np.argmax(narrow[inside])])
    match = np.intersect1d(inside, _inside(offsets, MATCH_SCALE, peak))
    return BestPassage(
        field=int(offsets[position, 0]),
        start=_start_of_word(offsets, int(inside[0])),
        end=int(offsets[inside, 2].max()),
        score=min(1.0, max(-1.0, float(wide[position]))),
        match=(int(offsets[match, 1].min()), int(offsets[match, 2].max())),
    )


def _inside(offsets: NDArray[np.int32], scale: float, position: int) -> NDArray[np.intp]:
    """Return the tokens with text under the main lobe at a position, in the field of its token."""
    first, end = main_lobe(len(offsets), scale, position)
    lobe = offsets[first:end]
    return first + np.flatnonzero((lobe[:, 0] == offsets[position, 0]) & (lobe[:, 2] > lobe[:, 1]))


def _start_of_word(offsets: NDArray[np.int32], token: int) -> int:
    """Return where the word of a token begins, which is where no other token ends."""
    own = int(offsets[token, 1])
    for first in range(token, max(0, token - _MAX_PARTS) - 1, -1):
        before = offsets[first - 1] if first else None
        if before is None or before[0] != offsets[token, 0] or before[2] != offsets[first, 1]:
            return int(offsets[first, 1])
    return own
