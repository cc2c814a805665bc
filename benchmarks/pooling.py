"""What holds for encoders whose pooled vector is not the mean of the tokens: nDCG@10 of methods and of queries' forms.

    python -m benchmarks.pooling --encoder bge-small --split train --data ../shared/data/scifact ../shared/data/toollens
    python -m benchmarks.pooling --encoder bge-small e5-small minilm@onnx

Spectral retrieval compares one vector of the query with smoothed document tokens. That vector can be the pooled one
(`spectral`), or the mean of the query's tokens: of all (`mean`), or of its words, without special tokens and prompt
(`words`). `maxsim` compares the pooled vector with single tokens, `maxsim words` the mean of the words. Late
interaction reads all of the query's tokens (`late`) or its words (`late words`). Every method ranks the same union:
BM25's first 100 documents and the 100 nearest by pooled vector. A collection of more documents than `--documents` keeps
those judged for its queries, and others drawn at random. LIMIT-small has no training queries: a random half of its
queries stands for them, and only the other half is reported on.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.blend import DATA, METRIC, compared, first_queries, prepared, searcher_of
from benchmarks.common import heading, table
from benchmarks.programs import subset
from es_ttc.encoders.base import Encoder
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample
from es_ttc.lab.evaluation.memory import QueryWindow
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.blend.normalise import NORMALISED
from es_ttc.rescorers.blend.signals import SignalName, SignalScores, read_by, signal_scores
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.vectors.tokens import Float32, Float64

MAX_QUERIES = 300
MAX_DOCUMENTS = 1500
HALVED = ("limit-small",)
SPECTRAL = ("spectral", "mean", "words")
LATE = ("late", "late words")
WEIGHTS = (0.0, 0.25, 0.5)
"""Weights of `spectral` in blend that are tried beside 1."""


@dataclass(frozen=True, slots=True)
class Forms:
    """A query in all forms.

    Attributes:
        query: With its pooled vector and all tokens.
        mean: With the mean of all its tokens for the pooled vector.
        words: With the mean of its words for the pooled vector, and only its words as tokens.
    """

    query: Query
    mean: Query
    words: Query


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", help="BEIR folders; those beside the repository where none")
    parser.add_argument("--encoder", nargs="*", default=["bge-small", "e5-small", "minilm@onnx"])
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=MAX_QUERIES, help="queries of a collection, drawn at random")
    parser.add_argument("--documents", type=int, default=MAX_DOCUMENTS, help="documents of a collection")
    arguments = parser.parse_args()
    found = sorted(path.parent for path in DATA.glob("*/corpus.jsonl"))
    folders = [
        folder
        for folder in arguments.data or found
        if folder.name in HALVED or (folder / "qrels" / f"{arguments.split}.tsv").exists()
    ]
    described = (
        f"{', '.join(folder.name for folder in folders)}; split {arguments.split}, up to {arguments.queries} queries "
        f"and {arguments.documents:,} documents each"
    )
    print(heading("Encoders and their pooling", data=described, packages=("numpy", "onnxruntime", "openvino")))
    for name in arguments.encoder:
        encoder = prepared(name)
        values = {}
        for folder in folders:
            collection = first_queries(loaded(folder, arguments.split), arguments.queries)
            values[collection.name] = measured(subset(collection, None, arguments.documents), encoder)
        print(f"### {name} ({encoder.identity.pooling} pooling)\n")
        print(tables(values, served="spectral" if encoder.identity.averages else "words"), flush=True)


def loaded(folder: Path, split: str) -> Collection:
    """Return a collection; of LIMIT-small the half of the queries that stands for a split."""
    if folder.name not in HALVED:
        return load_collection(folder, split=split)
    collection = load_collection(folder)
    train = sample(collection, len(collection.queries) // 2, 0)
    return train if split == "train" else only(collection, collection.queries.keys() - train.queries.keys())


def measured(collection: Collection, encoder: Encoder) -> dict[str, Float64]:
    """Return every variant's values, query by query."""
    began = time.perf_counter()
    searcher, ids = searcher_of(collection, encoder, encoder, "int8"), [each.id for each in collection.documents]
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    rankings: dict[str, dict[str, list[str]]] = {}
    for query, joined in zip(collection.queries, searcher.windows(needs), strict=True):
        for name, scores in variants(joined, forms(joined.query, encoder)):
            order = joined.documents[np.argsort(-scores, kind="stable")]
            rankings.setdefault(name, {})[query] = [ids[place] for place in order.tolist()]
    judged = {query: collection.qrels[query] for query in collection.queries}
    print(f"{collection.name}: {len(ids)} documents, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return {name: score_by(METRIC, judged, found) for name, found in rankings.items()}


def forms(query: Query, encoder: Encoder) -> Forms:
    """Return a query in all forms; special tokens and those of the prompt cover no characters."""
    encoded = encoder.encode([query.text], role="query")
    tokens, offsets = encoded.tokens[0], encoded.offsets[0]
    words = tokens[offsets[:, 0] < offsets[:, 1]]
    return Forms(
        replace(query, word_means=None),
        replace(query, word_means=_mean(tokens)),
        replace(query, word_means=_mean(words), vectors=_mean(words), tokens=words),
    )


def _mean(rows: Float32) -> Float32:
    total: Float32 = rows.sum(axis=0, keepdims=True)
    return total / max(float(np.linalg.norm(total)), 1e-9)


def variants(joined: QueryWindow, forms: Forms) -> Iterator[tuple[str, Float32]]:
    """Yield the scores of each signal alone, and of blends that differ in spectral retrieval and late interaction."""
    window = joined.window
    by = {
        "bm25": signal_scores("lexical", forms.query, window),
        "dense": signal_scores("dense", forms.query, window),
        "spectral": signal_scores("spectral", forms.query, window),
        "mean": signal_scores("spectral", forms.mean, window),
        "words": signal_scores("spectral", forms.words, window),
        "late": signal_scores("late_interaction", forms.query, window),
        "late words": signal_scores("late_interaction", forms.words, window),
    }
    for name, one in by.items():
        yield name, one.scores
    yield "maxsim", MaxSimRescorer().score(forms.query, window, MaxSimParams(query="pooled"))
    yield "maxsim words", MaxSimRescorer().score(forms.words, window, MaxSimParams(query="pooled"))
    trust = Trust.of(forms.query, window)
    for late in LATE:
        for spectral in SPECTRAL:
            yield f"blend: {spectral}, {late}", blended(by, trust, spectral, late, 1)
        for weight in WEIGHTS:
            yield f"blend: spectral x{weight:g}, {late}", blended(by, trust, "spectral", late, weight)


def blended(by: Mapping[str, SignalScores], trust: Trust, spectral: str, late: str, weight: float) -> Float32:
    """Return the sum of z-scores with blend's default weights, where `spectral` has a weight of its own."""
    weights = trust.weights(DEFAULT_SIGNALS)
    taken: tuple[tuple[str, SignalName, float], ...] = (
        ("bm25", "lexical", 1),
        ("dense", "dense", 1 if weight else 2),  # it counts half only beside spectral retrieval
        (spectral, "spectral", weight),
        (late, "late_interaction", 1),
    )
    parts = [
        np.float32(weights[signal] * factor) * NORMALISED["z"](by[name].scores, by[name].known)
        for name, signal, factor in taken
    ]
    total: Float32 = np.sum(parts, axis=0)
    return total


def tables(values: Mapping[str, Mapping[str, Float64]], served: str) -> str:
    """Return what each signal and the served blend reach, and how blends differ.

    Args:
        values: By collection and variant, query by query.
        served: The form of the query with which spectral retrieval is served.
    """
    names = list(next(iter(values.values())))
    alone = [name for name in names if not name.startswith("blend")]
    rows = [[name, *(f"{found[name].mean():.3f}" for found in values.values())] for name in alone]
    blend = f"blend: {served}, late"
    rows.append(["blend, as served", *(f"{found[blend].mean():.3f}" for found in values.values())])
    parts = [table(["nDCG@10", *values], rows)]
    pairs = (
        ("mean", "spectral"),
        ("words", "spectral"),
        ("late words", "late"),
        ("maxsim words", "maxsim"),
        ("words", "dense"),
        ("late", "dense"),
    )
    rows = [
        [f"{one} - {other}", *(_shown(compared(found[one], found[other])) for found in values.values())]
        for one, other in pairs
    ]
    parts.append(table(["difference", *values], rows))
    first, *others = [name for name in names if name.startswith("blend")]
    rows = [[first, *(f"{found[first].mean():.3f}" for found in values.values()), ""]]
    for name in others:
        changes = [compared(found[name], found[first]) for found in values.values()]
        rows.append([name, *map(_shown, changes), f"{np.mean([one.delta for one in changes]):+.3f}"])
    parts.append(table(["blend", *values, "mean"], rows))
    return "\n".join(parts)


def _shown(one: Comparison) -> str:
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    return f"{sure}{one.delta:+.3f}{sure} ({one.interval.low:+.3f}..{one.interval.high:+.3f})"


if __name__ == "__main__":
    main()
