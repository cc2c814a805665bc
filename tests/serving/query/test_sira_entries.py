"""SIRA's equation 2 to the letter, against a literal computation; and retrieval programs on a real engine."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import call
from tests.serving.query.conftest import Rewritten, fill
from tests.serving.query.test_sira import scores, sira

# Words that the analyzer neither drops nor brings together, so that the reference may split at spaces.
TEXTS = [
    "heart attack help",
    "heart attack heart attack pain drug",
    "attack dog bark night",
    "drug blood clot artery stroke warfarin",
    "blood pressure drug heart",
    "night sleep dream",
]
ENRICHED = {"3": ["guard dog", "heart attack"], "5": ["blood clot", "warfarin"], "6": ["drug"]}
K1, B = 1.2, 0.75


@pytest.fixture
def entries(rewritten: Rewritten, encoder: Encoder, index_name: str) -> Iterator[str]:
    documents = [{"title": "untold", "text": text} for text in TEXTS]
    asyncio.run(fill(rewritten.engine, index_name, encoder, documents, ENRICHED))
    yield index_name
    call(rewritten.engine, "DELETE", f"/{index_name}")


def equation_2(query: str, expansion: Sequence[str], w: float, enrichment: float) -> dict[str, float]:
    """Return the scores of one BM25 index with n-grams as atomic entries: slow, straight from the paper.

    Where it is silent, as documented: an entry that a model added has the length of a field of one token.
    """
    texts = {str(number): text.split() for number, text in enumerate(TEXTS, 1)}
    added = {
        document: [gram for phrase in ENRICHED.get(document, ()) for gram in _grams(phrase.split())]
        for document in texts
    }
    length = sum(map(len, texts.values())) / len(texts)
    added_length = sum(len(phrase.split()) for each in ENRICHED.values() for phrase in each) / len(ENRICHED)

    def bm25(entry: str, document: str) -> float:
        in_text = {name: _grams(words).count(entry) for name, words in texts.items()}
        having = sum(bool(in_text[name] or entry in added[name]) for name in texts)
        idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        f = in_text[document]
        score = idf * f / (f + K1 * (1 - B + B * len(texts[document]) / length))
        f = added[document].count(entry)
        return score + enrichment * idf * f / (f + K1 * (1 - B + B / added_length))

    return {
        document: sum(bm25(word, document) for word in query.split())
        + w * sum(bm25(entry, document) for entry in expansion)
        for document in texts
    }


def _grams(words: Sequence[str]) -> list[str]:
    return [" ".join(words[at : at + size]) for size in (1, 2, 3) for at in range(len(words) - size + 1)]


def test_atomic_phrases_score_as_in_equation_2(rewritten: Rewritten, entries: str) -> None:
    query, proposed = "drug night", ["heart attack", "blood clot", "warfarin", "guard dog"]
    rewritten.says(query, *proposed)
    params = {
        "text_fields": ["text"], "phrase_score": "atomic", "words": False, "tau": 1, "weight": 0.7, "enrichment": 0.6
    }  # fmt: skip
    reply = rewritten.search(sira(query, params=params, on_error="fail"), path=entries)
    found = scores(reply)
    expected = {name: score for name, score in equation_2(query, proposed, 0.7, 0.6).items() if score > 0}
    assert found.keys() == expected.keys()
    scale = found["1"] / expected["1"]
    assert any(scale == pytest.approx(one, rel=1e-4) for one in (1, K1 + 1))  # Elasticsearch multiplies by k1 + 1
    for name, score in expected.items():
        assert found[name] == pytest.approx(score * scale, rel=1e-4)
    words = rewritten.search(sira(query, params=params | {"phrase_score": "words"}), path=entries)
    assert scores(words)["1"] > 1.3 * found["1"]  # there a phrase of two words scores the sum of both


def program(rewritten: Rewritten, text: str, answer: Mapping[str, Any], index: str, **params: Any) -> Any:
    rewritten.answers[text] = orjson.dumps(answer).decode()
    given = {"program": True, "text_fields": ["text"], "tau": 1, "weight": 1, "words": False, **params}
    return rewritten.search(sira(text, params=given, detail=True, on_error="fail"), path=index)


def test_a_program_weighs_its_phrases_and_takes_the_best_alternative(rewritten: Rewritten, entries: str) -> None:
    one = scores(program(rewritten, "weighed", {"phrases": [{"any": ["stroke"], "weight": 1}]}, entries))
    two = scores(program(rewritten, "weighed twice", {"phrases": [{"any": ["stroke"], "weight": 2}]}, entries))
    assert two["4"] == pytest.approx(2 * one["4"], rel=1e-5)
    answer = {"phrases": [{"any": ["stroke", "artery"], "weight": 1}]}
    either = program(rewritten, "either of two", answer, entries)
    assert scores(either)["4"] == pytest.approx(one["4"], rel=1e-5)
    assert [term["group"] for term in either.json()["ttc"]["expansion"]] == [0, 0]
    asked = rewritten.model.asked[-1]
    assert "either of two" in asked["messages"][0]["content"]
    assert '"exclude"' in asked["messages"][0]["content"]


def test_sira_excluded_phrases_demote_or_remove_documents(rewritten: Rewritten, entries: str) -> None:
    answer = {"phrases": ["attack"], "exclude": ["dog bark", "attack", "unheard of"]}
    kept = scores(program(rewritten, "sudden illness", answer, entries, exclusions="ignore"))
    less = program(rewritten, "sudden illness", answer, entries)
    assert scores(less) == {
        name: pytest.approx(score * (0.5 if name == "3" else 1), rel=1e-5) for name, score in kept.items()
    }
    told = less.json()["ttc"]
    assert told["excluded"] == ["dog bark"]
    assert {"term": "unheard of", "why": "no document has it", "documents": 0} in told["left_out"]
    assert "3" not in scores(program(rewritten, "sudden illness", answer, entries, exclusions="remove"))


@pytest.mark.parametrize(("method", "weight"), [("hyde", 1.0), ("query2doc", 0.2)])
def test_a_written_passage_is_searched_word_by_word(
    rewritten: Rewritten, entries: str, method: str, weight: float
) -> None:
    text, passage = f"night of {method}", "A blood clot, the clot of an artery."
    rewritten.answers[text] = f"<think>hm</think>{passage}"
    section = {"method": method, "query_text": text, "params": {"text_fields": ["text"], "enrichment": 0}}
    found = scores(rewritten.search({"query": {"ttc": {**section, "on_error": "fail"}}}, path=entries))
    both = {"match": {"text": {"query": passage, "boost": weight}}}
    expected = {"query": {"bool": {"should": [{"match": {"text": text}}, both]}}}
    assert found == pytest.approx(scores(rewritten.directly(expected, path=entries)), rel=1e-5)
