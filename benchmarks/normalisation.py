"""How blend's signals are made comparable: by the window, by figures of sampled queries, or by theoretical minima.

    python -m benchmarks.normalisation

`window z` is blend's default: mean and standard deviation of each signal over the query's own candidates. `calibrated`
takes both from the candidates of other queries: half of a collection's queries serve the other half. `theoretical` is
TM2C2 (Bruch et al., ACM TOIS 2023): the least value that a signal can have is 0, the greatest of the window 1.
Training queries, and the demonstration's two collections, which have no others. With equal weights, and with weights
that the other folds choose among the 1,775 of `es-ttc tune --method blend`.
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.common import heading, table
from benchmarks.judged_pools import TRAINED, kept
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.metrics import Float64
from es_ttc.lab.evaluation.tuning import best, fold_of
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.ranking.weights import compared, normalised, values_of_weights, weight_grid
from es_ttc.vectors.tokens import Float32

METRIC = "ndcg@10"
FOLDS = 5
LEAST = {"lexical": 0.0}
"""The least value of a signal; cosines have -1."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    collections = [*((name, "train") for name in TRAINED), ("limit-style", "test"), ("python-3.11", "test")]
    found = {name: measured(kept(name, split)) for name, split in collections}
    described = ", ".join(f"{name} ({split})" for name, split in collections)
    print(heading("Normalisation, all-MiniLM-L6-v2", data=described))
    for kind in ("equal weights", "weights by cross-fitting"):
        rows = []
        for name, values in found.items():
            window = values["window z", kind]
            row: list[object] = [name, len(window), f"{window.mean():.3f}"]
            for other in list(METHODS)[1:]:
                row += [f"{values[other, kind].mean():.3f}", difference(values[other, kind], window)]
            rows.append(row)
        columns = [f"nDCG@10, {kind}", "queries", "window z"]
        for other in list(METHODS)[1:]:
            columns += [other, "difference"]
        print(table(columns, rows))


def measured(pools: Pools) -> Mapping[tuple[str, str], Float64]:
    """Return each query's value by normalisation and kind of weights."""
    weights = weight_grid(len(pools.signals))
    fold = fold_of(len(pools), FOLDS, SEED)
    found = {}
    for name, method in METHODS.items():
        values = values_of_weights(pools, method(pools), weights, METRIC)
        chosen = np.array([best(values[:, fold != one]) for one in range(FOLDS)])
        found[name, "equal weights"] = values[0]
        found[name, "weights by cross-fitting"] = values[chosen[fold], np.arange(len(pools))]
    return found


def window_z(pools: Pools) -> Float32:
    """Return z-scores over each query's own candidates."""
    return normalised(pools, "z")


def calibrated(pools: Pools) -> Float32:
    """Return z-scores by the mean and deviation over the candidates of the other half of the queries."""
    half = np.random.default_rng(SEED).permutation(len(pools)) % 2
    cube = np.zeros_like(normalised(pools, "z"))
    for one in (0, 1):
        sampled = np.concatenate([pool.scores for pool, part in zip(pools.pools, half, strict=True) if part != one])
        mean, deviation = np.nanmean(sampled, axis=0), np.nanstd(sampled, axis=0)
        for place in np.flatnonzero(half == one):
            scores = pools.pools[place].scores
            cube[place, : len(scores)] = np.nan_to_num((scores - mean) / np.maximum(deviation, 1e-6))
    return cube


def theoretical(pools: Pools) -> Float32:
    """Return each score's place between the least that is possible and the greatest of the window."""
    least = np.array([LEAST.get(name, -1.0) for name in pools.signals], np.float32)
    cube = np.zeros_like(normalised(pools, "z"))
    for row, pool in zip(cube, pools.pools, strict=True):
        reach = np.nanmax(pool.scores, axis=0) - least
        row[: len(pool.scores)] = np.nan_to_num((pool.scores - least) / np.maximum(reach, 1e-6))
    return cube


METHODS: Mapping[str, Callable[[Pools], Float32]] = {
    "window z": window_z,
    "calibrated": calibrated,
    "theoretical": theoretical,
}


def difference(ours: Float64, theirs: Float64) -> str:
    """Return the mean difference, bold where its interval leaves out 0."""
    one = compared(ours, theirs)
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    delta, low, high = (round(value, 3) + 0.0 for value in (one.delta, one.interval.low, one.interval.high))
    return f"{sure}{delta:+.3f}{sure} ({low:+.3f}..{high:+.3f})"


if __name__ == "__main__":
    main()
