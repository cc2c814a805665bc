"""Pools of random signals for the tests of what is fitted to them."""

import numpy as np

from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust


def random_pools(queries: int = 12, seed: int = 0, *, missing: float = 0.0, useful: float = 1.0) -> Pools:
    """Return pools whose relevant documents score higher by late interaction, and by no other signal."""
    random = np.random.default_rng(seed)
    return Pools("random", "train", "none", DEFAULT_SIGNALS, tuple(_pool(f"q{place}", random, missing, useful)
                                                           for place in range(queries)), {})  # fmt: skip


def _pool(query: str, random: np.random.Generator, missing: float, useful: float) -> Pool:
    size = int(random.integers(3, 30))
    grades = random.choice([0, 0, 0, 1, 2], size)
    scores = random.standard_normal((size, len(DEFAULT_SIGNALS))).astype(np.float32)
    scores[:, 3] += np.float32(useful) * grades
    holes = random.random((size, len(DEFAULT_SIGNALS))) < missing
    scores[holes] = np.nan
    stack = random.choice([0, 0, 1], int(random.integers(0, 8)))
    judged = np.sort(np.concatenate([grades, stack, random.choice([0, 1], 2)]))[::-1]
    documents = tuple(f"d{place}" for place in range(size))
    trust = Trust(float(random.random()), float(random.random()))
    return Pool(query, documents, scores, trust, grades.astype(np.int64), stack, judged)
