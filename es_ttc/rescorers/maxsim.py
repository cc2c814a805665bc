"""MaxSim: the greatest cosine of the query with any token of the document (late interaction)."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.scratch import Scratch
from es_ttc.rescorers.similarity import EMPTY_DOCUMENT, token_similarities
from es_ttc.vectors.tokens import Float32, TokenVectors

_scratch = Scratch()


class MaxSimParams(Params):
    """What MaxSim can be told."""

    query: Literal["pooled", "tokens"] = Field(
        "pooled",
        description="`pooled`: the query's pooled vector against every document token (Spectral Retrieval, section "
        "III-A). `tokens`: ColBERT's sum over the query's tokens, divided by their number.",
    )


class MaxSimRescorer:
    """The greatest cosine of the query's pooled vector with any token vector of the document.

    With `query` set to `tokens` it is ColBERT's late interaction: each query token finds its own best document token,
    and their cosines are averaged (the mean, not the sum, so that scores stay cosines; the ranking is the same).

    With several query texts the greatest of their scores counts; `tokens` reads the first text only. A document
    without any token scores -1, the least cosine; against a query without any token every other document scores 0.
    """

    name: ClassVar[str] = "maxsim"
    Params: ClassVar[type[Params]] = MaxSimParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = True

    def needs(self, params: MaxSimParams) -> frozenset[Feature]:
        """The token vectors of the documents and, for ``query: tokens``, of the query."""
        if params.query == "tokens":
            return frozenset({Feature.TOKENS, Feature.QUERY_TOKENS})
        return frozenset({Feature.TOKENS})

    def score(self, query: Query, window: Window, params: MaxSimParams) -> Float32:
        """Return the scores, ``(k,)``."""
        assert window.tokens is not None  # noqa: S101 - promised by needs
        scores = np.full(len(window), EMPTY_DOCUMENT, dtype=np.float32)
        for place, tokens in enumerate(window.tokens):
            if len(tokens):
                scores[place] = _score(query, tokens, params)
        return np.clip(scores, -1, 1)

    def detail(self, query: Query, window: Window, params: MaxSimParams) -> list[dict[str, Any]]:  # noqa: ARG002
        """The score is all: spectral rescoring at scale 1 shows the token behind it."""
        return [{} for _ in range(len(window))]


def _score(query: Query, tokens: TokenVectors, params: MaxSimParams) -> float:
    if params.query == "pooled":
        return float(_best_tokens(query.vectors, tokens).max())
    assert query.tokens is not None  # noqa: S101 - promised by needs
    return float(_best_tokens(query.tokens, tokens).mean()) if len(query.tokens) else 0.0


def _best_tokens(vectors: Float32, tokens: TokenVectors) -> Float32:
    """Return the greatest cosine of each query vector over the document's tokens, ``(r,)``."""
    cosines: Float32 = _scratch.array("cosines", (len(vectors), len(tokens)), np.float32)
    token_similarities(vectors, tokens, cosines)
    best: Float32 = cosines.max(axis=1)
    return best
