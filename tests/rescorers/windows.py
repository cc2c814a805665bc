"""Random queries and windows for the tests of rescorers."""

from collections.abc import Sequence

import numpy as np

from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import scale_norms
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Codec, Float32, TokenVectors


def unit_rows(random: np.random.Generator, rows: int, dims: int) -> Float32:
    matrix = random.standard_normal((rows, dims)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def query_of(vectors: Float32, tokens: Float32 | None = None) -> Query:
    return Query("a question of many words", np.atleast_2d(vectors), tokens)


def window_of(documents: Sequence[TokenVectors], scales: Sequence[float] | None = None) -> Window:
    """A window of these documents, with stored norms of these scales if there are any."""
    return Window(
        ids=[str(place) for place in range(len(documents))],
        first_pass=np.zeros(len(documents), np.float32),
        tokens=documents,
        norms=None if scales is None else [scale_norms(dequantise(tokens), scales) for tokens in documents],
    )


def random_documents(
    random: np.random.Generator, lengths: Sequence[int], dims: int, codec: Codec = "float32"
) -> list[TokenVectors]:
    return [quantise(unit_rows(random, length, dims), codec) for length in lengths]
