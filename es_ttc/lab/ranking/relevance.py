"""Relevance from judgements: the probability that a hit is relevant, fitted to the first hits of `blend`.

The model is :class:`es_ttc.rescorers.relevance.Calibration`. It is fitted by penalised maximum likelihood under the
constraint that no weight is negative (accelerated projected gradient; Beck and Teboulle, 2009). All figures are of
queries that were not fitted: each fold is predicted by the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.bootstrap import SEED, TRUSTED_QUERIES, Comparison
from es_ttc.lab.evaluation.tuning import fold_of
from es_ttc.lab.ranking.pools import Float64, Pools
from es_ttc.lab.ranking.weights import compared, normalised
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.relevance import Calibration, Logistic, RelevanceSignal

DEPTH = 10
"""First hits of each query that are fitted."""
FOLDS = 5
SIZES = (20, 50, 100, 300)
"""Numbers of judged queries for which figures are shown."""
MIN_QUERIES = TRUSTED_QUERIES
MIN_HITS = 20
"""Least number of relevant hits, and of hits that are not relevant."""
BINS = 10
_DRAWS = 10
_PENALTY = 1.0
_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class JudgedHits:
    """The first hits of judged queries that have all signals.

    Attributes:
        names: The signals.
        signals: ``(n, s)`` float64.
        relevant: ``(n,)`` 1 for a relevant hit, else 0.
        query: ``(n,)`` the place of each hit's query, from 0 without gaps.
    """

    names: tuple[RelevanceSignal, ...]
    signals: Float64
    relevant: Float64
    query: NDArray[np.intp]

    @property
    def queries(self) -> int:
        """Number of queries with a hit."""
        return int(self.query[-1]) + 1 if len(self.query) else 0

    @property
    def without_blend(self) -> "JudgedHits":
        """The hits with the signals that do not depend on other documents."""
        columns = [place for place, name in enumerate(self.names) if name != "blend"]
        names = tuple(self.names[place] for place in columns)
        return JudgedHits(names, self.signals[:, columns], self.relevant, self.query)

    def of(self, mask: NDArray[np.bool_]) -> "JudgedHits":
        """Return some of the hits."""
        _, query = np.unique(self.query[mask], return_inverse=True)
        return JudgedHits(self.names, self.signals[mask], self.relevant[mask], query)


@dataclass(frozen=True, slots=True)
class Model:
    """An intercept and a weight for each signal, ``(s,)``."""

    names: tuple[RelevanceSignal, ...]
    intercept: float
    weights: Float64

    def as_logistic(self) -> Logistic:
        """Return the numbers as a file has them."""
        weights = dict(zip(self.names, self.weights.tolist(), strict=True))
        return Logistic(intercept=self.intercept, weights=weights)

    def of(self, signals: Float64) -> Float64:
        """Return the relevance of hits, ``(n,)``, from their signals, ``(n, s)``."""
        relevance: Float64 = 1 / (1 + np.exp(-(self.intercept + signals @ self.weights)))
        return relevance


@dataclass(frozen=True, slots=True)
class Bin:
    """Hits of similar relevance: their mean relevance, the share of relevant ones, and their number."""

    relevance: float
    share: float
    hits: int


@dataclass(frozen=True, slots=True)
class Figures:
    """How good predicted relevances are.

    Attributes:
        brier: Mean squared difference from 1 of a relevant hit and 0 of another.
        error: Expected calibration error over ten bins of equal numbers of hits.
        auc: Probability that a relevant hit has the greater relevance of two hits; .5 where all are alike.
        relevance: Mean relevance.
        share: Share of relevant hits.
    """

    brier: float
    error: float
    auc: float
    relevance: float
    share: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted to all queries, and how good it is on queries that were not fitted.

    Attributes:
        model: Fitted to all queries.
        few: The same for small windows: without the signal `blend`.
        predicted: ``(n,)`` the relevance of each hit by a model that the other folds' queries gave.
        figures: Of `predicted`.
        figures_of_few: Those of the other model, measured in the same way.
        gain: By how much the Brier score is less than with the other folds' share of relevant hits for all.
        curve: By number of fitted queries the mean figures on the other queries, over ten draws.
    """

    hits: JudgedHits
    model: Model
    few: Model
    predicted: Float64
    figures: Figures
    figures_of_few: Figures
    gain: Comparison
    curve: Mapping[int, Figures]

    @property
    def lacking(self) -> list[str]:
        """What is missing for numbers that can be trusted; empty if nothing is."""
        relevant = int(self.hits.relevant.sum())
        lacking = too_few(self.hits.queries, relevant, len(self.hits.relevant) - relevant)
        low, high = self.gain.interval.low, self.gain.interval.high
        if not lacking and low <= 0:
            lacking.append(
                "the signals tell relevant hits from others no better than one share for all (the Brier score gains "
                f"{self.gain.delta:.3f}, 95 % interval {low:.3f} to {high:.3f}): judge more queries"
            )
        return lacking

    def calibration(self, names: Sequence[str], encoder: str, blend: Mapping[str, float] | None = None) -> Calibration:
        """Return the numbers that a gateway reads."""
        return Calibration(
            names=tuple(names),
            encoder=encoder,
            blend=None if blend is None else dict(blend),
            model=self.model.as_logistic(),
            few=self.few.as_logistic(),
            queries=self.hits.queries,
            auc=self.figures.auc,
            error=self.figures.error,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "queries": self.hits.queries,
            "hits": len(self.hits.relevant),
            "relevant": int(self.hits.relevant.sum()),
            "figures": asdict(self.figures),
            "figures_of_small_windows": asdict(self.figures_of_few),
            "gain": asdict(self.gain),
            "bins": [asdict(one) for one in bins(self.hits.relevant, self.predicted)],
            "by_queries": {str(size): asdict(one) for size, one in self.curve.items()},
            "lacking": self.lacking,
        }


