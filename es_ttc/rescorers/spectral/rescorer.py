"""Spectral Retrieval as a rescorer (Morandi, "Spectral Retrieval", arXiv 2605.24764)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.similarity import EMPTY_DOCUMENT
from es_ttc.rescorers.spectral import aggregation
from es_ttc.rescorers.spectral.cosines import Block, blocks
from es_ttc.rescorers.spectral.evidence import evidence
from es_ttc.rescorers.spectral.greatest import greatest_cosines
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors


class SpectralRescorer:
    """The best match of the query with any stretch of the document, over several widths of stretch.

    A document's token vectors are smoothed by sinc kernels of several scales; the score is the greatest cosine of the
    query's pooled vector with any smoothed row, over positions, then over scales (section III-C). Scale 1 alone is
    MaxSim; the scale `mean` is dense retrieval over the mean of the tokens; with both in the grid no score is below
    either's (III-D). The default grid has no `mean`, as in the paper.

    Against outlying tokens (VIII-B) a scale's cosines can be aggregated over positions by the mean of the m greatest
    or by a percentile, instead of the maximum; the greatest scale then counts in every case. With several query
    texts each is scored on its own, and `roles` says how these scores become one.

    For an encoder whose pooled vector is not the mean of its tokens (CLS pooling) the query is the mean of its words'
    token vectors.

    A document without any token scores -1, the least cosine.
    """

    name: ClassVar[str] = "spectral"
    Params: ClassVar[type[Params]] = SpectralParams
    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS, Feature.OFFSETS})
    similarity: ClassVar[bool] = True

    def needs(self, params: SpectralParams) -> frozenset[Feature]:  # noqa: ARG002
        """The token vectors; stored norms spare their computation."""
        return frozenset({Feature.TOKENS})

    def score(self, query: Query, window: Window, params: SpectralParams) -> Float32:
        """Return the spectral scores, ``(k,)``."""
        assert window.tokens is not None  # noqa: S101 - promised by needs
        by_role = _by_role(query.of_tokens, window.tokens, window.norms, params)
        scores: Float32 = by_role.max(axis=1) if params.roles == "max" else by_role.mean(axis=1)
        return np.clip(scores, -1, 1)

    def detail(self, query: Query, window: Window, params: SpectralParams) -> list[dict[str, Any]]:
        """Return the evidence for each score (see :func:`es_ttc.rescorers.spectral.evidence.evidence`).

        With several query texts it is that of the best one, named by ``role`` (its ordinal), and ``roles`` lists all.
        """
        assert window.tokens is not None  # noqa: S101 - promised by needs
        details: list[dict[str, Any]] = [{} for _ in range(len(window))]
        for block in blocks(query.of_tokens, window.tokens, window.norms, params.scales):
            by_scale = _by_scale(block, params)
            for row, (place, length) in enumerate(zip(block.documents, block.lengths, strict=True)):
                offsets = None if window.offsets is None else window.offsets[place]
                roles = [
                    evidence(scores, cosines[:, :length], params.scales, offsets)
                    for scores, cosines in zip(by_scale[row], block.cosines[row], strict=True)
                ]
                best = max(range(len(roles)), key=lambda role: roles[role]["score"])
                details[place] = roles[best] if len(roles) == 1 else {**roles[best], "role": best, "roles": roles}
        return details

    def detail_of(
        self, query: Query, window: Window, params: SpectralParams, places: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the evidence of some documents, which does not depend on the others."""
        return self.detail(query, window.part(places), params)


def _by_role(
    vectors: Float32, tokens: Sequence[TokenVectors], norms: Sequence[ScaleNorms] | None, params: SpectralParams
) -> Float32:
    """Return the scores of each query vector, ``(k, r)``."""
    if params.aggregation == "max":
        return greatest_cosines(vectors, tokens, norms, params.scales)
    greatest = np.full((len(tokens), len(vectors)), EMPTY_DOCUMENT, dtype=np.float32)
    for block in blocks(vectors, tokens, norms, params.scales):
        greatest[block.documents] = _by_scale(block, params).max(axis=2)
    return greatest


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
