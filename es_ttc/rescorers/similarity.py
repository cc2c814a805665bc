"""Inner products of query vectors with stored token vectors, and cosines as the engines show them."""

from collections.abc import Iterable

import numpy as np

from es_ttc.rescorers.threads import Scratch
from es_ttc.vectors.quantise import widen
from es_ttc.vectors.rotation import rotate
from es_ttc.vectors.tokens import Float32, TokenVectors

EMPTY_DOCUMENT = -1.0  # of a document without tokens: the least cosine, so it overtakes none with text

_BLOCK_BYTES = 512 * 2**10
_FLOAT32 = np.dtype(np.float32)

_scratch = Scratch()


def shown_similarity(cosines: Float32) -> Float32:
    """Map cosines in [-1, 1] to [0, 1], the engines' own convention: (1 + cosine) / 2."""
    shown: Float32 = np.clip((np.float32(1) + cosines) / np.float32(2), np.float32(0), np.float32(1))
    return shown


def require_dims(documents: Iterable[TokenVectors], vectors: Float32) -> None:
    """Check that token vectors can be multiplied by query vectors."""
    dims = vectors.shape[1]
    for document in documents:
        if document.dims != dims:
            raise ValueError(f"token vectors of {document.dims} components, query vectors of {dims}")


def token_similarities(vectors: Float32, documents: Iterable[TokenVectors], outs: Iterable[Float32]) -> None:
    """Write the ``(r, n)`` cosines of every query vector with every token vector of each document, block by block."""
    documents = list(documents)
    require_dims(documents, vectors)
    dims = vectors.shape[1]
    rows = max(1, _BLOCK_BYTES // (4 * dims))
    buffer: Float32 = _scratch.array("block", (rows, dims), np.float32)
    rotated = rotate(vectors) if any(document.coded for document in documents) else vectors
    for tokens, out in zip(documents, outs, strict=True):
        if tokens.values.dtype == _FLOAT32:
            np.matmul(vectors, tokens.values.T, out=out)
            continue
        for start in range(0, len(tokens), rows):
            part = tokens.part(slice(start, start + rows))
            block = buffer[: len(part)]
            widen(part, block)
            np.matmul(rotated if tokens.coded else vectors, block.T, out=out[:, start : start + rows])
        if tokens.scales is not None:
            np.multiply(out, tokens.scales, out=out)
