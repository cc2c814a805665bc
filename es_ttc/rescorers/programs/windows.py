"""Make a program's context from a window."""

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np

from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.programs.interface import PASSAGE, TOPIC_LENGTH, Chunks, Context, ProgramError
from es_ttc.vectors.chunks import DocumentChunks, Granularity
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, TokenVectors


def context_of(
    queries: Sequence[Query], window: Window, granularities: Collection[Granularity], *, engine_lexical: bool
) -> Context:
    """Return the context of some queries over one window.

    Args:
        window: The documents. Chunks made at ingest are taken as they are.
        engine_lexical: Whether the first pass's scores are the lexical channel; then there must be one query.
    """
    texts = ["" for _ in window.ids] if window.chunks is None else [own.text for own in window.chunks]
    stored: dict[Granularity, Chunks] = {}
    views: dict[tuple[str, int | None], Float32] = {}
    if window.chunks is not None:
        stored = {name: _side_by_side(window.chunks, name) for name in granularities}
        views[PASSAGE, TOPIC_LENGTH] = _stacked([own.topic for own in window.chunks])
    return Context(
        [query.text for query in queries],
        texts,
        [str(place) for place in range(len(queries))],
        window.ids,
        queries[0].encode or _no_encoder,
        stored=stored,
        views=views,
        calibration=window.calibration,
        lexical_scores=window.first_pass[None] if engine_lexical else None,
    )


def _side_by_side(documents: Sequence[DocumentChunks], name: Granularity) -> Chunks:
    counts = [len(own.vectors[name]) for own in documents]
    texts = chain.from_iterable((own.text[start:end] for start, end in own.spans[name].tolist()) for own in documents)
    return Chunks(
        _stacked([own.vectors[name] for own in documents]),
        np.concatenate(([0], np.cumsum(counts, dtype=np.intp))),
        list(texts),
    )


def _stacked(matrices: Sequence[TokenVectors]) -> Float32:
    """Put stored rows next to each other; widened at once if all have the same type, as within one index."""
    if len({matrix.codec for matrix in matrices}) > 1:
        return np.concatenate([dequantise(matrix) for matrix in matrices])
    scales = [matrix.scales for matrix in matrices if matrix.scales is not None]
    values = np.concatenate([matrix.values for matrix in matrices])
    return dequantise(TokenVectors(values, np.concatenate(scales) if scales else None, coded=matrices[0].coded))


def _no_encoder(
    texts: Sequence[str],
    adapter: str = PASSAGE,  # noqa: ARG001 - the interface's arguments
    dimensions: int | None = None,  # noqa: ARG001
    max_length: int | None = None,  # noqa: ARG001
) -> Float32:
    raise ProgramError(f"the program encodes {len(texts)} texts, and its declaration names no encoder")
