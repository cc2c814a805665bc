"""Documents longer than the encoder reads: what more tokens cost, and what they bring to blend, in memory.

    python -m benchmarks.long_documents ../shared/data/qmsum-meetings --settings 1024 4096 16384,repeated_words

A setting is `--max-tokens`, and `--skip-tokens` after a comma. Texts are encoded once, at the greatest number.
A setting's documents a second are those of its tokens at the speed measured there. Every row ranks BM25's first 100
documents and the 100 nearest by pooled vector, as `benchmarks.blend` does.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blend import MAX_QUERIES, METRIC, WINDOW, compared, first_queries, prepared, shown
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.encode import Encoded, document_features, with_tokens_skipped
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.blend import BlendRescorer
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.blend.signals import read_by
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.vectors.codecs import SkipTokens
from es_ttc.vectors.tokens import Float64

_FIELDS = ("title", "text")
_OFFSET_BYTES = 2  # of a token
_COLUMNS = (
    *("setting", "tokens read", "vectors", "share", "documents a second", "kB a document", "scoring, ms"),
    METRIC,
)


def main() -> None:
    """Print a table of the settings for each collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="BEIR folders")
    parser.add_argument("--settings", nargs="+", default=["1024", "4096", "16384,repeated_words"])
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=MAX_QUERIES, help="queries of a collection, drawn at random")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder).uncached
    for folder in arguments.data:
        collection = first_queries(load_collection(folder, split=arguments.split), arguments.queries)
        described = f"{collection.name}, {len(collection.queries)} queries, split {arguments.split}, int4"
        print(heading(f"Long documents, {encoder.identity.model}", data=described, packages=("numpy", "openvino")))
        print(measured(collection, encoder, arguments.settings), flush=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """How many tokens of a document are read, and which of them get no vector."""

    max_tokens: int
    skip_tokens: SkipTokens = "none"

    @classmethod
    def of(cls, text: str) -> "Setting":
        """Return the setting of a command line."""
        tokens, _, skip = text.partition(",")
        return cls(int(tokens), skip or "none")  # type: ignore[arg-type]


def measured(collection: Collection, encoder: Encoder, settings: list[str]) -> str:
    """Return the table of a collection; the last columns are blend's differences from BM25 and the first setting."""
    composed = [compose(document.source, _FIELDS) for document in collection.documents]
    greatest = max(Setting.of(text).max_tokens for text in settings)
    began = time.perf_counter()
    whole = [encoder.encode([text], max_tokens=greatest) for text, _ in composed]
    speed = sum(len(one.tokens[0]) for one in whole) / (time.perf_counter() - began)
    print(f"{speed:,.0f} tokens a second\n")
    rows: list[list[Any]] = []
    first: Float64 | None = None
    for text in settings:
        setting = Setting.of(text)
        spec = IndexSpec(encoder.identity, text_fields=_FIELDS, **asdict(setting))
        stored = []
        for one, own in zip(whole, composed, strict=True):
            encoded = with_tokens_skipped(Encoded(_cut(one, setting.max_tokens)), [own], spec, encoder)
            stored += document_features(encoded, [own[1]], [""], spec)
        tokens = [one.tokens for one in stored if one.tokens is not None]
        features = CorpusFeatures(
            ids=[document.id for document in collection.documents],
            present=np.ones(len(stored), np.bool_),
            pooled=np.concatenate([one.pooled for one in whole]),
            tokens=[one.vectors for one in tokens],
            norms=[one.norms for one in tokens],
        )
        bm25, blend, ms = _ranked(collection, features, encoder)
        first = blend if first is None else first
        read = np.mean([min(len(one.tokens[0]), setting.max_tokens) for one in whole])
        figures = [
            f"{read:,.0f}",
            f"{np.mean([len(one) for one in features.tokens]):,.0f}",
            f"{np.mean([one.read for one in features.tokens]):.2f}",
            f"{speed / read:,.1f}",
            f"{np.mean(_sizes(features)) / 1000:,.0f}",
            f"{ms:.1f}",
            f"{blend.mean():.3f}",
        ]
        rows += [] if rows else [["BM25", *[""] * (len(figures) - 1), f"{bm25.mean():.3f}", "", ""]]
        rows.append([text, *figures, shown(compared(blend, bm25)), shown(compared(blend, first))])
        print(rows[-1], file=sys.stderr)
    return table([*_COLUMNS, "blend - BM25", "blend - first setting"], rows)


def _cut(one: Encodings, max_tokens: int) -> Encodings:
    """Return the encoding of a text of which fewer tokens are read."""
    [rows], [offsets] = one.tokens, one.offsets
    truncated = one.truncated | (len(rows) > max_tokens)
    return replace(one, tokens=[rows[:max_tokens]], offsets=[offsets[:max_tokens]], truncated=truncated)


def _sizes(features: CorpusFeatures) -> list[int]:
    """Return the bytes of each document's token vectors, norms and offsets."""
    return [
        tokens.nbytes + norms.values.nbytes + _OFFSET_BYTES * len(tokens)
        for tokens, norms in zip(features.tokens, features.norms, strict=True)
    ]


def _ranked(collection: Collection, features: CorpusFeatures, encoder: Encoder) -> tuple[Float64, Float64, float]:
    """Return the values of BM25 and blend by query, and the median ms of the processor for a window's scores."""
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, _FIELDS)[0] for document in collection.documents]
    searcher = MemorySearcher(
        collection, texts, retrieval(()), features, queries, first_pass="bm25", window=WINDOW, candidates=WINDOW
    )
    judged = {query: collection.qrels[query] for query in collection.queries}
    bm25, blend = (searcher.rank(resolve_one(name, {})) for name in ("bm25", "blend"))
    seconds = []
    for window in searcher.windows(read_by(DEFAULT_SIGNALS) | {Feature.NORMS}):
        began = time.process_time()
        BlendRescorer().score(window.query, window.window, BlendParams())
        seconds.append(time.process_time() - began)
    ms = 1000 * float(np.median(seconds))
    return score_by(METRIC, judged, bm25.rankings), score_by(METRIC, judged, blend.rankings), ms


if __name__ == "__main__":
    main()
