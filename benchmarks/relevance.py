"""Relevance of hits: reliability, few judgements, answers removed.

    python -m benchmarks.relevance
    python -m benchmarks.relevance --engine URL     # what relevance adds to the time of a search

Up to 150 queries of each collection, drawn at random; half of them fit, the other half is measured, and the other way
round, for ten divisions into halves. The signals are those of `es-ttc calibrate relevance`, of blend's first ten hits.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA, prepared
from benchmarks.blend_speed import ours
from benchmarks.common import heading, table
from benchmarks.figures import INK, MUTED, STRONG, figure, save
from benchmarks.served import ENCODER, GROUPS, Client, delete, fill, gateway, opened
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.datasets import Collection, load_collection, sample
from es_ttc.lab.ranking.pools import Pool, Pools, collect
from es_ttc.lab.ranking.relevance import (
    JUDGED_HITS,
    FitQuality,
    JudgedHits,
    auc,
    bins,
    calibration_figures,
    figures_of_size,
    fit_relevance,
    judged_hits,
    mean_figures,
)  # fmt: skip
from es_ttc.rescorers.blend.normalise import logistic
from es_ttc.rescorers.relevance import METHOD, Calibration, Logistic
from es_ttc.rescorers.tuned import as_json
from es_ttc.vectors.tokens import Float64

COLLECTIONS = ("scifact", "toollens", "cranfield", "hotpotqa-train-hipporag", "npl-vaswani")
MAX_QUERIES = 150
DRAWS = 10
SIZES = (10, 20, 30, 50)
LETTERS = "abcdefghijklmnoprstuvwxyz"
GIBBERISH, STRANGE = 30, 60
"""Queries of invented words, and queries of the other collections."""
FIGURE = "relevance.svg"
INDEX = "benchmark-relevance"

Halves = Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]


def main() -> None:
    """Print the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(COLLECTIONS), help="names of collections")
    parser.add_argument("--engine", metavar="URL", help="only time searches, through a gateway before this engine")
    parser.add_argument("--rounds", type=int, default=2000, help="timed searches of each kind")
    options = parser.parse_args()
    if options.engine is not None:
        print(heading("Added time of relevance", data=f"{GROUPS} x 100 documents", packages=("numpy",)))
        print(searched(options.engine, options.rounds))
        return
    names = options.data
    encoder = prepared("minilm")
    found, nothing = {}, {}
    loaded = {name: sampled(load_collection(DATA / name, "test")) for name in names}
    for name, collection in loaded.items():
        found[name] = collect(collection, encoder)
        nothing[name] = without_answers(collection, [one for other, one in loaded.items() if other != name], encoder)
        print(f"{name}: collected", file=sys.stderr)
    sizes = ", ".join(f"{name} {len(pools)}" for name, pools in found.items())
    print(heading(f"Relevance, {encoder.identity.model}", data=f"{sizes} test queries", packages=("numpy",)))
    parts: Sequence[tuple[str, Callable[[str], list[list[object]]], Sequence[str]]] = (
        ("Reliability", lambda name: [reliability(found[name])],
         ("queries", "share relevant", "score: error", "score: Brier", "one number: Brier", "relevance: mean",
          "error", "Brier", "AUC", "small windows: AUC", "error")),
        ("Few judgements: fitted to so many queries, measured on the others", lambda name: few(found[name]),
         ("fitted queries", "AUC", "Brier", "error", "mean relevance", "share relevant")),
        ("Fitted on the other collections", lambda name: [elsewhere(name, found)],
         ("AUC", "mean relevance", "share relevant", "error")),
        ("Nothing here: greatest relevance of a page", lambda name: [nowhere(found[name], *nothing[name])],
         ("AUC removed", "AUC gibberish", "AUC strange", "median with answers", "removed", "gibberish", "strange",
          "pages kept at .3: with answers", "removed", "gibberish", "strange")),
    )  # fmt: skip
    for title, measured, columns in parts:
        print(f"### {title}\n")
        print(table(["collection", *columns], [[name, *row] for name in names for row in measured(name)]), flush=True)
    print(f"### Time\n\n{timed(found[names[0]])}")
    draw(found)


def sampled(collection: Collection) -> Collection:
    """Return a collection with as many of its queries as are measured."""
    return sample(collection, MAX_QUERIES, SEED) if len(collection.queries) > MAX_QUERIES else collection


