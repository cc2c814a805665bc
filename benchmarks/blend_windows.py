"""From what size of the window on nearest documents need not join it, and which lexical score they should have.

    python -m benchmarks.blend_windows
    python -m benchmarks.blend_windows --data ../shared/data/cranfield --sizes 10 100

nDCG@10 of blend over BM25's first n documents alone, joined by the n nearest by pooled vector with the lexical score 0,
and joined by them with their exact lexical scores (what is served).
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.blend import DATA, MAX_TOKENS, METRIC, blended, collections, first_queries, prepared
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.blend.signals import all_signal_scores, part_of, read_by
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.vectors.tokens import Float32

FOLDERS = ("limit-small", "hotpotqa-train-hipporag", "cranfield", "npl-vaswani")
SIZES = (10, 25, 50, 100, 200)
VARIANTS = ("alone", "joined", "joined, exact")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[DATA / name for name in FOLDERS])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--queries", type=int, default=100, help="queries of a collection, drawn at random")
    parser.add_argument("--encoder", default="minilm@onnx")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    rows = []
    for collection in collections(arguments.data, "test", generated=True):
        values = measured(first_queries(collection, arguments.queries), encoder, arguments.sizes)
        rows += [
            [collection.name, variant, *(f"{values[variant, n].mean():.3f}" for n in arguments.sizes)]
            for variant in VARIANTS
        ]
    described = f"test queries, up to {arguments.queries} of each collection"
    print(heading(f"Windows of blend, {encoder.identity.model}", data=described, packages=("numpy", "onnxruntime")))
    print(table(["nDCG@10", "nearest documents", *(f"window {n}" for n in arguments.sizes)], rows))


def measured(collection: Collection, encoder: Encoder, sizes: list[int]) -> dict[tuple[str, int], Float64]:
    """Return the values of each variant and size, query by query."""
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS)
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    words = Bm25([compose(document.source, fields)[0] for document in collection.documents])
    rankings: dict[tuple[str, int], dict[str, list[str]]] = {}
    for name, query in zip(collection.queries, queries, strict=True):
        for variant, ranking in _ranked(features, query, words.scores(query.text), sizes).items():
            rankings.setdefault(variant, {})[name] = ranking
    judged = {name: collection.qrels[name] for name in collection.queries}
    return {variant: score_by(METRIC, judged, found) for variant, found in rankings.items()}


def _ranked(
    features: CorpusFeatures, query: Query, lexical: Float32, sizes: list[int]
) -> dict[tuple[str, int], list[str]]:
    """Return one query's rankings: all signals are scored once, over the largest union."""
    by_words = np.argsort(-lexical, kind="stable")[: max(sizes)]
    by_words = by_words[(lexical[by_words] > 0) & features.present[by_words]]
    cosines = np.where(features.present, features.pooled @ query.vectors[0], -2)
    by_vector = np.argsort(-cosines, kind="stable")[: max(sizes)]
    documents = np.union1d(by_words, by_vector)
    documents = documents[features.present[documents]]
    window = features.window(documents, lexical[documents], read_by(DEFAULT_SIGNALS) | {Feature.NORMS})
    scored = all_signal_scores(DEFAULT_SIGNALS, query, window)
    rankings = {}
    for size in sizes:
        found = np.isin(documents, by_words[:size])
        joined = found | np.isin(documents, by_vector[:size])
        for variant, known, exact in zip(VARIANTS, (found, joined, joined), (True, False, True), strict=True):
            first_pass = np.where(found | exact, lexical[documents], 0)[known].astype(np.float32)
            part = part_of(window, known)
            trust = Trust.of(features.window(documents[found], lexical[documents[found]], frozenset()))
            trust = Trust(trust.words, Trust.of(part).vectors)
            total = blended(scored, first_pass, known, trust)
            order = documents[known][np.argsort(-total, kind="stable")]
            rankings[variant, size] = [features.ids[place] for place in order.tolist()]
    return rankings


if __name__ == "__main__":
    main()
