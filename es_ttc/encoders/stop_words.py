"""The stop words of a model: the most frequent whole words of its tokenizer's own vocabulary, so in its languages.

A unigram vocabulary has log-probabilities; any other is in order of frequency, near enough: its pieces were added one
by one, the most frequent first. Negations are left out, because they change what a sentence says.
"""

import json
from collections.abc import Iterator

from tokenizers import Tokenizer

_MOST_FREQUENT = 64  # words of a vocabulary without probabilities; far below it are names of things
_LEAST_LOG_PROBABILITY = -10.0  # some 900 words in 100 languages for XLM-R; "people", the first English noun, has -10.6
_WORD_STARTS = ("▁", "Ġ")  # how SentencePiece and byte-level vocabularies write the space before a word
_CONTINUATION = "##"  # how WordPiece writes that there is none
_ONE_LETTER = frozenset("a")  # of vocabularies without probabilities, whose single characters come first

_NEGATIONS = """
no nor not never none nothing nobody nowhere neither cannot without against don didn doesn isn wasn won couldn wouldn
shouldn aren weren hasn haven hadn ain nicht nichts kein keine keinen keiner keinem nie niemals ohne weder gegen ne pas
non sans jamais rien aucun aucune ni contre nunca nada nadie ningún ninguna sin não nem sem nenhum niente mai senza né
niet geen nooit zonder ikke ingen inte aldrig utan uden uten ei ilman bez nic не ни нет без никогда ні немає nije nema
nu fără nici nem nincs nélkül değil yok لا ليس لم لن بدون غير نه نیست नहीं न बिना không chưa tidak bukan tanpa hindi wala
"""
NEGATIONS = frozenset(_NEGATIONS.split())
"""Words that keep their vectors however frequent they are."""


def stop_words(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the stop words of a tokenizer's vocabulary, in lower case."""
    model = json.loads(tokenizer.to_str())["model"]
    frequent = _by_probability(model["vocab"]) if model["type"] == "Unigram" else _by_order(tokenizer)
    return frozenset(frequent) - NEGATIONS


def _by_probability(vocabulary: list[tuple[str, float]]) -> Iterator[str]:
    for piece, log_probability in vocabulary:
        word = piece[1:].lower()
        if piece.startswith(_WORD_STARTS) and word.isalpha() and log_probability >= _LEAST_LOG_PROBABILITY:
            yield word


def _by_order(tokenizer: Tokenizer) -> set[str]:
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    marked = any(piece.startswith(_WORD_STARTS) for piece, _ in pieces)
    words: set[str] = set(_ONE_LETTER)
    for piece, _ in pieces:
        if len(words) > _MOST_FREQUENT:
            break
        starts = piece.startswith(_WORD_STARTS) if marked else not piece.startswith(_CONTINUATION)
        word = (piece[1:] if marked else piece).lower()
        if starts and len(word) > 1 and word.isalpha():
            words.add(word)
    return words
