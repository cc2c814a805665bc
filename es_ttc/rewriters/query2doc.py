"""query2doc: a pseudo-document behind the repeated query (Wang et al., EMNLP 2023).

For BM25 the paper repeats the query five times before the document, which is a weight of 1/5 for the document.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.rewriters.passages import PassageParams, PassageRewriter


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
