"""Reranking under a budget with a real reranker: spectral retrieval.

    python -m benchmarks.reranking_real spectral [--encoder mpnet] [--collection cranfield ...]
    python -m benchmarks.reranking_real perturbed
    python -m benchmarks.reranking_real why
    python -m benchmarks.reranking_real embeddings

Each document is paid for once. First passes (BM25, or dense with all-MiniLM-L6-v2) and the graph are those of
`python -m benchmarks.reranking`; `--encoder` is the one that spectral retrieval judges with. `why` parts what a method
found from what its reranker made of it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import click
import matplotlib as mpl
import numpy as np
import orjson
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from numpy.typing import NDArray

from benchmarks.common import heading, table
from benchmarks.reranking import (
    BUDGETS,
    COLLECTIONS,
    DATA,
    DEPTH,
    METRICS,
    SCORED,
    Judged,
    Ready,
    by_bm25,
    difference,
    nearest_first,
    noisy,
    prepared,
    valued,
)
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.reranking.graph import build
from es_ttc.reranking.strategies import PointwiseScorer, RerankedList
from es_ttc.reranking.strategies.base import StopReason
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.spectral import SpectralRescorer
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.settings import Settings

SEED = 2026
AT = 100
"""The budget of every table but the curves."""
SEEDS = 20
EMBEDDINGS = ("minilm", "bge-small", "mpnet")
SPAN = 0.07
"""nDCG@10 from the lower to the upper end of every panel."""


Curves = dict[str, dict[str, dict[str, float]]]
"""nDCG@10 by collection and first pass, method and budget."""


class Reranker(Protocol):
    """Gives the reranker of one query of a collection."""

    def of(self, query: int) -> PointwiseScorer:
        """Return it; a document that it has scored before costs nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Spectral:
    """Spectral retrieval as a reranker, which remembers what it has scored.

    Attributes:
        features: The documents, as the encoder that judges sees them.
        queries: The queries, likewise.
    """

    features: CorpusFeatures
    queries: Sequence[Query]
    known: dict[int, dict[int, float]] = field(default_factory=dict)

    def of(self, query: int) -> "OfQuery":
        """Return the reranker of one query."""
        return OfQuery(self, query)


class Scoring(ABC):
    """A reranker that scores documents, and so can put them in order too."""

    @abstractmethod
    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return the documents' scores."""

    async def order(self, documents: Sequence[int]) -> list[int]:
        """Return the documents by their scores."""
        by_document = dict(zip(documents, await self.scores(documents), strict=True))
        return sorted(documents, key=lambda document: -by_document[document])


@dataclass(frozen=True)
class OfQuery(Scoring):
    """Spectral retrieval for one query."""

    reranker: Spectral
    query: int

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return the documents' scores."""
        known = self.reranker.known.setdefault(self.query, {})
        new = [document for document in documents if document not in known]
        if new:
            rescorer, params = SpectralRescorer(), SpectralParams()
            positions = np.asarray(new, np.intp)
            features = rescorer.needs(params) | rescorer.wants
            window = self.reranker.features.window(positions, np.zeros(len(positions), np.float32), features)
            found = rescorer.score(self.reranker.queries[self.query], window, params)
            known.update(zip(new, map(float, found), strict=True))
        return [known[document] for document in documents]


@click.group()
def main() -> None:
    """A real reranker under a budget."""


_chosen = click.option("--collection", "names", multiple=True, type=click.Choice(COLLECTIONS), help="Some of them.")
_methods = click.option(
    "--method", "methods", multiple=True, type=click.Choice(list(SCORED)), help="Some methods, RR beside them."
)


@main.command()
@_chosen
@_methods
@click.option("--encoder", default="minilm", show_default=True, help="Spectral retrieval judges with it.")
@click.option("--curves", "curves_file", type=click.Path(path_type=Path), help="Keep nDCG@10 here, run after run.")
@click.option("--out", type=click.Path(path_type=Path), help="Draw what has been kept, or this run's.")
def spectral(
    names: tuple[str, ...], methods: tuple[str, ...], encoder: str, curves_file: Path | None, out: Path | None
) -> None:
    """Budgets of 25 to 200 over two first passes, with spectral retrieval as the reranker."""
    _head(f"Spectral retrieval ({encoder}) as the reranker", names)
    kept = curves_file is not None and curves_file.exists()
    curves: Curves = orjson.loads(curves_file.read_bytes()) if curves_file is not None and kept else {}
    chosen = _of(methods)
    versus = [one for one in ("RGS", "GAR", "SlideGAR") if one in chosen]
    for ready in _collections(names):
        reranker = _judging(ready, encoder)
        rows = []
        for first, started in _first_passes(ready):
            for budget in BUDGETS:
                values = {name: run(started, method, reranker, budget) for name, method in chosen.items()}
                for name, value in values.items():
                    panel = curves.setdefault(f"{ready.collection.name}, {first}", {})
                    panel.setdefault(name, {})[str(budget)] = float(value[0].mean())
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