def too_few(queries: int, relevant: int, others: int) -> list[str]:
    """Return which judgements are missing."""
    lacking = []
    if queries < MIN_QUERIES:
        lacking.append(f"{queries} queries have judged hits, and {MIN_QUERIES} are needed: judge more queries")
    if relevant < MIN_HITS:
        lacking.append(f"{relevant} judged hits are relevant, and {MIN_HITS} are needed: judge more queries")
    if others < MIN_HITS:
        lacking.append(
            f"{others} judged hits are not relevant, and {MIN_HITS} are needed: judge those that are not, too"
        )
    return lacking


def judged_hits(
    pools: Pools,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    *,
    blend: Mapping[str, float] | None = None,
) -> JudgedHits:
    """Return the first hits of blend of each query.

    Args:
        pools: The pools, with blend's default signals.
        judged: Grades by query and document: hits without a grade are left out; None: they are not relevant.
        blend: The weights of blend's signals; None for the default ones.
    """
    pools = pools.of(DEFAULT_SIGNALS)
    weights = pools.default_weights()
    if blend is not None:
        weights[:] = [blend.get(name, 0.0) for name in pools.signals]
    means = np.einsum("qs,qns->qn", weights / weights.sum(axis=1, keepdims=True), normalised(pools, "z"))
    names = get_args(RelevanceSignal)
    rows, relevant, query = [], [], []
    for place, (pool, mean) in enumerate(zip(pools.pools, means, strict=True)):
        first = np.argsort(-mean[: len(pool.documents)], kind="stable")[:DEPTH]
        values = {**dict(zip(pools.signals, pool.scores[first].T, strict=True)), "blend": mean[first]}
        signals = np.stack([values[name] for name in names], axis=1).astype(np.float64)
        known = ~np.isnan(signals).any(axis=1)
        if judged is not None:
            known &= np.array([pool.documents[number] in judged.get(pool.query, {}) for number in first], np.bool_)
        rows.append(signals[known])
        relevant.append((pool.grades[first] > 0)[known])
        query.append(np.full(int(known.sum()), place))
    _, numbers = np.unique(np.concatenate(query), return_inverse=True)
    return JudgedHits(names, np.concatenate(rows), np.concatenate(relevant).astype(np.float64), numbers)


