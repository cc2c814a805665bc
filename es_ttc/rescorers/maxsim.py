"""MaxSim: the greatest cosine of the query with any token of the document (late interaction)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.similarity import EMPTY_DOCUMENT, token_similarities
from es_ttc.rescorers.spectral.greatest import greatest_cosines
from es_ttc.rescorers.spectral.smoothing import IDENTITY
from es_ttc.rescorers.threads import Scratch
from es_ttc.vectors.tokens import Float32, TokenVectors

_BATCH_CELLS = 2**19

_scratch = Scratch()


class MaxSimParams(Params):
    """What MaxSim can be told."""

    query: Literal["pooled", "tokens"] | None = Field(
        None,
        description="`pooled`: the query's pooled vector against every document token (Spectral Retrieval, section "
        "III-A). `tokens`: ColBERT's sum over the query's tokens, divided by their number. Default: `tokens` for a "
        "late-interaction model, which is trained for it, and `pooled` for any other encoder.",
    )


class MaxSimRescorer:
    """The greatest cosine of the query's pooled vector with any token vector of the document.

    With `query: tokens` it is ColBERT's late interaction: the mean over the query's tokens of each one's greatest
    cosine with a document token. With several query texts the greatest of their scores counts; `tokens` reads the first
    text only. A document without any token scores -1; against a query without any token every other document scores 0.
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
        pooled = params.query == "pooled" or (params.query is None and not query.late)
        vectors = query.vectors if pooled else query.tokens
        assert vectors is not None  # noqa: S101 - promised by needs, or given with a late-interaction model
        if compiled.enabled() and len(vectors):
            greatest = greatest_cosines(vectors[:0], window.tokens, None, (IDENTITY,), plain=vectors)
            scored: Float32 = greatest.max(axis=1) if pooled else greatest.mean(axis=1)
            return np.clip(scored, -1, 1)
        scores = np.full(len(window), EMPTY_DOCUMENT, dtype=np.float32)
        for places in _batches(window.tokens, len(vectors)):
            if not len(vectors):
                scores[places] = 0
                continue
            best = _best_tokens(vectors, [window.tokens[place] for place in places])
            scores[places] = best.max(axis=0) if pooled else best.mean(axis=0)
        return np.clip(scores, -1, 1)

    def detail(self, query: Query, window: Window, params: MaxSimParams) -> list[dict[str, Any]]:  # noqa: ARG002
        """The score is all: spectral rescoring at scale 1 shows the token behind it."""
        return [{} for _ in range(len(window))]


def _batches(tokens: Sequence[TokenVectors], vectors: int) -> Iterator[list[int]]:
    """Yield the places of the documents that have tokens, so many at a time that their cosines stay small."""
    places: list[int] = []
    cells = 0
    for place, document in enumerate(tokens):
        if not len(document):
            continue
        places.append(place)
        cells += len(document) * vectors
        if cells >= _BATCH_CELLS:
            yield places
            places, cells = [], 0
    if places:
        yield places


def _best_tokens(vectors: Float32, documents: Sequence[TokenVectors]) -> Float32:
    """Return the greatest cosine of each query vector over each document's tokens, ``(r, b)``; no document is empty."""
    ends = np.cumsum([len(document) for document in documents])
    starts = np.concatenate(([0], ends[:-1]))
    cosines: Float32 = _scratch.array("cosines", (len(vectors), int(ends[-1])), np.float32)
    token_similarities(vectors, documents, [cosines[:, a:b] for a, b in zip(starts, ends, strict=True)])
    best: Float32 = np.maximum.reduceat(cosines, starts, axis=1)
    return best
