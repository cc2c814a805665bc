"""Fewer token vectors for a document: bytes against nDCG@10 of maxsim, late interaction, spectral retrieval and blend.

    python -m benchmarks.token_pooling --split train
    python -m benchmarks.token_pooling

`pool N` joins tokens that follow each other until a document has a Nth of them (`es-ttc index create --token-pooling
N`). `cluster N` is token pooling as it was published: hierarchical clustering by Ward's criterion over all tokens of a
document, wherever they stand, in the order of their first tokens. `drop` leaves tokens out before that: punctuation;
stop words too; special tokens too. Codecs other than int8 are named. Bytes are those of token vectors, norms and
offsets of one document, before Lucene compresses them. A collection of more documents than `--documents` keeps those
judged for its queries, and others drawn at random.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA, MAX_TOKENS, METRIC, WINDOW, compared, first_queries, prepared
from benchmarks.common import heading, table
from benchmarks.programs import subset
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.encode import stored_tokens, token_blob, token_features
from es_ttc.index.ingest.fewer_tokens import kept_tokens
from es_ttc.index.mappings.fields import stored_scales
from es_ttc.index.mappings.spec import RESIDUAL_BITS, Codec, DroppedTokens, IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_queries
from es_ttc.lab.evaluation.memory import JoinedWindow, MemorySearcher
from es_ttc.lab.evaluation.methods import retrieval
from es_ttc.lab.evaluation.metrics import Float64, score_by
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer
from es_ttc.rescorers.blend.signals import read_by, signal_scores
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.vectors.packed import pack_codebook, pack_norms, pack_offsets
from es_ttc.vectors.reduce import group_starts, pool_ranges, pool_rows
from es_ttc.vectors.residual import learn
from es_ttc.vectors.tokens import Float32

COLLECTIONS = ("scifact", "qmsum-meetings")
MOST_QUERIES = 300
MOST_DOCUMENTS = 1500
BATCH = 64
SAMPLE = 100
"""Documents whose tokens train the centroids."""
METHODS = ("maxsim", "late", "spectral", "blend")

Offsets = NDArray[np.int32]
Pool = Callable[[Float32, Offsets, int], tuple[Float32, Offsets]]


@dataclass(frozen=True, slots=True)
class Variant:
    """How token vectors are stored.

    Attributes:
        drop: Which tokens are left out.
        factor: How many tokens become one, on average.
        clusters: Whether tokens are joined wherever they stand.
        codec: Their codec.
    """

    drop: DroppedTokens = "none"
    factor: int = 1
    clusters: bool = False
    codec: Codec = "int8"

    def __str__(self) -> str:
        parts = [
            *([] if self.drop == "none" else [f"drop {self.drop}"]),
            *([] if self.factor == 1 else [f"{'cluster' if self.clusters else 'pool'} {self.factor}"]),
            *([] if self.codec == "int8" else [self.codec]),
        ]
        return ", ".join(parts) or "today: int8"


VARIANTS = (
    Variant(),
    *(Variant(factor=factor) for factor in (2, 3, 4, 6)),
    *(Variant(factor=factor, clusters=True) for factor in (2, 3, 4, 6)),
    *(Variant(drop=drop) for drop in ("punctuation", "english", "special")),
    *(Variant(drop="english", factor=factor) for factor in (2, 3)),
    Variant(codec="residual4"),
    Variant(factor=2, codec="residual4"),
    Variant(factor=3, codec="residual4"),
    Variant(drop="english", factor=2, codec="residual4"),
    Variant(codec="residual2"),
    Variant(factor=2, codec="residual2"),
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A collection, encoded once.

    Attributes:
        collection: Documents, queries, judgements.
        texts: The documents' texts.
        pooled: Their pooled vectors.
        tokens: Their token vectors, as the encoder gives them.
        offsets: The characters of these tokens.
    """

    collection: Collection
    texts: Sequence[str]
    pooled: Float32
    tokens: Sequence[Float32]
    offsets: Sequence[Offsets]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a variant takes and gives."""

    size: float
    rows: float
    values: Mapping[str, Float64]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[DATA / name for name in COLLECTIONS])
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=MOST_QUERIES, help="queries of a collection, drawn at random")
    parser.add_argument("--documents", type=int, default=MOST_DOCUMENTS, help="documents of a collection")
    parser.add_argument("--only", nargs="*", default=[], help="names of variants beside the first; all where none")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    described = (
        f"{', '.join(folder.name for folder in arguments.data)}; split {arguments.split}, up to {arguments.queries} "
        f"queries and {arguments.documents:,} documents each"
    )
    print(heading(f"Token pooling, {encoder.identity.model}", data=described, packages=("numpy", "onnxruntime")))
    variants = [one for one in VARIANTS if not arguments.only or str(one) in (str(VARIANTS[0]), *arguments.only)]
    for folder in arguments.data:
        collection = first_queries(load_collection(folder, split=arguments.split), arguments.queries)
        corpus = encoded(subset(collection, None, arguments.documents), encoder)
        print(f"### {folder.name}, {len(corpus.texts):,} documents, {len(collection.queries)} queries\n")
        print(_table({str(one): measured(corpus, one, encoder) for one in variants}), flush=True)


def encoded(collection: Collection, encoder: Encoder) -> Corpus:
    """Encode a collection's documents."""
    texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
    parts = [
        encoder.encode(texts[start : start + BATCH], max_tokens=MAX_TOKENS) for start in range(0, len(texts), BATCH)
    ]
    return Corpus(
        collection,
        texts,
        np.concatenate([part.pooled for part in parts]),
        [rows for part in parts for rows in part.tokens],
        [rows for part in parts for rows in part.offsets],
    )


