"""Spectral retrieval with a vector for each query token, and with other pools of its scales: nDCG@10 and intervals.

    python -m benchmarks.spectral_pools
    python -m benchmarks.spectral_pools --data ../shared/data/scifact --queries 100 --keep /tmp/pools

Every method ranks the same union: BM25's first 100 documents and the 100 nearest by pooled vector. Pools are those that
`es-ttc tune --method spectral` tries: `softmax` of five temperatures, `mean` with weights that are powers of a factor
(1 for the plain mean). Temperature, factor and pool are chosen on train queries; a collection that has none is cut in
two halves at random, one to choose and one to report on. `blend` is the default blend, with spectral retrieval as
served or replaced by the variant, at the same weights.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.blend import DATA, MAX_TOKENS, METRIC, WINDOW, compared, first_queries, prepared
from benchmarks.common import heading, kept, table
from benchmarks.pooling import blended
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample, splits
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import JoinedWindow, MemorySearcher
from es_ttc.lab.evaluation.methods import Method, retrieval
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.lab.evaluation.tuning import best, candidates, given_params
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.blend.signals import SignalScores, read_by, signal_scores
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.rescorers.spectral.greatest import greatest_by_scale
from es_ttc.rescorers.spectral.pooling import pool
from es_ttc.vectors.tokens import Float32

MOST_QUERIES = 300
MOST_TUNING = 150
TRAIN = "train"
FIELDS = ("title", "text")
READ: Mapping[str, tuple[Method, ...]] = {
    "pooled": candidates("spectral"),
    "tokens": candidates("spectral", {"query": "tokens"}),
}
"""What is tried, the paper's maximum first."""
CHOICES = ("max", "mean", "softmax", "weights", "tuned")
Values = dict[str, Float64]
"""Query by query."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", help="BEIR folders; those beside the repository where none")
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--queries", type=int, default=MOST_QUERIES, help="test queries of a collection, at random")
    parser.add_argument("--tuning", type=int, default=MOST_TUNING, help="queries that choose, at random")
    parser.add_argument("--keep", type=Path, help="folder that keeps each collection's values between runs")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    folders = arguments.data or sorted(path.parent for path in DATA.glob("*/corpus.jsonl"))
    tuning: dict[str, Values] = {}
    test: dict[str, Values] = {}
    halved = []
    for folder in folders:

        def make(folder: Path = folder) -> dict[str, Any]:
            return measured(folder, encoder, arguments.queries, arguments.tuning)

        found = make() if arguments.keep is None else kept(arguments.keep / f"{folder.name}.json", make)
        tuning[folder.name], test[folder.name] = (
            {name: np.array(values) for name, values in found[part].items()} for part in ("tuning", "test")
        )
        halved += [] if has_train(folder) else [folder.name]
    described = (
        f"up to {arguments.queries} test queries and {arguments.tuning} that choose; halves: {', '.join(halved)}"
    )
    print(heading(f"Pools and query tokens, {arguments.encoder}", data=described, packages=("numpy", "onnxruntime")))
    print(tables(tuning, test))


def has_train(folder: Path) -> bool:
    """Whether a collection has queries of its own to choose on."""
    return TRAIN in splits(folder)


def halves(folder: Path, queries: int, tuning: int) -> tuple[Collection, Collection]:
    """Return a collection with the queries that choose, and with those that are reported on."""
    collection = load_collection(folder)
    if has_train(folder):
        return first_queries(load_collection(folder, split=TRAIN), tuning), first_queries(collection, queries)
    chosen = sample(collection, len(collection.queries) // 2, 0)
    rest = only(collection, collection.queries.keys() - chosen.queries.keys())
    return first_queries(chosen, tuning), first_queries(rest, queries)


def measured(folder: Path, encoder: Encoder, queries: int, tuning: int) -> dict[str, Any]:
    """Return every variant's values on both parts of a collection's queries."""
    began = time.perf_counter()
    parts = dict(zip(("tuning", "test"), halves(folder, queries, tuning), strict=True))
    spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="int8", max_tokens=MAX_TOKENS)
    features = encode_corpus(parts["test"].documents, spec, encoder)
    print(f"{folder.name}: {time.perf_counter() - began:.0f} s for its features", file=sys.stderr)
    found = {name: values_of(part, features, encoder) for name, part in parts.items()}
    print(f"{folder.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return found


def values_of(collection: Collection, features: CorpusFeatures, encoder: Encoder) -> dict[str, list[float]]:
    """Return every variant's values, query by query."""
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, FIELDS)[0] for document in collection.documents]
    searcher = MemorySearcher(collection, texts, retrieval(()), features, queries, window=WINDOW, candidates=WINDOW)
    rankings: dict[str, dict[str, list[str]]] = {}
    windows = searcher.joined_windows(read_by(DEFAULT_SIGNALS) | {Feature.NORMS})
    for query, joined in zip(collection.queries, windows, strict=True):
        for name, scores in variants(joined):
            order = joined.documents[np.argsort(-scores, kind="stable")]
            rankings.setdefault(name, {})[query] = [features.ids[place] for place in order.tolist()]
    judged = {query: collection.qrels[query] for query in collection.queries}
    return {name: score_by(METRIC, judged, ranked).tolist() for name, ranked in rankings.items()}


