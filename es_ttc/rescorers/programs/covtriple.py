"""CoverageTriple (B.4): three granularities, two aggregations, topic and whole document."""

import numpy as np

from es_ttc.rescorers.programs.channels import Coverage, noted
from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.standardise import along_documents
from es_ttc.vectors.tokens import Float32


def covtriple(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the sum of the eight channels, each z-scored along the documents of a query.

    The paper does not say how B.4 combines its channels. Sums of z-scores are the method of B.1; reciprocal ranks begin
    with B.5. On SciFact's train queries the sum of z-scores (nDCG@10 .860) and of plain cosines (.861) are on a par,
    reciprocal ranks and the maximum z-score are a point lower (`python -m benchmarks.programs_constants`).
    """
    channels = noted(Coverage(D, ctx)(Q), ctx)
    total: Float32 = np.sum([along_documents(channel) for channel in channels.values()], axis=0, dtype=np.float32)
    return total
