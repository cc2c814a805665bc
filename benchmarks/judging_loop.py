"""The loop from clicks to a better ranking, with a simulated judge: what tuning gains on test queries by clicks.

    python -m benchmarks.judging_loop

The judge grades the pools of training queries by the collection's own judgements, one document a click: queries in a
random order, each query's documents in the order that `es-ttc judge` shows them. The pool is the union of the first
documents of blend, hybrid (RRF of BM25 and dense) and bm25. After some clicks the weights of blend are chosen from what
was judged so far, as the page and `es-ttc tune --judgements` choose them, and are measured on the test queries with all
their judgements. `written` is what a user gets: the weights if their cross-fitted gain on the judged queries is clear,
blend's defaults if not. `fully judged`: the weights that are chosen if all documents of the same queries are judged,
not those of the pools alone. Intervals are over the test queries, of the mean of all draws.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA
from benchmarks.common import heading, table
from benchmarks.judged_pools import MOST, TRAINED, keep, kept, path_of
from benchmarks.normalisation import difference
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.evaluation.datasets import load_collection, sample
from es_ttc.lab.evaluation.metrics import Float64
from es_ttc.lab.evaluation.rankings import reciprocal_rank_fusion
from es_ttc.lab.judging.records import PooledMethod, PooledQuery
from es_ttc.lab.judging.signals import LoggedSignals
from es_ttc.lab.judging.standing import METRIC, TunedWeights, standing, tuned_weights
from es_ttc.lab.ranking.pools import Pool, Pools, collect
from es_ttc.lab.ranking.weights import by_default_weights, normalised, values_of_default, values_of_weights
from es_ttc.settings import Settings

CLICKS = (50, 100, 200, 300, 400, 500)
METHODS = ("blend", "hybrid", "bm25")
KEPT = 100
Grades = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Outcome:
    """What was chosen after some clicks.

    Attributes:
        queries: Judged queries with a relevant document.
        chosen: Each test query's value under the chosen weights; those of the defaults if none were chosen.
        written: The same under what a user gets.
        fully: The same under weights that are chosen where all documents of the same queries are judged.
        tuned: Whether weights were chosen.
        clear: Whether their gain on the judged queries was clear.
        best: The method that stands best on the judged queries.
        best_clear: Whether it is clearly better than the others.
    """

    queries: int
    chosen: Float64
    written: Float64
    fully: Float64
    tuned: bool
    clear: bool
    best: str
    best_clear: bool


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(TRAINED), help="names of collections with training queries")
    parser.add_argument("--depths", type=int, nargs="*", default=[3, 10], help="documents of each run that are judged")
    parser.add_argument("--draws", type=int, default=10, help="orders of the queries")
    parser.add_argument("--fewest", type=int, help="judged queries that it takes to choose weights; the page's if none")
    arguments = parser.parse_args()
    print(heading("From clicks to weights", data=f"{', '.join(arguments.data)}, all-MiniLM-L6-v2 (int8)"))
    for name in arguments.data:
        began = time.perf_counter()
        tables(name, arguments.depths, arguments.draws, arguments.fewest)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


def tables(name: str, depths: Sequence[int], draws: int, fewest: int | None) -> None:
    """Print the tables of a collection."""
    train, test = pools_of(name, "train"), pools_of(name, "test")
    default = values_of_default(test, METRIC)
    for depth in depths:
        queries = pooled(train, depth)
        found = [outcomes(queries, train, test, default, seed, fewest) for seed in range(draws)]
        mean = np.mean([len(query.documents) for query in queries])
        print(
            f"{name}, depth {depth}: {mean:.1f} documents a query in the mean; {len(test)} test queries, blend "
            f"{default.mean():.3f}; {draws} draws\n"
        )
        print(
            table(COLUMNS, [row_of(clicks, [draw[clicks] for draw in found], default) for clicks in CLICKS]), flush=True
        )


COLUMNS = (
    "clicks",
    "queries with relevant documents",
    "chosen weights",
    "draws: better, equal, worse",
    "least and greatest",
    "fully judged",
    "written",
    "clear",
    "best method (clear)",
)


def row_of(clicks: int, draws: Sequence[Outcome], default: Float64) -> list[object]:
    """Return one row of the table."""
    gains = [float(one.chosen.mean() - default.mean()) for one in draws]
    tuned = sum(one.tuned for one in draws)
    better, worse = sum(gain > 1e-9 for gain in gains), sum(gain < -1e-9 for gain in gains)
    best = {name: sum(one.best == name for one in draws) for name in METHODS}
    sure = sum(one.best_clear for one in draws)
    return [
        clicks,
        f"{np.mean([one.queries for one in draws]):.1f}",
        difference(np.mean([one.chosen for one in draws], axis=0), default) if tuned else "too few queries",
        f"{better}, {len(gains) - better - worse}, {worse}",
        f"{min(gains):+.3f} {max(gains):+.3f}",
        difference(np.mean([one.fully for one in draws], axis=0), default) if tuned else "",
        difference(np.mean([one.written for one in draws], axis=0), default),
        f"{sum(one.clear for one in draws)} of {tuned}",
        ", ".join(f"{name} {count}" for name, count in best.items() if count) + f" ({sure})",
    ]


def pooled(pools: Pools, depth: int) -> list[PooledQuery]:
    """Return the pools of three methods, ranked by the signals that were kept."""
    scores = by_default_weights(pools, normalised(pools, "z"))
    lexical, dense = pools.signals.index("lexical"), pools.signals.index("dense")
    methods = tuple(PooledMethod(name) for name in METHODS)
    queries = []
    for pool, row in zip(pools.pools, scores, strict=True):
        blend = best_of(pool, row[: len(pool.documents)])
        bm25 = best_of(pool, np.where(pool.scores[:, lexical] > 0, pool.scores[:, lexical], np.nan))
        fused = reciprocal_rank_fusion([bm25, best_of(pool, pool.scores[:, dense])], 60)
        hybrid = tuple(document for document, _ in fused)[:KEPT]
        signals = LoggedSignals.of(pool, pools)
        queries.append(PooledQuery(pool.query, "text", methods, (blend, hybrid, bm25), depth, signals))
    return queries


def best_of(pool: Pool, scores: NDArray[np.floating[Any]]) -> tuple[str, ...]:
    """Return the documents of a pool by a score; those without one are left out."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return tuple(pool.documents[place] for place in order.tolist() if not np.isnan(scores[place]))[:KEPT]


