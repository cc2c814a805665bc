"""LexHybridRRF and plain fusion of BM25 with dense retrieval, one difference at a time.

    python -m benchmarks.lexical_fusion

The paper compares both "on the same two channels" (section 4.4). Plain fusion as it is evaluated here differs from
LexHybridRRF in four ways: its lexical channel is BM25 with stems, documents without a query word are left out of it,
it has no word bigrams, and its other channel is one cosine in place of nine. Each row changes one of them. All fuse by
``sum 1 / rank`` over the whole corpus, all-MiniLM-L6-v2.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common import heading, table
from benchmarks.programs import SIZES, encoded, load
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.lab.evaluation.report import signed
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.programs.primitives.fusion import ranks, reciprocal_rank_fusion
from es_ttc.rescorers.programs.rescorers import LexicalParams, ProgramRescorer
from es_ttc.rescorers.registry import load as load_rescorer
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

METRIC = "ndcg@10"
COLUMNS = (
    "plain",
    "unmatched documents last",
    "words in place of BM25",
    "words, unmatched last",
    "words and bigrams",
    "nine cosines, BM25",
    "nine cosines as one, BM25",
    "nine cosines as one, words and bigrams",
    "LexHybridRRF",
)


def channels_of(features: CorpusFeatures, queries: Sequence[Query]) -> dict[str, Float32]:
    """Return the channels of LexHybridRRF by name, ``(q, n)`` each."""
    program, params = load_rescorer("lexhybridrrf"), LexicalParams(lexical="paper")
    places = np.flatnonzero(features.present)
    window = features.window(places, np.zeros(len(places), np.float32), program.needs(params) | program.wants)
    assert isinstance(program, ProgramRescorer)
    return program.channels(queries, window, params)


def matched_only(channel: Float32) -> Float32:
    """Return the reciprocal ranks of a channel, 0 for documents that match no word."""
    reciprocal: Float32 = np.where(channel > 0, np.float32(1) / ranks(channel), np.float32(0))
    return reciprocal


def fusions(dense: Float32, bm25: Float32, channels: Mapping[str, Float32]) -> dict[str, Float32]:
    """Return the fused scores of every column, ``(q, n)`` each."""
    words, bigrams = channels["words"], channels["bigrams"]
    cosines = [channel for name, channel in channels.items() if name not in ("words", "bigrams")]
    first = np.float32(1) / ranks(dense)
    as_one = reciprocal_rank_fusion(cosines)
    values = (
        np.add(first, matched_only(bm25), dtype=np.float32),
        reciprocal_rank_fusion([dense, bm25]),
        np.add(first, matched_only(words), dtype=np.float32),
        reciprocal_rank_fusion([dense, words]),
        reciprocal_rank_fusion([dense, words, bigrams]),
        reciprocal_rank_fusion([*cosines, bm25]),
        reciprocal_rank_fusion([as_one, bm25]),
        reciprocal_rank_fusion([as_one, words, bigrams]),
        reciprocal_rank_fusion(list(channels.values())),
    )
    return dict(zip(COLUMNS, values, strict=True))


def measured(collection: Collection, encoder: CachedEncoder) -> dict[str, Float64]:
    """Return the metric of every fusion, query by query."""
    features, queries = encoded(collection, encoder)
    texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
    index, places = Bm25(texts), np.flatnonzero(features.present)
    bm25 = np.stack([index.scores(query.text)[places] for query in queries])
    pooled = features.pooled[places]
    dense = np.stack([pooled @ query.vectors[0] for query in queries]).astype(np.float32)
    ids = [features.ids[place] for place in places.tolist()]
    found = {}
    for name, scores in fusions(dense, bm25, channels_of(features, queries)).items():
        orders = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        rankings = {
            query: [ids[place] for place in order.tolist()]
            for query, order in zip(collection.queries, orders, strict=True)
        }
        found[name] = score_by(METRIC, collection.qrels, rankings)
    return found


def cell(own: Float64, plain: Float64) -> str:
    """Return a difference with its 95 % interval, in bold where the interval excludes zero."""
    means = resampled_means(np.stack([own, plain]))
    versus = compare(own, plain, means[:, 0], means[:, 1])
    clear = "**" if versus.interval.low > 0 or versus.interval.high < 0 else ""
    return f"{clear}{signed(versus.delta)}{clear} ({signed(versus.interval.low)} to {signed(versus.interval.high)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SIZES), help="collections")
    parser.add_argument("--encoder", default="minilm")
    arguments = parser.parse_args()
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(arguments.encoder, cache_dir=cache), cache / "encodings")
    print(heading("LexHybridRRF and plain fusion, one difference at a time", data=", ".join(arguments.names)))
    found = {name: measured(load(name), encoder) for name in arguments.names}
    rows = []
    for column in COLUMNS:
        cells = [
            f"{values[column].mean():.3f}" if column == "plain" else cell(values[column], values["plain"])
            for values in found.values()
        ]
        rows.append((column, *cells))
    print(table(("fusion", *found), rows))
    print("mean over collections without LIMIT:")
    kept = [values for name, values in found.items() if "limit" not in name]
    for column in COLUMNS:
        print(f"  {column}: {np.mean([values[column].mean() for values in kept]):.3f}")


if __name__ == "__main__":
    main()
