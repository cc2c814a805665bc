"""AdaptGranularity (B.3): the better of the best sentence and the best paragraph."""

import numpy as np

from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.matching import max_sim
from es_ttc.rescorers.programs.primitives.standardise import along_documents
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.tokens import Float32

BOTH: tuple[Granularity, ...] = ("paragraphs", "sentences")


def adaptgran(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the element-wise maximum of both MaxSim channels, each z-scored along the documents of a query.

    The paper does not say along which axis. Along documents both channels get one scale for a query, which is what
    a maximum of them needs, and nothing depends on other queries.
    """
    channels = []
    for granularity in BOTH:
        chunks = ctx.chunks(granularity)
        channels.append(along_documents(ctx.note(granularity, max_sim(Q @ chunks.vectors.T, chunks.starts))))
    return np.maximum(*channels)
