"""Choose a method's parameters by a metric, on queries that are not used for reported figures.

All combinations of a grid's values are run on the same queries, and the one with the greatest mean is chosen. The
method's defaults are always among them and are chosen if there is a tie. On the queries that were used for the choice,
its mean is biased upwards. If there are no other queries, cross-fitting gives an unbiased estimate: each fold is
answered with the parameters that the other folds chose (Stone, *Cross-validatory choice*, 1974).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.bootstrap import SEED, Comparison, compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve_one
from es_ttc.lab.evaluation.metrics import check_metric, score_by
from es_ttc.lab.evaluation.rankings import ReportStage, Searcher, silent
from es_ttc.vectors.tokens import Float64

Grid = Mapping[str, Sequence[Any]]

FOLDS = 5  # of a cross-fit
MAX_COMBINATIONS = 2_000
_ALIKE = 1e-12  # means that differ by less are equal: rounding must not choose


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was tried, and what came out best.

    `values` is ``(c, q)``, the first candidate has the defaults. `reached` is ``(q,)``: each query's value under the
    chosen candidate or, with folds, under the one that the other folds chose (`by_fold`): then no query has a say in
    how it is answered.
    """

    metric: str
    candidates: tuple[EvaluatedMethod, ...]
    values: Float64
    chosen: int
    by_fold: tuple[int, ...]
    reached: Float64
    against_default: Comparison

    @property
    def best(self) -> EvaluatedMethod:
        """The method with the parameters chosen."""
        return self.candidates[self.chosen]


def grid_candidates(
    name: str, params: Mapping[str, Any] | None = None, grid: Grid | None = None
) -> tuple[EvaluatedMethod, ...]:
    """Return a method with every combination of a grid's values, the one with its defaults first."""
    default = resolve_one(name, params)
    tried = list(default.params.tried()) if grid is None else _combinations(grid)
    if not tried:
        raise InvalidRequest(
            f'method [{name}] declares no values to try: give them with --grid, e.g. {{"PARAMETER": [0.1, 0.2]}}'
        )
    found = {default.params.model_dump_json(): default}
    for combination in tried:
        method = resolve_one(name, {**(params or {}), **combination})
        found.setdefault(method.params.model_dump_json(), method)
    return tuple(found.values())


def _combinations(grid: Grid) -> list[dict[str, Any]]:
    for key, values in grid.items():
        if not (isinstance(values, list | tuple) and values):
            raise InvalidRequest(f"[grid] gives [{key}] no list of values: write e.g. [0.1, 0.2]")
    size = prod(len(values) for values in grid.values())
    if size > MAX_COMBINATIONS:
        raise InvalidRequest(f"[grid] has {size:,} combinations, and up to {MAX_COMBINATIONS:,} are tried: give fewer")
    return [dict(zip(grid, combination, strict=True)) for combination in product(*grid.values())] if grid else []


def tune_method(
    collection: Collection,
    methods: Sequence[EvaluatedMethod],
    searcher: Searcher,
    metric: str,
    *,
    folds: int | None = None,
    seed: int = SEED,
    progress: ReportStage = silent,
) -> Tuning:
    """Run candidates on a collection's queries and choose."""
    check_metric(metric)
    queries = len(collection.queries)
    if folds is not None and not 2 <= folds <= queries:
        raise InvalidRequest(f"[folds] is {folds}: {queries} queries can be parted into 2 to {queries} folds")
    values = np.empty((len(methods), queries))
    for place, method in enumerate(methods):

        def report(what: str, done: int, _: int, before: int = place * queries) -> None:
            progress(what, before + done, values.size)

        values[place] = score_by(metric, collection.qrels, searcher.rank(method, report).rankings)
    return choose(metric, tuple(methods), values, folds=folds, seed=seed)


def choose(
    metric: str, methods: tuple[EvaluatedMethod, ...], values: Float64, *, folds: int | None = None, seed: int = SEED
) -> Tuning:
    """Choose from values that are known, ``(c, q)``; see :func:`tune_method`."""
    chosen = best_candidate(values)
    by_fold, reached = ((), values[chosen]) if folds is None else cross_fitted(values, folds, seed)
    return Tuning(metric, methods, values, chosen, by_fold, reached, compared(reached, values[0], seed))


def cross_fitted(values: Float64, folds: int, seed: int) -> tuple[tuple[int, ...], Float64]:
    """Return the candidate that the queries outside of each fold choose, and each query's value under it, ``(q,)``."""
    fold = fold_of(values.shape[1], folds, seed)
    by_fold = tuple(best_candidate(values[:, fold != one]) for one in range(folds))
    reached: Float64 = values[np.array(by_fold)[fold], np.arange(values.shape[1])]
    return by_fold, reached


def compared(ours: Float64, theirs: Float64, seed: int = SEED) -> Comparison:
    """Return a paired comparison of the values of the same queries by bootstrap."""
    means = resampled_means(np.stack([ours, theirs]), seed=seed)
    return compare(ours, theirs, means[:, 0], means[:, 1])


def best_candidate(values: Float64) -> int:
    """Return the place of the greatest mean; of equal ones the first."""
    means = values.mean(axis=1)
    return int(np.argmax(means >= means.max() - _ALIKE))


def fold_of(queries: int, folds: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of each query, ``(q,)``: parts of equal size but for one, drawn at random."""
    return np.random.default_rng(seed).permutation(queries) % folds


def summary_of(
    found: Tuning,
    data: str,
    split: str,
    settings: Mapping[str, Any],
    encoder: str | None,
    folds: int | None,
    seed: int,
    *,
    sampled: bool,
    most: int | None = None,
) -> dict[str, Any]:
    """Return the file of tuned parameters: first what its readers need, then where it comes from."""
    means = found.values.mean(axis=1).tolist()
    shown: Sequence[int] = range(len(means))
    if most is not None:
        shown = sorted(shown, key=lambda place: (-means[place], place))[:most]
    against = found.against_default
    return {
        "method": found.best.name,
        "params": given_params(found.best),
        "data": data,
        "split": split,
        "encoder": encoder,
        "metric": found.metric,
        "value": means[found.chosen],
        "default": {"params": given_params(found.candidates[0]), "value": means[0]},
        "against_default": {
            "value": float(found.reached.mean()),
            **against.as_json(),
            "cross_fitted": folds is not None,
            "by_fold": [given_params(found.candidates[place]) for place in found.by_fold],
        },
        "queries": found.values.shape[1],
        "sampled": sampled,
        "seed": seed,
        **settings,
        "tried": [{"params": given_params(found.candidates[place]), "value": means[place]} for place in shown],
        "versions": provenance.versions(),
        "date": provenance.timestamp(),
    }


def given_params(method: EvaluatedMethod) -> dict[str, Any]:
    """Return the parameters that are set, as a request writes them."""
    params: dict[str, Any] = method.params.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return params
