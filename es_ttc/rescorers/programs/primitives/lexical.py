"""The paper's lexical channels (B.5, B.6): word overlap without an encoder.

The paper's tokenizer is not given. Here a word is a run of letters and digits of any script, in lower case; scripts
written without spaces (Chinese, Japanese, Thai...) give one word a character, so bigrams are their words.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

RARE = 0.02
"""Share of documents up to which a word counts as rare; a word of one document always does. B.6 names no threshold: on
SciFact's train queries .005 to 1 give an nDCG@10 of .870 to .882 with CrossRoundRRF, without a trend that 80 queries
could show (`benchmarks.programs_constants` at commit cf4207f0), so it is what the word says."""

_K1, _B = 1.2, 0.75  # Lucene's defaults, which both engines keep

T = TypeVar("T", bound=Hashable)

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")


def words(text: str) -> list[str]:
    """Return a text's words, in order."""
    return _WORD.findall(text.lower())


class LexicalIndex:
    """Words and word bigrams of n documents."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        listed = [words(text) for text in texts]
        self._words = _postings(listed)
        self._bigrams = _postings([list(pairwise(one)) for one in listed])

    def idf(self, word: str) -> float:
        """Return ``ln(1 + (n - df + 1/2) / (df + 1/2))`` (Robertson et al., TREC-3, made positive as in Lucene)."""
        frequency = len(self._words.get(word, ()))
        return float(np.log1p((self._size - frequency + 0.5) / (frequency + 0.5)))

    def overlap(self, queries: Sequence[str]) -> Float32:
        """Return the summed IDF of the query's words that a document holds, ``(q, n)`` (B.5)."""
        return self._sums([{word: self.idf(word) for word in words(query)} for query in queries])

    def coverage(self, queries: Sequence[str]) -> Float32:
        """Return the share of the query's different words that a document holds, ``(q, n)`` in [0, 1] (B.6)."""
        distinct = [set(words(query)) for query in queries]
        return self._sums([dict.fromkeys(own, 1 / len(own)) if own else {} for own in distinct])

    def rare(self, queries: Sequence[str]) -> Float32:
        """Return the summed IDF of the query's rare words that a document holds, ``(q, n)`` (B.6)."""
        most = max(1, int(RARE * self._size))
        return self._sums(
            [
                {word: self.idf(word) for word in words(query) if len(self._words.get(word, ())) <= most}
                for query in queries
            ]
        )

    def bigrams(self, queries: Sequence[str]) -> Float32:
        """Return the share of the query's different word bigrams that a document holds, ``(q, n)`` in [0, 1] (B.5)."""
        result = np.zeros((len(queries), self._size), np.float32)
        for row, query in zip(result, queries, strict=True):
            own = words(query)
            distinct = set(pairwise(own))
            for bigram in distinct:
                row[self._bigrams.get(bigram, _NOWHERE)] += 1 / len(distinct)
        return result

    def _sums(self, weights: Sequence[dict[str, float]]) -> Float32:
        result = np.zeros((len(weights), self._size), np.float32)
        for row, own in zip(result, weights, strict=True):
            for word, weight in own.items():
                row[self._words.get(word, _NOWHERE)] += weight
        return result


def bm25(query: str, texts: Sequence[str]) -> Float32:
    """Return Lucene's BM25 of texts for a query, ``(n,)``; how rare a word is, is counted among the texts."""
    counts = [Counter(words(text)) for text in texts]
    lengths = np.array([own.total() for own in counts], np.float64)
    saturation = _K1 * (1 - _B + _B * lengths / max(1.0, lengths.mean()))
    scores = np.zeros(len(texts), np.float64)
    for word in dict.fromkeys(words(query)):
        frequency = np.array([own[word] for own in counts], np.float64)
        holders = np.count_nonzero(frequency)
        scores += np.log1p((len(texts) - holders + 0.5) / (holders + 0.5)) * frequency / (frequency + saturation)
    return scores.astype(np.float32)


_NOWHERE: NDArray[np.intp] = np.zeros(0, np.intp)


def _postings(listed: Sequence[Sequence[T]]) -> dict[T, NDArray[np.intp]]:
    """Return for each item the documents that hold it, ascending."""
    holders: dict[T, list[int]] = {}
    for document, items in enumerate(listed):
        for item in dict.fromkeys(items):
            holders.setdefault(item, []).append(document)
    return {item: np.array(documents, np.intp) for item, documents in holders.items()}
