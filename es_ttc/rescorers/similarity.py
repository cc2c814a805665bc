"""Inner products of query vectors with the stored token vectors of a document, in blocks that stay in the cache."""

import numpy as np

from es_ttc.rescorers.scratch import Scratch
from es_ttc.vectors.quantise import widen
from es_ttc.vectors.tokens import Float32, TokenVectors

EMPTY_DOCUMENT = -1.0
"""The score of a document without any token: the least cosine, so that it never overtakes a document with text."""

_BLOCK_BYTES = 512 * 2**10

_scratch = Scratch()


def token_similarities(vectors: Float32, tokens: TokenVectors, out: Float32) -> None:
    """Write the cosines of every query vector with every token vector of one document.

    float32 tokens are read where they are. Others are widened block by block into one reused buffer, multiplied while
    they are in the cache, and the products of int8 rows are then scaled: the matrix is never dequantised as a whole.

    Args:
        vectors: ``(r, d)`` float32 unit rows.
        tokens: ``n`` token vectors of ``d`` components.
        out: ``(r, n)`` float32, written.

    Raises:
        ValueError: The document's vectors have another number of components than the query's.
    """
    if tokens.dims != vectors.shape[1]:
        raise ValueError(f"token vectors of {tokens.dims} components, query vectors of {vectors.shape[1]}")
    if tokens.values.dtype == np.float32:
        np.matmul(vectors, tokens.values.T, out=out)
        return
    rows = min(len(tokens), max(1, _BLOCK_BYTES // (4 * tokens.dims)))
    buffer = _scratch.array("block", (rows, tokens.dims), np.float32)
    for start in range(0, len(tokens), max(1, rows)):
        values = tokens.values[start : start + rows]
        block = buffer[: len(values)]
        widen(values, block)
        np.matmul(vectors, block.T, out=out[:, start : start + rows])
    if tokens.scales is not None:
        np.multiply(out, tokens.scales, out=out)
