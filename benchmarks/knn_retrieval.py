"""Retrieval over the whole corpus through an engine: column generation against the full solution, and passages.

    python -m benchmarks.knn_retrieval --engine http://127.0.0.1:9200

The first table asks for NNN retrieval of every query and holds what comes back to the solution on all vectors at once.
The second compares the windows of documents that kNN over pooled vectors and over spans find, and what the index costs.
"""

import argparse
import asyncio
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.methods import Method, resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import CUTOFFS, score
from es_ttc.lab.evaluation.plan import SPANS, Plan
from es_ttc.lab.evaluation.through_engine import EngineSearcher, SearchedIndex, engine_searcher, temporary_index
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.rescorers.nnn.objective import objective
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import EngineSettings, Settings
from es_ttc.vectors.tokens import Float32

DATA = [Path(__file__).parents[2] / "shared" / "data" / name for name in ("scifact", "qmsum-meetings")]
L1S = (0.05, 0.1, 0.2)
L2 = 0.1
CLOSE = 1e-6
MOST = 1000


@dataclass(frozen=True)
class Subject:
    """A collection with its queries encoded."""

    collection: Collection
    encoder: Encoder
    queries: Sequence[Query]
    engine: EngineSettings

    @contextmanager
    def indexed(self, spec: IndexSpec) -> Iterator[tuple[SearchedIndex, float]]:
        """Index the collection, and tell the seconds that writing took."""
        began = time.perf_counter()
        with temporary_index(self.engine, self.collection, spec, self.encoder) as index:
            yield index, time.perf_counter() - began

    @contextmanager
    def searcher(self, index: SearchedIndex, window: int = 100) -> Iterator[EngineSearcher]:
        """Give what searches the indexed collection and ranks a window of documents."""
        with engine_searcher(
            self.engine,
            index,
            self.collection,
            self.encoder,
            retrieval([]),
            self.queries,
            first_pass="dense",
            window=window,
            depth=min(window, len(self.collection.documents)),
        ) as searcher:
            yield searcher


def cut(collection: Collection, documents: int | None, queries: int | None) -> Collection:
    """Keep the first documents, and the first queries of which all relevant documents are kept."""
    kept = collection.documents[:documents]
    ids = {one.id for one in kept}
    answerable = [query for query in collection.queries if collection.qrels[query].keys() <= ids][:queries]
    return replace(
        collection,
        documents=kept,
        queries={query: collection.queries[query] for query in answerable},
        qrels={query: collection.qrels[query] for query in answerable},
    )


async def asked(searcher: EngineSearcher, index: str, text: str, params: Mapping[str, Any]) -> dict[str, Any]:
    section = {"method": "nnn", "params": {**params, "rest": "none"}, "detail": True, "timeout": "120s"}
    clause = {"field": "ttc.vector", "query_text": text, "k": MOST, "ttc": {**section, "on_error": "fail"}}
    return await searcher.client.search(index, {"knn": clause, "size": MOST, "_source": False})


def nnn_table(subject: Subject) -> str:
    spec = Plan((resolve_one("knn:nnn"),)).spec(subject.collection, subject.encoder)
    features = encode_corpus(subject.collection.documents, spec, subject.encoder)
    place = {name: number for number, name in enumerate(features.ids)}
    dictionary = Dictionary.of(features.pooled)
    lines = []
    with subject.indexed(spec) as (index, _), subject.searcher(index) as searcher:
        for l1 in L1S:
            penalty = Penalty(l1, L2)
            best = [solve(dictionary, query.vectors[0], penalty) for query in subject.queries]
            optimum = [
                objective(features.pooled, query.vectors[0], one.x, penalty)
                for query, one in zip(subject.queries, best, strict=True)
            ]
            for exact in (True, False):
                answers, seconds = [], []
                for text in subject.collection.queries.values():
                    began = time.perf_counter()
                    answers.append(
                        index.runner.run(asked(searcher, index.name, text, {"l1": l1, "l2": L2, "exact": exact}))
                    )
                    seconds.append((time.perf_counter() - began) * 1000)
                found = [_coefficients(answer, place) for answer in answers]
                above = [
                    objective(features.pooled, query.vectors[0], x, penalty) - least
                    for query, x, least in zip(subject.queries, found, optimum, strict=True)
                ]
                certified = [bool(answer["ttc"]["certified"]) for answer in answers]
                true = [gap <= CLOSE for gap, sure in zip(above, certified, strict=True) if sure]
                lines.append(
                    (
                        l1,
                        "exact" if exact else "HNSW",
                        f"{statistics.mean(answer['ttc']['knn_searches'] for answer in answers):.2f}",
                        max(answer["ttc"]["knn_searches"] for answer in answers),
                        f"{statistics.mean(len(one.support) for one in best):.1f}",
                        f"{100 * statistics.mean(certified):.1f} %",
                        f"{100 * statistics.mean(true):.1f} %" if true else "",
                        f"{max(above):.1e}",
                        f"{statistics.median(seconds):.0f}",
                    )
                )
    columns = (
        "l1", "kNN", "searches, mean", "most", "selected, mean", "certified", "of these the optimum",
        "objective above it, most", "ms, p50",
    )  # fmt: skip
    return table(columns, lines)


