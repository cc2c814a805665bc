"""What answers a collection's queries by a method: the arrays in memory, or an engine behind the gateway."""

from collections.abc import Callable, Mapping
from typing import Protocol

from es_ttc.lab.evaluation.methods import Method
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.vectors.tokens import Float32

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, units done, units in all)."""

LEAST_DEPTH = 100
MOST_DEPTH = 1000


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def depth_of(window: int | None, documents: int) -> int:
    """Return how many documents of each query are ranked and measured.

    At least 100, the deepest cutoff of the metrics; at least the window; at most 1000, as trec_eval is used with BEIR;
    at most the corpus.

    Args:
        window: Documents that a rescorer scores; None for the whole corpus.
        documents: The corpus's size.
    """
    return min(max(window or documents, LEAST_DEPTH), MOST_DEPTH, documents)


class Searcher(Protocol):
    """Answers every query of one collection."""

    @property
    def vectors(self) -> Mapping[str, Float32] | None:
        """The documents' pooled vectors by id, ``(d,)`` unit; None where they are not at hand."""
        ...

    def rank(self, method: Method, progress: Progress = silent) -> Run:
        """Return the method's rankings of all queries."""
        ...
