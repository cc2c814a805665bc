"""Reranking under a budget with a real reranker: spectral retrieval, or a cross-encoder.

    python -m benchmarks.reranking_real spectral [--encoder mpnet] [--collection cranfield ...]
    python -m benchmarks.reranking_real cross-encoder --queries 60 --budgets 25,50,100

Each document is paid for once. First passes (BM25, or dense with all-MiniLM-L6-v2) and the graph are those of
`python -m benchmarks.reranking`; `--encoder` is the one that spectral retrieval judges with.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
import orjson
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from numpy.typing import NDArray

from benchmarks.blend import first_queries
from benchmarks.common import heading, table
from benchmarks.rerankers import MAX_CHARACTERS, KeptScores
from benchmarks.reranking import (
    BUDGETS,
    COLLECTIONS,
    DATA,
    METRICS,
    SCORED,
    Judged,
    Ready,
    by_bm25,
    difference,
    prepared,
    valued,
)
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.reranking.strategies import RerankedList
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.spectral import SpectralRescorer
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.settings import Settings

FIELDS = ("title", "text")
SPAN = 0.07
"""nDCG@10 from the lower to the upper end of every panel."""


Curves = dict[str, dict[str, dict[str, float]]]
"""nDCG@10 by collection and first pass, method and budget."""


Scoring = Callable[[int, Sequence[int]], Sequence[float]]
"""Scores documents, by position, for a query, by position."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A reranker that remembers what it has scored."""

    score: Scoring
    known: dict[int, dict[int, float]] = field(default_factory=dict)

    def of(self, query: int) -> "OfQuery":
        """Return the reranker of one query."""
        return OfQuery(self, query)


@dataclass(frozen=True)
class OfQuery:
    """A reranker for one query."""

    judge: Judge
    query: int

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return the documents' scores."""
        known = self.judge.known.setdefault(self.query, {})
        new = [document for document in documents if document not in known]
        if new:
            scores = await asyncio.to_thread(self.judge.score, self.query, new)
            known.update(zip(new, map(float, scores), strict=True))
        return [known[document] for document in documents]

    async def order(self, documents: Sequence[int]) -> list[int]:
        """Return the documents by their scores."""
        by_document = dict(zip(documents, await self.scores(documents), strict=True))
        return sorted(documents, key=lambda document: -by_document[document])


def spectral_retrieval(features: CorpusFeatures, queries: Sequence[Query]) -> Scoring:
    """Return spectral retrieval over features of documents and queries."""
    rescorer, params = SpectralRescorer(), SpectralParams()

    def score(query: int, documents: Sequence[int]) -> Sequence[float]:
        positions = np.asarray(documents, np.intp)
        needed = rescorer.needs(params) | rescorer.wants
        window = features.window(positions, np.zeros(len(positions), np.float32), needed)
        return list(rescorer.score(queries[query], window, params))

    return score


def cross_encoder(ready: Ready) -> Scoring:
    """Return the cross-encoder `msmarco-minilm`; its scores are kept in the cache folder."""
    documents = ready.collection.documents
    texts = {document.id: compose(document.source, FIELDS)[0][:MAX_CHARACTERS] for document in documents}
    kept = KeptScores(ready.collection, texts)

    def score(query: int, positions: Sequence[int]) -> Sequence[float]:
        return list(kept.of(ready.names[query], [documents[position].id for position in positions]))

    return score


