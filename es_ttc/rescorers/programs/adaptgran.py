"""AdaptGranularity (B.3): the greater of the best sentence's and the best paragraph's score."""

import numpy as np

from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.matching import max_sim
from es_ttc.rescorers.programs.primitives.standardise import along_documents
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.tokens import Float32

BOTH: tuple[Granularity, ...] = ("paragraphs", "sentences")


def adaptgran(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the element-wise maximum of both MaxSim channels, each z-scored along the documents of a query.

    The paper does not state the axis. Along documents, both channels get the same scale for a query, as a maximum
    requires, and the result does not depend on other queries.
    """
    channels = []
    for granularity in BOTH:
        chunks = ctx.chunks(granularity)
        channels.append(along_documents(ctx.note(granularity, max_sim(Q @ chunks.vectors.T, chunks.starts))))
    return np.maximum(*channels)