def variants(joined: JoinedWindow) -> Iterator[tuple[str, Float32]]:
    """Yield the scores of the signals alone, of every pool, and of blends with each of them."""
    query, window = joined.query, joined.window
    assert window.tokens is not None
    assert query.tokens is not None
    trust = Trust.of(window)
    by = {
        "bm25": signal_scores("lexical", query, window),
        "dense": signal_scores("dense", query, window),
        "late": signal_scores("late_interaction", query, window),
    }
    known = by["late"].known  # spectral retrieval reads the same of documents
    for name in ("dense", "late"):
        yield name, by[name].scores
    for read, vectors in (("pooled", query.of_tokens), ("tokens", query.tokens)):
        by_scale = greatest_by_scale(vectors, window.tokens, window.norms, READ[read][0].params.scales)  # type: ignore[attr-defined]
        for method in READ[read]:
            scores = np.clip(pool(by_scale, method.params).mean(axis=1), -1, 1)  # type: ignore[arg-type]
            yield key(method), scores
            by["spectral"] = SignalScores(scores, known)
            yield f"blend {key(method)}", blended(by, trust, "spectral", "late", 1)


def key(method: Method) -> str:
    """Return a variant's name: its parameters."""
    return orjson.dumps(given_params(method)).decode()


def chosen(values: Values, methods: Sequence[Method], choice: str, prefix: str = "") -> Method:
    """Return one pool: the maximum, the plain mean, or the best one on these values of a kind, or of all.

    Args:
        values: Of the queries that choose.
        methods: What is tried.
        choice: One of :data:`CHOICES`.
        prefix: Of the names of the values that count.
    """
    pools = {
        "max": methods[:1],
        "mean": [one for one in methods if set(given_params(one).get("scale_weights", (0,))) == {1}],
        "softmax": [one for one in methods if given_params(one).get("pool") == "softmax"],
        "weights": [one for one in methods if given_params(one).get("pool") == "mean"],
        "tuned": methods,
    }
    among = pools[choice]
    return among[best(np.stack([values[prefix + key(one)] for one in among]))]


def tables(tuning: Mapping[str, Values], test: Mapping[str, Values]) -> str:
    """Return what each variant reaches alone and in blend, how it differs, and what was chosen."""
    rows = {"dense": {name: found["dense"] for name, found in test.items()}}
    rows["late interaction"] = {name: found["late"] for name, found in test.items()}
    blends: dict[str, dict[str, Float64]] = {}
    picked = []
    for read, methods in READ.items():
        for choice in CHOICES:
            label = f"{read}, {choice}"
            taken = {name: chosen(values, methods, choice) for name, values in tuning.items()}
            rows[label] = {name: test[name][key(method)] for name, method in taken.items()}
            blends[label] = {name: test[name][f"blend {key(method)}"] for name, method in taken.items()}
            if choice in ("softmax", "weights", "tuned"):
                picked.append([label, *(_pool(method) for method in taken.values())])
    sizes = [["queries that choose", *(len(found["late"]) for found in tuning.values()), ""]]
    sizes.append(["test queries", *(len(found["late"]) for found in test.values()), ""])
    base, late = rows["pooled, max"], rows["late interaction"]
    parts = [table(["nDCG@10", *test, "mean"], [*sizes, *(_reached(label, row) for label, row in rows.items())])]
    others = [_differences(label, row, base) for label, row in rows.items() if row is not base]
    others.append(_differences("tokens, max - late interaction", rows["tokens, max"], late))
    parts.append("Difference from spectral retrieval as it is served (pooled, max), 95 % interval:\n")
    parts.append(table(["difference", *test, "mean"], others))
    parts.append("Blend, with the variant as its signal, and the difference from the default blend:\n")
    served = blends["pooled, max"]
    inside = [_differences(label, row, served) for label, row in blends.items() if row is not served]
    parts.append(table(["blend", *test, "mean"], [_reached("default blend", served), *inside]))
    parts.append("What was chosen (a temperature, or the factor from the weight of a scale to that of the next):\n")
    parts.append(table(["chosen", *test], picked))
    return "\n".join(parts)


def _reached(label: str, row: Mapping[str, Float64]) -> list[str]:
    means = [values.mean() for values in row.values()]
    return [label, *(f"{mean:.3f}" for mean in means), f"{np.mean(means):.3f}"]


def _differences(label: str, row: Mapping[str, Float64], base: Mapping[str, Float64]) -> list[str]:
    changes = [compared(row[name], base[name]) for name in row]
    return [label, *map(_shown, changes), f"{np.mean([one.delta for one in changes]):+.3f}"]


def _shown(one: Comparison) -> str:
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    return f"{sure}{one.delta:+.3f}{sure} ({one.interval.low:+.3f}..{one.interval.high:+.3f})"


def _pool(method: Method) -> str:
    given = given_params(method)
    match given.get("pool", "max"):
        case "softmax":
            return f"softmax {given['temperature']:g}"
        case "mean":
            weights = given["scale_weights"]
            return f"mean x{weights[-1] / weights[-2]:.3g}"
        case pool_name:
            return str(pool_name)


if __name__ == "__main__":
    main()
