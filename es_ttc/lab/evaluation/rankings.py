"""Rankings: the best of many scores, several fused into one, a window reordered; and the interface of searchers."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.methods import EvaluatedMethod
from es_ttc.vectors.tokens import Float32

Positions = NDArray[np.intp]
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents of one query, best first: ``(n,)`` positions in the corpus, each once.

    The first m have scores, ``(m,)`` float32, non-increasing; the others follow in the order of an earlier stage.
    """

    documents: Positions
    scores: Float32

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Run:
    """What one method returned for all queries of a collection: by query ids, best first, and scores of the first ones.

    `seconds` is ``(q,)`` float64; where a stage works on all queries at once, each has an equal share of its time.
    """

    rankings: Mapping[str, Sequence[str]]
    scores: Mapping[str, Float32]
    seconds: NDArray[np.float64]


def top(scores: Float32, depth: int) -> Ranking:
    """Return the ``depth`` greatest of ``(n,)`` scores; documents with equal scores keep the corpus's order."""
    if depth < len(scores):
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        candidates = np.flatnonzero(scores >= least)
    else:
        candidates = np.arange(len(scores))
    best = candidates[np.argsort(-scores[candidates], kind="stable")[:depth]]
    return Ranking(best, scores[best])


def fuse_rankings(rankings: Iterable[Sequence[T]], k: int = 60) -> list[tuple[T, float]]:
    """Return (document, score) pairs, best first: the score is the sum of 1 / (k + rank) over the rankings.

    Cormack, Clarke and Buettcher, *Reciprocal rank fusion outperforms Condorcet and individual rank learning methods*
    (SIGIR 2009), whose k is 60. Equal scores keep the order in which the documents are first met.
    """
    scores: dict[T, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking, 1):
            scores[document] = scores.get(document, 0.0) + 1 / (k + rank)
    return sorted(scores.items(), key=lambda item: -item[1])


def reorder(first: Ranking, window: Positions, scores: Float32) -> Ranking:
    """Return a window's documents in the order of their new scores; the others follow in first-pass order."""
    order = np.argsort(-scores, kind="stable")
    rest = first.documents[~np.isin(first.documents, window)]
    return Ranking(np.concatenate([window[order], rest]), scores[order])


ReportStage = Callable[[str, int, int], None]  # gets stage, units done, and all units

MIN_RANKING_DEPTH = 100
MAX_RANKING_DEPTH = 1000


def silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


def depth_of(window: int | None, documents: int) -> int:
    """Return how many documents are ranked for each query: the window (None: all), within 100 to 1000."""
    return min(max(window or documents, MIN_RANKING_DEPTH), MAX_RANKING_DEPTH, documents)


class Searcher(Protocol):
    """Answers every query of one collection."""

    @property
    def vectors(self) -> Mapping[str, Float32] | None:
        """The documents' pooled vectors by id, ``(d,)`` at unit length; None if they are unavailable."""

    @property
    def documents(self) -> int:
        """Number of documents that are searched."""

    def rank(self, method: EvaluatedMethod, progress: ReportStage = silent) -> Run:
        """Return the method's rankings of all queries."""
