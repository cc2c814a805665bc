"""From how many judged queries on learning pays: weights and trees against blend with its default weights.

    python -m benchmarks.few_judgements

For 20, 50, 100, 500 training queries and three draws of them: weights as `es-ttc tune --method blend` finds them, and
trees as `es-ttc train rank` fits them, on test queries of the same collection. `written` is what a user gets: weights
or trees if their cross-fitted gain on the training queries is clear, and blend's defaults if not. `from nothing`: trees
that do not begin from blend's mean. The figure shows weights, trees and what is written of both, over the three draws.
"""

import argparse
import sys
import time
from collections.abc import Mapping

import numpy as np

from benchmarks.common import heading, table
from benchmarks.figures import BAR, INK, MUTED, STRONG, figure, save
from benchmarks.judged_pools import TRAINED, difference, kept
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.metrics import Float64
from es_ttc.lab.ranking.lambdamart import RankOptions, fit, train, values_of_trees
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.ranking.weights import compared, normalised, tune_weights, values_of_default, values_of_weights
from es_ttc.rescorers.blend.rescorer import BlendParams

METRIC = "ndcg@10"
SIZES = (20, 50, 100, 500)
SEEDS = (0, 1, 2)
FOLDS = 5
KINDS = ("weights", "trees", "trees from nothing", "weights, written", "trees, written")
DRAWS = ("weights", "trees")
"""Kinds of which each draw is shown."""
FIGURE = "few_judgements.svg"
LINES = {
    "weights": (STRONG, "-"),
    "trees": (MUTED, "-"),
    "weights, written": (STRONG, ":"),
    "trees, written": (MUTED, ":"),
}
"""Colour and style of the lines of the figure."""

Curves = Mapping[str, Mapping[int, Comparison]]
"""By kind and number of training queries, the difference from blend."""


def main() -> None:
    """Print the tables, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(TRAINED), help="names of collections")
    arguments = parser.parse_args()
    described = ", ".join(arguments.data)
    print(heading("Few judgements, all-MiniLM-L6-v2", data=described, packages=("numpy", "lightgbm")))
    curves: dict[str, Curves] = {}
    for name in arguments.data:
        began = time.perf_counter()
        pools, test = kept(name, "train"), kept(name, "test")
        default = values_of_default(test, METRIC)
        rows = []
        of_kind: dict[str, dict[int, Comparison]] = {kind: {} for kind in LINES}
        for size in SIZES:
            learned = [on_test(drawn(pools, size, seed), test, default, seed) for seed in SEEDS]
            row: list[object] = [size]
            for kind in KINDS:
                reached = np.mean([values[kind] for values, _ in learned], axis=0)
                row.append(difference(reached, default))
                if kind in LINES:
                    of_kind[kind][size] = compared(reached, default)
                if kind in DRAWS:
                    row.append(" ".join(f"{found[kind].mean() - default.mean():+.3f}" for found, _ in learned))
            clear = [sum(written[kind] for _, written in learned) for kind in ("weights", "trees")]
            rows.append([*row, f"{clear[0]}, {clear[1]}"])
        curves[f"{name} (blend {default.mean():.3f})"] = of_kind
        columns = ["training queries"]
        for kind in KINDS:
            columns += [kind, *(["each draw"] if kind in DRAWS else [])]
        print(f"{name}: {len(test)} test queries, blend {default.mean():.3f}\n")
        print(table([*columns, "clear of 3: weights, trees"], rows), flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    draw(curves)


def draw(curves: Mapping[str, Curves]) -> None:
    """Draw one panel a collection: the difference from blend by training queries; bands are 95 % intervals."""
    with figure(9.2, 3.4) as picture:
        panels = np.atleast_1d(picture.subplots(1, len(curves), sharey=True))
        for axes, (name, of_kind) in zip(panels, curves.items(), strict=True):
            axes.axhline(0, color=INK, linewidth=0.8)
            for kind, points in of_kind.items():
                colour, style = LINES[kind]
                sizes, found = list(points), list(points.values())
                axes.plot(
                    sizes, [one.delta for one in found], style, color=colour, marker="o", markersize=3, label=kind
                )
                if style == "-":
                    low, high = [one.interval.low for one in found], [one.interval.high for one in found]
                    axes.fill_between(sizes, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.set_xscale("log")
            axes.set_xticks(list(SIZES), [str(size) for size in SIZES])
            axes.minorticks_off()
            axes.set_title(name, loc="left", fontsize=11, color=INK)
            axes.set_xlabel("judged queries", color=MUTED)
            axes.grid(axis="y", color=BAR, linewidth=0.4)
        panels[0].set_ylabel("nDCG@10 less blend's", color=MUTED)
        panels[-1].legend(frameon=False, labelcolor=INK, fontsize=9)
        save(picture, FIGURE)


def drawn(pools: Pools, size: int, seed: int) -> Pools:
    """Return the pools of so many queries, drawn at random."""
    return pools.some(np.random.default_rng(seed).permutation(len(pools))[:size])


def on_test(pools: Pools, test: Pools, default: Float64, seed: int) -> tuple[Mapping[str, Float64], Mapping[str, bool]]:
    """Return each test query's value under what was learned, and what was clear on the training queries."""
    weights = tune_weights(pools, METRIC, folds=FOLDS)
    params = weights.tuning.best.params
    assert isinstance(params, BlendParams)
    if params.signals is None:
        by_weights = default
    else:
        row = np.array([[params.signals.get(name, 0.0) for name in test.signals]])
        by_weights = values_of_weights(test, normalised(test, "z"), row, METRIC)[0]
    trees = train(pools, METRIC, folds=FOLDS, options=RankOptions(seed=seed))
    by_trees = values_of_trees(test, trees.trees, RankOptions().blend, METRIC)
    alone, _ = fit(pools, RankOptions(blend=0.0, seed=seed))
    values = {
        "weights": by_weights,
        "weights, written": by_weights if weights.clear else default,
        "trees": by_trees,
        "trees, written": by_trees if trees.clear else default,
        "trees from nothing": values_of_trees(test, alone, 0.0, METRIC),
    }
    return values, {"weights": weights.clear, "trees": trees.clear}


if __name__ == "__main__":
    main()
