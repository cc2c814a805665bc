"""BidirZScore (B.1): documents also encoded as queries, and each score relative to the document's usual scores."""

import numpy as np

from es_ttc.rescorers.programs.interface import QUERY, Context
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.primitives.standardise import along_queries
from es_ttc.vectors.tokens import Float32


def bidirzscore(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Sum the column z-scores of S and of S', the queries' cosines with documents under the query adapter.

    Mean and deviation of the z-scores are computed over queries. For a single query, ``ctx.calibration`` (a stored
    sample of queries) replaces the batch. Without a sample, a single query gets the sum of both cosines, because
    z-scores of one value are meaningless. With an encoder that does not distinguish roles S' equals S, and the program
    is the z-score.
    """
    reversed_documents = ctx.view(D, QUERY)
    sample = ctx.calibration or (Moments.of(Q) if len(Q) > 1 else None)
    total = np.zeros(S.shape, np.float32)
    for name, documents in (("cosine", D), ("reversed", reversed_documents)):
        scores = ctx.note(name, Q @ documents.T)
        total += scores if sample is None else along_queries(scores, documents, sample)
    return total
