"""Fewer vectors than tokens: some tokens are left out, and neighbours that resemble each other share one vector."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encodings, Float32
from es_ttc.index.mappings.spec import DroppedTokens, IndexSpec
from es_ttc.vectors.reduce import group_starts, pool_ranges, pool_rows

Offsets = NDArray[np.int32]

ENGLISH = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not",
        "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was",
        "will", "with",
    }
)  # fmt: skip
"""Lucene's stop words of English, which the engines' analyzer `english` leaves out too."""


def reduce_tokens(encodings: Encodings, texts: Sequence[str], spec: IndexSpec) -> Encodings:
    """Return encodings with the token vectors that an index stores, each with the characters that it stands for."""
    reduced = [
        reduced_tokens(text, rows, offsets, spec.drop_tokens, spec.token_pooling)
        for text, rows, offsets in zip(texts, encodings.tokens, encodings.offsets, strict=True)
    ]
    return replace(encodings, tokens=[rows for rows, _ in reduced], offsets=[offsets for _, offsets in reduced])


def reduced_tokens(
    text: str, rows: Float32, offsets: Offsets, dropped: DroppedTokens, factor: int
) -> tuple[Float32, Offsets]:
    """Return the vectors of one text and the characters that each stands for.

    Args:
        text: The text.
        rows: ``(n, d)`` float32 unit rows.
        offsets: ``(n, 2)`` first and end character of each token.
        dropped: Tokens without vectors.
        factor: How many of the others share one vector, on average.
    """
    kept = kept_tokens(text, offsets, dropped)
    rows, offsets = rows[kept], offsets[kept]
    if factor == 1:
        return rows, offsets
    starts = group_starts(rows, -(-len(rows) // factor))
    return pool_rows(rows, starts), pool_ranges(offsets, starts)


def kept_tokens(text: str, offsets: Offsets, dropped: DroppedTokens) -> NDArray[np.bool_]:
    """Return which tokens of a text are kept, ``(n,)``; all of them where none would be.

    A token is a stop word only if it is a whole word of the text: `in` within `insulin` is not.
    """
    if dropped == "none":
        return np.ones(len(offsets), np.bool_)
    kept = np.array([_is_kept(text, start, end, dropped) for start, end in offsets.tolist()], np.bool_)
    return kept if kept.any() else np.ones(len(offsets), np.bool_)


def _is_kept(text: str, start: int, end: int, dropped: DroppedTokens) -> bool:
    token = text[start:end]
    if not token:
        return dropped != "special"
    if not any(character.isalnum() for character in token):
        return False
    if dropped == "punctuation" or token.lower() not in ENGLISH:
        return True
    return text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()
