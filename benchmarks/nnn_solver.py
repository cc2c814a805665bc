"""The non-negative elastic net's solvers: time for one query at the same objective, and how the active set grows.

Targets (384 components): n 1,000 under 2 ms, n 10,000 under 20 ms, duality gap below 1e-9, 50 times faster than plain
FISTA at its gap. One thread and its processor time, so that no solver gains or loses by the machine's other work.

FISTA's bound L is given (it belongs to the dictionary, not to the query), its number of steps is the least whose gap is
below 1e-6, found beforehand and not timed, and it computes in float32: all to its favour.

    python -m benchmarks.nnn_solver --plot     also draws docs/images/nnn-growth.svg
"""

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import process_time
from typing import Any

import celer
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet
from threadpoolctl import threadpool_limits

from benchmarks.common import heading, milliseconds, table
from benchmarks.figures import BAR, MUTED, STRONG, figure, save
from es_ttc.rescorers.nnn import Dictionary, Penalty, select, solve
from es_ttc.rescorers.nnn.fista import fista, iterates, lipschitz
from es_ttc.rescorers.nnn.objective import Float64, Rows, duality_gap
from es_ttc.vectors.tokens import Float32

DIMS = 384
SIZES = (100, 1_000, 10_000)
PENALTY = Penalty(0.1, 0.05)
GAP = 1e-9
MOST_STEPS = 20_000
TARGETS = {1_000: "2", 10_000: "20"}


def unit(matrix: Float64) -> Float32:
    rows: Float32 = (matrix / np.linalg.norm(matrix, axis=-1, keepdims=True)).astype(np.float32)
    return rows


