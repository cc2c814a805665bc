"""Spectral Retrieval as a rescorer (Morandi, "Spectral Retrieval", arXiv 2605.24764)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.similarity import EMPTY_DOCUMENT
from es_ttc.rescorers.spectral import aggregation
from es_ttc.rescorers.spectral.aggregation import pool, shares
from es_ttc.rescorers.spectral.cosines import Block, blocks
from es_ttc.rescorers.spectral.evidence import cosine_of, evidence
from es_ttc.rescorers.spectral.greatest import greatest_by_scale, greatest_cosines, with_wrong_norms
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

_TOGETHER = 32  # query vectors that are scored at a time, so that a long query takes no more memory than a short one
_QUERY_TOKENS_SHOWN = 8


class SpectralRescorer:
    """The best match of the query with any stretch of the document, over several widths of stretch.

    A document's token vectors are smoothed by sinc kernels of several scales; the score is the greatest cosine of the
    query's pooled vector with any smoothed row, over positions, then over scales (section III-C). Scale 1 alone is
    MaxSim; the scale `mean` is dense retrieval over the mean of the tokens; with both in the grid no score is below
    either's (III-D). The default grid has no `mean`, as in the paper.

    `query: tokens` reads the first query text only; with `scales: [1]` it is late interaction (`maxsim`). For an
    encoder with CLS pooling the query is the mean of its words' token vectors. A document without any token scores -1;
    against a query without any token every other document scores 0.
    """

    name: ClassVar[str] = "spectral"
    Params: ClassVar[type[Params]] = SpectralParams
    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS, Feature.OFFSETS})
    similarity: ClassVar[bool] = True

    def needs(self, params: SpectralParams) -> frozenset[Feature]:
        """The token vectors of the documents and, for ``query: tokens``, of the query."""
        of_query = {Feature.QUERY_TOKENS} if params.query == "tokens" else set[Feature]()
        return frozenset({Feature.TOKENS, *of_query})

    def score(self, query: Query, window: Window, params: SpectralParams) -> Float32:
        """Return the spectral scores, ``(k,)``."""
        assert window.tokens is not None  # noqa: S101 - promised by needs
        vectors = _vectors(query, params)
        if not len(vectors):
            return np.array([0 if len(document) else EMPTY_DOCUMENT for document in window.tokens], dtype=np.float32)
        parts = [_by_vector(part, window.tokens, window.norms, params) for part in _parts(vectors)]
        by_vector = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        joined = "mean" if params.query == "tokens" else params.roles
        scores: Float32 = by_vector.max(axis=1) if joined == "max" else by_vector.mean(axis=1)
        return np.clip(scores, -1, 1)

    def detail(self, query: Query, window: Window, params: SpectralParams) -> list[dict[str, Any]]:
        """Return the evidence for each score (see :func:`es_ttc.rescorers.spectral.evidence.evidence`).

        The scale shown is the one with most part in the score: the greatest for the pools `max` and `softmax`, for
        `mean` the one of greatest weight times score. With several query texts it is the evidence of the best one,
        named by ``role`` (its ordinal), and ``roles`` lists all. With ``query: tokens`` it is that of the query token
        with the greatest score, of those with text if places in the query are known: ``score`` is the document's, and
        ``query_tokens`` lists the 8 best, best first, each with its ``query_token`` (ordinal) and ``text``.
        """
        assert window.tokens is not None  # noqa: S101 - promised by needs
        found: list[list[dict[str, Any]]] = [[] for _ in range(len(window))]
        for vectors in _parts(_vectors(query, params)):
            for block in blocks(vectors, window.tokens, window.norms, params.scales):
                by_scale = _by_scale(block, params)
                scores = pool(by_scale, params)
                best = _most_part(by_scale, params)
                for row, (place, length) in enumerate(zip(block.documents, block.lengths, strict=True)):
                    offsets = None if window.offsets is None else window.offsets[place]
                    found[place] += [
                        evidence(score, scale, cosines[:, :length], params.scales, offsets)
                        for score, scale, cosines in zip(
                            scores[row].tolist(), best[row].tolist(), block.cosines[row], strict=True
                        )
                    ]
        shown = _of_query_tokens if params.query == "tokens" else _of_roles
        return [shown(query, one) if one else {} for one in found]

    def detail_of(
        self, query: Query, window: Window, params: SpectralParams, places: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the evidence of some documents, which does not depend on the others."""
        return self.detail(query, window.part(places), params)


def _vectors(query: Query, params: SpectralParams) -> Float32:
    if params.query == "pooled":
        return query.of_tokens
    assert query.tokens is not None  # noqa: S101 - promised by needs
    return query.tokens


def _parts(vectors: Float32) -> list[Float32]:
    return [vectors[start : start + _TOGETHER] for start in range(0, len(vectors), _TOGETHER)]


def _by_vector(
    vectors: Float32, tokens: Sequence[TokenVectors], norms: Sequence[ScaleNorms] | None, params: SpectralParams
) -> Float32:
    """Return the scores of each query vector, ``(k, r)``."""
    if params.aggregation == "max":
        if params.pool == "max":
            return greatest_cosines(vectors, tokens, norms, params.scales)
        return pool(greatest_by_scale(vectors, tokens, norms, params.scales), params)
    scores = np.full((len(tokens), len(vectors)), EMPTY_DOCUMENT, dtype=np.float32)
    for block in blocks(vectors, tokens, norms, params.scales):
        scores[block.documents] = pool(_by_scale(block, params), params)
    if norms is not None and len(odd := with_wrong_norms(scores)):
        scores[odd] = _by_vector(vectors, [tokens[place] for place in odd], None, params)
    return scores


def _by_scale(block: Block, params: SpectralParams) -> Float32:
    """Return the aggregated cosines, ``(b, r, s)``."""
    counts = block.lengths[:, None, None]
    match params.aggregation:
        case "max":
            return aggregation.maximum(block.cosines)
        case "top_mean":
            return aggregation.top_mean(block.cosines, counts, params.top_m)
        case "percentile":
            return aggregation.percentile(block.cosines, counts, params.percentile)


def _most_part(by_scale: Float32, params: SpectralParams) -> NDArray[np.intp]:
    """Return the place of the scale that has most part in each score, ``(..., s)`` to ``(...)``."""
    parts = by_scale
    if params.pool == "mean":
        weights = shares(by_scale, params)
        parts = np.where(weights > 0, weights * by_scale, -np.inf)
    most: NDArray[np.intp] = parts.argmax(axis=-1)
    return most


def _of_roles(query: Query, roles: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ARG001 - as the other one
    best = max(range(len(roles)), key=lambda role: roles[role]["score"])
    return roles[best] if len(roles) == 1 else {**roles[best], "role": best, "roles": roles}


def _of_query_tokens(query: Query, tokens: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the evidence of the best query token with the document's score, and the best ones."""
    spans = [(0, 0)] * len(tokens) if query.token_spans is None else query.token_spans.tolist()
    named = [
        {**shown, "query_token": place, **({"text": query.text[start:end]} if end > start else {})}
        for place, (shown, (start, end)) in enumerate(zip(tokens, spans, strict=True))
    ]
    with_text = [shown for shown in named if "text" in shown] or named
    best = sorted(with_text, key=lambda shown: -shown["score"])[:_QUERY_TOKENS_SHOWN]
    mean = cosine_of(np.mean([shown["score"] for shown in tokens], dtype=np.float32))
    return {**best[0], "score": mean, "query_tokens": best}