def measured(corpus: Corpus, variant: Variant, encoder: Encoder) -> Measured:
    """Return a variant's bytes and its methods' values, query by query."""
    began = time.perf_counter()
    spec = IndexSpec(encoder.identity, codec="int8", max_tokens=MAX_TOKENS)
    pool: Pool = clustered if variant.clusters else adjacent
    reduced = [
        _reduced(text, rows, offsets, variant, pool)
        for text, rows, offsets in zip(corpus.texts, corpus.tokens, corpus.offsets, strict=True)
    ]
    if variant.codec in RESIDUAL_BITS:
        sample = np.concatenate([rows for rows, _ in reduced[:SAMPLE]])
        spec = replace(spec, codec=variant.codec, codebook=pack_codebook(learn(sample, RESIDUAL_BITS[variant.codec])))
    stored = [
        token_features(vectors, np.zeros((len(vectors.vectors), 3), np.int32), spec)
        for vectors in stored_tokens([rows for rows, _ in reduced], spec)
    ]
    size = 0
    for one, (_, ranges) in zip(stored, reduced, strict=True):
        located = np.concatenate([np.zeros((len(ranges), 1), np.int32), ranges], axis=1)
        size += len(token_blob(one, spec)) + len(pack_norms(one.norms))
        size += len(pack_offsets(located, spec.text_fields))
    assert stored_scales(spec)
    features = CorpusFeatures(
        ids=[document.id for document in corpus.collection.documents],
        present=np.linalg.norm(corpus.pooled, axis=1) > 0,
        pooled=corpus.pooled,
        tokens=[one.vectors for one in stored],
        norms=[one.norms for one in stored],
    )
    queries = encode_queries(list(corpus.collection.queries.values()), encoder, tokens=True)
    searcher = MemorySearcher(
        corpus.collection, corpus.texts, retrieval(()), features, queries, window=WINDOW, candidates=WINDOW
    )
    rankings: dict[str, dict[str, list[str]]] = {name: {} for name in METHODS}
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    for query, joined in zip(corpus.collection.queries, searcher.joined_windows(needs), strict=True):
        for name, scores in _scores(joined).items():
            order = joined.documents[np.argsort(-scores, kind="stable")]
            rankings[name][query] = [features.ids[place] for place in order.tolist()]
    judged = {query: corpus.collection.qrels[query] for query in corpus.collection.queries}
    print(f"{corpus.collection.name}, {variant}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    rows = sum(len(kept) for kept, _ in reduced) / len(reduced)
    return Measured(
        size / len(stored), rows, {name: score_by(METRIC, judged, found) for name, found in rankings.items()}
    )


def _reduced(text: str, rows: Float32, offsets: Offsets, variant: Variant, pool: Pool) -> tuple[Float32, Offsets]:
    kept = kept_tokens(text, offsets, variant.drop)
    rows, offsets = rows[kept], offsets[kept]
    return (rows, offsets) if variant.factor == 1 else pool(rows, offsets, -(-len(rows) // variant.factor))


def adjacent(rows: Float32, offsets: Offsets, groups: int) -> tuple[Float32, Offsets]:
    """Join tokens that follow each other."""
    starts = group_starts(rows, groups)
    return pool_rows(rows, starts), pool_ranges(offsets, starts)


def clustered(rows: Float32, offsets: Offsets, groups: int) -> tuple[Float32, Offsets]:
    """Join tokens wherever they stand."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(rows) < 2:
        return rows, offsets
    labels = fcluster(linkage(rows.astype(np.float64), "ward"), groups, "maxclust")
    _, first, found = np.unique(labels, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), rows.shape[1]))
    np.add.at(sums, found, rows)
    sums = sums[np.argsort(first)]
    return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32), offsets[np.sort(first)]


def _scores(joined: JoinedWindow) -> dict[str, Float32]:
    query, window = joined.query, joined.window
    return {
        "maxsim": MaxSimRescorer().score(query, window, MaxSimParams()),
        "late": signal_scores("late_interaction", query, window).scores,
        "spectral": signal_scores("spectral", query, window).scores,
        "blend": BlendRescorer().score(query, window, BlendParams()),
    }


def _table(found: Mapping[str, Measured]) -> str:
    """Return each variant's bytes, and what it changes against the first."""
    today = next(iter(found.values()))
    rows = []
    for name, one in found.items():
        cells = [f"{one.values[method].mean():.3f}" for method in METHODS]
        if one is not today:
            changes = map(partial(_change, one, today), METHODS)
            cells = [f"{cell} ({change})" for cell, change in zip(cells, changes, strict=True)]
        rows.append([name, f"{one.rows:.0f}", f"{one.size / 1024:.1f}", f"{one.size / today.size:.0%}", *cells])
    return table(["stored", "vectors", "KiB a document", "of today", *METHODS], rows)


def _change(one: Measured, today: Measured, method: str) -> str:
    found = compared(one.values[method], today.values[method])
    sure = "**" if found.interval.low > 0 or found.interval.high < 0 else ""
    return f"{sure}{found.delta:+.3f}{sure}"


if __name__ == "__main__":
    main()
