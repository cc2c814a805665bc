"""What further signals and candidates would add to blend, on training queries: nDCG@10 and intervals.

    python -m benchmarks.further_signals
    python -m benchmarks.further_signals --data ../shared/data/scifact --queries 200

Every row adds one thing to blend with its default weights. A signal is added as a z-score over the candidates.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA, MAX_TOKENS, METRIC, WINDOW, compared, first_queries, prepared
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import JoinedWindow, MemorySearcher
from es_ttc.lab.evaluation.methods import retrieval
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend.normalise import NORMALISED
from es_ttc.rescorers.blend.signals import all_signal_scores, read_by
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.rescorers.mmr import MmrParams, MmrRescorer
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32

COLLECTIONS = ("scifact", "toollens", "qmsum-meetings")
MOST_QUERIES = 300


@dataclass(frozen=True, slots=True)
class Corpus:
    """What the signals read beside the window.

    Attributes:
        features: Of all documents.
        titles: BM25 over the titles alone.
        bodies: BM25 over the texts without titles.
        words: BM25 over the whole texts.
        texts: The whole texts.
    """

    features: CorpusFeatures
    titles: Bm25
    bodies: Bm25
    words: Bm25
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Case:
    """One query's candidates.

    Attributes:
        joined: The window with the documents that joined it.
        blend: ``(k,)`` blend's mean of their z-scores.
        late: ``(k, t)`` the greatest cosine of each query token to a token of each document.
    """

    joined: JoinedWindow
    blend: Float32
    late: Float32


Score = Callable[[Corpus, Case], Float32]
"""Returns ``(k,)`` scores of a case's candidates."""


def feedback(best: int, corpus: Corpus, case: Case) -> Float32:
    """Cosine to the mean of the pooled vectors of blend's best documents (SoftCentroid, weighted by blend)."""
    pooled = case.joined.window.pooled
    assert pooled is not None
    top = np.argsort(-case.blend, kind="stable")[:best]
    weights = np.exp(case.blend[top] - case.blend[top].max())
    centroid = weights @ pooled[top]
    scores: Float32 = pooled @ (centroid / max(float(np.linalg.norm(centroid)), 1e-9))
    return scores


def words_of_best(best: int, corpus: Corpus, case: Case) -> Float32:
    """BM25 of the ten words that distinguish blend's best documents most (RM3's feedback side)."""
    documents = case.joined.documents
    top = documents[np.argsort(-case.blend, kind="stable")[:best]]
    counts: dict[str, int] = {}
    for place in top.tolist():
        for word in set(corpus.texts[place].lower().split()):
            counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda word: (-counts[word], -len(word)))[:200]
    telling = sorted(common, key=lambda word: -float(corpus.words.scores(word)[top].mean()))[:10]
    return corpus.words.scores(" ".join(telling))[documents] if telling else np.zeros(len(documents), np.float32)


def of_titles(corpus: Corpus, case: Case) -> Float32:
    """BM25 over the titles alone."""
    return corpus.titles.scores(case.joined.query.text)[case.joined.documents]


def of_bodies(corpus: Corpus, case: Case) -> Float32:
    """BM25 over the texts without titles."""
    return corpus.bodies.scores(case.joined.query.text)[case.joined.documents]


def rare_tokens(corpus: Corpus, case: Case) -> Float32:
    """Late interaction in which a query token counts by how little it is matched on average."""
    scores: Float32 = case.late @ (1 / (case.late.mean(axis=0) + np.float32(0.05)))
    return scores


SIGNALS: Mapping[str, Score] = {
    "feedback, best 3": partial(feedback, 3),
    "feedback, best 10": partial(feedback, 10),
    "RM3's words, best 5": partial(words_of_best, 5),
    "BM25 of titles": of_titles,
    "BM25 of bodies": of_bodies,
    "rare query tokens": rare_tokens,
}
WEIGHTS = (0.5, 1.0)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[DATA / name for name in COLLECTIONS])
    parser.add_argument("--split", default="train")
    parser.add_argument("--queries", type=int, default=MOST_QUERIES, help="queries of a collection, drawn at random")
    parser.add_argument("--encoder", default="minilm@onnx")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    found = {}
    for folder in arguments.data:
        collection = first_queries(load_collection(folder, split=arguments.split), arguments.queries)
        found[collection.name] = measured(collection, encoder)
    described = f"{', '.join(found)}; split {arguments.split}, up to {arguments.queries} queries each"
    print(heading(f"Further signals, {encoder.identity.model}", data=described, packages=("numpy", "onnxruntime")))
    print(tables(found))


