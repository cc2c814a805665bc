"""Blend's weights where a request gives none. No judgements are needed: what they depend on is seen in the window.

Each rule was looked at on training queries; docs/results/blend.md has what it changes on all collections.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np

from es_ttc.common.languages import HAN_HIRAGANA
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend.normalise import MAX_LEADING
from es_ttc.rescorers.blend.signals import SignalName, documents_with

DEFAULT_SIGNALS: tuple[SignalName, ...] = ("lexical", "dense", "spectral", "late_interaction")
"""Signals of a request that names none."""
TELLING_SPREAD = 0.2  # standard deviation of the first pass's scores over their mean from which on words count in full
_FEW_WORDS = 3
_WORD = re.compile(rf"[{HAN_HIRAGANA}]|[^\s{HAN_HIRAGANA}]+")
DENSE_BESIDE_SPECTRAL = 0.5  # its widest scale is the mean of all tokens, which would count twice


@dataclass(frozen=True, slots=True)
class Trust:
    """How far each signal can be trusted in this window, 0 to 1; needs no judgements."""

    words: float  # trust in `lexical`: `weight_of_words`
    vectors: float  # trust in all others, which read vectors: the square root of the share of the texts that was read
    few_words: bool = False  # whether the query has few words, which may single a document out

    @classmethod
    def of(cls, query: Query, window: Window, shares_read: Sequence[float] | None = None) -> Self:
        """Return the trust in a window's signals; `shares_read` of its texts where it does not hold token vectors.

        Scores of vectors of a share c of each text are trusted by sqrt(c), their correlation with those of the whole.
        """
        share = share_read(window) if shares_read is None else _mean(shares_read)
        return cls(weight_of_words(window), math.sqrt(share), has_few_words(query.text))

    def weights(self, names: Collection[SignalName]) -> dict[SignalName, float]:
        """Return blend's weight of each of the signals that are taken, 0 to 1."""
        weights = {name: self.words if name == "lexical" else self.vectors for name in names}
        if "dense" in weights and "spectral" in weights:
            weights["dense"] *= DENSE_BESIDE_SPECTRAL
        return weights


def weight_of_words(window: Window) -> float:
    """Return how far the first pass's scores can be trusted to tell documents apart, 0 to 1.

    Where a query's words stand in every document or in none, BM25's scores hardly differ, and z-scores would enlarge
    that. Their coefficient of variation is .28 and more where BM25 is of use, .05 on LIMIT-style profiles. Words that
    match few documents tell these from all others.
    """
    found = window.first_pass[documents_with(frozenset({Feature.FIRST_PASS}), window)]
    scores = found[found > 0].astype(np.float64)
    if len(scores) <= min(MAX_LEADING, len(window) // 2):
        return 1.0
    return min(1.0, float(scores.std() / scores.mean()) / TELLING_SPREAD)


def has_few_words(text: str) -> bool:
    """Return whether a query has one to three words: it is a name, a code or keywords rather than a question."""
    return 0 < sum(1 for _ in islice(_WORD.finditer(text), _FEW_WORDS + 1)) <= _FEW_WORDS


def share_read(window: Window) -> float:
    """Return the mean share of the documents' texts that the encoder read, in (0, 1]; 1 without token vectors."""
    return _mean([tokens.read for tokens in window.tokens or () if len(tokens)])


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares) if shares else 1.0
