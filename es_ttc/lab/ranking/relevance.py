"""Relevance from judgements: the probability that a hit is relevant, fitted to the first hits of `blend`.

The model is :class:`es_ttc.rescorers.relevance.Logistic`. It is fitted by penalised maximum likelihood under the
constraint that no weight is negative (accelerated projected gradient; Beck and Teboulle, 2009). All figures are of
queries that were not fitted: each fold is predicted by the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.bootstrap import SEED, TRUSTED_QUERIES, Comparison
from es_ttc.lab.evaluation.tuning import FOLDS, compared, fold_of
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.ranking.weights import normalised
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.relevance import Logistic, RelevanceSignal
from es_ttc.vectors.tokens import Float64

JUDGED_HITS = 10  # first hits of each query that are fitted
FIGURE_SIZES = (20, 50, 100, 300)  # numbers of judged queries for which figures are shown
MIN_CALIBRATION_QUERIES = TRUSTED_QUERIES
MIN_HITS = 20  # least number of relevant hits, and of hits that are not relevant
BINS = 10
_DRAWS = 10
_PENALTY = 1.0
_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class JudgedHits:
    """The first hits of judged queries that have all signals: ``(n,)`` float64 each, relevant 1 or 0.

    `query` is the place of each hit's query, from 0 without gaps.
    """

    signals: Mapping[str, Float64]
    relevant: Float64
    query: NDArray[np.intp]

    @property
    def queries(self) -> int:
        """Number of queries with a hit."""
        return int(self.query.max(initial=-1)) + 1

    @property
    def without_blend(self) -> "JudgedHits":
        """The hits with the signals that do not depend on other documents."""
        signals = {name: values for name, values in self.signals.items() if name != "blend"}
        return JudgedHits(signals, self.relevant, self.query)

    def of(self, mask: NDArray[np.bool_]) -> "JudgedHits":
        """Return some of the hits."""
        _, query = np.unique(self.query[mask], return_inverse=True)
        return JudgedHits({name: one[mask] for name, one in self.signals.items()}, self.relevant[mask], query)


class Bin(NamedTuple):
    """Hits of similar relevance: their mean relevance, the share of relevant ones, and their number."""

    relevance: float
    share: float
    hits: int


class FitQuality(NamedTuple):
    """How good predicted relevances are."""

    brier: float  # mean squared difference from 1 of a relevant hit and 0 of another
    error: float  # expected calibration error over ten bins of equal numbers of hits
    auc: float  # probability that a relevant hit has the greater relevance of two hits; .5 where all are alike
    relevance: float  # mean relevance
    share: float  # share of relevant hits


@dataclass(frozen=True, slots=True)
class RelevanceFit:
    """Models of all queries, and how good they are on queries that were not fitted."""

    hits: JudgedHits
    model: Logistic  # for windows of 30 documents and more
    few: Logistic  # for smaller ones: without the signal `blend`
    figures: FitQuality  # of the hits, each predicted by a model of the other folds' queries
    bins: Sequence[Bin]  # of the same
    gain: Comparison  # by how much the Brier score is less than with the other folds' share of relevant hits for all
    by_queries: Mapping[int, FitQuality]  # by number of fitted queries the figures of the other queries
    lacking: Sequence[str]  # what is missing for numbers that can be trusted; empty if nothing is

    def report(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "queries": self.hits.queries,
            "hits": len(self.hits.relevant),
            "relevant": int(self.hits.relevant.sum()),
            "figures": self.figures._asdict(),
            "gain": asdict(self.gain),
            "bins": [one._asdict() for one in self.bins],
            "by_queries": {str(size): one._asdict() for size, one in self.by_queries.items()},
            "lacking": self.lacking,
        }


def judged_hits(
    pools: Pools,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    *,
    blend: Mapping[str, float] | None = None,
) -> JudgedHits:
    """Return the first hits of blend for each query; with `judged` unjudged hits are left out."""
    pools = pools.of(DEFAULT_SIGNALS)
    weights = pools.default_weights()
    if blend is not None:
        weights[:] = [blend.get(name, 0.0) for name in pools.signals]
    means = np.einsum("qs,qns->qn", weights / weights.sum(axis=1, keepdims=True), normalised(pools, "z"))
    rows, relevant, query = [], [], []
    for place, (pool, mean) in enumerate(zip(pools.pools, means, strict=True)):
        first = np.argsort(-mean[: len(pool.documents)], kind="stable")[:JUDGED_HITS]
        signals = np.column_stack([pool.scores[first], mean[first]]).astype(np.float64)
        known = ~np.isnan(signals[:, 1:]).any(axis=1)
        if judged is not None:
            known &= np.array([pool.documents[number] in judged.get(pool.query, {}) for number in first], np.bool_)
        rows.append(signals[known])
        relevant.append((pool.grades[first] > 0)[known])
        query.append(np.full(int(known.sum()), place))
    columns = dict(zip((*pools.signals, "blend"), np.concatenate(rows).T, strict=True))
    _, numbers = np.unique(np.concatenate(query), return_inverse=True)
    named = {name: columns[name] for name in get_args(RelevanceSignal)}
    return JudgedHits(named, np.concatenate(relevant).astype(np.float64), numbers)


def fit_relevance(hits: JudgedHits) -> Logistic:
    """Fit a model; with hits of one kind only, all weights are 0."""
    signals = np.column_stack([*hits.signals.values()])
    mean, spread = signals.mean(axis=0), signals.std(axis=0) + 1e-9
    columns = np.column_stack([(signals - mean) / spread, np.ones(len(signals))])
    penalty = np.append(np.full(len(mean), _PENALTY), 0.0)
    positive, size = hits.relevant.sum() + 0.5, len(signals) + 1
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
    by_name = dict(zip(hits.signals, slopes.tolist(), strict=True))
    return Logistic.model_validate({"intercept": float(weights[-1] - slopes @ mean), "weights": by_name})


def bins(relevant: Float64, predicted: Float64) -> list[Bin]:
    """Return ten bins of equal numbers of hits, by rising relevance."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(predicted)))
    return [Bin(float(predicted[part].mean()), float(relevant[part].mean()), len(part)) for part in parts]


