"""Reranking under a budget: RR, GAR, SlideGAR and RGS with rerankers of known quality.

    python -m benchmarks.reranking

The simulated reranker knows the judgements and is wrong about a set share of pairs; it is a simulation. The first pass
is dense retrieval with all-MiniLM-L6-v2, the graph is built from the same vectors. "listwise, shown" pays for every
document that a window shows, "listwise, distinct" for each document once: the paper on RGS can be read either way.
"best-first" replaces RGS's list by a queue of neighbours, the best scored document's first. Recall is that of the first
100 documents. Real rerankers: `python -m benchmarks.reranking_real`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.common import heading, table
from benchmarks.simulated_reranker import SimulatedReranker
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.evaluation.rankings import top
from es_ttc.reranking.graph import NeighbourGraph, build
from es_ttc.reranking.strategies import (
    ListwiseBudgetedReranker,
    Nearness,
    PointwiseBudgetedReranker,
    RerankedList,
    gar,
    retrieve_and_rerank,
    rgs,
    slidegar,
)
from es_ttc.rescorers.base import Query
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

DATA = Path(__file__).parents[2] / "shared" / "data"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "reranking_budget.svg"
COLLECTIONS = ("cranfield", "npl-vaswani", "scifact")
BUDGETS = (25, 50, 100, 200)
ERROR_RATES = (0.0, 0.05, 0.2)
SEEDS = (5, 10, 20, 50)
LENGTHS, WINDOWS = (20, 50, 100), (10, 20)
DEPTH = 1000
NAMES = ("RR", "GAR", "SlideGAR", "RGS", "best-first")
METRICS = ("ndcg@10", "recall@100")
Judged = Callable[["Ready", int, Any, int], Awaitable[RerankedList]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A collection, encoded, with its graph and every query's first pass."""

    collection: Collection
    features: CorpusFeatures
    queries: Sequence[Query]
    graph: NeighbourGraph
    first_pass: Sequence[Sequence[int]]
    pooled: Float32 | None = None
    """Vectors that tell how near documents are to a query, where they are not the features' own."""

    @property
    def names(self) -> list[str]:
        """The ids of the queries, in order."""
        return list(self.collection.queries)[: len(self.queries)]

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        """Return neighbours: the collection serves as a neighbourhood."""
        return [self.graph.of(document).tolist() for document in documents]

    def expect(self, documents: Sequence[int]) -> None:
        """Do nothing: all is in memory."""

    def nearness(self, query: int) -> Nearness:
        """Return what tells how near documents are to a query."""
        vector = self.queries[query].vectors[0]
        pooled = self.features.pooled if self.pooled is None else self.pooled

        async def near(documents: Sequence[int]) -> list[float]:
            found: list[float] = (pooled[np.asarray(documents, np.intp)] @ vector).tolist()
            return found

        return near


