"""Phrases as atomic entries of one BM25 index (SIRA, equation 2 to the letter).

The paper injects phrases into the index as entries of their own, so that a phrase has one IDF, that of the documents
that have it, in their text or by enrichment. An engine scores the adjacent words of a phrase by the sum of the words'
IDFs in the one field. Both use the same saturation of term frequency, so a factor for each field turns one into the
other: IDF of the phrase over documents / sum of the IDFs of its words in the field.

The factor is exact on one shard without deleted documents. Elsewhere an engine's own IDF is that of a shard, and the
score is off by as much as BM25 itself is between shards.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from es_ttc.enrichment.proposals.document_frequency import FieldFrequencies
from es_ttc.enrichment.proposals.phrases import Tokens
from es_ttc.rewriters.base import Corpus, Term

MAX_ENTRIES = 200  # distinct words of a text that are entries; a longer text is searched as one
_WORD = re.compile(r"\w+")


def idf(documents: int, having: int) -> float:
    """Return BM25's IDF in Lucene's form (SIRA, equation 1), never negative."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def factors(words: Sequence[str], documents: int, having: int, fields: FieldFrequencies) -> dict[str, float]:
    """Return for each field the factor that gives a phrase, which `having` documents have, the IDF of one entry."""
    found = {}
    for field, counts in fields.counts.items():
        summed = sum(idf(fields.documents[field], counts[word]) for word in words if counts[word])
        if summed > 0:
            found[field] = idf(documents, having) / summed
    return found


async def as_entries(text: str, terms: Sequence[Term], corpus: Corpus) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the text's words and the terms, each with the factors of an entry.

    A term keeps the engine's score in a field whose analyzer makes more than one token of one of its words. The text
    has no entries (an empty tuple) if it has more than 200 distinct words, or such a word.
    """
    own: dict[str, int] = {}
    for word in _WORD.findall(text):
        own[word.casefold()] = own.get(word.casefold(), 0) + 1
    of_terms = {term.text: _WORD.findall(term.text) for term in terms}
    everything = list(dict.fromkeys([*own, *(word for words in of_terms.values() for word in words)]))
    tokens: Mapping[str, Tokens] = dict(zip(everything, await corpus.tokens(everything), strict=True))
    fields = await corpus.field_frequencies([word for word in everything if len(tokens[word]) == 1])
    searched = [word for word in own if tokens[word]]
    frequencies = await corpus.frequencies(searched)
    documents = frequencies.documents

    def simple(words: Sequence[str]) -> bool:
        return all(len(tokens[word]) <= 1 for word in words)

    entries = [
        replace(term, boosts=factors([word for word in words if tokens[word]], documents, term.documents or 0, fields))
        if simple(words := of_terms[term.text])
        else term
        for term in terms
    ]
    if len(searched) > MAX_ENTRIES or not simple(searched):
        return (), tuple(entries)
    words = [
        Term(word, float(own[word]), boosts=factors([word], documents, frequencies.counts[word], fields))
        for word in searched
    ]
    return tuple(words), tuple(entries)
