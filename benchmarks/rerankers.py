"""A real cross-encoder beside blend: nDCG@10 over the first documents of BM25 and of blend, alone and added to blend.

    python -m benchmarks.rerankers
    python -m benchmarks.rerankers --data ../shared/data/scifact --split train --queries 200 --depths 10 20 50

The cross-encoder is `msmarco-minilm` (es-ttc[cross-encoder]), called as the gateway calls it. Its scores are kept in
the cache folder, so that an interrupted run goes on. `ce(bm25,20)` sorts BM25's first 20 documents by it;
`blend+ce(20)` adds its z-scores over blend's first 20 to blend's, as the signal `reranker` does. `ms a pair` is
processor time.
"""

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.blend import (
    MAX_TOKENS,
    METRIC,
    WINDOW,
    collections,
    compared,
    first_queries,
    parser_of,
    prepared,
    shown,
    signals,
)
from benchmarks.common import heading, table
from es_ttc.common.files import replace_file
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.reranking.rerankers import Passage
from es_ttc.reranking.rerankers.cross_encoder import built_in
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM
from es_ttc.reranking.strategies.retrieve_and_rerank import mixed
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float64

DEPTHS = (10, 20, 50)
MAX_CHARACTERS = 4000
WEIGHTS = (0.5, 1.0, 2.0)
_TIMED = 20
_KEPT_AT_ONCE = 500


class KeptScores:
    """The cross-encoder's scores of a collection's pairs, kept in a file."""

    def __init__(self, collection: Collection, texts: Mapping[str, str]) -> None:
        name = hashlib.sha256(f"{MSMARCO_MINILM} {collection.name} {len(texts)}".encode()).hexdigest()[:16]
        self._file = Settings().cache_dir / "benchmarks" / f"cross-encoder-{name}.json"
        self._scores: dict[str, float] = json.loads(self._file.read_bytes()) if self._file.exists() else {}
        self._collection = collection
        self._texts = texts
        self._reranker = built_in()[MSMARCO_MINILM]()
        self._new = 0

    def of(self, query: str, documents: Sequence[str]) -> Float64:
        """Return the scores of documents for a query, ``(n,)``."""
        keys = [f"{query}\t{document}" for document in documents]
        missing = [place for place, key in enumerate(keys) if key not in self._scores]
        if missing:
            found = self._scored(query, [documents[place] for place in missing])
            self._scores |= {keys[place]: score for place, score in zip(missing, found, strict=True)}
            self._new += len(missing)
            if self._new >= _KEPT_AT_ONCE:
                self.keep()
        return np.array([self._scores[key] for key in keys])

    def keep(self) -> None:
        """Write the scores that are new."""
        if self._new:
            replace_file(self._file, json.dumps(self._scores).encode())
            self._new = 0

    def ms_of_a_pair(self, query: str, documents: Sequence[str]) -> float:
        """Return the processor time of a pair, in ms."""
        self._scored(query, documents[:1])  # loads the model
        began = time.process_time()
        self._scored(query, documents)
        return (time.process_time() - began) * 1000 / len(documents)

    def _scored(self, query: str, documents: Sequence[str]) -> list[float]:
        async def scored() -> list[float]:
            passages = [Passage(document, self._texts[document]) for document in documents]
            return await self._reranker.scores(self._collection.queries[query], passages)

        return asyncio.run(scored())


@dataclass(frozen=True)
class Measured:
    """What each method reaches on a collection, query by query, and the cross-encoder's time for a pair."""

    values: Mapping[str, Float64]
    ms: float


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS, help="first documents that are reranked")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    found: dict[str, Measured] = {}
    for collection in collections(arguments.data, arguments.split, generated=not arguments.no_generated):
        found[collection.name] = measured(first_queries(collection, arguments.queries), encoder, arguments.depths)
    described = f"{', '.join(found)}; split {arguments.split}, up to {arguments.queries} queries each"
    print(
        heading(
            f"A cross-encoder beside blend, {encoder.identity.model}",
            data=described,
            packages=(
                "onnxruntime",
                "openvino",
            ),
        )
    )
    print(tables(found))


