"""Expansion by a passage that a model writes: the base of HyDE and query2doc.

The passage is searched word by word, each as often as it occurs, which is BM25 of the passage. No document frequency
filters the words.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.enrichment.proposals.parsing import without_thoughts
from es_ttc.rewriters.base import Corpus, Expansion, Term
from es_ttc.rewriters.weighted import FieldParams, WeightedRewriter

_LONGEST_TEXT = 2000
"""Maximum number of characters of the text for the model."""
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
            prompt.render(query=" ".join(text.split())[:_LONGEST_TEXT], most=str(params.length)),
            max_tokens=params.length * _TOKENS_A_WORD,
            stop=("\n",) if corpus.continues else (),
        )
        passage = " ".join(without_thoughts(answer).split())
        counts = Counter(word.casefold() for word in _WORD.findall(passage)[: params.length])
        tokens = dict(zip(counts, await corpus.tokens(list(counts)), strict=True)) if counts else {}
        terms = tuple(Term(word, float(count)) for word, count in counts.items() if tokens[word])
        return Expansion(terms, summary={"prompt": prompt.version, "passage": passage[:_EXCERPT]})


class HydeParams(PassageParams):
    """Parameters of :class:`HydeRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {"weight": (0.05, 0.1, 0.2, 0.5, 1.0)}

    weight: float = Field(
        1.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight w of the document's words relative to the query; 1 for both as one text.",
    )


class HydeRewriter(PassageRewriter):
    """Search the text and a hypothetical document that a language model writes for it, by BM25.

    A baseline: a guess of the model is searched too, and no word is filtered.
    """

    name: ClassVar[str] = "hyde"
    Params: ClassVar[type[HydeParams]] = HydeParams
    asks_model: ClassVar[bool] = True


class Query2docParams(PassageParams):
    """Parameters of :class:`Query2docRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {"weight": (0.05, 0.1, 0.2, 0.5, 1.0)}

    prompt: str = Field(
        "query2doc",
        pattern=r"^[a-z][a-z0-9_-]{0,50}$",
        description="Name of the prompt: a built-in one, with examples, or a file in the gateway's folder of prompts.",
    )
    weight: float = Field(
        0.2,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight w of the passage's words relative to the query: 1/n for a query that is repeated n times.",
    )


class Query2docRewriter(PassageRewriter):
    """Search the text, five times over, and a passage that a language model writes after examples, by BM25."""

    name: ClassVar[str] = "query2doc"
    Params: ClassVar[type[Query2docParams]] = Query2docParams
    asks_model: ClassVar[bool] = True
