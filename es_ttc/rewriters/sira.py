"""SIRA's query side: the model sketches the evidence, document frequencies judge its words, one query is made.

Section 3.2 of *Superintelligent Retrieval Agent*: the model predicts vocabulary that relevant documents would use and
the query lacks; a phrase stays where 0 < DF <= tau |C|; what is left is searched for beside the query. No passage is
ever shown to the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.enrichment.proposals.document_frequency import DEFAULT_TAU, by_frequency
from es_ttc.enrichment.proposals.parsing import proposals
from es_ttc.enrichment.proposals.phrases import candidates, screen
from es_ttc.rewriters.base import Corpus, Expansion, Term
from es_ttc.rewriters.prompts import SCHEMA
from es_ttc.rewriters.weighted import FieldParams, WeightedRewriter

_LONGEST_TEXT = 2000
"""Characters of the text that the model reads."""
_TOKENS_A_PHRASE = 8
"""Tokens that a phrase of the model's answer may take, its punctuation included."""


class SiraParams(FieldParams):
    """Parameters of :class:`SiraRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "weight": (0.0, 0.1, 0.2, 0.5, 1.0, 2.0),
        "tau": (0.01, 0.02, 0.05, 0.1, 1.0),
    }

    prompt: str = Field(
        "general",
        pattern=r"^[a-z][a-z0-9_-]{0,50}$",
        description="Which prompt asks for the sketch: built-in, or a file of the gateway's folder of prompts.",
    )
    tau: float = Field(
        DEFAULT_TAU, ge=0, le=1, description="Greatest share of the documents that may have a phrase; 1 for no filter."
    )
    phrases: int = Field(10, ge=1, le=50, description="Phrases that are proposed at most.")
    words: bool = Field(
        True, description="Whether the words of a phrase are judged and searched for by themselves too."
    )


class SiraRewriter(WeightedRewriter):
    """One weighted BM25 query: the text, and vocabulary that a language model expects in relevant documents.

    The model is asked once a text, then document frequencies in the caller's name: phrases that no document has, and
    those that more than `tau` of all documents have, are left out. Where the model fails or is late, the plain query
    answers, and the response says so.
    """

    name: ClassVar[str] = "sira"
    Params: ClassVar[type[SiraParams]] = SiraParams
    asks_model: ClassVar[bool] = True

    async def expand(self, text: str, corpus: Corpus, params: SiraParams) -> Expansion:
        """Ask for a sketch, and keep of it what the corpus can tell apart."""
        if params.weight == 0:
            return Expansion()
        prompt = corpus.prompt(params.prompt)
        answer = await corpus.ask(
            prompt.render(query=" ".join(text.split())[:_LONGEST_TEXT], most=str(params.phrases)),
            max_tokens=params.phrases * _TOKENS_A_PHRASE,
            stop=("\n",) if corpus.continues else (),
            schema=None if corpus.continues else SCHEMA,
        )
        proposed = candidates(proposals(answer)[: params.phrases])
        texts = list(dict.fromkeys([*proposed, *_single_words(proposed)])) if params.words else proposed
        if not texts:
            return Expansion(summary={"prompt": prompt.version})
        own, *analysed = await corpus.tokens([text, *texts])
        distinct, dropped = screen(texts, analysed, [own])
        frequencies = await corpus.frequencies([phrase.text for phrase in distinct])
        kept, judged = by_frequency(distinct, frequencies, tau=params.tau, present=True)
        terms = tuple(Term(phrase.text, documents=frequencies.counts[phrase.text]) for phrase in kept)
        return Expansion(terms, (*dropped, *judged), {"prompt": prompt.version, "documents": frequencies.documents})


def _single_words(phrases: Sequence[str]) -> list[str]:
    return [word for phrase in phrases if " " in phrase for word in phrase.split()]
