"""BM25 in memory against Lucene's formula written out."""

import math
import re
from collections import Counter

import pytest
import Stemmer

from es_ttc.lab.evaluation.bm25 import Bm25

TEXTS = [
    "The cats were running, running past 3 houses",
    "a cat runs; the dog sleeps in the house all day long",
    "",
    "of the and to",
    "ÉCOLE école Straße 日本語 x",
]
STOP = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of"}
    | {
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    }
)
STEM = Stemmer.Stemmer("english")


def words(text: str) -> list[str]:
    return [STEM.stemWord(word) for word in re.findall("[日本語]|[^\\W日本語]+", text.lower()) if word not in STOP]


def formula(query: str, k1: float, b: float) -> list[float]:
    corpus = [words(text) for text in TEXTS]
    worded = sum(bool(document) for document in corpus)  # Lucene's docCount
    average = sum(map(len, corpus)) / worded
    scores = []
    for document in corpus:
        counts = Counter(document)
        total = 0.0
        for word in words(query):
            holding = sum(word in other for other in corpus)
            idf = math.log(1 + (worded - holding + 0.5) / (holding + 0.5))
            if counts[word]:
                total += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / average))
        scores.append(total)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (0.5, 0.0), (2.0, 1.0)])
@pytest.mark.parametrize(
    "query", ["running cats", "cat cat house", "the house", "école straße", "3 x", "unseen running"]
)
def test_scores_equal_the_formula(query: str, k1: float, b: float) -> None:
    assert Bm25(TEXTS, k1=k1, b=b).scores(query).tolist() == pytest.approx(formula(query, k1, b), abs=1e-5)


@pytest.mark.parametrize("query", ["", "the of and", "unseen", "!?"])
def test_a_query_without_a_known_word_scores_nothing(query: str) -> None:
    assert Bm25(TEXTS).scores(query).tolist() == [0.0] * len(TEXTS)


def test_a_corpus_without_a_word_scores_nothing() -> None:
    assert Bm25(["", "the"]).scores("the cat").tolist() == [0.0, 0.0]


def test_words_of_texts_without_spaces_and_of_other_languages_are_found() -> None:
    japanese = Bm25(["赤ちゃんを乗せるベビーカー", "雨の日の傘", "コーヒーを淹れる道具"])
    assert japanese.scores("傘をさす").argmax() == 1
    assert japanese.scores("ベビーカー").tolist()[1:] == [0, 0]
    german = Bm25(["Die Häuser der Stadt sind nicht hoch", "Das Wetter ist schön und der Wind weht"])
    assert german.scores("Haus").tolist()[0] > 0
    assert not german.scores("der und nicht").any()