@main.command()
@_chosen
@_methods
def perturbed(names: tuple[str, ...], methods: tuple[str, ...]) -> None:
    """The paper's study: noise in the first pass's query, the graph, the documents (as in the paper) or the reranker.

    Noise in the documents spoils first pass and graph, but not the vectors with which spectral retrieval scores.
    """
    _head(f"Spoiled, spectral retrieval (minilm) as the reranker, budget {AT}", names)
    generator = np.random.default_rng(SEED)
    chosen = _of(methods)
    versus = [one for one in ("RGS", "SlideGAR") if one in chosen]
    columns = ("collection", "spoiled", "w", *chosen, *(f"{one} - RR" for one in versus))
    for ready in _collections(names):
        sound = Spectral(ready.features, ready.queries)
        vectors = np.stack([query.vectors[0] for query in ready.queries])
        rows = []
        for spoiled, weight in [
            ("nothing", 0.0),
            *((s, w) for s in ("seeds", "graph", "documents", "reranker") for w in (0.5, 0.8, 1.0)),
        ]:
            started, reranker = ready, sound
            if spoiled == "seeds":
                started = replace(ready, first_pass=nearest_first(ready.features, noisy(vectors, weight, generator)))
            elif spoiled == "graph":
                started = replace(ready, graph=build(noisy(ready.features.pooled, weight, generator)))
            elif spoiled == "documents":
                rows_of = noisy(ready.features.pooled, weight, generator)
                found = [np.argsort(-(rows_of @ vector), kind="stable")[:DEPTH].tolist() for vector in vectors]
                started = replace(ready, graph=build(rows_of), first_pass=found, pooled=rows_of)
            elif spoiled == "reranker":
                odd = noisy(vectors, weight, generator)
                queries = [replace(one, vectors=odd[at : at + 1]) for at, one in enumerate(ready.queries)]
                reranker = Spectral(ready.features, queries)
            values = {name: run(started, method, reranker, AT)[0] for name, method in chosen.items()}
            cells = [f"{value.mean():.3f}" for value in values.values()]
            differences = [difference(values[one], values["RR"]) for one in versus]
            rows.append((ready.collection.name, spoiled, weight, *cells, *differences))
        print(table(columns, rows), flush=True)


@main.command()
@_chosen
def embeddings(names: tuple[str, ...]) -> None:
    """First pass and graph by several encoders, one reranker: spectral retrieval with minilm."""
    _head("Encoders of the first pass and the graph, spectral retrieval (minilm) as the reranker", names)
    rows = []
    for ready in _collections(names):
        reranker = Spectral(ready.features, ready.queries)
        for encoder in EMBEDDINGS:
            other = ready if encoder == "minilm" else prepared(ready.collection, encoder_name=encoder)
            started = replace(ready, graph=other.graph, first_pass=other.first_pass)
            cells = [f"{valued(ready, _as_found(started))[0].mean():.3f}"]
            for budget in (AT, 500):
                values = {name: run(started, SCORED[name], reranker, budget) for name in ("RR", "RGS")}
                cells += [f"{value[0].mean():.3f}" for value in values.values()]
                cells.append(difference(values["RGS"][0], values["RR"][0]))
            rows.append((ready.collection.name, encoder, *cells))
    at = [f"{name}, {budget}" for budget in (AT, 500) for name in ("RR", "RGS", "RGS - RR")]
    print(table(("collection", "encoder", "first pass", *at), rows), flush=True)


def _as_found(ready: Ready) -> dict[str, RerankedList]:
    """Return the first pass as it is."""
    return {
        name: RerankedList(first, 0, 0, StopReason.EXHAUSTED)
        for name, first in zip(ready.names, ready.first_pass, strict=True)
    }


@main.command()
@_chosen
@_methods
def why(names: tuple[str, ...], methods: tuple[str, ...]) -> None:
    """What the graph can give, and at which step it is lost: meeting relevant documents, or putting them first."""
    _head(f"Why, spectral retrieval (minilm) as the reranker, budget {AT}", names)
    reach, steps = [], []
    for ready in _collections(names):
        reranker = Spectral(ready.features, ready.queries)
        for first, started in _first_passes(ready):
            reach.append((ready.collection.name, first, *reachable(started)))
            for name, method in _of(methods).items():
                walks = asyncio.run(walks_of(started, method, reranker, AT))
                steps.append((ready.collection.name, first, name, *parted(started, walks)))
    print(table(REACH, reach))
    print(table(("collection", "first pass", "method", *PARTED), steps))


def run(ready: Ready, method: Judged, reranker: Reranker, budget: int) -> NDArray[np.float64]:
    """Return the metrics of each query, ``(2, q)``."""
    return valued(ready, asyncio.run(walks_of(ready, method, reranker, budget)))


async def walks_of(ready: Ready, method: Judged, reranker: Reranker, budget: int) -> dict[str, RerankedList]:
    """Return each query's walk."""
    walks = {name: await method(ready, at, reranker.of(at), budget) for at, name in enumerate(ready.names)}
    failure = next((one.failure for one in walks.values() if one.failure is not None), None)
    if failure is not None:
        raise failure
    return walks


