"""Blend against hybrid search and its own parts, in memory: nDCG@10, intervals, and queries won and lost.

    python -m benchmarks.blend
    python -m benchmarks.blend --data ../shared/data/scifact ../shared/data/cranfield --encoder minilm@onnx

Every method ranks the same union: BM25's first 100 documents and the 100 nearest by pooled vector. `z(b,d)` is blend
with two signals, lexical and dense: what a hybrid search that normalises scores by z-score gives. Nothing is tuned.
`no_tokens` and `no_candidates` are what a gateway under load answers with: no token vectors, and no documents from
outside the window of BM25.
"""

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.evaluation.bootstrap import SEED, Comparison, compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.blend import BlendRescorer
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import Settings
from es_ttc.vectors.codecs import StoredCodec
from es_ttc.vectors.tokens import Float64

DATA = Path(__file__).parents[2] / "shared" / "data"
METRIC = "ndcg@10"
WINDOW = 100
MAX_QUERIES = 300
MAX_TOKENS = 1024


def signals(*names: str, normalise: str = "z") -> Mapping[str, Any]:
    """Return the parameters of a blend of some signals."""
    return {"signals": dict.fromkeys(names, 1), "normalise": normalise}


METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bm25": ("bm25", {}),
    "dense": ("dense", {}),
    "spectral": ("blend", signals("spectral")),
    "late": ("blend", signals("late_interaction")),
    "RRF(b,d)": ("hybrid", {}),
    "z(b,d)": ("blend", signals("lexical", "dense")),
    "blend": ("blend", {}),
    "minmax": ("blend", {"normalise": "minmax"}),
    "rank": ("blend", {"normalise": "rank"}),
}
SINGLE = ("bm25", "dense", "spectral", "late")
LOADED = ("no_tokens", "no_candidates")
LEAVE_OUT = ("lexical", "dense", "spectral", "late_interaction")


class _WithoutTokens(BlendRescorer):
    """Blend that reads what every index carries alone."""

    def takes(self, params: BlendParams) -> frozenset[Feature]:  # noqa: ARG002
        """Take no further features."""
        return frozenset()


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--chunks", action="store_true", help="also measure the signal of sentences, which are encoded")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    values: dict[str, dict[str, Float64]] = {}
    for collection in collections(arguments.data, arguments.split, generated=not arguments.no_generated):
        some = first_queries(collection, arguments.queries)
        values[collection.name] = measured(some, encoder, chunks=arguments.chunks)
    described = f"{', '.join(values)}; split {arguments.split}, up to {arguments.queries} queries each"
    print(heading(f"Blend, {encoder.identity.model}", data=described, packages=("numpy", "onnxruntime", "openvino")))
    print(tables(values))


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that choose collections, queries and encoder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", help="BEIR folders; those beside the repository where none")
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=MAX_QUERIES, help="queries of a collection, drawn at random")
    parser.add_argument("--no-generated", action="store_true", help="leave out the demonstration's two collections")
    return parser


def prepared(name: str) -> CachedEncoder:
    """Return an encoder whose encodings are kept; only warnings are logged."""
    configure_logs(logging.WARNING)
    cache = Settings().cache_dir
    return CachedEncoder(load_encoder(name, cache_dir=cache), cache / "encodings")


def collections(folders: list[Path] | None, split: str, *, generated: bool) -> Iterator[Collection]:
    """Yield the collections, the smallest first."""
    found = folders or sorted(path.parent for path in DATA.glob("*/corpus.jsonl"))
    for folder in sorted(found, key=lambda folder: (folder / "corpus.jsonl").stat().st_size):
        if (folder / "qrels" / f"{split}.tsv").exists():
            yield load_collection(folder, split=split)
    if generated:
        yield limit_style.generate()
        yield stdlib.generate()


def first_queries(collection: Collection, most: int) -> Collection:
    """Return a collection with at most so many of its queries, drawn at random."""
    names = list(collection.queries)
    if len(names) <= most:
        return collection
    chosen = np.random.default_rng(0).choice(len(names), most, replace=False)
    return replace(collection, queries={names[place]: collection.queries[names[place]] for place in sorted(chosen)})


