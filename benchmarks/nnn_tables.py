"""NNN decoding on frozen encoders: dense, MMR, NNN-Fix, L1-Fix and L2-Fix at Recall and Comp@3 and 5.

    python -m benchmarks.nnn_tables

Parameters maximise Comp@5 (as in the paper) on train queries; a collection that has test queries only is cross-fitted
in five folds. Windows are the 100 documents that dense search finds first. A second table parts the queries by their
number of relevant documents.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bootstrap import compare, interval, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection, sample, splits
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import EvaluatedMethod, resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import QueryScores, score, score_by
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.lab.evaluation.report import signed
from es_ttc.lab.evaluation.tuning import best_candidate, fold_of, grid_candidates
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.nnn import NnnParams
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float64

DATA = [Path(__file__).parents[2] / "shared" / "data" / name for name in ("hotpotqa-train-hipporag", "toollens")]
METRICS = ("recall@3", "recall@5", "comp@3", "comp@5", "ils@5")
OBJECTIVE = "comp@5"
FOLDS, SEED = 5, 20_241
SAMPLED = 4_000
"""Train queries from which those of the tables are drawn."""

Variants = Mapping[str, Sequence[EvaluatedMethod]]


@dataclass(frozen=True)
class Questions:
    """A collection with some queries, and these encoded."""

    collection: Collection
    queries: Sequence[Query]

    def searcher(self, features: CorpusFeatures) -> MemorySearcher:
        """Return what answers them in memory."""
        texts = [document.text for document in self.collection.documents]
        return MemorySearcher(self.collection, texts, retrieval(()), features, self.queries)


def variants() -> Variants:
    """The paper's, each with the values that are tried; a variant does not include another."""
    l1, l2 = (NnnParams.GRID[name] for name in ("l1", "l2"))
    positive1, positive2 = [one for one in l1 if one], [one for one in l2 if one]
    grids: Mapping[str, Mapping[str, Sequence[Any]]] = {
        "NNN-Fix": {"l1": positive1, "l2": positive2},
        "L1-Fix": {"l1": positive1, "l2": [0.0]},
        "L2-Fix": {"l1": [0.0], "l2": positive2},
    }
    tried = {"MMR": grid_candidates("mmr")[1:]}
    for name, grid in grids.items():
        tried[name] = tuple(one for one in grid_candidates("nnn", grid=grid) if one.params.model_fields_set)
    return tried


def encoded(collection: Collection, encoder: Encoder) -> Questions:
    texts = list(collection.queries.values())
    return Questions(collection, encode_queries(texts, encoder, tokens=False))


def corpus_of(collection: Collection, encoder: Encoder) -> CorpusFeatures:
    titled = any(document.title for document in collection.documents)
    fields = ("title", "text") if titled else ("text",)
    return encode_corpus(collection.documents, IndexSpec(encoder.identity, text_fields=fields, tokens="none"), encoder)


def chosen_on(train: Questions, test: Questions, features: CorpusFeatures) -> dict[str, tuple[Run, str]]:
    """Return each variant's run of the test queries under what the train queries choose."""
    training, testing = train.searcher(features), test.searcher(features)
    runs = {"dense": (testing.rank(resolve_one("dense")), "")}
    for name, methods in variants().items():
        tried = [score_by(OBJECTIVE, train.collection.qrels, training.rank(one).rankings) for one in methods]
        method = methods[best_candidate(np.stack(tried))]
        runs[name] = testing.rank(method), said(method)
    return runs


def cross_fitted(test: Questions, features: CorpusFeatures) -> dict[str, tuple[Run, str]]:
    """Return each variant's run, every query under what the other folds choose."""
    testing = test.searcher(features)
    runs = {"dense": (testing.rank(resolve_one("dense")), "")}
    fold = fold_of(len(test.queries), FOLDS, SEED)
    for name, methods in variants().items():
        tried = [testing.rank(method) for method in methods]
        values = np.stack([score_by(OBJECTIVE, test.collection.qrels, run.rankings) for run in tried])
        by_fold = [best_candidate(values[:, fold != one]) for one in range(FOLDS)]
        rankings = {
            query: tried[by_fold[fold[place]]].rankings[query] for place, query in enumerate(test.collection.queries)
        }
        runs[name] = replace(tried[0], rankings=rankings), "; ".join(sorted({said(methods[one]) for one in by_fold}))
    return runs


