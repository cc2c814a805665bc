"""Expansion by a passage that a model writes: the base of HyDE and query2doc.

The passage is searched word by word, each as often as it occurs, which is BM25 of the passage. No document frequency
filters the words.
"""

import re
from collections import Counter

from pydantic import Field

from es_ttc.enrichment.proposals.parsing import without_thoughts
from es_ttc.rewriters.base import Corpus, Expansion, Term
from es_ttc.rewriters.weighted import FieldParams, WeightedRewriter

_MAX_TEXT_LENGTH = 2000  # characters of the text for the model
_TOKENS_A_WORD = 2
_EXCERPT = 200
_WORD = re.compile(r"\w+")


class PassageParams(FieldParams):
    """Parameters of a rewriter that searches a written passage."""

    prompt: str = Field(
        "hyde",
        pattern=r"^[a-z][a-z0-9_-]{0,50}$",
        description="Name of the prompt: a built-in one, or a file in the gateway's folder of prompts. It asks for one "
        "passage.",
    )
    length: int = Field(80, ge=10, le=300, description="Maximum number of words of the passage.")


class PassageRewriter(WeightedRewriter):
    """Expand the text by the words of a passage that a model writes."""

    async def expand(self, text: str, corpus: Corpus, params: PassageParams) -> Expansion:
        """Request a passage, and count its words."""
        if params.weight == 0:
            return Expansion()
        prompt = corpus.prompt(params.prompt)
        answer = await corpus.ask(
            prompt.render(query=" ".join(text.split())[:_MAX_TEXT_LENGTH], most=str(params.length)),
            max_tokens=params.length * _TOKENS_A_WORD,
            stop=("\n",) if corpus.continues else (),
        )
        passage = " ".join(without_thoughts(answer).split())
        counts = Counter(word.casefold() for word in _WORD.findall(passage)[: params.length])
        tokens = dict(zip(counts, await corpus.tokens(list(counts)), strict=True)) if counts else {}
        terms = tuple(Term(word, float(count)) for word, count in counts.items() if tokens[word])
        return Expansion(terms, summary={"prompt": prompt.version, "passage": passage[:_EXCERPT]})
