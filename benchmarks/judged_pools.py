"""Signals of judged queries, kept between runs: what `benchmarks.learning` reads.

    python -m benchmarks.judged_pools

Scores the four signals of blend for the first 100 documents of BM25 and the 100 nearest by pooled vector, once for each
query, and keeps them in `reports/pools`. Run again, it makes only what is missing.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np

from benchmarks.blend import DATA
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.evaluation.datasets import Collection, load_collection, sample
from es_ttc.lab.evaluation.metrics import Float64
from es_ttc.lab.ranking.pools import Pool, Pools, collect
from es_ttc.lab.ranking.weights import compared
from es_ttc.rescorers.blend.weights import Trust
from es_ttc.settings import Settings

FOLDER = Path(__file__).parents[1] / "reports" / "pools"
TRAINED = ("scifact", "toollens", "qmsum-meetings")
"""Collections with training queries."""
MOST = {"train": 1100, "test": 600}
"""Queries of each split, drawn at random; the same draw in every run."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    make()


def make() -> None:
    """Score the signals of all collections whose file is missing."""
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder("minilm@onnx", cache_dir=cache), cache / "encodings")
    for collection in collections():
        file = path_of(collection.name, collection.split)
        if file.exists():
            continue
        began = time.perf_counter()
        keep(collect(collection, encoder, codec="int8"), file)
        seconds = time.perf_counter() - began
        print(
            f"{collection.name} {collection.split}: {len(collection.queries)} queries, {seconds:.0f} s", file=sys.stderr
        )


def collections() -> Iterator[Collection]:
    """Yield what is scored: training and test queries, and the demonstration's two collections."""
    for name in TRAINED:
        for split, most in MOST.items():
            yield sample(load_collection(DATA / name, split), most, 0)
    yield limit_style.generate()
    yield replace(stdlib.generate(), name="python-3.11")


def path_of(name: str, split: str) -> Path:
    """Return the file of a collection's split."""
    return FOLDER / f"{name}.{split}.trust.npz"


def keep(pools: Pools, file: Path) -> None:
    """Write pools."""
    file.parent.mkdir(parents=True, exist_ok=True)
    every = pools.pools
    parts = {part: [getattr(pool, part) for pool in every] for part in ("scores", "grades", "behind", "judged")}
    arrays = {part: np.concatenate(rows) for part, rows in parts.items()}
    lengths = {f"{part}_lengths": np.array([len(row) for row in rows]) for part, rows in parts.items()}
    named = {
        "queries": np.array([pool.query for pool in every]),
        "trust": np.array([astuple(pool.trust) for pool in every]),
        "signals": np.array(pools.signals),
        "names": np.array([pools.data, pools.split, pools.encoder]),
    }
    np.savez_compressed(file, allow_pickle=False, **named, **arrays, **lengths)


def kept(name: str, split: str) -> Pools:
    """Read pools, and make them first where they are missing; documents have no ids."""
    if not path_of(name, split).exists():
        make()
    with np.load(path_of(name, split)) as held:
        parts = {
            part: np.split(held[part], np.cumsum(held[f"{part}_lengths"])[:-1])
            for part in ("scores", "grades", "behind", "judged")
        }
        queries, trust = held["queries"].tolist(), held["trust"].tolist()
        data, split, encoder = held["names"].tolist()
        signals = tuple(held["signals"].tolist())
    pools = tuple(
        Pool(query, tuple(map(str, range(len(scores)))), scores, Trust(*trusted), grades, behind, judged)
        for query, trusted, scores, grades, behind, judged in zip(
            queries, trust, parts["scores"], parts["grades"], parts["behind"], parts["judged"], strict=True
        )
    )
    return Pools(data, split, encoder, signals, pools, {})


def difference(ours: Float64, theirs: Float64) -> str:
    """Return the mean difference, bold where its interval leaves out 0."""
    one = compared(ours, theirs)
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    delta, low, high = (round(value, 3) + 0.0 for value in (one.delta, one.interval.low, one.interval.high))
    return f"{sure}{delta:+.3f}{sure} ({low:+.3f}..{high:+.3f})"


if __name__ == "__main__":
    main()