def without_answers(collection: Collection, others: Sequence[Collection], encoder: Encoder) -> tuple[Pools, Pools]:
    """Return the pools of gibberish, and those of queries of other collections."""
    random = np.random.default_rng(SEED)
    words = [["".join(random.choice([*LETTERS], random.integers(3, 9))) for _ in range(random.integers(2, 6))]
             for _ in range(GIBBERISH)]  # fmt: skip
    texts = [text for other in others for text in other.queries.values()]
    strange = [texts[place] for place in random.choice(len(texts), STRANGE, replace=False)]

    def pools(queries: Sequence[str]) -> Pools:
        named = {str(place): text for place, text in enumerate(queries)}
        return collect(replace(collection, queries=named, qrels={name: {} for name in named}), encoder)

    return pools([" ".join(one) for one in words]), pools(strange)


def halves(hits: JudgedHits) -> Halves:
    """Return which hits fit and which are measured, for both halves of each division of the queries."""
    found = []
    for draw in range(DRAWS):
        half = (np.random.default_rng([SEED, draw]).permutation(hits.queries) % 2 == 0)[hits.query]
        found += [(half, ~half), (~half, half)]
    return found


def measured_on(hits: JudgedHits) -> FitQuality:
    """Return mean figures of the halves that were not fitted."""
    return mean_figures([
        calibration_figures(hits.relevant[test], fit_relevance(hits.of(train)).of(hits.of(test).signals))
        for train, test in halves(hits)
    ])  # fmt: skip


def reliability(pools: Pools) -> list[object]:
    """Return how reliable blend's score, one number for all hits, and relevance are."""
    hits = judged_hits(pools)
    score = calibration_figures(hits.relevant, logistic(hits.signals["blend"]).astype(np.float64))
    constant = mean_figures([
        calibration_figures(hits.relevant[test], np.full(int(test.sum()), hits.relevant[train].mean()))
        for train, test in halves(hits)
    ])  # fmt: skip
    ours, small = measured_on(hits), measured_on(hits.without_blend)
    return [hits.queries, *digits(ours.share, score.error, score.brier, constant.brier), *digits(
        ours.relevance, ours.error, ours.brier, ours.auc, small.auc, small.error)]  # fmt: skip


def draw(found: Mapping[str, Pools]) -> None:
    """Draw the share of relevant hits by blend's score, and by relevance, of one division of each collection."""
    with figure(9.2, 2.4) as picture:
        panels = np.atleast_1d(picture.subplots(1, len(found), sharey=True))
        for axes, (name, pools) in zip(panels, found.items(), strict=True):
            hits = judged_hits(pools)
            predicted = np.empty(len(hits.relevant))
            for train, test in halves(hits)[:2]:
                predicted[test] = fit_relevance(hits.of(train)).of(hits.of(test).signals)
            score = logistic(hits.signals["blend"]).astype(np.float64)
            axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6)
            for values, colour, label in ((score, MUTED, "blend's score"), (predicted, STRONG, "relevance")):
                points = bins(hits.relevant, values)
                x, y = [one.relevance for one in points], [one.share for one in points]
                axes.plot(x, y, color=colour, marker="o", markersize=3, linewidth=1, label=label)
            axes.set_title(name.split("-")[0], loc="left", fontsize=10, color=INK)
            axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        panels[0].set_ylabel("share of relevant hits", color=MUTED)
        panels[0].legend(frameon=False, labelcolor=INK, fontsize=8)
        save(picture, FIGURE)


def few(pools: Pools) -> list[list[object]]:
    """Return figures by number of fitted queries."""
    hits = judged_hits(pools)
    rows: list[list[object]] = []
    for size in SIZES:
        one = figures_of_size(hits, size)
        rows.append([size, *digits(one.auc, one.brier, one.error, one.relevance, one.share)])
    return rows


def elsewhere(name: str, found: Mapping[str, Pools]) -> list[object]:
    """Return figures of a model of the other collections."""
    others = [judged_hits(pools) for other, pools in found.items() if other != name]
    starts = np.cumsum([0, *(one.queries for one in others)])
    together = JudgedHits(
        {name: np.concatenate([one.signals[name] for one in others]) for name in others[0].signals},
        np.concatenate([one.relevant for one in others]),
        np.concatenate([one.query + start for one, start in zip(others, starts, strict=False)]),
    )
    hits = judged_hits(found[name])
    one = calibration_figures(hits.relevant, fit_relevance(together).of(hits.signals))
    return digits(one.auc, one.relevance, one.share, one.error)


def removed(pools: Pools) -> Pools:
    """Return pools without their relevant documents."""

    def bare(pool: Pool) -> Pool:
        kept = np.flatnonzero(pool.grades <= 0)
        names = tuple(pool.documents[place] for place in kept)
        return replace(pool, documents=names, scores=pool.scores[kept], grades=pool.grades[kept])

    return replace(pools, pools=tuple(map(bare, pools.pools)))


def greatest(hits: JudgedHits, values: Float64) -> Float64:
    """Return the greatest value of each query's hits, ``(q,)``."""
    found = np.full(hits.queries, -np.inf)
    np.maximum.at(found, hits.query, values)
    return found


