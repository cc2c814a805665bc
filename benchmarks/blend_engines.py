"""Blend through an engine beside blend in memory: the same figures from the engine's own first pass.

    python -m benchmarks.blend_engines --engine http://127.0.0.1:9200 --data ../shared/data/cranfield

Each collection is indexed temporarily and searched through a gateway. In memory the engine's own BM25 hits and scores
are blended again, joined by the documents nearest by exact cosines. `apart` is the greatest difference between the two
in one query's nDCG@10. The last column is `es-ttc evaluate` in memory, whose BM25 keeps lengths that Lucene rounds.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.blend import DATA, METRIC, WINDOW, first_queries, prepared
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.lab.evaluation.searcher import MAX_DEPTH, silent
from es_ttc.lab.evaluation.through_engine import engine_searcher, temporary_index
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer
from es_ttc.rescorers.blend.signals import read_by
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.settings import EngineSettings

FIELDS = ("title", "text")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", required=True, metavar="URL")
    parser.add_argument("--data", type=Path, nargs="*", default=[DATA / "hotpotqa-train-hipporag", DATA / "cranfield"])
    parser.add_argument("--queries", type=int, default=300, help="queries of a collection, drawn at random")
    parser.add_argument("--encoder", default="minilm@onnx")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    rows = []
    for folder in arguments.data:
        collection = first_queries(load_collection(folder, split="test"), arguments.queries)
        rows += [compared(collection, EngineSettings(engine=url), encoder) for url in arguments.engine]
    print(heading(f"Blend through engines, {encoder.identity.model}", data="test queries", packages=("numpy",)))
    columns = ["nDCG@10", "engine", "queries", "bm25", "blend", "in memory, same first pass", "apart", "evaluate"]
    print(table(columns, rows))


def compared(collection: Collection, engine: EngineSettings, encoder: Encoder) -> list[object]:
    """Return a row of the table."""
    spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="int8")
    known = retrieval(())
    texts = list(collection.queries.values())
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(texts, encoder, tokens=True)
    bm25, blend = resolve_one("bm25", {}), resolve_one("blend", {})
    with temporary_index(engine, collection, spec, encoder, silent) as index:
        found = []
        for method, window in ((bm25, MAX_DEPTH), (blend, WINDOW)):  # what joins has the engine's score of the words
            with engine_searcher(
                engine, index, collection, encoder, known, queries, first_pass="bm25", window=window
            ) as searcher:
                found.append(searcher.rank(method))
        words, served = found
        name = index.product_and_version()
    again = blended(collection, features, queries, words)
    passages = [compose(document.source, FIELDS)[0] for document in collection.documents]
    memory = MemorySearcher(collection, passages, known, features, queries, window=WINDOW)
    values = {
        what: graded(collection, rankings)
        for what, rankings in (
            ("bm25", words.rankings),
            ("blend", served.rankings),
            ("again", again),
            ("memory", memory.rank(blend).rankings),
        )
    }
    apart = np.abs(values["blend"] - values["again"])
    return [
        collection.name,
        name,
        len(texts),
        *(f"{values[one].mean():.4f}" for one in ("bm25", "blend", "again")),
        f"{apart.max():.1e}",
        f"{values['memory'].mean():.4f}",
    ]


def blended(collection: Collection, features: CorpusFeatures, queries: list[Query], words: Run) -> dict[str, list[str]]:
    """Return blend's rankings over an engine's first pass, joined by the nearest documents."""
    places = {name: place for place, name in enumerate(features.ids)}
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    rankings: dict[str, list[str]] = {}
    for name, query in zip(collection.queries, queries, strict=True):
        first = np.array([places[one] for one in words.rankings[name][:WINDOW]], np.intp)
        cosines = np.where(features.present, features.pooled @ query.vectors[0], -2)
        joined = np.setdiff1d(np.argsort(-cosines, kind="stable")[:WINDOW], first)
        documents = np.concatenate([first, joined])
        documents = documents[features.present[documents]]
        found = np.isin(documents, first)
        of_words = np.zeros(len(features.ids), np.float32)
        of_words[[places[one] for one in words.rankings[name]]] = words.scores[name]
        scores = of_words[documents]
        window = replace(features.window(documents, scores, needs), present={Feature.FIRST_PASS: found})
        order = np.argsort(-BlendRescorer().score(query, window, BlendParams()), kind="stable")
        rankings[name] = [features.ids[place] for place in documents[order].tolist()]
    return rankings


def graded(collection: Collection, rankings: Mapping[str, Sequence[str]]) -> Float64:
    """Return nDCG@10 of each query."""
    return score_by(METRIC, {query: collection.qrels[query] for query in collection.queries}, rankings)


if __name__ == "__main__":
    main()