def measured(collection: Collection, encoder: Encoder, *, chunks: bool) -> dict[str, Float64]:
    """Return every method's values, query by query."""
    began = time.perf_counter()
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS, chunks=chunks)
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
    methods = {name: resolve_one(method, params) for name, (method, params) in METHODS.items()}
    for signal in LEAVE_OUT:
        methods[f"without {signal}"] = resolve_one("blend", signals(*(one for one in LEAVE_OUT if one != signal)))
    methods["equal"] = resolve_one("blend", signals(*LEAVE_OUT))
    methods["lexical x2"] = resolve_one("blend", {"signals": {**dict.fromkeys(LEAVE_OUT, 1), "lexical": 2}})
    if chunks:
        methods["with sentences"] = resolve_one("blend", signals(*LEAVE_OUT, "sentences"))

    def searcher(candidates: int | None = None) -> MemorySearcher:
        known = retrieval(())
        return MemorySearcher(collection, texts, known, features, queries, window=WINDOW, candidates=candidates)

    together = searcher()
    values = {name: _values(collection, together, method) for name, method in methods.items()}
    values["window alone"] = _values(collection, searcher(0), methods["blend"])
    reduced = EvaluatedMethod("blend", BlendParams(), _WithoutTokens())
    values["no_tokens"] = _values(collection, together, reduced)
    values["no_candidates"] = _values(collection, searcher(0), reduced)
    print(f"{collection.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return values


def searcher_of(
    collection: Collection, of_documents: Encoder, of_queries: Encoder, codec: StoredCodec
) -> MemorySearcher:
    """Return a searcher of a collection, whose documents and queries may be encoded by two runtimes of one model."""
    fields = ("title", "text")
    spec = IndexSpec(of_documents.identity, text_fields=fields, codec=codec, max_tokens=MAX_TOKENS)
    features = encode_corpus(collection.documents, spec, of_documents)
    queries = encode_queries(list(collection.queries.values()), of_queries, tokens=True)
    texts = [compose(document.source, fields)[0] for document in collection.documents]
    return MemorySearcher(collection, texts, retrieval(()), features, queries, window=WINDOW, candidates=WINDOW)


def _values(collection: Collection, searcher: MemorySearcher, method: EvaluatedMethod) -> Float64:
    return score_by(
        METRIC, {query: collection.qrels[query] for query in collection.queries}, searcher.rank(method).rankings
    )


def tables(values: Mapping[str, Mapping[str, Float64]]) -> str:
    """Return what each method reaches, and how blend compares."""
    names = [*METHODS, "equal", "window alone"]
    rows = [[collection, len(found["blend"]), *(f"{found[name].mean():.3f}" for name in names)]
            for collection, found in values.items()]  # fmt: skip
    natural = [found for collection, found in values.items() if not collection.startswith("limit")]
    rows.append(
        ["mean without LIMIT", "", *(f"{np.mean([one[name].mean() for one in natural]):.3f}" for name in names)]
    )
    parts = [table(["nDCG@10", "queries", *names], rows)]
    rivals = ("RRF(b,d)", "z(b,d)", "late", "spectral", "bm25", "dense")
    rows = [[collection, *(shown(compared(found["blend"], found[rival])) for rival in rivals)]
            for collection, found in values.items()]  # fmt: skip
    parts.append("Blend's mean against each, with the 95 % interval of the difference, and queries won/tied/lost:\n")
    parts.append(table(["blend - ...", *rivals], rows))
    without = [f"without {signal}" for signal in LEAVE_OUT]
    others = [name for name in ("lexical x2", "with sentences") if all(name in found for found in values.values())]
    rows = [[collection, *(f"{found[name].mean() - found['equal'].mean():+.3f}" for name in (*without, *others))]
            for collection, found in values.items()]  # fmt: skip
    parts.append("What changes against equal weights if a signal is left out, or has another weight:\n")
    parts.append(table(["difference", *without, *others], rows))
    rows = [[collection, *(f"{found[name].mean():.3f}" for name in ("blend", *LOADED)),
             *(shown(compared(found[name], found[rival])) for rival in ("RRF(b,d)", "bm25") for name in LOADED)]
            for collection, found in values.items()]  # fmt: skip
    parts.append("Under load:\n")
    against = (f"{name} - {rival}" for rival in ("RRF(b,d)", "bm25") for name in LOADED)
    parts.append(table(["nDCG@10", "blend", *LOADED, *against], rows))
    return "\n".join(parts)


def compared(ours: Float64, theirs: Float64) -> Comparison:
    """Return a paired comparison by bootstrap."""
    means = resampled_means(np.stack([ours, theirs]), seed=SEED)
    return compare(ours, theirs, means[:, 0], means[:, 1])


def shown(one: Comparison) -> str:
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    interval = f"{one.interval.low:+.3f}..{one.interval.high:+.3f}"
    return f"{sure}{one.delta:+.3f}{sure} ({interval}) {one.wins}/{one.ties}/{one.losses}"


if __name__ == "__main__":
    main()