def _coefficients(answer: Mapping[str, Any], place: Mapping[str, int]) -> Float32:
    x = np.zeros(len(place), np.float64)
    for hit in answer["hits"]["hits"]:
        x[place[hit["_id"]]] = hit["_ttc"]["coefficient"]
    return x  # type: ignore[return-value]  # either precision will do


def spans_table(subject: Subject, max_tokens: int, windows: Sequence[int]) -> str:
    plan = Plan((resolve_one("knn:spectral"),), codec="int8", max_tokens=max_tokens)
    spec = plan.spec(subject.collection, subject.encoder)
    lines: list[tuple[Any, ...]] = []
    encode_corpus(subject.collection.documents, spec, subject.encoder)  # so that both indices find the encodings
    for name, one in (("pooled", replace(spec, spans=())), ("spans", spec)):
        with subject.indexed(one) as (index, seconds):
            cost = (f"{index.runner.run(_bytes(index)) / 2**20:.1f}", f"{seconds:.0f}", name)
            for window in windows:
                with subject.searcher(index, window) as searcher:
                    for way, method in _ways(one, window):
                        run = searcher.rank(method)
                        means = score(subject.collection.qrels, run.rankings).means()
                        recall = [f"{means[metric]:.3f}" for metric in (f"recall@{window}", "recall@10", "ndcg@10")]
                        lines.append((window, way, *recall, f"{1000 * statistics.median(run.seconds):.0f}", *cost))
                        print(lines[-1], file=sys.stderr, flush=True)
    columns = (
        "window", "found by, order", "recall of the window", "recall@10", "nDCG@10", "ms, p50", "index, MiB",
        "written in, s", "has",
    )  # fmt: skip
    lines.sort(key=lambda line: line[0])
    return table(columns, lines)


def _ways(spec: IndexSpec, window: int) -> list[tuple[str, Method]]:
    if not spec.spans:
        return [("pooled kNN", resolve_one("dense")), ("pooled kNN, spectral", resolve_one("spectral"))]
    alone = {"pooled": False, "candidates": window}
    return [
        ("span kNN, spectral", resolve_one("knn:spectral", alone)),
        ("both, spectral", resolve_one("knn:spectral", {"candidates": window})),
    ]


async def _bytes(index: SearchedIndex) -> int:
    await index.engine.request("POST", f"/{index.name}/_forcemerge", params={"max_num_segments": "1"}, timeout=600)
    await index.engine.refresh(index.name)
    sizes = await index.engine.request("GET", f"/{index.name}/_stats/store")
    return int(sizes["_all"]["primaries"]["store"]["size_in_bytes"])


async def _product(settings: EngineSettings) -> str:
    from es_ttc.engine.connect import connect

    engine = await connect(settings)
    try:
        found = await engine.capabilities()
    finally:
        await engine.close()
    return f"{found.product} {'.'.join(map(str, found.version))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="*", help="collections; those of DATA without any")
    parser.add_argument("--only", choices=("nnn", "spans"), help="one of the two tables; both without it")
    parser.add_argument("--engine", default=EngineSettings().engine)
    parser.add_argument("--documents", type=int, help="the first of each collection; all without it")
    parser.add_argument("--queries", type=int, help="the first that they answer; all without it")
    parser.add_argument("--max-tokens", type=int, default=1024, help="token vectors kept of a document")
    parser.add_argument(
        "--windows", type=int, nargs="+", choices=CUTOFFS, default=[100], help="documents that each search finds"
    )
    arguments = parser.parse_args()
    configure_logs("auto", logging.ERROR)
    settings = Settings()
    encoder = CachedEncoder(load_encoder("minilm", cache_dir=settings.cache_dir), settings.cache_dir / "encodings")
    engine = EngineSettings(engine=arguments.engine)
    product = asyncio.run(_product(engine))
    for folder in arguments.data or DATA:
        collection = cut(load_collection(folder), arguments.documents, arguments.queries)
        queries = encode_queries(list(collection.queries.values()), encoder, tokens=False)
        subject = Subject(collection, encoder, queries, engine)
        data = f"{collection.name}, {len(collection.documents):,} documents, {len(queries):,} queries, all-MiniLM-L6-v2"
        if arguments.only != "spans":
            print(heading(f"NNN retrieval through {product}", data=f"{data}; l2 {L2}", packages=("numpy",)))
            print(nnn_table(subject), flush=True)
        if arguments.only != "nnn":
            kept = f"{data}; {arguments.max_tokens} tokens kept of a document, int8; spans {SPANS.scale:g} tokens wide"
            print(heading(f"Retrieval through spans, {product}", data=f"{kept}, every {SPANS.stride}"))
            print(spans_table(subject, arguments.max_tokens, arguments.windows), flush=True)


if __name__ == "__main__":
    main()
