"""BM25 in memory, by bm25s: the formula, analysis and defaults of the engines' text fields in the texts' language."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from es_ttc.common.languages import HAN_HIRAGANA, common_language
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

K1 = 1.2
B = 0.75  # Lucene's defaults, which both engines keep

_WORD = rf"(?u)[{HAN_HIRAGANA}]|[^\W{HAN_HIRAGANA}]+"
_ALGORITHMS = {"cyrillic": "russian", "indic": "hindi"}  # of a script's most frequent language
_STOP_WORDS = frozenset({"dutch", "english", "french", "german", "italian", "portuguese", "russian", "spanish"})
"""Languages whose stop words bm25s has."""


class Bm25:
    """An index over texts with Lucene's BM25, and stop words and stems of their language, English if unknown."""

    def __init__(self, texts: Sequence[str], *, k1: float = K1, b: float = B) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise ConfigurationError("bm25 in memory needs bm25s: pip install 'es-ttc[evaluate]'") from error
        self._tokenize = bm25s.tokenize
        language = common_language(texts).lower()
        known = _ALGORITHMS.get(language, language)
        self._language = known if known in Stemmer.algorithms() else "english"
        self._stemmer = Stemmer.Stemmer(self._language)
        self._size = len(texts)
        words = self._words(texts)
        self._worded = np.array([position for position, own in enumerate(words) if own], dtype=np.intp)
        self._index: Any = None
        if len(self._worded):  # bm25s takes no corpus without a word
            self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
            self._index.index([words[position] for position in self._worded], show_progress=False)

    def scores(self, query: str) -> Float32:
        """Return every document's score, ``(n,)`` float32; 0 for documents without a word of the query."""
        scores = np.zeros(self._size, dtype=np.float32)
        [words] = self._words([query])
        known = [word for word in words if self._index is not None and word in self._index.vocab_dict]
        if known:
            scores[self._worded] = self._index.get_scores(known)
        return scores

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        tokens: list[list[str]] = self._tokenize(
            list(texts),
            token_pattern=_WORD,
            stopwords=self._language if self._language in _STOP_WORDS else None,
            stemmer=self._stemmer,
            return_ids=False,
            show_progress=False,
        )
        return [[word for word in own if word] for own in tokens]
