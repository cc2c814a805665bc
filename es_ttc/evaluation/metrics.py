"""Ranking metrics, as ir-measures (trec_eval) computes them, one value a query.

The rank of a document is its place in the ranking given. trec_eval re-sorts by score and breaks ties by document id,
so scores are replaced by descending whole numbers first: what a user sees is what is measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import ConfigurationError

Float64 = NDArray[np.float64]
Qrels = Mapping[str, Mapping[str, int]]

CUTOFFS = (1, 2, 3, 5, 10, 20, 100)
"""Cutoffs that are always computed, beside the one that the caller names."""


@dataclass(frozen=True, slots=True)
class QueryScores:
    """Every metric of one method, query by query.

    Attributes:
        queries: The judged queries' ids.
        values: ``{metric: (n,)}`` float64 in [0, 1], in the order of ``queries``.
    """

    queries: tuple[str, ...]
    values: Mapping[str, Float64]

    def mean(self, metric: str) -> float:
        """Return the metric's mean over all judged queries."""
        return float(np.mean(self.values[metric]))

    def means(self) -> dict[str, float]:
        """Return every metric's mean."""
        return {metric: self.mean(metric) for metric in self.values}


def metric_names(k: int = 10) -> tuple[str, ...]:
    """Return the names of the metrics that :func:`score` computes, in its order."""
    cutoffs = _cutoffs(k)
    families = ("ndcg", "recall", "success", "comp")
    return (*(f"{family}@{cutoff}" for family in families for cutoff in cutoffs), "map", "mrr")


def headline_metrics(k: int = 10) -> tuple[str, ...]:
    """Return the metrics that tables and plots show."""
    return tuple(dict.fromkeys((f"ndcg@{k}", f"recall@{k}", "recall@100", "map", "mrr", f"comp@{k}")))


def score(qrels: Qrels, rankings: Mapping[str, Sequence[str]], *, k: int = 10) -> QueryScores:
    """Score rankings against judgements.

    Args:
        qrels: Judgements by query id; grades of 1 or more are relevant, nDCG takes them as linear gains.
        rankings: Document ids by query id, best first, each once. A query without a ranking scores zero.
        k: A further cutoff beside :data:`CUTOFFS`.

    Returns:
        ``ndcg@c``, ``recall@c``, ``success@c`` (any relevant document in the top c) and ``comp@c`` (all of them) at
        every cutoff c; ``map`` and ``mrr`` over the whole ranking.

    Raises:
        ValueError: A ranking names a document twice, or ``k`` is below 1.
    """
    for query, ranking in rankings.items():
        if len(set(ranking)) != len(ranking):
            raise ValueError(f"the ranking of query [{query}] names a document twice")
    queries = tuple(qrels)
    values = dict(_ir_measures(qrels, rankings, queries, k))
    for cutoff in _cutoffs(k):
        values[f"comp@{cutoff}"] = np.array(
            [complete(qrels[query], rankings.get(query, ()), cutoff) for query in queries], dtype=np.float64
        )
    return QueryScores(queries, {name: values[name] for name in metric_names(k)})


def complete(judged: Mapping[str, int], ranking: Sequence[str], k: int) -> bool:
    """Whether all relevant documents, and there is one, stand in the top k (Comp@k of NNN decoding, section 4)."""
    relevant = {document for document, grade in judged.items() if grade > 0}
    return bool(relevant) and relevant <= set(ranking[:k])


def _cutoffs(k: int) -> tuple[int, ...]:
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    return tuple(sorted({*CUTOFFS, k}))


def _ir_measures(
    qrels: Qrels, rankings: Mapping[str, Sequence[str]], queries: tuple[str, ...], k: int
) -> Iterable[tuple[str, Float64]]:
    try:
        import ir_measures
    except ImportError as error:
        raise ConfigurationError("metrics need ir-measures: pip install 'es-ttc[evaluate]'") from error

    measures = {"map": ir_measures.AP, "mrr": ir_measures.RR}
    for cutoff in _cutoffs(k):
        measures[f"ndcg@{cutoff}"] = ir_measures.nDCG @ cutoff
        measures[f"recall@{cutoff}"] = ir_measures.R @ cutoff
        measures[f"success@{cutoff}"] = ir_measures.Success @ cutoff
    names = {measure: name for name, measure in measures.items()}
    positions = {query: position for position, query in enumerate(queries)}
    values = {name: np.zeros(len(queries)) for name in measures}
    run = {query: _by_rank(rankings[query]) for query in queries if rankings.get(query)}
    if run:  # ir-measures refuses an empty run; every query then scores zero
        for metric in ir_measures.iter_calc(list(names), {query: dict(qrels[query]) for query in queries}, run):
            values[names[metric.measure]][positions[metric.query_id]] = metric.value
    return values.items()


def _by_rank(ranking: Sequence[str]) -> dict[str, float]:
    """Scores that strictly decrease down the ranking (whole numbers: trec_eval keeps them as float32)."""
    return {document: float(len(ranking) - rank) for rank, document in enumerate(ranking)}
