"""What programs cost, c = (T_base + T_prog) / T_base: in encoder calls as the paper has it (3.3), and in seconds."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.rescorers.programs.catalogue import REVERSED, TOPIC, Entry, Reading
from es_ttc.vectors.chunks import GRANULARITIES

Kind = Reading | Literal["document", "query", "expanded"]
"""A kind of text that is encoded; ``expanded`` is a query with a sentence behind it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one program takes on one collection, in encoder calls or in seconds.

    Attributes:
        base_index: Plain encoding of the documents.
        base_query: Plain encoding of the queries.
        index: What the program adds when documents are indexed.
        query: What it adds when queries are answered.
    """

    base_index: float
    base_query: float
    index: float
    query: float

    @property
    def ratio(self) -> float:
        """The paper's c: everything over the plain encoding of queries and documents."""
        base = self.base_index + self.base_query
        return (base + self.index + self.query) / base

    @property
    def at_index(self) -> float:
        """The documents' part: what an index costs, over the plain encoding of its documents."""
        return (self.base_index + self.index) / self.base_index

    @property
    def at_query(self) -> float:
        """The queries' part: what a query costs, over its plain encoding."""
        return (self.base_query + self.query) / self.base_query


CALLS: Mapping[Kind, float] = defaultdict(lambda: 1.0)
"""The rates by which a cost counts encoder calls: one a text."""


def cost_of(
    entry: Entry,
    counts: Mapping[Reading, int],
    queries: int,
    rates: Mapping[Kind, float] = CALLS,
    scoring: float = 0.0,
) -> Cost:
    """Return what a program takes on a collection.

    Args:
        counts: Texts of each kind, from ``counted``.
        rates: What one text of each kind takes; by default one encoder call.
        scoring: What scoring takes for each query, in the same unit.
    """
    return Cost(
        base_index=counts[TOPIC] * rates["document"],  # one topic a document
        base_query=queries * rates["query"],
        index=sum(counts[reading] * rates[reading] for reading in entry.reads),
        query=queries * (entry.passes * rates["expanded"] + scoring),
    )


def counted(features: CorpusFeatures) -> dict[Reading, int]:
    """Return how many texts of each kind are encoded of a collection."""
    counts: dict[Reading, int] = {
        name: sum(len(own.vectors[name]) for own in features.chunks) for name in GRANULARITIES
    }
    return counts | {TOPIC: len(features.ids), REVERSED: 0 if features.reversed is None else len(features.ids)}