REACH = (
    "collection", "first pass", "relevant of a query", "in the first 100", "beyond the first 20",
    "of these a step from them", "documents there", "two steps", "documents there", "relevant: first pass 21 to 100",
    "neighbours of the first 20", "neighbours of relevant ones",
)  # fmt: skip


def reachable(ready: Ready) -> tuple[str, ...]:
    """Return what stands where: relevant documents in the first pass, and around its first twenty.

    The last three are shares of relevant documents among: ranks 21 to 100, which RR is shown; neighbours of the first
    20, beyond these; neighbours of a query's relevant documents, itself apart.
    """
    cells: dict[str, list[float]] = {}
    for at, name in enumerate(ready.names):
        relevant = _relevant(ready, name)
        seeds, first = set(ready.first_pass[at][:SEEDS]), set(ready.first_pass[at][:AT])
        one = {int(near) for seed in seeds for near in ready.graph.of(seed)} - seeds
        two = ({int(near) for step in one for near in ready.graph.of(step)} | one) - seeds
        beyond = relevant - seeds
        around = [int(near) for document in relevant for near in ready.graph.of(document)]
        values: dict[str, float] = {
            "relevant": len(relevant), "first": len(relevant & first) / len(relevant), "beyond": len(beyond),
            "one": len(one), "two": len(two), "rr": len(relevant & (first - seeds)) / (AT - SEEDS),
            "near": len(relevant & one) / len(one), "clustered": float(np.mean([near in relevant for near in around])),
        }  # fmt: skip
        if beyond:
            values |= {"step": len(beyond & one) / len(beyond), "steps": len(beyond & two) / len(beyond)}
        for key, value in values.items():
            cells.setdefault(key, []).append(value)
    mean = {key: float(np.mean(value)) for key, value in cells.items()}
    return (
        f"{mean['relevant']:.1f}", f"{mean['first']:.3f}", f"{mean['beyond']:.1f}",
        f"{mean['step']:.3f}", f"{mean['one']:.0f}", f"{mean['steps']:.3f}", f"{mean['two']:.0f}",
        f"{mean['rr']:.3f}", f"{mean['near']:.3f}", f"{mean['clustered']:.3f}",
    )  # fmt: skip


PARTED = ("recall of what was judged", "nDCG@10 if it were ordered perfectly", "nDCG@10", "of what was possible")


def parted(ready: Ready, walks: Mapping[str, RerankedList]) -> tuple[str, ...]:
    """Return what a method met, what the best order of that would be worth, and what the reranker made of it."""
    qrels = {name: ready.collection.qrels[name] for name in walks}
    ids = ready.features.ids
    judged = {name: [ids[document] for document in one.calls] for name, one in walks.items()}
    perfect = {name: sorted(some, key=partial(_grade, qrels[name]), reverse=True) for name, some in judged.items()}
    recall = np.mean([len({*judged[name]} & _names(ready, name)) / len(_names(ready, name)) for name in walks])
    possible = score_by("ndcg@10", qrels, perfect).mean()
    reached = valued(ready, walks)[0].mean()
    return f"{recall:.3f}", f"{possible:.3f}", f"{reached:.3f}", f"{reached / possible:.2f}"


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


def _head(title: str, names: Sequence[str]) -> None:
    print(heading(title, data=f"{', '.join(names or COLLECTIONS)}; graph and dense first pass all-MiniLM-L6-v2"))


def _collections(names: Sequence[str]) -> Iterable[Ready]:
    return map(_prepared, names or COLLECTIONS)


@cache
def _prepared(name: str) -> Ready:
    return prepared(load_collection(DATA / name))


def _first_passes(ready: Ready) -> tuple[tuple[str, Ready], ...]:
    return ("dense", ready), ("bm25", by_bm25(ready))


def _judging(ready: Ready, name: str) -> Spectral:
    """Return spectral retrieval with an encoder's vectors."""
    if name == "minilm":
        return Spectral(ready.features, ready.queries)
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(name, cache_dir=cache), cache / "encodings")
    titled = any(document.title for document in ready.collection.documents)
    spec = IndexSpec(encoder.identity, text_fields=("title", "text") if titled else ("text",), codec="float16")
    features = encode_corpus(ready.collection.documents, spec, encoder)
    return Spectral(features, encode_queries(list(ready.collection.queries.values()), encoder, tokens=False))


def _names(ready: Ready, query: str) -> set[str]:
    return {one for one, grade in ready.collection.qrels[query].items() if grade > 0}


def _grade(judged: Mapping[str, int], document: str) -> int:
    return judged.get(document, 0)


def _relevant(ready: Ready, query: str) -> set[int]:
    wanted = _names(ready, query)
    return {at for at, one in enumerate(ready.features.ids) if one in wanted}


if __name__ == "__main__":
    main()