def measured(collection: Collection, encoder: Encoder) -> dict[str, Float64]:
    """Return each variant's values, query by query."""
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS)
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, fields)[0] for document in collection.documents]
    alone = [[compose(document.source, (field,))[0] for document in collection.documents] for field in fields]
    corpus = Corpus(features, Bm25(alone[0]), Bm25(alone[1]), Bm25(texts), texts)
    searcher = MemorySearcher(collection, texts, retrieval(()), features, queries, window=WINDOW, candidates=WINDOW)
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    rankings: dict[str, dict[str, list[str]]] = {}
    for query, joined in zip(collection.queries, searcher.joined_windows(needs), strict=True):
        for name, order in _ranked(corpus, joined).items():
            rankings.setdefault(name, {})[query] = [features.ids[place] for place in order.tolist()]
    judged = {query: collection.qrels[query] for query in collection.queries}
    return {name: score_by(METRIC, judged, found) for name, found in rankings.items()}


def _ranked(corpus: Corpus, joined: JoinedWindow) -> dict[str, NDArray[np.intp]]:
    """Return the documents of each variant's ranking."""
    documents, case = joined.documents, case_of(joined)
    scores = {"blend": case.blend}
    for name, score in SIGNALS.items():
        added = _z(score(corpus, case))
        scores |= {f"{name}, weight {weight:g}": case.blend + np.float32(weight) * added for weight in WEIGHTS}
    orders = {name: documents[np.argsort(-one, kind="stable")] for name, one in scores.items()}
    orders["MMR last"] = diverse(case, orders["blend"])
    near = neighbours(corpus, case)
    orders["neighbours join"] = near.documents[np.argsort(-near.scores, kind="stable")]
    return orders


def case_of(joined: JoinedWindow) -> Case:
    """Return a query's candidates with blend's mean of them."""
    window, query = joined.window, joined.query
    assert window.tokens is not None
    assert query.tokens is not None
    late = np.stack([(dequantise(one) @ query.tokens.T).max(axis=0, initial=-1) for one in window.tokens])
    return Case(joined, blended(query, window), late)


def blended(query: Query, window: Window) -> Float32:
    """Return the sum of the z-scores of blend's signals with its default weights."""
    weights = Trust.of(window).weights(DEFAULT_SIGNALS)
    scored = all_signal_scores(DEFAULT_SIGNALS, query, window)
    total = np.zeros(len(window), np.float32)
    for name, one in scored.items():
        total += np.float32(weights[name]) * NORMALISED["z"](one.scores, one.known)
    return total


def diverse(case: Case, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return blend's best ten in the order of maximal marginal relevance, then the others."""
    joined = case.joined
    assert joined.window.pooled is not None
    top = np.argsort(-case.blend, kind="stable")[:10]
    best = Window(ids=[""] * len(top), first_pass=case.blend[top], pooled=joined.window.pooled[top])
    scores = MmrRescorer().score(joined.query, best, MmrParams())
    return np.concatenate([joined.documents[top][np.argsort(-scores, kind="stable")], order[len(top) :]])


@dataclass(frozen=True, slots=True)
class Wider:
    """Candidates that neighbours joined, with blend's mean of all of them."""

    documents: NDArray[np.intp]
    scores: Float32


def neighbours(corpus: Corpus, case: Case) -> Wider:
    """Return the candidates with the ten nearest neighbours of each of blend's best five."""
    features, joined = corpus.features, case.joined
    best = joined.documents[np.argsort(-case.blend, kind="stable")[:5]]
    near = np.argpartition(-(features.pooled[best] @ features.pooled.T), 11, axis=1)[:, :11]
    more = np.setdiff1d(near.ravel(), joined.documents)
    more = more[features.present[more]]
    documents = np.concatenate([joined.documents, more])
    first_pass = np.concatenate([joined.window.first_pass, np.zeros(len(more), np.float32)])
    window = features.window(documents, first_pass, read_by(DEFAULT_SIGNALS) | {Feature.NORMS})
    return Wider(documents, blended(joined.query, window))


def _z(scores: Float32) -> Float32:
    return NORMALISED["z"](scores.astype(np.float32), np.ones(len(scores), np.bool_))


def tables(found: Mapping[str, Mapping[str, Float64]]) -> str:
    """Return what each variant changes, collection by collection."""
    names = list(next(iter(found.values())))
    rows = [["blend", *(f"{one['blend'].mean():.3f}" for one in found.values()), ""]]
    for name in names[1:]:
        row, changes = [name], []
        for one in found.values():
            against = compared(one[name], one["blend"])
            sure = "**" if against.interval.low > 0 or against.interval.high < 0 else ""
            row.append(f"{sure}{against.delta:+.3f}{sure} ({against.interval.low:+.3f}..{against.interval.high:+.3f})")
            changes.append(against.delta)
        rows.append([*row, f"{np.mean(changes):+.3f}"])
    return table(["nDCG@10", *found, "mean"], rows)


if __name__ == "__main__":
    main()