def corpus(n: int, dims: int = DIMS, *, documents_per_topic: int = 20, seed: int = 0) -> tuple[Float32, Float32]:
    """Documents around topics that have a direction in common, as encoders' have, and a query across four of them."""
    random = np.random.default_rng(seed)

    def directions(count: int) -> Float64:
        return unit(random.standard_normal((count, dims))).astype(np.float64)

    topics = directions(max(5, n // documents_per_topic))
    rows = unit(topics[random.integers(len(topics), size=n)] + 0.7 * directions(n) + 0.8 * directions(1))
    return rows, unit(rows[random.choice(n, 4, replace=False)].sum(axis=0) + 0.5 * directions(1)[0])


def steps_to_gap(rows: Rows, query: Float32, bound: float, *, restart: bool) -> int:
    """Return after how many steps the gap is below GAP, to a tenth."""
    due = 1
    for step, x in enumerate(islice(iterates(rows, query[None], PENALTY, restart=restart, bound=bound), MOST_STEPS), 1):
        if step >= due:
            if duality_gap(rows, query, x[0], PENALTY) < GAP:
                return step
            due = max(step + 1, int(1.1 * step))
    return MOST_STEPS


def fitted(model_type: Any, columns: Float64, query: Float32, **options: Any) -> Float64:
    """Solve by another library, whose objective is ours divided by the number of components."""
    l1, l2 = PENALTY.l1, PENALTY.l2
    model = model_type(
        alpha=(l1 + l2) / len(query), l1_ratio=l1 / (l1 + l2), positive=True, fit_intercept=False, tol=GAP, **options
    )
    x: Float64 = model.fit(columns, query.astype(np.float64)).coef_
    return x


def solvers_table() -> str:
    lines = []
    for n in SIZES:
        rows, query = corpus(n)
        dictionary = Dictionary.of(rows)
        bound = lipschitz(rows, PENALTY.l2)
        exact = solve(dictionary, query, PENALTY)
        columns = np.asfortranarray(rows.T.astype(np.float64))
        calls: dict[str, Any] = {"active set": lambda d=dictionary, q=query: solve(d, q, PENALTY).x}
        steps = {"active set": exact.iterations}
        for name, restart in (("FISTA", False), ("FISTA with restart", True)):
            steps[name] = steps_to_gap(rows, query, bound, restart=restart)
            calls[name] = lambda r=rows, q=query, s=steps[name], again=restart, b=bound: fista(
                r, q[None], PENALTY, steps=s, restart=again, bound=b
            )[0]
        calls["scikit-learn"] = partial(fitted, ElasticNet, columns, query, max_iter=100_000, copy_X=False)
        calls["celer"] = partial(fitted, celer.ElasticNet, columns, query)
        ours = 0.0
        for name, call in calls.items():
            slow = n >= 1000 and name.startswith("FISTA")
            took, _ = milliseconds(call, repeat=1 if slow else 15, warmup=0 if slow else 1, clock=process_time)
            ours = ours or took
            gap = duality_gap(rows, query, call(), PENALTY)
            target = TARGETS.get(n, "") if name == "active set" else ""
            lines.append(
                (f"{n:,}", name, f"{took:,.2f}", target, f"{took / ours:,.0f}", f"{gap:.0e}", steps.get(name, ""))
            )
    return table(("n", "solver", "ms", "target", "times ours", "duality gap", "steps"), lines)


@dataclass(frozen=True)
class Point:
    """One measurement of growth: the problem, and what its solution took."""

    n: int
    dims: int
    penalty: Penalty
    selected: int
    passes: int
    ms: float


def growth() -> dict[str, list[Point]]:
    """Measure one thing growing at a time: documents, components, selected documents (as l1 falls)."""
    return {
        "documents n": [point(n, DIMS, PENALTY) for n in (100, 300, 1_000, 3_000, 10_000)],
        "components d": [point(1_000, dims, PENALTY) for dims in (96, 192, 384, 768, 1_536)],
        "documents selected": [point(1_000, DIMS, Penalty(l1, PENALTY.l2)) for l1 in (0.3, 0.2, 0.1, 0.05, 0.02, 0.0)],
    }


def point(n: int, dims: int, penalty: Penalty) -> Point:
    rows, query = corpus(n, dims)
    dictionary = Dictionary.of(rows)
    solution = solve(dictionary, query, penalty)
    took, _ = milliseconds(partial(solve, dictionary, query, penalty), repeat=15, clock=process_time)
    return Point(n, dims, penalty, len(solution.support), solution.iterations, took)


def growth_table(grown: Mapping[str, Sequence[Point]]) -> str:
    lines = [
        (what, f"{one.n:,}", one.dims, one.penalty.l1, one.penalty.l2, one.selected, one.passes, f"{one.ms:.2f}")
        for what, points in grown.items()
        for one in points
    ]
    return table(("grows", "n", "d", "l1", "l2", "selected", "passes over the dictionary", "ms"), lines)


def draw(grown: Mapping[str, Sequence[Point]]) -> None:
    """Draw one panel a kind of growth, on logarithmic scales."""
    along = {"n": (100, 1_000, 10_000), "dims": (96, 384, 1_536), "selected": (5, 10, 20, 50)}
    with figure(9.2, 3.0) as drawn:
        panels = drawn.subplots(1, len(grown), sharey=True)
        for axes, (what, points), (attribute, ticks) in zip(panels, grown.items(), along.items(), strict=True):
            axes.plot([getattr(one, attribute) for one in points], [one.ms for one in points], "o-", color=STRONG)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel(what, color=MUTED)
            axes.minorticks_off()
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.set_yticks((0.5, 1, 2, 5, 10), ("0.5", "1", "2", "5", "10"))
            axes.grid(color=BAR, linewidth=0.5)
        panels[0].set_ylabel("ms a query", color=MUTED)
        save(drawn, "nnn-growth.svg")


def path_table() -> str:
    lines = []
    for n in SIZES:
        rows, query = corpus(n)
        dictionary = Dictionary.of(rows)
        for documents in (5, 10, 20):
            took, _ = milliseconds(
                partial(select, dictionary, query, documents, l2=PENALTY.l2), repeat=5, warmup=1, clock=process_time
            )
            solution = select(dictionary, query, documents, l2=PENALTY.l2)
            lines.append((f"{n:,}", documents, len(solution.support), f"{solution.penalty.l1:.4f}", f"{took:.2f}"))
    return table(("n", "documents asked", "selected", "at l1", "ms"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="draw docs/images/nnn-growth.svg")
    arguments = parser.parse_args()
    data = f"random unit vectors around topics, {DIMS} components, float32; l1 {PENALTY.l1}, l2 {PENALTY.l2}"
    packages = ("numpy", "scikit-learn", "celer")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        print(heading("Solvers of NNN decoding, one query, one thread, processor time", data=data, packages=packages))
        print(solvers_table())
        print("How the active set's time grows:\n")
        grown = growth()
        print(growth_table(grown))
        print("A number of documents instead of l1 (the path):\n")
        print(path_table())
    if arguments.plot:
        draw(grown)


if __name__ == "__main__":
    main()