def said(method: EvaluatedMethod) -> str:
    params = method.params.model_dump(by_alias=True, exclude_unset=True)
    return ", ".join(f"{name} {value:g}" for name, value in params.items())


def scores_of(runs: Mapping[str, tuple[Run, str]], test: Questions, features: CorpusFeatures) -> dict[str, QueryScores]:
    vectors = test.searcher(features).vectors
    return {name: score(test.collection.qrels, run.rankings, vectors=vectors) for name, (run, _) in runs.items()}


def means_table(scores: Mapping[str, QueryScores], chosen: Mapping[str, str]) -> str:
    lines = []
    for name, own in scores.items():
        cells = [cell(own.values[metric], scores["dense"].values[metric], name) for metric in METRICS]
        lines.append((name, *cells, chosen[name]))
    return table(("method", *METRICS, "parameters"), lines)


def cell(own: Float64, dense: Float64, name: str) -> str:
    means = resampled_means(np.stack([own, dense]), seed=SEED)
    if name == "dense":
        around = interval(means[:, 0])
        return f"{own.mean():.3f} ({around.low:.3f} to {around.high:.3f})"
    versus = compare(own, dense, means[:, 0], means[:, 1])
    clear = "**" if versus.interval.low > 0 or versus.interval.high < 0 else ""
    delta = f"{clear}{signed(versus.delta)}{clear}"
    return f"{own.mean():.3f}, {delta} ({signed(versus.interval.low)} to {signed(versus.interval.high)})"


def kinds_table(scores: Mapping[str, QueryScores], test: Questions) -> str:
    """Return the objective by the number of a query's relevant documents."""
    counts = np.array([sum(grade > 0 for grade in judged.values()) for judged in test.collection.qrels.values()])
    lines = []
    for count in sorted(set(counts.tolist())):
        mask = counts == count
        if mask.sum() >= 10:
            dense = scores["dense"].values[OBJECTIVE][mask]
            cells = [cell(own.values[OBJECTIVE][mask], dense, name) for name, own in scores.items()]
            lines.append((f"{count} relevant", int(mask.sum()), *cells))
    return table(("queries", "number", *scores), lines)


def report(folder: Path, encoder: Encoder, train_queries: int) -> None:
    test = encoded(load_collection(folder), encoder)
    features = corpus_of(test.collection, encoder)
    print(f"### {test.collection.name}, {encoder.identity.model}: {len(test.queries):,} test queries\n")
    if "train" not in splits(folder):
        print(f"Parameters: cross-fitted in {FOLDS} folds.\n")
        show(cross_fitted(test, features), test, features)
        return
    everything = sample(load_collection(folder, "train"), SAMPLED, seed=0)
    train = encoded(sample(everything, train_queries, seed=1), encoder)
    print(f"Parameters: from {train_queries:,} train queries (seeded sample).\n")
    show(chosen_on(train, test, features), test, features)


def show(runs: Mapping[str, tuple[Run, str]], test: Questions, features: CorpusFeatures) -> None:
    scores = scores_of(runs, test, features)
    print(means_table(scores, {name: params for name, (_, params) in runs.items()}))
    print(f"{OBJECTIVE} by number of relevant documents:\n")
    print(kinds_table(scores, test), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path, default=DATA, help="BEIR folders")
    parser.add_argument("--encoders", nargs="+", default=["minilm"])
    parser.add_argument("--train-queries", type=int, default=800)
    arguments = parser.parse_args()
    names = ", ".join(folder.name for folder in arguments.data)
    print(heading("NNN decoding on frozen encoders", data=names, packages=("numpy", "torch")))
    cache = Settings().cache_dir
    for name in arguments.encoders:
        encoder = CachedEncoder(load_encoder(name, cache_dir=cache), cache / "encodings")
        for folder in arguments.data:
            report(folder, encoder, arguments.train_queries)


if __name__ == "__main__":
    main()