async def rr_pointwise(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await retrieve_and_rerank(ready.first_pass[query], PointwiseBudgetedReranker(reranker, budget))


async def gar_pointwise(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await gar(ready.first_pass[query], ready, PointwiseBudgetedReranker(reranker, budget))


async def rgs_pointwise(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await rgs(ready.first_pass[query], ready, PointwiseBudgetedReranker(reranker, budget))


async def best_first(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    judge = PointwiseBudgetedReranker(reranker, budget)
    return await gar(ready.first_pass[query], ready, judge, seeds=20, alternate=False)


async def slidegar_distinct(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    judge = ListwiseBudgetedReranker(reranker, budget, count="distinct")
    return await slidegar(ready.first_pass[query], ready, judge, ready.nearness(query))


async def slidegar_kept(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    judge = ListwiseBudgetedReranker(reranker, budget, count="distinct")
    return await slidegar(ready.first_pass[query], ready, judge, ready.nearness(query), frontier="kept")


async def rr_shown(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await retrieve_and_rerank(ready.first_pass[query], ListwiseBudgetedReranker(reranker, budget))


async def slidegar_shown(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await slidegar(
        ready.first_pass[query], ready, ListwiseBudgetedReranker(reranker, budget), ready.nearness(query)
    )


async def rgs_shown(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await rgs(ready.first_pass[query], ready, ListwiseBudgetedReranker(reranker, budget))


async def rgs_distinct(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
    return await rgs(ready.first_pass[query], ready, ListwiseBudgetedReranker(reranker, budget, count="distinct"))


GROUPS: dict[str, dict[str, Judged]] = {
    "pointwise": {"RR": rr_pointwise, "GAR": gar_pointwise, "RGS": rgs_pointwise, "best-first": best_first},
    "listwise, shown": {"RR": rr_shown, "SlideGAR": slidegar_shown, "RGS": rgs_shown},
    "listwise, distinct": {"RR": rr_pointwise, "SlideGAR": slidegar_distinct, "RGS": rgs_distinct},
}
SCORED: dict[str, Judged] = {
    **GROUPS["pointwise"], "SlideGAR": slidegar_distinct, "SlideGAR, kept": slidegar_kept,
}  # fmt: skip
"""What a reranker that gives scores can be asked by; every document is paid for once."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=FIGURE, help="Where the figure goes.")
@click.option("--collection", "names", multiple=True, type=click.Choice(COLLECTIONS), help="Some of the collections.")
@click.option("--quick", is_flag=True, help="Simulated rerankers at a budget of 100 alone.")
@click.option(
    "--tune",
    is_flag=True,
    help="Compare seeds, lengths and windows of RGS on scifact's train queries, and nothing else.",
)
def main(out: Path, names: tuple[str, ...], *, quick: bool, tune: bool) -> None:
    """Print the tables and draw the budget curves."""
    if tune:
        _tune()
        return
    collections = [prepared(load_collection(DATA / name)) for name in names or COLLECTIONS]
    data = ", ".join(f"{one.collection.name} ({len(one.queries)} queries)" for one in collections)
    print(heading("Reranking under a budget", data=f"{data}; first pass dense, all-MiniLM-L6-v2"))
    if quick:
        _print_at_100(collections, {ready.collection.name: _budgets(ready, (100,)) for ready in collections})
        return
    curves = {ready.collection.name: _budgets(ready) for ready in collections}
    _print_at_100(collections, curves)
    _print_budgets(curves)
    _print_perturbed(collections[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(curves).savefig(out, metadata={"Date": None})


def prepared(collection: Collection, queries: int | None = None, encoder_name: str = "minilm") -> Ready:
    """Encode a collection, build its graph, and answer its queries by dense retrieval."""
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(encoder_name, cache_dir=cache), cache / "encodings")
    titled = any(document.title for document in collection.documents)
    spec = IndexSpec(encoder.identity, text_fields=("title", "text") if titled else ("text",), codec="float16")
    features = encode_corpus(collection.documents, spec, encoder)
    encoded = encode_queries(list(collection.queries.values())[:queries], encoder, tokens=False)
    first_pass = nearest_first(features, np.stack([query.vectors[0] for query in encoded]))
    return Ready(collection, features, encoded, build(features.pooled), first_pass)


def measured(ready: Ready, method: Judged, error_rate: float, budget: int) -> NDArray[np.float64]:
    """Return the metrics of each query with a simulated reranker, ``(2, q)``."""
    return _scored(
        ready,
        lambda place, query: method(
            ready,
            place,
            SimulatedReranker(query, ready.collection.qrels.get(query, {}), ready.features.ids, error_rate),
            budget,
        ),
    )


def _scored(ready: Ready, walk: Callable[[int, str], Awaitable[RerankedList]]) -> NDArray[np.float64]:
    async def every() -> dict[str, RerankedList]:
        return {query: await walk(place, query) for place, query in enumerate(ready.names)}

    return valued(ready, asyncio.run(every()))


def valued(ready: Ready, walks: Mapping[str, RerankedList]) -> NDArray[np.float64]:
    """Return the metrics of walks, by query, ``(2, q)``."""
    rankings = {query: [ready.features.ids[i] for i in one.documents[:100]] for query, one in walks.items()}
    qrels = {query: ready.collection.qrels[query] for query in rankings}
    return np.stack([score_by(metric, qrels, rankings) for metric in METRICS])


def _budgets(ready: Ready, budgets: Sequence[int] = BUDGETS) -> dict[tuple[str, str, float, int], NDArray[np.float64]]:
    return {
        (group, name, error_rate, budget): measured(ready, method, error_rate, budget)
        for group, methods in GROUPS.items()
        for name, method in methods.items()
        for error_rate in ERROR_RATES
        for budget in budgets
    }


def _print_at_100(collections: Sequence[Ready], curves: dict[str, Any]) -> None:
    print("\nnDCG@10 at a budget of 100 documents; the last column is RGS minus RR with its 95 % interval.\n")
    rows = []
    for ready in collections:
        values = curves[ready.collection.name]
        for group, methods in GROUPS.items():
            for error_rate in ERROR_RATES:
                own = {name: values[group, name, error_rate, 100][0] for name in methods}
                cells = [f"{own[name].mean():.3f}" if name in own else "" for name in NAMES]
                rows.append((ready.collection.name, group, error_rate, *cells, difference(own["RGS"], own["RR"])))
    print(table(("collection", "reranker", "error rate", *NAMES, "RGS - RR"), rows))


def _print_budgets(curves: dict[str, Any]) -> None:
    for place, metric in enumerate(METRICS):
        print(f"\n{metric} by budget, error rate .05.\n")
        rows = [
            (name, group, method, *(f"{values[group, method, 0.05, budget][place].mean():.3f}" for budget in BUDGETS))
            for name, values in curves.items()
            for group, methods in GROUPS.items()
            for method in methods
        ]
        print(table(("collection", "reranker", "method", *map(str, BUDGETS)), rows))


def _print_perturbed(ready: Ready) -> None:
    """Spoil the query's vector, or the documents' vectors that the graph is built from."""
    generator = np.random.default_rng(0)
    print(
        f"\nPerturbed: {ready.collection.name}, pointwise, budget 100, error rate .05; w is the share of noise, or the "
        "reranker's own error rate.\n"
    )
    rows = []
    for spoiled, weight in [("nothing", 0.0), *((what, w) for what in ("queries", "graph") for w in (0.5, 1.0))]:
        first_pass, graph = ready.first_pass, ready.graph
        if spoiled == "queries":
            vectors = np.stack([query.vectors[0] for query in ready.queries])
            first_pass = nearest_first(ready.features, noisy(vectors, weight, generator))
        elif spoiled == "graph":
            graph = build(noisy(ready.features.pooled, weight, generator))
        worse = Ready(ready.collection, ready.features, ready.queries, graph, first_pass)
        values = [measured(worse, method, 0.05, 100)[0].mean() for method in SCORED.values()]
        rows.append((spoiled, weight, *(f"{value:.3f}" for value in values)))
    for error_rate in (0.0, 0.1, 0.2, 0.3, 0.4):
        values = [measured(ready, method, error_rate, 100)[0].mean() for method in SCORED.values()]
        rows.append(("reranker", error_rate, *(f"{value:.3f}" for value in values)))
    print(table(("spoiled", "w", *SCORED), rows))


def by_bm25(ready: Ready) -> Ready:
    """Return the same with BM25 as the first pass."""
    texts = [f"{document.title} {document.text}".strip() for document in ready.collection.documents]
    index = Bm25(texts)
    questions = list(ready.collection.queries.values())[: len(ready.queries)]
    found = [top(index.scores(text), DEPTH).documents.tolist() for text in questions]
    return Ready(ready.collection, ready.features, ready.queries, ready.graph, found)


def nearest_first(features: CorpusFeatures, vectors: Float32) -> list[list[int]]:
    """Return the documents by their cosine to each query."""
    return [np.argsort(-(features.pooled @ vector), kind="stable")[:DEPTH].tolist() for vector in vectors]


def noisy(vectors: Float32, weight: float, generator: np.random.Generator) -> Float32:
    """Return unit vectors mixed with noise, of which ``weight`` is the share."""
    noise = generator.standard_normal(vectors.shape).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = np.float32(1 - weight) * vectors + np.float32(weight) * noise
    unit: Float32 = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return unit


def difference(method: NDArray[np.float64], baseline: NDArray[np.float64]) -> str:
    """Return the difference of two methods with its 95 % interval."""
    means = resampled_means(np.stack([method, baseline]))
    result = compare(method, baseline, means[:, 0], means[:, 1])
    return f"{result.delta:+.3f} ({result.interval.low:+.3f}..{result.interval.high:+.3f})"


def _tune() -> None:
    ready = prepared(load_collection(DATA / "scifact", split="train"), 300)
    print(heading("Seeds of RGS", data=f"scifact, {len(ready.queries)} train queries, budget 100"))
    rows = []
    for error_rate in ERROR_RATES:
        cells = []
        for seeds in SEEDS:

            async def pointwise(one: Ready, query: int, reranker: Any, budget: int, seeds: int = seeds) -> RerankedList:
                return await rgs(one.first_pass[query], one, PointwiseBudgetedReranker(reranker, budget), seeds=seeds)

            cells.append(f"{measured(ready, pointwise, error_rate, 100)[0].mean():.3f}")
        rows.append((error_rate, f"{measured(ready, rr_pointwise, error_rate, 100)[0].mean():.3f}", *cells))
    print(table(("error rate", "RR", *(f"RGS, {seeds} seeds" for seeds in SEEDS)), rows))
    print("\nA listwise reranker, error rate .05: nDCG@10 by seeds, length of the list and window\n")
    settings = [(seeds, length, window) for seeds in SEEDS for length in LENGTHS for window in WINDOWS]
    values = {
        (count, *one): measured(ready, listwise_rgs(count, *one), 0.05, 100)[0].mean()
        for count in ("shown", "distinct")
        for one in settings
    }
    rows = [(*one, *(f"{values[count, *one]:.3f}" for count in ("shown", "distinct"))) for one in settings]
    print(table(("seeds", "length", "window", "every document shown counts", "distinct documents count"), rows))


def listwise_rgs(count: Any, seeds: int, length: int, window: int) -> Judged:
    """Return RGS with a listwise reranker and these parameters."""

    async def method(ready: Ready, query: int, reranker: Any, budget: int) -> RerankedList:
        judge = ListwiseBudgetedReranker(reranker, budget, window, count)
        return await rgs(ready.first_pass[query], ready, judge, seeds=seeds, length=length)

    return method


def draw(curves: dict[str, Any]) -> Figure:
    """Return the figure: nDCG@10 by budget, one panel a collection, pointwise, error rate .05."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.family": "sans-serif", "font.size": 11}
    colours = {"RR": "#8a96a3", "GAR": "#d97706", "RGS": "#1769aa"}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.2, 3.1), layout="constrained")
        for axes, (name, values) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
            for method, colour in colours.items():
                means = [values["pointwise", method, 0.05, budget][0].mean() for budget in BUDGETS]
                axes.plot(BUDGETS, means, marker="o", markersize=4, color=colour, label=method)
            axes.set_title(name, loc="left", fontsize=11)
            axes.set_xscale("log", base=2)
            axes.set_xticks(BUDGETS, list(map(str, BUDGETS)))
            axes.grid(axis="y", color="#e3e8ed", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].legend(frameon=False, loc="lower right")
        figure.supxlabel("documents that the reranker may see", fontsize=10)
        figure.supylabel("nDCG@10", fontsize=10)
    return figure


if __name__ == "__main__":
    main()
