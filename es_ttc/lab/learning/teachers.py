"""What a query's documents should score: target distributions from judgements, clicks, a reranker and blend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from es_ttc.lab.ranking.pools import Float64, Pool, Pools
from es_ttc.lab.ranking.weights import by_default_weights, normalised
from es_ttc.rescorers.blend.normalise import z_scores
from es_ttc.rescorers.blend.rescorer import RERANKER_WEIGHT
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.vectors.tokens import Float32

Teacher = Literal["judgements", "clicks", "reranker", "blend"]
TEACHERS: tuple[Teacher, ...] = ("judgements", "clicks", "reranker", "blend")
"""In the order of their worth: a query takes the first that says something about it."""
BLEND_TEMPERATURE = 1.0
"""Of blend's scores, which are weighted z-scores; docs/results/learning.md says how it was chosen."""
RERANKED = 10
"""Blend's first documents of a query, which a reranker scores."""
MIN_CLICKS = 2.0
"""Least weight of a query's clicks: one click on the first hit says little."""


def blend_scores(pools: Pools) -> list[Float32]:
    """Return blend's scores of each pool's documents, by its default signals and weights."""
    given = pools.of(DEFAULT_SIGNALS)
    scores = by_default_weights(given, normalised(given, "z"))
    return [row[: len(pool.documents)] for row, pool in zip(scores, pools.pools, strict=True)]


def softmax(scores: Float32, temperature: float) -> Float64:
    """Return ``exp(scores / temperature)``, scaled to sum 1."""
    raised = np.exp((scores.astype(np.float64) - scores.max(initial=0.0)) / temperature)
    found: Float64 = raised / raised.sum()
    return found


@dataclass(frozen=True, slots=True)
class Target:
    """What share of 1 each document of a pool should get, ``(k,)``, and who says so; zeros if nobody does."""

    shares: Float64
    teacher: Teacher | None


def targets(
    pools: Pools,
    clicks: Mapping[str, Mapping[str, float]],
    reranked: Mapping[str, Mapping[str, float]] | None = None,
    *,
    allowed: Sequence[Teacher] = TEACHERS,
) -> list[Target]:
    """Return the target of each pool, by the first allowed teacher that says something about it.

    Clicks are weights, `reranked` scores of a reranker, both by query and document.
    """
    return [
        _target(pool, scores, clicks.get(pool.query, {}), (reranked or {}).get(pool.query, {}), allowed)
        for pool, scores in zip(pools.pools, blend_scores(pools), strict=True)
    ]


def _target(
    pool: Pool, scores: Float32, clicks: Mapping[str, float], reranked: Mapping[str, float], allowed: Sequence[Teacher]
) -> Target:
    gains = np.exp2(np.maximum(pool.grades, 0)) - 1.0
    clicked = np.array([clicks.get(document, 0.0) for document in pool.documents])
    if "judgements" in allowed and gains.any():
        return Target(gains / gains.sum(), "judgements")
    if "clicks" in allowed and clicked.sum() >= MIN_CLICKS:
        return Target(clicked / clicked.sum(), "clicks")
    if "reranker" in allowed and reranked:
        return Target(softmax(_with_reranker(pool, scores, reranked), BLEND_TEMPERATURE), "reranker")
    if "blend" in allowed and len(pool.documents):
        return Target(softmax(scores, BLEND_TEMPERATURE), "blend")
    return Target(np.zeros(len(pool.documents)), None)


def _with_reranker(pool: Pool, scores: Float32, reranked: Mapping[str, float]) -> Float32:
    """Return blend's scores with its signal `reranker`."""
    places = [place for place, name in enumerate(pool.documents) if name in reranked]
    found = np.array([reranked[pool.documents[place]] for place in places], np.float32)
    with_reranker = scores.copy()
    with_reranker[places] += RERANKER_WEIGHT * z_scores(found, np.ones(len(found), np.bool_))
    return with_reranker
