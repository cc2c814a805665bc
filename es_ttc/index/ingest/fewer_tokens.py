"""Fewer vectors than tokens: neighbours that resemble each other share one vector."""

from dataclasses import replace

from es_ttc.encoders.base import Encodings
from es_ttc.vectors.reduce import group_starts, pool_ranges, pool_rows


def pool_tokens(encodings: Encodings, factor: int) -> Encodings:
    """Return encodings whose token vectors each stand for so many tokens on average, with the characters of these."""
    starts = [group_starts(rows, -(-len(rows) // factor)) for rows in encodings.tokens]
    rows = [pool_rows(*document) for document in zip(encodings.tokens, starts, strict=True)]
    offsets = [pool_ranges(*document) for document in zip(encodings.offsets, starts, strict=True)]
    return replace(encodings, tokens=rows, offsets=offsets)
