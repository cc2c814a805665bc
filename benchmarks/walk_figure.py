"""The picture of a walk in docs/how-to/rerank-with-a-budget.md: one query of Cranfield, RGS judged by spectral.

    python -m benchmarks.walk_figure

The query is the one whose nDCG@10 the walk raises most over retrieve and rerank with the same reranker and budget. It
is chosen to show how a walk works, not how well: docs/results/reranking.md has the averages.
"""

import asyncio
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import heading
from benchmarks.reranking import DATA, Ready, by_bm25, prepared
from benchmarks.reranking_real import Spectral
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.reranking.strategies import PointwiseBudgetedReranker, RerankedList, retrieve_and_rerank, rgs

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "rgs_walk.svg"
BUDGET = 60


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=FIGURE, help="Where the figure goes.")
def main(out: Path) -> None:
    """Choose a query and draw its walk."""
    ready = by_bm25(prepared(load_collection(DATA / "cranfield")))
    print(heading("A walk", data="cranfield, first pass BM25, reranker spectral on all-MiniLM-L6-v2, budget 60"))
    names = list(ready.collection.queries)
    gains = {name: gain(ready, place, name) for place, name in enumerate(names)}
    best = max(gains, key=lambda name: gains[name])
    print(f"query {best}: {ready.collection.queries[best]!r}, nDCG@10 {gains[best]:+.3f} over RR")
    walk, judge = asyncio.run(walked(ready, names.index(best)))
    draw(ready, best, walk, judge).savefig(out, metadata={"Date": None})


async def walked(ready: Ready, place: int) -> tuple[RerankedList, PointwiseBudgetedReranker]:
    judge = PointwiseBudgetedReranker(Spectral(ready.features, ready.queries).of(place), BUDGET)
    return await rgs(ready.first_pass[place][:100], ready, judge), judge


def gain(ready: Ready, place: int, name: str) -> float:
    qrels = {name: ready.collection.qrels[name]}

    async def both() -> list[RerankedList]:
        rr = await retrieve_and_rerank(
            ready.first_pass[place][:100],
            PointwiseBudgetedReranker(Spectral(ready.features, ready.queries).of(place), BUDGET),
        )
        return [rr, (await walked(ready, place))[0]]

    before, after = (
        score_by("ndcg@10", qrels, {name: [ready.features.ids[i] for i in one.documents[:10]]})
        for one in asyncio.run(both())
    )
    return float(after[0] - before[0])


def draw(ready: Ready, name: str, walk: RerankedList, judge: PointwiseBudgetedReranker) -> Figure:
    """Return the figure: calls from left to right, the reranker's score upwards, a line from who led to whom."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.family": "sans-serif", "font.size": 10}
    place = {document: at for at, document in enumerate(walk.calls, 1)}
    scores = {document: judge.score(document) or 0.0 for document in walk.calls}
    relevant = {at for at in walk.calls if ready.collection.qrels[name].get(ready.features.ids[at], 0) > 0}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for document, source in walk.found_from.items():
            if document in place:
                ends = [place[source], place[document]], [scores[source], scores[document]]
                axes.plot(*ends, color="#c9d3dc", linewidth=0.7, zorder=1)
        seeds = [one for one in walk.calls if one not in walk.found_from]
        found = [one for one in walk.calls if one in walk.found_from]
        for documents, colour, label in ((seeds, "#8a96a3", "first pass"), (found, "#1769aa", "neighbour")):
            axes.scatter(
                [place[one] for one in documents], [scores[one] for one in documents], s=26, color=colour, label=label,
                zorder=2,
            )  # fmt: skip
        marked = sorted(relevant)
        axes.scatter(
            [place[one] for one in marked], [scores[one] for one in marked], s=110, facecolors="none",
            edgecolors="#d97706", linewidths=1.6, label="relevant", zorder=3,
        )  # fmt: skip
        axes.set(xlabel="call of the reranker", ylabel="its score")
        axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        axes.spines[["top", "right"]].set_visible(False)
        low = float(np.quantile(list(scores.values()), 0.02))
        axes.set_ylim(bottom=low - 0.02)
    return figure


if __name__ == "__main__":
    main()
