"""Stored features of a window's documents as the columns that methods read."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from es_ttc.rescorers.base import Feature
from es_ttc.vectors.tokens import ScaleNorms

Stored = dict[Feature, Any]

_FILLED = frozenset({Feature.NORMS, Feature.OFFSETS})


def columns(documents: Sequence[Stored], features: Iterable[Feature]) -> dict[str, Any]:
    """Return a window's columns; a feature that not every document has is left out. There is one document or more.

    Norms and offsets are left out only where no document has them: the norms of one that has none are computed, and
    its tokens stand for no text.
    """
    features = set(features)
    filled = {one for one in _FILLED & features if any(one in stored for stored in documents)}
    if filled and Feature.TOKENS in features:
        documents = [stored if filled <= stored.keys() else {**_empty(stored), **stored} for stored in documents]
    found: dict[str, Any] = {}
    for feature in features:
        if all(feature in stored for stored in documents):
            found[feature.value] = [stored[feature] for stored in documents]
    if Feature.POOLED in found:
        found[Feature.POOLED] = np.stack(found[Feature.POOLED])
    if Feature.OFFSETS in found:
        found[Feature.OFFSETS] = [offsets for offsets, _ in found[Feature.OFFSETS]]
    return found


def _empty(stored: Stored) -> Stored:
    """Return norms of no scale, and offsets that stand for no text, of a document with tokens."""
    length = len(stored[Feature.TOKENS]) if Feature.TOKENS in stored else 0
    return {
        Feature.NORMS: ScaleNorms((), np.zeros((0, length), np.float32)),
        Feature.OFFSETS: (np.zeros((length, 3), np.int32), ()),
    }
