"""Feedback over the whole corpus, in two kNN searches: the first one's documents, with vectors, move the query."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.programs.primitives.anchors import consensus
from es_ttc.rescorers.programs.primitives.feedback import interpolate, rocchio, top_centroid
from es_ttc.rescorers.programs.primitives.fusion import order_of
from es_ttc.rescorers.programs.rescorers import FeedbackParams, RocchioParams, SoftCentroidParams
from es_ttc.retrievers.base import Retrieved, Search, Vectors
from es_ttc.vectors.tokens import Float32

_POOLED = frozenset({Feature.POOLED})


class ConsensusParams(Params):
    """Parameters of feedback from documents that are similar to each other."""

    documents: int = Field(
        100,
        ge=4,
        le=1000,
        description="Number of nearest documents. The query moves towards the core of the best quarter, and away from "
        "the rest of that quarter and from the worse half.",
    )


class _Feedback:
    """The search that all feedback retrievers share."""

    similarity: ClassVar[bool] = True

    def needs(self, params: FeedbackParams | ConsensusParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return _POOLED

    def searches(self, params: FeedbackParams | ConsensusParams) -> frozenset[Vectors]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Vectors.POOLED})

    async def retrieve(
        self, query: Query, search: Search, k: int, params: FeedbackParams | ConsensusParams
    ) -> Retrieved:
        """Return the documents nearest to the refined query; of several texts the first one's vector is refined."""
        vector = query.vectors[:1]
        count = params.documents
        [first] = await search.nearest(vector, count, num_candidates=max(k, count), features=_POOLED)
        known = await search.window(first.documents, _POOLED)
        vectors = known.window.pooled
        seen = 0 if vectors is None else len(vectors)
        refined = vector
        if vectors is not None and seen:
            refined = _refined(vector, vectors, params)
        if not np.any(refined):  # the query and its documents cancel out
            refined = vector
        [found] = await search.nearest(refined, k)
        return Retrieved(found.documents, found.cosines, summary={"feedback": {"documents": seen}})


def _refined(query: Float32, documents: Float32, params: FeedbackParams | ConsensusParams) -> Float32:
    """Return the query moved by some documents, ``(1, d)``."""
    cosines = query @ documents.T
    if isinstance(params, ConsensusParams):
        core, others = consensus(order_of(cosines)[0], documents)
        return rocchio(query, *(documents[part].mean(axis=0, keepdims=True) for part in (core, others)))
    temperature = params.temperature if isinstance(params, SoftCentroidParams) else None
    return interpolate(query, top_centroid(documents, cosines, params.documents, temperature), params.weight)


class SoftCentroidRetriever(_Feedback):
    """SoftCentroid over the corpus: `normalise((1 - w) q + w mu)`, mu the softmax-weighted mean of the nearest."""

    name: ClassVar[str] = "softcentroid"
    Params: ClassVar[type[Params]] = SoftCentroidParams


class RocchioRetriever(_Feedback):
    """Classical Rocchio without negatives, which is VPRF, over the corpus: the mean of the nearest documents."""

    name: ClassVar[str] = "rocchio"
    Params: ClassVar[type[Params]] = RocchioParams


class ConsensusRetriever(_Feedback):
    """ConsensusRocchio's feedback (B.8) over the corpus: `normalise(q + d_core - d_others)`.

    The program's other channels and rounds need a window: use the rescorer for them.
    """

    name: ClassVar[str] = "consensusrocchio"
    Params: ClassVar[type[Params]] = ConsensusParams