def outcomes(
    queries: Sequence[PooledQuery], train: Pools, test: Pools, default: Float64, seed: int, fewest: int | None
) -> Mapping[int, Outcome]:
    """Return what is chosen after each number of clicks, for one order of the queries."""
    relevant = {
        pool.query: {name: int(grade) for name, grade in zip(pool.documents, pool.grades, strict=True) if grade}
        for pool in train.pools
    }
    order = np.random.default_rng(seed).permutation(len(queries))
    clicks = [(queries[place], document) for place in order for document in queries[place].shuffled(f"judge {seed}")]
    found = {}
    for number in CLICKS:
        qrels: Grades = {}
        for query, document in clicks[:number]:
            qrels.setdefault(query.id, {})[document] = relevant[query.id].get(document, 0)
        complete = {query: relevant[query] for query in qrels}
        found[number] = outcome(queries, qrels, complete, test, default, fewest)
    return found


def outcome(
    queries: Sequence[PooledQuery], qrels: Grades, complete: Grades, test: Pools, default: Float64, fewest: int | None
) -> Outcome:
    """Return what judgements choose, and what that is worth on the test queries.

    Args:
        queries: The pooled queries.
        qrels: What was judged.
        complete: All relevant documents of the same queries.
        test: The test queries.
        default: Their values under blend's default weights.
        fewest: Judged queries that it takes to choose weights.
    """
    judged = [query for query in queries if query.id in qrels]
    stands = standing(judged, qrels)
    best, count = stands.methods[0].method, sum(any(grades.values()) for grades in qrels.values())
    chosen, tuned, clear = under(tuned_weights("loop", judged, qrels, fewest=fewest), test, default)
    fully, _, _ = under(tuned_weights("loop", judged, complete, fewest=fewest), test, default)
    written = chosen if clear else default
    return Outcome(
        count,
        chosen,
        written,
        fully if tuned else default,
        tuned=tuned,
        clear=clear,
        best=best,
        best_clear=stands.clear,
    )


def under(tuned: TunedWeights | str, test: Pools, default: Float64) -> tuple[Float64, bool, bool]:
    """Return each test query's value under chosen weights, whether there are any, and whether their gain was clear."""
    if not isinstance(tuned, TunedWeights):
        return default, False, False
    signals = tuned.summary["params"].get("signals")
    if signals is None:
        return default, True, tuned.found.clear
    row = np.array([[signals.get(name, 0.0) for name in test.signals]])
    return values_of_weights(test, normalised(test, "z"), row, METRIC)[0], True, tuned.found.clear


def pools_of(name: str, split: str) -> Pools:
    """Return the signals of a split, and score them first where they are missing."""
    if not path_of(name, split).exists():
        cache = Settings().cache_dir
        encoder = CachedEncoder(load_encoder("minilm@onnx", cache_dir=cache), cache / "encodings")
        keep(
            collect(sample(load_collection(DATA / name, split), MOST[split], 0), encoder, codec="int8"),
            path_of(name, split),
        )
    return kept(name, split)


if __name__ == "__main__":
    main()
