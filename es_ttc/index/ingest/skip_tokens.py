"""Tokens that get no vector: punctuation, stop words, whose vectors are added to a neighbour's, and repeated words.

A vector costs the same for a comma as for a name. Punctuation is left out, as ColBERT's documents do (Khattab and
Zaharia, arXiv 2004.12832, section 3.2). A stop word's vector says something about the words around it: it is added to
that of the word before or after it, whichever it is nearer to, and this vector then stands for both (pooling of
neighbouring tokens; Clavié et al., arXiv 2409.14683, pool by clusters). Special tokens keep their vectors.

Of a word that occurs several times in a document only the first occurrence keeps its vector, if that is chosen. The
vectors of a long text are then as many as its different words: the length of a text matters for encoding only.
"""

import unicodedata
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from es_ttc.index.ingest.compose import FieldSpan, locate
from es_ttc.vectors.codecs import SkipTokens
from es_ttc.vectors.tokens import Float32

Offsets = NDArray[np.int32]
Mask = NDArray[np.bool_]
Places = NDArray[np.intp]
_KEPT_CATEGORIES = frozenset("LNMS")  # letters, numbers, marks (vowels of many scripts), symbols (currencies, emoji)
_WORD_CATEGORIES = frozenset("LNM")
_BEYOND = 1e6  # more than any sum of differences of cosines


def without_skipped(
    rows: Float32,
    offsets: Offsets,
    text: str,
    fields: Sequence[FieldSpan],
    skip: SkipTokens,
    stop_words: frozenset[str],
) -> tuple[Float32, Offsets, float]:
    """Return the vectors and spans of those tokens of a text that get one, and their share of its words.

    A field of punctuation and stop words alone keeps all of them. Skipped words belong to the span of the token that
    stands for them, so spans leave out punctuation, white space and repeated words only.

    Args:
        rows: ``(n, d)`` float32 unit rows, the token vectors.
        offsets: ``(n, 2)`` int32, first and end character of each token in the text; special ones have an empty span.
        text: The text that was encoded.
        fields: The positions of its fields.
        skip: Which tokens get no vector.
        stop_words: The encoder's stop words, in lower case.

    Returns:
        ``(m, d)`` float32 unit rows, ``(m, 2)`` int32 spans, m <= n, and the share of the words' tokens that are not
        left out as repeated ones, in (0, 1].
    """
    if skip == "none" or not len(rows):
        return rows, offsets, 1.0
    owners = locate(offsets, fields)[:, 0]
    with_text = offsets[:, 0] < offsets[:, 1]
    pieces = [text[start:end] for start, end in offsets.tolist()]
    bare = with_text & np.array([_is_punctuation(piece) for piece in pieces])
    common = np.zeros(len(rows), np.bool_)
    if skip != "punctuation":
        common = np.array(
            [
                piece.strip().lower() in stop_words and _is_whole_word(text, start, end)
                for piece, (start, end) in zip(pieces, offsets.tolist(), strict=True)
            ]
        )
    for field in np.unique(owners[with_text]):
        own = with_text & (owners == field)
        if (bare | common)[own].all():
            bare &= ~own
            common &= ~own
    keep = ~(bare | common)
    words, anchors = _represented(rows, owners, bare, common, np.flatnonzero(keep & with_text))
    merged, spans = rows.copy(), offsets.copy()
    np.add.at(merged, anchors, rows[words])
    np.minimum.at(spans[:, 0], anchors, offsets[words, 0])
    np.maximum.at(spans[:, 1], anchors, offsets[words, 1])
    lengths: Float32 = np.sqrt(np.einsum("ij,ij->i", merged, merged))[:, None]
    lengths[lengths == 0] = 1
    share = 1.0
    if skip == "repeated_words":
        words = np.flatnonzero(keep & with_text)
        repeated = _repeated([pieces[word] for word in words])
        keep[words[repeated]] = False
        share = 1 - float(np.mean(repeated)) if len(words) else 1.0
    return (merged / lengths)[keep], spans[keep], share


def _repeated(pieces: Sequence[str]) -> Mask:
    """Return which pieces occur before their place, in any case."""
    words = [piece.strip().lower() for piece in pieces]
    first = {word: place for place, word in reversed([*enumerate(words)])}
    return np.array([first[word] < place for place, word in enumerate(words)], np.bool_)


def _represented(
    rows: Float32, owners: NDArray[np.int32], bare: Mask, common: Mask, kept: Places
) -> tuple[Places, Places]:
    """Return the stop words, and for each the kept token that stands for it: the one before or after it in its field.

    The words between two kept tokens are divided once, so that the sum of cosines is greatest: the first ones go to the
    left. One that only a punctuation mark divides from a kept token goes to the other.
    """
    words = np.flatnonzero(common)
    after = np.searchsorted(kept, words)
    left, right = kept[np.maximum(after - 1, 0)], kept[np.minimum(after, len(kept) - 1)]
    has_left = (left < words) & (owners[left] == owners[words])
    has_right = (right > words) & (owners[right] == owners[words])
    marks = np.cumsum(bare)
    divided_left, divided_right = marks[words] > marks[left], marks[right] > marks[words]
    gains = np.einsum("ij,ij->i", rows[words], rows[left] - rows[right])
    gains[divided_left & ~divided_right] = -_BEYOND
    gains[divided_right & ~divided_left] = _BEYOND
    gains[~has_left], gains[~has_right] = -_BEYOND, _BEYOND
    to_left: list[bool] = []
    for _, run in groupby(zip(after.tolist(), owners[words].tolist(), gains.tolist(), strict=True), itemgetter(0, 1)):
        sums = [*accumulate((gain for _, _, gain in run), initial=0.0)]
        first = sums.index(max(sums))
        to_left += [place < first for place in range(len(sums) - 1)]
    return words, np.where(np.array(to_left, np.bool_), left, right)


def _is_punctuation(piece: str) -> bool:
    return not any(unicodedata.category(character)[0] in _KEPT_CATEGORIES for character in piece)


def _is_whole_word(text: str, start: int, end: int) -> bool:
    """Whether a token that may begin with white space is no part of a longer word."""
    return not (_in_word(text, end) or (not text[start].isspace() and _in_word(text, start - 1)))


def _in_word(text: str, place: int) -> bool:
    return 0 <= place < len(text) and unicodedata.category(text[place])[0] in _WORD_CATEGORIES