def fit(hits: JudgedHits) -> Model:
    """Fit a model; with hits of one kind only, all weights are 0."""
    mean, spread = hits.signals.mean(axis=0), hits.signals.std(axis=0) + 1e-9
    columns = np.column_stack([(hits.signals - mean) / spread, np.ones(len(hits.relevant))])
    penalty = np.append(np.full(len(mean), _PENALTY), 0.0)
    positive, size = hits.relevant.sum() + 0.5, len(hits.relevant) + 1
    weights = np.append(np.zeros(len(mean)), np.log(positive / (size - positive)))
    step = 1 / (np.linalg.norm(columns, 2) ** 2 / 4 + _PENALTY)
    ahead, theta = weights, 1.0
    for _ in range(_STEPS):
        predicted = 1 / (1 + np.exp(-(columns @ ahead)))
        following = ahead - step * (columns.T @ (predicted - hits.relevant) + penalty * ahead)
        following[:-1] = np.maximum(following[:-1], 0)
        if np.abs(following - weights).max() < 1e-9:
            break
        theta_next = (1 + np.sqrt(1 + 4 * theta * theta)) / 2
        ahead = following + (theta - 1) / theta_next * (following - weights)
        weights, theta = following, theta_next
    slopes = weights[:-1] / spread
    return Model(hits.names, float(weights[-1] - slopes @ mean), slopes)


def bins(relevant: Float64, predicted: Float64) -> list[Bin]:
    """Return ten bins of equal numbers of hits, by rising relevance."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(predicted)))
    return [Bin(float(predicted[part].mean()), float(relevant[part].mean()), len(part)) for part in parts]


def figures(relevant: Float64, predicted: Float64) -> Figures:
    """Return how good predicted relevances, ``(n,)``, are."""
    off = sum(abs(one.relevance - one.share) * one.hits for one in bins(relevant, predicted)) / len(relevant)
    brier = float(np.mean((predicted - relevant) ** 2))
    return Figures(brier, float(off), auc(relevant, predicted), float(predicted.mean()), float(relevant.mean()))


def auc(relevant: Float64, predicted: Float64) -> float:
    """Return the share of pairs of a relevant hit and another in which the former has more, ties half; .5 of none."""
    others = np.sort(predicted[relevant == 0])
    of_relevant = predicted[relevant == 1]
    if not len(others) or not len(of_relevant):
        return 0.5
    below = np.searchsorted(others, of_relevant, "left") + np.searchsorted(others, of_relevant, "right")
    return float(below.mean() / (2 * len(others)))


def evaluated(hits: JudgedHits, *, seed: int = SEED) -> Fit:
    """Fit to all hits, and measure on queries that were not fitted; there are two queries at least."""
    fold = fold_of(hits.queries, min(FOLDS, hits.queries), seed)[hits.query]
    constant = np.empty(len(fold))
    for one in range(fold.max() + 1):
        constant[fold == one] = hits.relevant[fold != one].mean()
    predicted, of_few = _cross_fitted(hits, fold), _cross_fitted(hits.without_blend, fold)

    def by_query(values: Float64) -> Float64:
        errors: Float64 = np.bincount(hits.query, (values - hits.relevant) ** 2) / np.bincount(hits.query)
        return errors

    gain = compared(by_query(constant), by_query(predicted), seed)
    curve = {size: _mean_figures(hits, size, seed) for size in SIZES if size <= hits.queries // 2}
    measured = figures(hits.relevant, predicted), figures(hits.relevant, of_few)
    return Fit(hits, fit(hits), fit(hits.without_blend), predicted, *measured, gain, curve)


def _cross_fitted(hits: JudgedHits, fold: NDArray[np.intp]) -> Float64:
    """Return the relevance of each hit, ``(n,)``, by a model that the other folds' hits gave."""
    predicted = np.empty(len(fold))
    for one in range(fold.max() + 1):
        predicted[fold == one] = fit(hits.of(fold != one)).of(hits.signals[fold == one])
    return predicted


def _mean_figures(hits: JudgedHits, size: int, seed: int) -> Figures:
    """Return mean figures of fits to `size` queries, drawn at random, on the other queries."""
    found = []
    for draw in range(_DRAWS):
        chosen = np.random.default_rng([seed, draw]).permutation(hits.queries)[:size]
        fitted = np.isin(hits.query, chosen)
        found.append(figures(hits.relevant[~fitted], fit(hits.of(fitted)).of(hits.signals[~fitted])))
    return Figures(*np.mean([list(asdict(one).values()) for one in found], axis=0).tolist())
