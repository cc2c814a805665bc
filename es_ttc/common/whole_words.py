"""Stretches of a text in whole words, and with the words around them."""

import re
from collections.abc import Sequence
from itertools import islice, takewhile
from unicodedata import category

from es_ttc.common.languages import HAN_HIRAGANA, SOUTH_EAST_ASIAN

MAX_WORD = 40  # length up to which a stretch is widened; longer ones belong to scripts without spaces
_UNSPACED = re.compile(f"[{HAN_HIRAGANA}]")
_UNBROKEN = rf"[^\s{HAN_HIRAGANA}{SOUTH_EAST_ASIAN}]"
_REST_OF_WORD = re.compile(f"{_UNBROKEN}{{0,{MAX_WORD}}}")
_WORD = re.compile(f"[{HAN_HIRAGANA}]|[{SOUTH_EAST_ASIAN}]{{1,5}}|{_UNBROKEN}{{1,{MAX_WORD}}}")
"""A word as context counts it; Thai words have about five characters."""
_POINT = re.compile(r"\d[.,]\d")
_JOINERS = "\u200c\u200d"


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a stretch of a text widened to whole words, for an encoder's tokens are often parts of words.

    Words joined by hyphens are one: HOMA-IR; so are digits with a point or comma between them: 3.7. Han characters and
    hiragana are not widened, nor is an end without a word boundary within 40 characters (another script without
    spaces). Combining marks stay with their character.
    """
    if not 0 <= start < end <= len(text):
        return start, end
    left = next((n for n in range(MAX_WORD) if not _continues(text, start - n)), 0)
    right = next((n for n in range(MAX_WORD) if not _continues(text, end + n)), 0)
    start, end = start - left, end + right
    while start and _is_mark(text[start]):
        start -= 1
    while end < len(text) and _is_mark(text[end]):
        end += 1
    return start, end


def with_context(text: str, start: int, end: int, words: int) -> tuple[int, int]:
    """Return a stretch of a text with so many words before and after it, or as many as there are.

    White space separates words. Han characters and hiragana are words; so are five characters of other scripts without
    spaces. Punctuation belongs to its word.
    """
    start, end = whole_words(text, start, end)
    start -= _end_of_words(text[:start][::-1], 0, words)
    return whole_words(text, start, _end_of_words(text, end, words))


def _end_of_words(text: str, place: int, words: int) -> int:
    """Return where some words after a place end; the rest of the word at the place does not count."""
    rest = _REST_OF_WORD.match(text, place)
    end = place if rest is None else rest.end()
    for word in islice(_WORD.finditer(text, end), words):
        end = word.end()
    return end


def with_marks(text: str, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return the spans of a text's tokens, each with the combining marks after it that a tokenizer leaves out."""
    if text.isascii() or not spans:
        return spans
    following = [*(start for start, _ in spans[1:]), len(text)]
    return [
        (start, end + sum(1 for _ in takewhile(_is_mark, text[end:limit])) if start < end < limit else end)
        for (start, end), limit in zip(spans, following, strict=True)
    ]


def _continues(text: str, place: int) -> bool:
    """Return whether the characters before and after a place are of one word."""
    return 0 < place < len(text) and _is_part(text, place - 1) and _is_part(text, place)


def _is_part(text: str, place: int) -> bool:
    return _in_word(text[place]) or (place > 0 and _POINT.match(text, place - 1) is not None)


def _in_word(character: str) -> bool:
    if _UNSPACED.match(character):
        return False
    return character.isalnum() or character in "_-" or _is_mark(character)


def _is_mark(character: str) -> bool:
    """Return whether a character is shown together with the one before it."""
    return category(character)[0] == "M" or character in _JOINERS
