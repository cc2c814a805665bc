"""Feedback over the whole corpus: the query moved towards its nearest documents, and searched for again.

Two kNN searches and one read of the first one's vectors; the read comes from memory where the gateway has them.
"""

from typing import ClassVar

import numpy as np

from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.programs.primitives.feedback import interpolate, top_centroid
from es_ttc.rescorers.programs.rescorers import FeedbackParams, RocchioParams, SoftCentroidParams
from es_ttc.retrievers.base import Retrieved, Search, Vectors


class _Feedback:
    """What SoftCentroid and Rocchio share."""

    similarity: ClassVar[bool] = True

    def needs(self, params: FeedbackParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def searches(self, params: FeedbackParams) -> frozenset[Vectors]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Vectors.POOLED})

    async def retrieve(self, query: Query, search: Search, k: int, params: FeedbackParams) -> Retrieved:
        """Return the documents nearest to the refined query.

        With several query texts the first one's vector is refined.
        """
        vector = query.vectors[:1]
        [first] = await search.nearest(vector, params.documents)
        known = await search.window(first.documents, frozenset({Feature.POOLED}))
        vectors = known.window.pooled
        refined = vector
        if vectors is not None and len(vectors):
            temperature = params.temperature if isinstance(params, SoftCentroidParams) else None
            centroid = top_centroid(vectors, vector @ vectors.T, params.documents, temperature)
            refined = interpolate(vector, centroid, params.weight)
        if not np.any(refined):  # the query and its documents cancel out
            refined = vector
        [found] = await search.nearest(refined, k)
        return Retrieved(
            found.documents, found.cosines, summary={"feedback": {"documents": 0 if vectors is None else len(vectors)}}
        )


class SoftCentroidRetriever(_Feedback):
    """SoftCentroid over the corpus: `normalise((1 - w) q + w mu)`, mu the softmax-weighted mean of the nearest."""

    name: ClassVar[str] = "softcentroid"
    Params: ClassVar[type[Params]] = SoftCentroidParams


class RocchioRetriever(_Feedback):
    """Classical Rocchio without negatives, which is VPRF, over the corpus: the plain mean of the nearest documents."""

    name: ClassVar[str] = "rocchio"
    Params: ClassVar[type[Params]] = RocchioParams
