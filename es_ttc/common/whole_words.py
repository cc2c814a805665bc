"""Stretches of a text in whole words."""

import re

_WORD = re.compile(r"[\w-]+")
"""Words joined by hyphens are one: HOMA-IR."""
_LONGEST_WORD = 40


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a stretch of a text widened to whole words, for an encoder's tokens are often parts of words.

    An end without a word's boundary within `_LONGEST_WORD` characters (a script without spaces) stays.

    Args:
        text: The text.
        start: First character.
        end: Character after the last one.
    """
    if not 0 <= start < end <= len(text):
        return start, end
    before = _WORD.match(text[max(0, start - _LONGEST_WORD) : start][::-1])
    after = _WORD.match(text[end : end + _LONGEST_WORD])
    left = before.end() if before and _WORD.match(text[start]) else 0
    right = after.end() if after and _WORD.match(text[end - 1]) else 0
    return start - left * (left < _LONGEST_WORD), end + right * (right < _LONGEST_WORD)