def calibration_figures(relevant: Float64, predicted: Float64) -> FitQuality:
    """Return how good predicted relevances, ``(n,)``, are."""
    off = sum(abs(one.relevance - one.share) * one.hits for one in bins(relevant, predicted)) / len(relevant)
    brier = float(np.mean((predicted - relevant) ** 2))
    return FitQuality(brier, float(off), auc(relevant, predicted), float(predicted.mean()), float(relevant.mean()))


def mean_figures(found: Sequence[FitQuality]) -> FitQuality:
    """Return the mean of each figure."""
    return FitQuality(*np.mean(found, axis=0).tolist())


def auc(relevant: Float64, predicted: Float64) -> float:
    """Return the share of pairs of a relevant hit and another in which the former has more, ties half; .5 of none."""
    others = np.sort(predicted[relevant == 0])
    of_relevant = predicted[relevant == 1]
    if not len(others) or not len(of_relevant):
        return 0.5
    below = np.searchsorted(others, of_relevant, "left") + np.searchsorted(others, of_relevant, "right")
    return float(below.mean() / (2 * len(others)))


def evaluated(hits: JudgedHits, *, seed: int = SEED) -> RelevanceFit:
    """Fit to all hits, and measure on queries that were not fitted; there are two queries at least."""
    fold = fold_of(hits.queries, min(FOLDS, hits.queries), seed)[hits.query]
    predicted, share = np.empty(len(fold)), np.empty(len(fold))
    for one in range(fold.max() + 1):
        test = fold == one
        predicted[test] = fit_relevance(hits.of(~test)).of(hits.of(test).signals)
        share[test] = hits.relevant[~test].mean()
    of_share, of_model = (
        np.bincount(hits.query, (one - hits.relevant) ** 2) / np.bincount(hits.query) for one in (share, predicted)
    )
    gain = compared(of_share, of_model, seed)
    return RelevanceFit(
        hits,
        fit_relevance(hits),
        fit_relevance(hits.without_blend),
        calibration_figures(hits.relevant, predicted),
        bins(hits.relevant, predicted),
        gain,
        {size: figures_of_size(hits, size, seed) for size in FIGURE_SIZES if size <= hits.queries // 2},
        _lacking(hits, gain),
    )


def figures_of_size(hits: JudgedHits, size: int, seed: int = SEED) -> FitQuality:
    """Return mean figures of fits to `size` queries, drawn at random ten times, on the other queries."""
    found = []
    for draw in range(_DRAWS):
        chosen = np.random.default_rng([seed, draw]).permutation(hits.queries)[:size]
        train = np.isin(hits.query, chosen)
        found.append(
            calibration_figures(hits.relevant[~train], fit_relevance(hits.of(train)).of(hits.of(~train).signals))
        )
    return mean_figures(found)


def _lacking(hits: JudgedHits, gain: Comparison) -> list[str]:
    relevant = int(hits.relevant.sum())
    lacking = [
        f"{count} {what}, and {least} are needed: {fix}"
        for count, least, what, fix in (
            (hits.queries, MIN_CALIBRATION_QUERIES, "queries have judged hits", "judge more queries"),
            (relevant, MIN_HITS, "judged hits are relevant", "judge more queries"),
            (len(hits.relevant) - relevant, MIN_HITS, "judged hits are not relevant", "judge those that are not, too"),
        )
        if count < least
    ]
    if not lacking and gain.interval.low <= 0:
        lacking.append(
            "relevance predicts no better than the mean share of relevant hits does (the Brier score gains "
            f"{gain.delta:.3f}, 95 % interval {gain.interval.low:.3f} to {gain.interval.high:.3f}): judge more queries"
        )
    return lacking
