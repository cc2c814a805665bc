"""Codecs of token vectors: bytes against nDCG@10 of late interaction, spectral retrieval and blend.

    python -m benchmarks.token_storage
    python -m benchmarks.token_storage --encoder mpnet --only int8 int2

Bytes are those of token vectors, norms and offsets for each token of the text, before Lucene stores them. Changes are
against int8, over the same queries, with the 95 % interval of a paired bootstrap; in bold where it leaves out 0. The
last table is about all collections together: the mean over collections, of which each counts the same. A collection
of more documents than `--documents` keeps those judged for its queries, and others drawn at random.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import MAX_TOKENS, METRIC, WINDOW, collections, compared, first_queries, parser_of, prepared
from benchmarks.common import heading, table
from benchmarks.programs import subset
from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.index.ingest.compose import FieldSpan, compose, locate
from es_ttc.index.ingest.encode import token_features
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bootstrap import SEED, Interval, interval, resampled_means
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher, QueryWindow
from es_ttc.lab.evaluation.methods import retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.blend import BlendRescorer
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.blend.signals import read_by, signal_scores
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.vectors.codecs import StoredCodec
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.tokens import Float32, Float64

MAX_DOCUMENTS = 1500
BATCH = 64
METHODS = ("late", "spectral", "blend")
FIELDS = ("title", "text")
CODECS: tuple[StoredCodec, ...] = ("int8", "int4", "int2", "float16")

Offsets = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A collection, encoded once.

    Attributes:
        collection: Documents, queries, judgements.
        texts: The documents' texts.
        spans: The places of their fields.
        encodings: The texts' encodings, as the encoder gives them.
    """

    collection: Collection
    texts: Sequence[str]
    spans: Sequence[Sequence[FieldSpan]]
    encodings: Encodings


@dataclass(frozen=True, slots=True)
class Measured:
    """What a codec takes, in bytes for each token of the text, and gives."""

    size: float
    values: Mapping[str, Float64]


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--documents", type=int, default=MAX_DOCUMENTS, help="documents of a collection")
    parser.add_argument("--only", nargs="*", choices=CODECS, default=CODECS, help="codecs beside int8")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    described = f"split {arguments.split}, up to {arguments.queries} queries and {arguments.documents:,} documents each"
    print(heading(f"Storage of token vectors, {encoder.identity.model}", data=described, packages=("numpy",)))
    codecs = [codec for codec in CODECS if codec in (CODECS[0], *arguments.only)]
    everything: dict[str, dict[str, Measured]] = {}
    for collection in collections(arguments.data, arguments.split, generated=not arguments.no_generated):
        some = subset(first_queries(collection, arguments.queries), None, arguments.documents)
        corpus = encoded(some, encoder)
        print(f"### {some.name}, {len(corpus.texts):,} documents, {len(some.queries)} queries\n")
        everything[some.name] = {codec: measured(corpus, codec, encoder) for codec in codecs}
        print(_table(everything[some.name]), flush=True)
    print(f"### All {len(everything)} collections\n")
    print(_means(everything))


def encoded(collection: Collection, encoder: Encoder) -> Corpus:
    """Encode a collection's documents."""
    composed = [compose(document.source, FIELDS) for document in collection.documents]
    texts = [text for text, _ in composed]
    parts = [
        encoder.encode(texts[start : start + BATCH], max_tokens=MAX_TOKENS) for start in range(0, len(texts), BATCH)
    ]
    encodings = Encodings(
        np.concatenate([part.pooled for part in parts]),
        [rows for part in parts for rows in part.tokens],
        [rows for part in parts for rows in part.offsets],
        np.concatenate([part.truncated for part in parts]),
    )
    return Corpus(collection, texts, [spans for _, spans in composed], encodings)


def measured(corpus: Corpus, codec: StoredCodec, encoder: Encoder) -> Measured:
    """Return a codec's bytes and its methods' values, query by query."""
    began = time.perf_counter()
    spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec=codec, max_tokens=MAX_TOKENS)
    encodings = corpus.encodings
    stored = [
        token_features(rows, locate(offsets, spans), spec)
        for rows, offsets, spans in zip(encodings.tokens, encodings.offsets, corpus.spans, strict=True)
    ]
    size = sum(
        len(pack_tokens(one.vectors)) + len(pack_norms(one.norms)) + len(pack_offsets(one.offsets, FIELDS))
        for one in stored
    )
    features = CorpusFeatures(
        ids=[document.id for document in corpus.collection.documents],
        present=np.linalg.norm(encodings.pooled, axis=1) > 0,
        pooled=encodings.pooled,
        tokens=[one.vectors for one in stored],
        norms=[one.norms for one in stored],
    )
    queries = encode_queries(list(corpus.collection.queries.values()), encoder, tokens=True)
    searcher = MemorySearcher(
        corpus.collection, corpus.texts, retrieval(()), features, queries, window=WINDOW, candidates=WINDOW
    )
    rankings: dict[str, dict[str, list[str]]] = {name: {} for name in METHODS}
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    for query, joined in zip(corpus.collection.queries, searcher.windows(needs), strict=True):
        for name, scores in _scores(joined).items():
            order = joined.documents[np.argsort(-scores, kind="stable")]
            rankings[name][query] = [features.ids[place] for place in order.tolist()]
    judged = {query: corpus.collection.qrels[query] for query in corpus.collection.queries}
    print(f"{corpus.collection.name}, {codec}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    tokens = sum(map(len, encodings.tokens))
    return Measured(size / tokens, {name: score_by(METRIC, judged, found) for name, found in rankings.items()})


def _scores(joined: QueryWindow) -> dict[str, Float32]:
    query, window = joined.query, joined.window
    return {
        "late": signal_scores("late_interaction", query, window).scores,
        "spectral": signal_scores("spectral", query, window).scores,
        "blend": BlendRescorer().score(query, window, BlendParams()),
    }


def _table(found: Mapping[str, Measured]) -> str:
    """Return each codec's bytes, and what it changes against the first."""
    first = next(iter(found.values()))
    rows = []
    for name, one in found.items():
        cells = [f"{one.values[method].mean():.3f}" for method in METHODS]
        if one is not first:
            changes = [compared(one.values[method], first.values[method]) for method in METHODS]
            cells = [
                f"{cell} {_change(change.delta, change.interval)}" for cell, change in zip(cells, changes, strict=True)
            ]
        rows.append([name, f"{one.size:.1f}", *cells])
    return table(["stored", "bytes a token", *METHODS], rows)


def _means(everything: Mapping[str, Mapping[str, Measured]]) -> str:
    """Return each codec's mean over collections, and its change, resampled within each collection."""
    first, *others = next(iter(everything.values()))
    rows = []
    for name in (first, *others):
        cells = []
        for method in METHODS:
            values = [found[name].values[method] for found in everything.values()]
            changes = [
                one - found[first].values[method] for one, found in zip(values, everything.values(), strict=True)
            ]
            drawn = [resampled_means(one[np.newaxis], seed=SEED + place) for place, one in enumerate(changes)]
            delta = float(np.mean([one.mean() for one in changes]))
            change = _change(delta, interval(np.mean(drawn, axis=0)[:, 0]))
            cells.append(f"{np.mean([one.mean() for one in values]):.4f} {change if name != first else ''}")
        rows.append([name, *cells])
    return table(["stored", *METHODS], rows)


def _change(delta: float, within: Interval) -> str:
    sure = "**" if within.low > 0 or within.high < 0 else ""
    return f"({sure}{delta:+.4f}{sure}, {within.low:+.3f} to {within.high:+.3f})"


if __name__ == "__main__":
    main()
