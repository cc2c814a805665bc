"""A simulated reranker of known quality, made from relevance judgements, for measuring strategies.

It is used where the effect of a reranker's errors is studied, because the quality of a real one cannot be set.
"""

import hashlib
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np


def noise_scale(error_rate: float) -> float:
    """Return the standard deviation of the noise that makes a reranker wrong about a pair this often.

    Two documents whose grades differ by 1, each with normal noise of standard deviation s, are in the wrong order with
    probability Phi(-1 / (s sqrt 2)).
    """
    if not 0 <= error_rate < 0.5:
        raise ValueError(f"error rate [{error_rate}] must be from 0 to less than .5")
    return 0.0 if error_rate == 0 else float(-1 / (2**0.5 * NormalDist().inv_cdf(error_rate)))


class SimulatedReranker:
    """Scores documents by their grade plus noise, which is constant for a query and document."""

    def __init__(
        self, query: str, grades: Mapping[str, int], ids: Sequence[str], error_rate: float, seed: int = 0
    ) -> None:
        self._grades = grades
        self._ids = ids
        digest = hashlib.sha256(f"{seed}\0{query}".encode()).digest()[:8]
        generator = np.random.default_rng(int.from_bytes(digest, "big"))
        self._noise = noise_scale(error_rate) * generator.standard_normal(len(ids))

    async def scores(self, documents: Sequence[int]) -> Sequence[float]:
        """Return the documents' grades with their noise."""
        return [float(self._grades.get(self._ids[document], 0) + self._noise[document]) for document in documents]

    async def order(self, documents: Sequence[int]) -> Sequence[int]:
        """Return the documents by their grades with noise, best first; equals keep their order."""
        scores = dict(zip(documents, await self.scores(documents), strict=True))
        return sorted(documents, key=lambda document: -scores[document])
