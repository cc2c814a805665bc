"""Where in a document a query's evidence lies: the cosines behind the spectral and the late-interaction score.

Both matrices have a column for each token with text. They are quantised to bytes, so that a page of hits stays small.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Query
from es_ttc.rescorers.similarity import token_similarities
from es_ttc.rescorers.spectral.cosines import blocks
from es_ttc.rescorers.spectral.smoothing import MEAN
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

CharacterOffsets = NDArray[np.int32]

MAX_CELLS = 1024  # columns, and one more for each field; longer documents have several tokens in a column
_LEVELS = 255
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Cells:
    """The columns of a map: consecutive tokens of one field that have text of their own."""

    spans: CharacterOffsets  # (c, 3) int32 field ordinal, first character, end character
    tokens: int  # number of tokens of a column; the last one of a field may have fewer
    with_text: NDArray[np.bool_]  # (n,) which tokens of the document have text
    starts: NDArray[np.intp]  # (c,) for each column its first token, counted among those with text

    @classmethod
    def of(cls, offsets: CharacterOffsets, most: int = MAX_CELLS) -> "Cells":
        """Return the columns for a document's ``(n, 3)`` offsets of tokens."""
        with_text = offsets[:, 2] > offsets[:, 1]
        spans = offsets[with_text]
        tokens = max(1, -(-len(spans) // most))
        first = np.flatnonzero(np.diff(spans[:, 0], prepend=-1))  # of each field
        within = np.arange(len(spans)) - np.repeat(first, np.diff(np.append(first, len(spans))))
        starts = np.flatnonzero(within % tokens == 0)
        if len(starts):
            least = np.minimum.reduceat(spans[:, 1], starts)
            spans = np.stack([spans[starts, 0], least, np.maximum.reduceat(spans[:, 2], starts)], axis=1)
        return cls(spans, tokens, with_text, starts)

    def matrix(self, cosines: Float32) -> dict[str, Any]:
        """Return ``(r, n)`` cosines as bytes, JSON-ready: ``low + byte / 255 * (high - low)`` is a column's greatest.

        ``values`` is base64 of ``(r, c)`` uint8, ``elsewhere`` each row's greatest cosine at a token without text.
        """
        clipped = np.clip(cosines, -1, 1)
        values = np.maximum.reduceat(clipped[:, self.with_text], self.starts, axis=1)
        low, high = float(values.min()), float(values.max())
        levels = np.rint((values - low) * (_LEVELS / (high - low) if high > low else 0))
        shown: dict[str, Any] = {
            "low": round(low, _DIGITS),
            "high": round(high, _DIGITS),
            "values": b64encode(levels.astype(np.uint8).tobytes()).decode(),
        }
        if not self.with_text.all():
            elsewhere = clipped[:, ~self.with_text].max(axis=1)
            shown["elsewhere"] = [round(value, _DIGITS) for value in elsewhere.tolist()]
        return shown


def evidence_map(
    query: Query, tokens: TokenVectors, norms: ScaleNorms | None, offsets: CharacterOffsets, scales: tuple[float, ...]
) -> dict[str, Any]:
    """Return the map of one document, JSON-ready; empty for a document without text.

    ``spectral`` has a row for each of ``scales``, ``late`` one for each of ``query_tokens``, if the query has tokens.
    """
    cells = Cells.of(offsets)
    if not len(cells.spans):
        return {}
    fields, starts, ends = cells.spans.T.tolist()
    shown: dict[str, Any] = {
        "tokens": {"field": fields, "start": starts, "end": ends},
        "tokens_per_cell": cells.tokens,
    }
    for block in blocks(query.of_tokens, [tokens], None if norms is None else [norms], scales):
        by_scale: Float32 = block.cosines[0].max(axis=0)
        names = ["mean" if scale == MEAN else scale for scale in scales]
        shown["spectral"] = {"scales": names, **cells.matrix(by_scale)}
    if query.tokens is not None and len(query.tokens):
        by_token: Float32 = np.empty((len(query.tokens), len(tokens)), np.float32)
        token_similarities(query.tokens, [tokens], [by_token])
        shown["late"] = {"query_tokens": _texts_of_tokens(query), **cells.matrix(by_token)}
    return shown


def _texts_of_tokens(query: Query) -> list[str | None]:
    """Return the text of each token of a query; None for one without text, and where places are not known."""
    if query.tokens is None or query.token_spans is None:
        return [None] * (0 if query.tokens is None else len(query.tokens))
    return [query.text[start:end] or None for start, end in query.token_spans.tolist()]