@click.command()
@click.argument("judge", type=click.Choice(["spectral", "cross-encoder"]))
@click.option("--collection", "names", multiple=True, type=click.Choice(COLLECTIONS), help="Some of them.")
@click.option(
    "--method", "methods", multiple=True, type=click.Choice(list(SCORED)), help="Some methods, RR beside them."
)
@click.option("--encoder", default="minilm", show_default=True, help="Spectral retrieval judges with it.")
@click.option("--queries", default=300, show_default=True, help="Queries of a collection, drawn at random.")
@click.option("--budgets", default=",".join(map(str, BUDGETS)), show_default=True)
@click.option("--curves", "curves_file", type=click.Path(path_type=Path), help="Keep nDCG@10 here, run after run.")
@click.option("--out", type=click.Path(path_type=Path), help="Draw what has been kept, or this run's.")
def main(
    judge: str,
    names: tuple[str, ...],
    methods: tuple[str, ...],
    encoder: str,
    queries: int,
    budgets: str,
    curves_file: Path | None,
    out: Path | None,
) -> None:
    """Several budgets over two first passes, with a real reranker."""
    title = (
        f"Spectral retrieval ({encoder}) as the reranker" if judge == "spectral" else "msmarco-minilm as the reranker"
    )
    described = (
        f"{', '.join(names or COLLECTIONS)}, up to {queries} queries; graph and dense first pass all-MiniLM-L6-v2"
    )
    print(heading(title, data=described))
    kept = curves_file is not None and curves_file.exists()
    curves: Curves = orjson.loads(curves_file.read_bytes()) if curves_file is not None and kept else {}
    chosen = _of(methods)
    versus = [one for one in ("RGS", "GAR", "SlideGAR") if one in chosen]
    for name in names or COLLECTIONS:
        ready = prepared(first_queries(load_collection(DATA / name), queries))
        reranker = Judge(cross_encoder(ready) if judge == "cross-encoder" else _spectral(ready, encoder))
        rows = []
        for first, started in _first_passes(ready):
            for budget in map(int, budgets.split(",")):
                values = {one: run(started, method, reranker, budget) for one, method in chosen.items()}
                for method, value in values.items():
                    panel = curves.setdefault(f"{ready.collection.name}, {first}", {})
                    panel.setdefault(method, {})[str(budget)] = float(value[0].mean())
                for place, metric in enumerate(METRICS):
                    cells = [f"{value[place].mean():.3f}" for value in values.values()]
                    differences = [difference(values[one][place], values["RR"][place]) for one in versus]
                    rows.append((ready.collection.name, first, metric, budget, *cells, *differences))
        columns = ("collection", "first pass", "metric", "budget", *chosen, *(f"{one} - RR" for one in versus))
        print(table(columns, rows), flush=True)
    if curves_file is not None:
        curves_file.write_bytes(orjson.dumps(curves))
    if out is not None:
        draw(curves).savefig(out, metadata={"Date": None})


def run(ready: Ready, method: Judged, reranker: Judge, budget: int) -> NDArray[np.float64]:
    """Return the metrics of each query, ``(2, q)``."""
    return valued(ready, asyncio.run(walks_of(ready, method, reranker, budget)))


async def walks_of(ready: Ready, method: Judged, reranker: Judge, budget: int) -> dict[str, RerankedList]:
    """Return each query's walk."""
    walks = {name: await method(ready, at, reranker.of(at), budget) for at, name in enumerate(ready.names)}
    failure = next((one.failure for one in walks.values() if one.failure is not None), None)
    if failure is not None:
        raise failure
    return walks


def draw(curves: Curves) -> Figure:
    """Return the figure: nDCG@10 by budget, one panel a collection and first pass."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.family": "sans-serif", "font.size": 10}
    colours = {"RR": "#8a96a3", "GAR": "#d97706", "RGS": "#1769aa", "best-first": "#2f855a", "SlideGAR": "#9b2c6f"}
    rows = len(curves) // 2
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.2, 0.8 + 2.2 * rows), layout="constrained")
        for axes, (name, values) in zip(figure.subplots(rows, 2, squeeze=False).flat, curves.items(), strict=True):
            for method, colour in colours.items():
                if method not in values:
                    continue
                means = [values[method][str(budget)] for budget in BUDGETS]
                axes.plot(BUDGETS, means, marker="o", markersize=3.5, color=colour, label=method)
            heights = [one for curve in values.values() for one in curve.values()]
            middle = (min(heights) + max(heights)) / 2
            axes.set_ylim(middle - SPAN / 2, middle + SPAN / 2)  # alike, so that panels compare
            axes.yaxis.set_major_locator(MultipleLocator(0.02))
            axes.yaxis.set_major_formatter("{x:.2f}")
            axes.set_title(name, loc="left", fontsize=10)
            axes.set_xscale("log", base=2)
            axes.set_xticks(BUDGETS, list(map(str, BUDGETS)))
            axes.grid(axis="y", color="#e3e8ed", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, ncols=5, loc="outside upper center"
        )
        figure.supxlabel("documents that the reranker may see", fontsize=10)
        figure.supylabel("nDCG@10", fontsize=10)
    return figure


def _of(methods: Sequence[str]) -> dict[str, Judged]:
    return {name: method for name, method in SCORED.items() if not methods or name in (*methods, "RR")}


def _first_passes(ready: Ready) -> tuple[tuple[str, Ready], ...]:
    return ("dense", ready), ("bm25", by_bm25(ready))


def _spectral(ready: Ready, name: str) -> Scoring:
    """Return spectral retrieval with an encoder's vectors."""
    if name == "minilm":
        return spectral_retrieval(ready.features, ready.queries)
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(name, cache_dir=cache), cache / "encodings")
    titled = any(document.title for document in ready.collection.documents)
    spec = IndexSpec(encoder.identity, text_fields=("title", "text") if titled else ("text",), codec="float16")
    features = encode_corpus(ready.collection.documents, spec, encoder)
    return spectral_retrieval(features, encode_queries(list(ready.collection.queries.values()), encoder, tokens=False))


if __name__ == "__main__":
    main()
