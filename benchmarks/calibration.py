"""How `bidirzscore` depends on its calibration: quality and the first ten documents, by the size of the sample.

Calibration queries are train queries, in nested samples; the batch is the paper's form, statistics over the test
queries themselves.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.common import heading, table
from benchmarks.programs import load
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.calibration import RANK
from es_ttc.lab.evaluation.metrics import score
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.primitives.standardise import along_queries
from es_ttc.settings import Settings

SIZES = (2, 5, 10, 20, 50, 100, 200)
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "calibration.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--plot", action="store_true", help="Draw docs/images/calibration.svg.")
    arguments = parser.parse_args()
    settings = Settings(encoder=arguments.encoder)
    encoder = CachedEncoder(
        load_encoder(settings.encoder, cache_dir=settings.cache_dir), settings.cache_dir / "encodings"
    )
    test = load(arguments.data, sizes=(200, None))
    train = load(arguments.data, "train", (max(SIZES), None))
    texts = [compose(document.source, ("title", "text"))[0] for document in test.documents]
    documents = encoder.encode(texts, tokens=False).pooled
    queries, sample = (
        encoder.encode(list(one.queries.values()), role="query", tokens=False).pooled for one in (test, train)
    )
    cosines = queries @ documents.T
    ids = [document.id for document in test.documents]

    def tops(scores: np.ndarray) -> np.ndarray:
        return np.argsort(-scores, axis=1, kind="stable")

    def quality(scores: np.ndarray) -> float:
        rankings = {query: [ids[i] for i in row[:100]] for query, row in zip(test.queries, tops(scores), strict=True)}
        return score(test.qrels, rankings, k=10).mean("ndcg@10")

    batch = along_queries(cosines, documents, Moments.of(queries))
    rows = [("none (dense)", quality(cosines), _overlap(tops(cosines), tops(batch)))]
    for size in SIZES:
        scores = along_queries(cosines, documents, Moments.of(sample[:size], RANK))
        rows.append((str(size), quality(scores), _overlap(tops(scores), tops(batch))))
    rows.append(("the batch itself", quality(batch), 1.0))
    data = f"{arguments.data}, {len(queries)} test queries, {len(documents)} documents, {settings.encoder}"
    print(heading("bidirzscore by the size of its calibration", data=data))
    print(
        table(
            ("calibration queries", "nDCG@10", "overlap@10 with the batch"),
            [(a, f"{b:.4f}", f"{c:.3f}") for a, b, c in rows],
        )
    )
    if arguments.plot:
        _plot(rows)


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean([len(set(a[:10]) & set(b[:10])) / 10 for a, b in zip(one, other, strict=True)]))


def _plot(rows: list[tuple[str, float, float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    sampled = rows[1:-1]
    axes.plot(SIZES, [row[1] for row in sampled], marker="o", label="nDCG@10")
    axes.plot(SIZES, [row[2] for row in sampled], marker="s", label="overlap@10 with the batch")
    axes.axhline(rows[-1][1], color="tab:blue", linestyle=":", label="nDCG@10 of the batch")
    axes.axhline(rows[0][1], color="0.5", linestyle="--", label="nDCG@10 of dense")
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_xlabel("calibration queries")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8)
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, metadata={"Date": None})


if __name__ == "__main__":
    main()
