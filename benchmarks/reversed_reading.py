"""Programs with and without documents encoded as queries (B.1), on encoders with prompts by role.

Without them a program takes the document's own vector for its vector as a query, as es-ttc did before it made both. The
whole corpus is ranked for all queries together, as in the paper. Nothing is tuned, and queries are train queries where
a collection has some.
"""

from collections.abc import Sequence

import click
import numpy as np

from benchmarks.common import heading, table
from benchmarks.programs import load
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.costs import cost_of
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.rescorers import LexicalParams, ProgramParams, rescorer_of
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

METRIC = "ndcg@10"
DEPTH = 100
COLLECTIONS = {
    "limit-small": ("test", 300, None, True),
    "toollens": ("train", 300, None, False),
    "scifact": ("train", 150, 250, False),
}
"""By name the split, the queries and documents that are sampled (None for all), and whether chunks are encoded."""
OF_CHUNKS = ("lexhybridrrf", "crossroundrrf")
ALONE = "both cosines"
"""What `bidirzscore` is for one query without a calibration."""


def encoded(collection: Collection, encoder: Encoder, *, chunks: bool) -> tuple[CorpusFeatures, list[Query]]:
    """Return a collection's documents in both roles, and its queries."""
    titled = any(document.title for document in collection.documents)
    fields = ("title", "text") if titled else ("text",)
    spec = IndexSpec(encoder.identity, text_fields=fields, tokens="none", chunks=chunks, reversed=True)
    features = encode_corpus(collection.documents, spec, encoder)
    return features, encode_queries(list(collection.queries.values()), encoder, tokens=False)


def cosines(queries: Sequence[Query], window: Window) -> Float32:
    """Return the cosines of queries and documents, plus those of documents as queries if the window has them."""
    assert window.pooled is not None
    vectors = np.stack([query.vectors[0] for query in queries])
    documents = window.pooled if window.reversed is None else window.pooled + window.reversed
    found: Float32 = vectors @ documents.T
    return found


def scored(name: str, queries: Sequence[Query], window: Window) -> Float32:
    """Return a method's ``(q, n)`` scores, with the paper's own lexical channels."""
    if name not in CATALOGUE:
        return cosines(queries, window)
    program = rescorer_of(name)
    params = LexicalParams(lexical="paper") if CATALOGUE[name].lexical else ProgramParams()
    return program.batch(queries, window, params)


def values(scores: Float32, collection: Collection, window: Window) -> np.ndarray:
    """Return the metric of each query."""
    rankings = {
        query: [window.ids[place] for place in np.argsort(-row, kind="stable")[:DEPTH]]
        for query, row in zip(collection.queries, scores, strict=True)
    }
    return score_by(METRIC, collection.qrels, rankings)


def window_of(features: CorpusFeatures, *, reversed_too: bool) -> Window:
    """Return the whole corpus as a window."""
    known = np.flatnonzero(features.present)
    read = {Feature.POOLED} | ({Feature.CHUNKS} if features.chunks else set())
    read |= {Feature.REVERSED} if reversed_too else set()
    return features.window(known, np.zeros(len(known), np.float32), frozenset(read))


def rows_of(name: str, collection: Collection, features: CorpusFeatures, queries: Sequence[Query]) -> list[list[str]]:
    """Return the table's rows of one encoder and collection."""
    once, both = window_of(features, reversed_too=False), window_of(features, reversed_too=True)
    dense = values(cosines(queries, once), collection, once)
    rows = []
    for method in (ALONE, "bidirzscore", *(OF_CHUNKS if features.chunks else ())):
        without = values(scored(method, queries, once), collection, once)
        with_them = values(scored(method, queries, both), collection, both)
        means = resampled_means(np.stack([with_them, without]))
        found = compare(with_them, without, means[:, 0], means[:, 1])
        cost = cost_of(CATALOGUE[method], features, len(queries)).ratio if method in CATALOGUE else None
        rows.append(
            [
                name,
                method,
                f"{dense.mean():.3f}",
                f"{without.mean():.3f}",
                f"{with_them.mean():.3f}",
                f"{found.delta:+.3f} ({found.interval.low:+.3f} to {found.interval.high:+.3f})",
                f"{found.wins}/{found.ties}/{found.losses}",
                "" if cost is None else f"{cost:.1f}",
            ]
        )
    return rows


def likeness(features: CorpusFeatures) -> str:
    """Return the mean cosine of documents with themselves as queries."""
    assert features.reversed is not None
    return f"{float((features.pooled * features.reversed).sum(axis=1)[features.present].mean()):.3f}"


@click.command()
@click.option("--encoder", "encoders", multiple=True, default=("e5-small", "bge-small"), show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(list(COLLECTIONS)))
def main(encoders: Sequence[str], names: Sequence[str]) -> None:
    """Print the table."""
    rows, data, alike = [], [], []
    for encoder in encoders:
        settings = Settings(encoder=encoder)
        loaded = CachedEncoder(load_encoder(encoder, cache_dir=settings.cache_dir), settings.cache_dir / "encodings")
        for name in names or COLLECTIONS:
            split, most_queries, most_documents, chunks = COLLECTIONS[name]
            collection = load(name, split, (most_queries, most_documents))
            features, queries = encoded(collection, loaded, chunks=chunks)
            cell = f"{name} ({encoder})"
            rows += rows_of(cell, collection, features, queries)
            alike.append([cell, likeness(features)])
            data.append(f"{cell}: {len(queries)} {split} queries, {len(features.ids)} documents")
    print(heading("Documents encoded as queries", data="; ".join(data), packages=("numpy", "onnxruntime", "sentencex")))
    columns = ("collection", "method", "dense", "without", "with", "difference (95 %)", "queries W/T/L", "c with")
    print(table(columns, rows))
    print(table(("collection", "mean cosine of a document and itself as a query"), alike))


if __name__ == "__main__":
    main()