def nowhere(pools: Pools, gibberish: Pools, strange: Pools) -> list[object]:
    """Return how surely the greatest relevance of a page tells queries with answers from those without."""
    hits, none = judged_hits(pools), judged_hits(removed(pools))
    answered = np.bincount(hits.query, hits.relevant) > 0
    others = [judged_hits(one) for one in (gibberish, strange)]
    rows = []
    for train, test in halves(hits):
        model = fit_relevance(hits.of(train))
        tested = np.zeros(hits.queries, np.bool_)
        tested[hits.query[test]] = True
        asked = tested & answered
        with_answers = greatest(hits, model.of(hits.signals))[asked]
        kinds = [greatest(none, model.of(none.signals))[asked]]
        kinds += [greatest(one, model.of(one.signals)) for one in others]
        rows.append([*(auc_of(with_answers, one) for one in kinds), *map(np.median, (with_answers, *kinds)),
                     *(float(np.mean(one >= 0.3)) for one in (with_answers, *kinds))])  # fmt: skip
    return digits(*np.mean(rows, axis=0))


def auc_of(above: Float64, below: Float64) -> float:
    """Return the probability that one of the first is greater than one of the second."""
    return auc(np.append(np.ones(len(above)), np.zeros(len(below))), np.append(above, below))


def digits(*values: float) -> list[object]:
    """Return numbers with three decimals."""
    return [f"{value:.3f}" for value in values]


def timed(pools: Pools) -> str:
    """Return the time of the added computation of a search, warm."""
    hits = judged_hits(pools)
    calibration = calibration_of("x", "", fit_relevance(hits), fit_relevance(hits.without_blend))
    [values] = [pool.scores for pool in pools.pools if len(pool.documents) > 150][:1]
    signals = dict(zip((*pools.signals, "blend"), np.column_stack([values, values[:, 0]]).T.copy(), strict=True))
    times = []
    for _ in range(2000):
        began = time.perf_counter()
        calibration.probabilities(signals)
        times.append(time.perf_counter() - began)
    return f"{len(values)} documents: {1e6 * float(np.median(times)):.0f} us ({JUDGED_HITS} hits are fitted)"


def calibration_of(index: str, encoder: str, model: Logistic, few: Logistic) -> Calibration:
    """Return a calibration, with no figures of how good it is."""
    return Calibration(names=(index,), encoder=encoder, model=model, few=few, queries=0, auc=0, error=0)


def searched(engine: str, rounds: int) -> str:
    """Return the time of searches through a gateway, without relevance and with it, one after the other."""
    asyncio.run(filled(engine))
    model = Logistic(intercept=-3, weights={"dense": 2, "spectral": 2, "late_interaction": 2, "blend": 1})
    few = Logistic(intercept=-3, weights={"dense": 2, "spectral": 2, "late_interaction": 2})
    encoder = load_encoder(ENCODER).identity.key
    params = calibration_of(INDEX, encoder, model, few).model_dump(exclude={"encoder"})
    kinds: dict[str, dict[str, object]] = {
        "none": {}, "`relevance`": {"relevance": True}, "`min_relevance`": {"min_relevance": 0}
    }  # fmt: skip
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "relevance.json"
        file.write_bytes(as_json({"method": METHOD, "params": params, "data": "", "split": "", "encoder": encoder}))
        with gateway(engine, tuned=json.dumps([str(file)])) as running, Client(running.url) as client:
            for turn in range(rounds + GROUPS):  # each group is read once before it counts
                for kind in random.sample([*kinds], len(kinds)):
                    began = time.perf_counter()
                    answer = client.search(ours(turn % GROUPS, **kinds[kind]), INDEX)
                    ms = 1000 * (time.perf_counter() - began)
                    assert ("relevance" in answer["ttc"]) == bool(kinds[kind]), answer["ttc"]
                    if turn >= GROUPS:
                        times[kind].append(ms)
    asyncio.run(emptied(engine))
    rows = []
    for kind, each in times.items():
        added = np.subtract(each, times["none"])
        means = np.random.default_rng(SEED).choice(added, (1000, rounds)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        rows.append([kind, *digits(np.median(each), np.median(added), added.mean()), f"{low:.3f} to {high:.3f}"])
    columns = ("asked for", "median ms", "median added", "mean added", "95 % interval")
    return f"{rounds} searches of each kind, load {os.getloadavg()[0]:.1f}\n\n{table(columns, rows)}"


async def filled(engine: str) -> None:
    """Make the index of the timed searches."""
    async with opened(engine) as client:
        await fill(client, INDEX)


async def emptied(engine: str) -> None:
    """Delete the index of the timed searches."""
    async with opened(engine) as client:
        await delete(client, INDEX)


if __name__ == "__main__":
    main()
