"""What judgements say of the pooled methods, and which weights of blend they would choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.lab.evaluation.bootstrap import TRUSTED_QUERIES, Comparison, Interval, compare, interval, resampled_means
from es_ttc.lab.evaluation.metrics import NDCG_10, Qrels
from es_ttc.lab.evaluation.tuning import FOLDS
from es_ttc.lab.judging.records import LoggedSignals, PooledQuery, logged_pools
from es_ttc.lab.ranking.graded import values_of
from es_ttc.lab.ranking.weights import WeightTuning, summary_of_weights, tune_weights
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.vectors.tokens import Float64

CUTOFF = 10
FEWEST_QUERIES = TRUSTED_QUERIES
"""Judged queries below which no method is clearly the best and, with a relevant document, no weights are chosen.

With some 20 queries weights that seemed clearly better lost on test queries (docs/results/judging.md).
"""


@dataclass(frozen=True, slots=True)
class MethodStanding:
    """How a method stands."""

    method: str
    ndcg: float
    interval: Interval
    unjudged: float
    behind: Comparison | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        low, high, behind = self.interval.low, self.interval.high, self.behind
        found = {"method": self.method, NDCG_10: self.ndcg, "low": low, "high": high}
        difference = behind and {
            "delta": behind.delta,
            "low": behind.interval.low,
            "high": behind.interval.high,
            "p": behind.p,
        }
        return {**found, f"unjudged@{CUTOFF}": self.unjudged, "behind": difference}


@dataclass(frozen=True, slots=True)
class Standing:
    """How the methods stand that were pooled for most judged queries, the best first.

    `clear`: the best is better than each other one, by the 95 % intervals of the differences over
    :data:`FEWEST_QUERIES` queries or more; an interval of fewer means nothing.
    """

    judged_queries: int
    methods: tuple[MethodStanding, ...]
    clear: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "judged_queries": self.judged_queries,
            "best": self.methods[0].method if self.methods else None,
            "clear": self.clear,
            "methods": [method.as_dict() for method in self.methods],
        }


def standing(queries: Sequence[PooledQuery], qrels: Qrels) -> Standing:
    """Return how the pooled methods stand on the judged queries; a document without a grade counts as not relevant."""
    pooled = [query for query in queries if qrels.get(query.id) and query.methods]
    if not pooled:
        return Standing(0, (), clear=False)
    sets = [tuple(method.name for method in query.methods) for query in pooled]
    names = max(reversed(sets), key=sets.count)
    judged = [query for query, own in zip(pooled, sets, strict=True) if set(names) <= set(own)]
    grades = [np.array(sorted(qrels[query.id].values(), reverse=True), np.int64) for query in judged]
    values = np.stack([_values(name, judged, qrels, grades) for name in names])
    means = resampled_means(values)
    order = sorted(range(len(names)), key=lambda place: -float(values[place].mean()))
    best = order[0]
    methods = tuple(
        MethodStanding(
            names[place],
            float(values[place].mean()),
            interval(means[:, place]),
            float(np.mean([_unjudged(query.run_of(names[place]), qrels[query.id]) for query in judged])),
            None if place == best else compare(values[best], values[place], means[:, best], means[:, place]),
        )
        for place in order
    )
    clear = (
        len(methods) > 1
        and len(judged) >= FEWEST_QUERIES
        and all(method.behind.interval.low > 0 for method in methods if method.behind is not None)
    )
    return Standing(len(judged), methods, clear=clear)


def _values(name: str, judged: Sequence[PooledQuery], qrels: Qrels, grades: Sequence[Any]) -> Float64:
    ranked = np.zeros((len(judged), CUTOFF), np.int64)
    for row, query in zip(ranked, judged, strict=True):
        found = [qrels[query.id].get(document, 0) for document in query.run_of(name)[:CUTOFF]]
        row[: len(found)] = found
    return values_of(NDCG_10, ranked, grades)


def _unjudged(run: Sequence[str], judged: Mapping[str, int]) -> float:
    first = run[:CUTOFF]
    return float(np.mean([document not in judged for document in first])) if first else 0.0


@dataclass(frozen=True, slots=True)
class TunedWeights:
    """Weights of blend that judgements choose."""

    found: WeightTuning
    summary: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return them as JSON, without what was tried."""
        against = self.found.tuning.against_default
        return {
            "weights": self.summary["params"].get("signals"),
            "params": self.summary["params"],
            "gain": against.delta,
            "low": against.interval.low,
            "high": against.interval.high,
            "clear": self.found.clear,
            "queries": self.summary["queries"],
        }


def tuned_weights(index: str, queries: Sequence[PooledQuery], qrels: Qrels) -> TunedWeights | str:
    """Return the weights of blend that judgements choose from the pools' signals, or why there are none."""
    relevant = [query for query in queries if any(grade > 0 for grade in qrels.get(query.id, {}).values())]
    logged = [(query.id, query.signals) for query in relevant if query.signals is not None]
    kept = _alike([(query, signals) for query, signals in logged if set(DEFAULT_SIGNALS) <= set(signals.names)])
    if len(relevant) < FEWEST_QUERIES:
        return (
            f"{len(relevant)} queries have a relevant document: with {FEWEST_QUERIES} or more, weights of blend's "
            "signals are chosen"
        )
    if len(kept) < FEWEST_QUERIES:
        return (
            f"{len(kept)} of the judged queries have signals of one encoder: pool them in an index with token vectors"
        )
    pools = logged_pools(index, kept, qrels).of(DEFAULT_SIGNALS)
    found = tune_weights(pools, NDCG_10, folds=FOLDS)
    return TunedWeights(found, summary_of_weights(found, pools, FOLDS))


def _alike(logged: Sequence[tuple[str, LoggedSignals]]) -> list[tuple[str, LoggedSignals]]:
    """Return the signals of the encoder and of the names that most queries have; the later ones of equal numbers."""
    kinds = [(signals.encoder, signals.names) for _, signals in logged]
    if not kinds:
        return []
    most = max(reversed(kinds), key=kinds.count)
    return [one for one, kind in zip(logged, kinds, strict=True) if kind == most]
