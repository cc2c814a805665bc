"""SIRA's query side: a model proposes vocabulary, document frequencies filter it, and one query is built.

Section 3.2 of *Superintelligent Retrieval Agent*: the model predicts vocabulary that relevant documents would use and
the query lacks; a phrase is kept if 0 < DF <= tau |C|; the kept phrases are searched in addition to the query. The
model receives no passage.
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
"""Maximum number of characters of the text for the model."""
_TOKENS_A_PHRASE = 8
"""Maximum number of tokens per phrase of the model's answer, punctuation included."""


_EXCERPT = 100


class SiraParams(FieldParams):
    """Parameters of :class:`SiraRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {
        "weight": (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
        "tau": (0.01, 0.02, 0.05, 0.1, 1.0),
    }

    prompt: str = Field(
        "general",
        pattern=r"^[a-z][a-z0-9_-]{0,50}$",
        description="Name of the prompt: a built-in one, or a file in the gateway's folder of prompts.",
    )
    tau: float = Field(
        DEFAULT_TAU,
        ge=0,
        le=1,
        description="Maximum share of the documents that may contain a phrase; 1 for no filter.",
    )
    phrases: int = Field(10, ge=1, le=50, description="Maximum number of proposed phrases.")
    words: bool = Field(True, description="Whether the single words of a phrase are also filtered and searched.")


class SiraRewriter(WeightedRewriter):
    """Build one weighted BM25 query: the text, and vocabulary that a language model expects in relevant documents.

    The model is called once for each text. Then document frequencies are read with the caller's credentials, and
    phrases are dropped that no document or more than a share `tau` of all documents contain. If the model fails or is
    late, the plain query is used, and the response contains the reason.
    """

    name: ClassVar[str] = "sira"
    Params: ClassVar[type[SiraParams]] = SiraParams
    asks_model: ClassVar[bool] = True

    async def expand(self, text: str, corpus: Corpus, params: SiraParams) -> Expansion:
        """Request proposals, and keep those that pass the document frequency filter."""
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
            note = f"the model's answer holds no phrases: {' '.join(answer.split())[:_EXCERPT]!r}"
            return Expansion(summary={"prompt": prompt.version, "note": note})
        own, *analysed = await corpus.tokens([text, *texts])
        distinct, dropped = screen(texts, analysed, [own])
        frequencies = await corpus.frequencies([phrase.text for phrase in distinct])
        kept, judged = by_frequency(distinct, frequencies, tau=params.tau, present=True)
        terms = tuple(Term(phrase.text, documents=frequencies.counts[phrase.text]) for phrase in kept)
        return Expansion(terms, (*dropped, *judged), {"prompt": prompt.version, "documents": frequencies.documents})


def _single_words(phrases: Sequence[str]) -> list[str]:
    return [word for phrase in phrases if " " in phrase for word in phrase.split()]
