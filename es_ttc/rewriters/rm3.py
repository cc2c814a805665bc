"""RM3: feedback from the best documents of a first search, without a model; the baseline of query expansion.

Relevance models (Lavrenko and Croft, 2001; RM3 of Abdul-Jaleel et al., 2004): a term's weight is the mean, over the
best documents, of its share of the document's tokens, weighted by the documents' scores.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.enrichment.proposals.document_frequency import DEFAULT_TAU, by_frequency
from es_ttc.enrichment.proposals.phrases import Tokens, candidate_phrases, screen
from es_ttc.rewriters.base import Corpus, Expansion, Term
from es_ttc.rewriters.weighted import FieldParams, WeightedRewriter

_CONSIDERED = 5  # number of words whose document frequency is counted, per requested word


class Rm3Params(FieldParams):
    """Parameters of :class:`Rm3Rewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "weight": (0.05, 0.1, 0.2, 0.5, 1.0),
        "feedback": (3, 5, 10),
        "terms": (10, 20, 40),
    }

    weight: float = Field(
        0.05,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight w of the words relative to the query; 0 is the query alone.",
    )
    feedback: int = Field(10, ge=1, le=100, description="Number of best documents from which words are taken.")
    terms: int = Field(20, ge=1, le=100, description="Number of words that are searched in addition to the text.")
    tau: float = Field(
        DEFAULT_TAU, ge=0, le=1, description="Maximum share of the documents that may contain a word; 1 for no filter."
    )


class Rm3Rewriter(WeightedRewriter):
    """Expand the text by words that are typical of its own best documents, without a model.

    The first request for a text needs one additional search.
    """

    name: ClassVar[str] = "rm3"
    Params: ClassVar[type[Rm3Params]] = Rm3Params
    asks_model: ClassVar[bool] = False

    async def expand(self, text: str, corpus: Corpus, params: Rm3Params) -> Expansion:
        """Return the weighted words of the best documents."""
        if params.weight == 0:
            return Expansion()
        found = await corpus.best(self.query(text, corpus.fields, None, params, named=False), params.feedback)
        words = [candidate_phrases(document.split(), most_words=1) for _, document in found]
        distinct = list(dict.fromkeys(word for document in words for word in document))
        own, *analysed = await corpus.tokens([text, *distinct])
        tokens = dict(zip(distinct, analysed, strict=True))
        shares = relevance_model([score for score, _ in found], [_counted(document, tokens) for _, document in found])
        screened, _ = screen(distinct, analysed, [own])
        phrases = [phrase for phrase in screened if len(phrase.tokens) == 1]
        phrases.sort(key=lambda phrase: -shares.get(phrase.tokens[0], 0.0))
        phrases = phrases[: _CONSIDERED * params.terms]
        frequencies = await corpus.frequencies([phrase.text for phrase in phrases])
        kept, judged = by_frequency(phrases, frequencies, tau=params.tau, present=True)
        kept = kept[: params.terms]
        most = max((shares[phrase.tokens[0]] for phrase in kept), default=1.0)
        terms = tuple(
            Term(phrase.text, shares[phrase.tokens[0]] / most, frequencies.counts[phrase.text]) for phrase in kept
        )
        return Expansion(terms, tuple(judged), {"documents": frequencies.documents})


def relevance_model(scores: Sequence[float], documents: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return p(term | query) of a relevance model: the mean of a term's share of each document, by its score."""
    total = sum(scores)
    model: dict[str, float] = {}
    for score, counts in zip(scores, documents, strict=True):
        length = sum(counts.values())
        for term, count in counts.items():
            model[term] = model.get(term, 0.0) + score / total * count / length
    return model


def _counted(document: str, tokens: Mapping[str, Tokens]) -> Counter[str]:
    """Return the term frequencies of a document by its analysed words."""
    cleaned = (candidate_phrases([word], most_words=1) for word in document.split())
    return Counter(token for word in cleaned for one in word for token in tokens.get(one, ()))
