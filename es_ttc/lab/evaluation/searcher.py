"""The interface of searchers, which answer a collection's queries in memory or through a gateway and an engine."""

from collections.abc import Callable, Mapping
from typing import Protocol

from es_ttc.lab.evaluation.methods import Method
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.vectors.tokens import Float32

Progress = Callable[[str, int, int], None]
"""Receives the present stage, the number of units done, and the number of all units."""

MIN_DEPTH = 100
MAX_DEPTH = 1000


def silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


def depth_of(window: int | None, documents: int) -> int:
    """Return the number of documents that are ranked and measured for each query.

    At least 100, the largest cutoff of the metrics, and the window; at most 1000, as usual with trec_eval and BEIR, and
    the size of the corpus.

    Args:
        window: Number of documents that a rescorer scores; None for the whole corpus.
    """
    return min(max(window or documents, MIN_DEPTH), MAX_DEPTH, documents)


class Searcher(Protocol):
    """Answers every query of one collection."""

    @property
    def vectors(self) -> Mapping[str, Float32] | None:
        """The documents' pooled vectors by id, ``(d,)`` at unit length; None if they are unavailable."""
        ...

    @property
    def documents(self) -> int:
        """Number of documents that are searched."""
        ...

    def rank(self, method: Method, progress: Progress = silent) -> Run:
        """Return the method's rankings of all queries."""
        ...
