"""Select the programs that are worth their cost: the Pareto front, and the paper's own rule of admission."""

from collections.abc import Iterable, Sequence

from es_ttc.lab.discovery.records import Record
from es_ttc.lab.evaluation.costs import pareto_front


def measured(records: Iterable[Record]) -> list[Record]:
    """Return the programs with results."""
    return [record for record in records if record.verdict == "measured"]


def frontier(records: Iterable[Record]) -> list[Record]:
    """Return the programs with a gain for which no other one is as cheap and as good, by cost.

    P0 has cost 1 and gain 0, so no program of the front has a mean difference of 0 or less. Of equal ones the first is
    kept.
    """
    known = measured(records)
    points = [(1.0, 0.0), *((record.cost or 1.0, record.mean or 0.0) for record in known)]
    return [known[place - 1] for place in pareto_front(points) if place]


def admits(mean: float, records: Sequence[Record]) -> bool:
    """Return whether a program enters the paper's frontier (section 3.5).

    "A program enters the frontier if its mean difference is positive and exceeds every previously admitted program",
    whatever it costs: so this is the line of records over time, while :func:`frontier` weighs cost too.
    """
    best = max((record.mean or 0.0 for record in records if record.admitted), default=0.0)
    return mean > 0 and mean > best