def measured(collection: Collection, encoder: Encoder, depths: Sequence[int]) -> Measured:
    """Return what each method reaches on a collection."""
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int4", max_tokens=MAX_TOKENS)
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, fields)[0] for document in collection.documents]
    searcher = MemorySearcher(collection, texts, retrieval(()), features, queries, window=WINDOW)
    runs = {
        "bm25": searcher.rank(resolve_one("bm25", {})),
        "dense": searcher.rank(resolve_one("dense", {})),
        "RRF(b,d)": searcher.rank(resolve_one("hybrid", {})),
        "z(b,d)": searcher.rank(resolve_one("blend", signals("lexical", "dense"))),
        "blend": searcher.rank(resolve_one("blend", {})),
    }
    cut = {document.id: text[:MAX_CHARACTERS] for document, text in zip(collection.documents, texts, strict=True)}
    scores = KeptScores(collection, cut)
    rankings: dict[str, dict[str, list[str]]] = {name: dict(run.rankings) for name, run in runs.items()}  # type: ignore[arg-type]
    for number, query in enumerate(collection.queries, 1):
        for depth in depths:
            for base in ("bm25", "blend"):
                named = rankings.setdefault(f"ce({base},{depth})", {})
                named[query] = reranked(runs[base].rankings[query], scores, query, depth)
            for weight in WEIGHTS:
                named = rankings.setdefault(added(depth, weight), {})
                named[query] = blended(runs["blend"], scores, query, depth, weight)
        if number % 10 == 0:
            print(f"{collection.name}: {number}/{len(collection.queries)} queries", file=sys.stderr)
    scores.keep()
    judged = {query: collection.qrels[query] for query in collection.queries}
    values = {name: score_by(METRIC, judged, ranking) for name, ranking in rankings.items()}
    query = next(iter(collection.queries))
    return Measured(values, scores.ms_of_a_pair(query, runs["bm25"].rankings[query][:_TIMED]))


def added(depth: int, weight: float) -> str:
    """Return the name of blend with the cross-encoder as a signal."""
    return f"blend+ce({depth})" if weight == 1 else f"blend+{weight:g}ce({depth})"


def reranked(ranking: Sequence[str], scores: KeptScores, query: str, depth: int) -> list[str]:
    """Return a ranking whose first documents are in the cross-encoder's order."""
    head, rest = list(ranking[:depth]), list(ranking[depth:])
    order = np.argsort(-scores.of(query, head), kind="stable")
    return [head[place] for place in order] + rest


def blended(run: Run, scores: KeptScores, query: str, depth: int, weight: float) -> list[str]:
    """Return blend's ranking whose first documents are in the order of the sum of both z-scores."""
    ranking = run.rankings[query]
    head, rest = list(ranking[:depth]), list(ranking[depth:])
    values = mixed(scores.of(query, head).astype(np.float32), run.scores[query][: len(head)], 1 / weight)
    return [head[place] for place in np.argsort(-values, kind="stable")] + rest


def _difference(values: Mapping[str, Float64], column: str) -> str:
    """Return blend's gain over a cross-encoder alone, or the gain over blend of both together."""
    blend, other = values["blend"], values[column]
    return shown(compared(blend, other) if column.startswith("ce(") else compared(other, blend))


def tables(found: Mapping[str, Measured]) -> str:
    """Return what each method reaches, and how blend and the sum compare with the cross-encoder."""
    names = list(next(iter(found.values())).values)
    rows = [[name, len(one.values["blend"]), *(f"{one.values[method].mean():.3f}" for method in names), f"{one.ms:.0f}"]
            for name, one in found.items()]  # fmt: skip
    means = [f"{np.mean([one.values[method].mean() for one in found.values()]):.3f}" for method in names]
    parts = [table([METRIC, "queries", *names, "ms a pair"], [*rows, ["mean", "", *means, ""]])]
    for title, prefix in (("blend - ...", "ce("), ("... - blend", "blend+")):
        columns = [name for name in names if name.startswith(prefix)]
        rows = [[name, *(_difference(one.values, column) for column in columns)] for name, one in found.items()]
        parts.append(table([title, *columns], rows))
    return "\n".join(parts)


if __name__ == "__main__":
    main()
