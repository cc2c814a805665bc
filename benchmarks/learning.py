"""What `es-ttc learn` gains: by collection, teacher and number of queries, on test queries.

    python -m benchmarks.learning --collections toollens,cranfield,hotpotqa-train-hipporag

Queries to learn from are a collection's train queries; where it has none, a random half of its queries, and the test is
the other half. Teacher `blend` sees no judgement. `written`: whether the command would write the encoder, by its own
verdict on queries that were left out (five folds). Everything is in memory, with token vectors in the default codec.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.blend import DATA
from benchmarks.common import heading, table
from benchmarks.judged_pools import difference
from es_ttc.encoders import CachedEncoder, Encoder, load_encoder
from es_ttc.encoders.trained import TrainedEncoder
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample, splits
from es_ttc.lab.learning.teachers import Teacher
from es_ttc.lab.learning.training import MIN_QUERIES, fit_adapters, loop_options
from es_ttc.lab.learning.verdict import METRIC, by_dense, cross_fitted, verdict_of
from es_ttc.lab.ranking.pools import Pools, collect
from es_ttc.lab.ranking.weights import values_of_default
from es_ttc.settings import Settings
from es_ttc.vectors.codecs import DEFAULT_CODEC

SIZES = (50, 200, 800)
SEED = 0
MAX_TEST = 200
TAUGHT: tuple[Teacher, ...] = ("judgements", "blend")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", default="toollens,cranfield,hotpotqa-train-hipporag,qmsum-meetings")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of queries")
    parser.add_argument("--no-verdict", action="store_true", help="leave out the five folds, most of the time")
    arguments = parser.parse_args()
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder("minilm@onnx", cache_dir=cache), cache / "encodings")
    print(heading("Learning from a query log, all-MiniLM-L6-v2", data=arguments.collections, packages=("torch",)))
    rows = []
    for name in arguments.collections.split(","):
        rows += measured(name, encoder, [int(size) for size in arguments.sizes.split(",")], not arguments.no_verdict)
    columns = ("collection", "teacher", "queries", "dense before", "dense", "blend before", "blend", "written")
    print(table(columns, rows))


def measured(name: str, encoder: Encoder, sizes: Sequence[int], with_verdict: bool) -> list[tuple[object, ...]]:
    """Return the rows of one collection."""
    train, test = parts(name)
    if len(train.queries) > max(sizes):
        train = sample(train, max(sizes), SEED)
    before, asked = pools_of(test, encoder), pools_of(train, encoder)
    order = np.random.default_rng(SEED).permutation(len(asked))
    rows: list[tuple[object, ...]] = []
    for size in dict.fromkeys(min(size, len(asked)) for size in sizes):
        some = asked.some(order[:size])
        for teacher in TAUGHT:
            began = time.perf_counter()
            trained = taught(encoder, some, teacher)
            after = pools_of(test, trained)
            written = ""
            if with_verdict:
                own = cross_fitted(some, partial(scorer, train, encoder, teacher), seed=SEED)
                given = some if teacher == "judgements" else unjudged(some)
                after_folds = own if teacher == "judgements" else unjudged(own)
                written = "yes" if verdict_of(given, after_folds, least=MIN_QUERIES, seed=SEED).clear else "no"
            dense, blend = by_dense(before), values_of_default(before, METRIC)
            gains = (difference(by_dense(after), dense), difference(values_of_default(after, METRIC), blend))
            rows.append(
                (name, teacher, size, f"{dense.mean():.3f}", gains[0], f"{blend.mean():.3f}", gains[1], written)
            )
            print(*rows[-1], f"{time.perf_counter() - began:.0f} s", sep=" | ", file=sys.stderr, flush=True)
    return rows


def parts(name: str) -> tuple[Collection, Collection]:
    """Return a collection with the queries to learn from, and with those of the test."""
    folder = DATA / name
    if "train" in splits(folder):
        return load_collection(folder, "train"), sample(load_collection(folder, "test"), MAX_TEST, SEED)
    whole = load_collection(folder, "test")
    names = np.random.default_rng(SEED).permutation(sorted(whole.queries)).tolist()
    half = {*names[: len(names) // 2]}
    return only(whole, half), sample(only(whole, {*names} - half), MAX_TEST, SEED)


def pools_of(collection: Collection, encoder: Encoder) -> Pools:
    """Return the pools of a collection's queries, in the codec of an index."""
    return collect(collection, encoder, codec=DEFAULT_CODEC)


def taught(encoder: Encoder, pools: Pools, teacher: Teacher) -> TrainedEncoder:
    """Return the encoder that a teacher makes of some pools."""
    heads = fit_adapters(pools, allowed=(teacher,), loop=loop_options(SEED)).heads
    return TrainedEncoder(encoder, heads, replace(encoder.identity, revision=f"{teacher}-{len(pools)}"))


def scorer(train: Collection, encoder: Encoder, teacher: Teacher, pools: Pools) -> Callable[[Pools], Pools]:
    """Return what scores other pools of the collection with what some have taught."""
    trained = taught(encoder, pools, teacher)

    def scored(others: Pools) -> Pools:
        return pools_of(only(train, {pool.query for pool in others.pools}), trained)

    return scored


def unjudged(pools: Pools) -> Pools:
    """Return pools without judgements."""
    return replace(pools, pools=tuple(replace(pool, grades=pool.grades * 0) for pool in pools.pools))


if __name__ == "__main__":
    main()
