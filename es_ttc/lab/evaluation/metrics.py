"""Ranking metrics, computed by ir-measures (trec_eval), one value per query.

The rank of a document is its place in the ranking. trec_eval sorts by score again and breaks ties by document id, so
scores are replaced by descending whole numbers first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.vectors.tokens import Float32, Float64

NDCG_10 = "ndcg@10"  # the metric of decisions

Qrels = Mapping[str, Mapping[str, int]]
Aspects = Mapping[str, Qrels]
Rankings = Mapping[str, Sequence[str]]

CUTOFFS = (1, 2, 3, 5, 10, 20, 100)  # cutoffs that are always computed, in addition to the caller's
OF_SETS = (3, 5, 10)  # cutoffs of the metrics of sets of documents: `ils`, `alpha-ndcg` and `unjudged`
ALPHA = 0.5  # the reduction of the gain of a further document on the same aspect, as in TREC's web track

_FAMILIES = ("ndcg", "recall", "success", "comp")
_WHOLE = ("map", "mrr")


@dataclass(frozen=True, slots=True)
class QueryScores:
    """Every metric of one method, query by query.

    Attributes:
        queries: The judged queries' ids.
        values: ``{metric: (n,)}`` float64 in the order of ``queries``: in [0, 1], ``ils`` in [-1, 1].
    """

    queries: tuple[str, ...]
    values: Mapping[str, Float64]

    def mean(self, metric: str) -> float:
        """Return the metric's mean over all judged queries."""
        return float(np.mean(self.values[metric]))

    def means(self) -> dict[str, float]:
        """Return every metric's mean."""
        return {metric: self.mean(metric) for metric in self.values}


def metric_names(k: int = 10, *, aspects: bool = False, vectors: bool = False) -> tuple[str, ...]:
    """Return the names of the metrics that :func:`score` computes, in its order."""
    cutoffs = _cutoffs(k)
    of_sets = (*(("alpha-ndcg",) if aspects else ()), *(("ils",) if vectors else ()), "unjudged")
    return (
        *(f"{family}@{cutoff}" for family in _FAMILIES for cutoff in cutoffs),
        *_WHOLE,
        *(f"{family}@{cutoff}" for family in of_sets for cutoff in _set_cutoffs(k)),
    )


def headline_metrics(k: int = 10) -> tuple[str, ...]:
    """Return the metrics that tables and plots show."""
    return tuple(dict.fromkeys((f"ndcg@{k}", f"recall@{k}", "recall@100", "map", "mrr", f"comp@{k}")))


def score(
    qrels: Qrels,
    rankings: Rankings,
    *,
    k: int = 10,
    aspects: Aspects | None = None,
    vectors: Mapping[str, Float32] | None = None,
) -> QueryScores:
    """Score rankings against judgements.

    Args:
        qrels: Judgements by query id; grades of 1 or more are relevant, nDCG takes them as linear gains.
        rankings: Document ids by query id, best first, each once. A query without a ranking scores zero.
        k: A cutoff in addition to :data:`CUTOFFS` and :data:`OF_SETS`.
        aspects: Judgements by query id and aspect, where there are any.
        vectors: ``(d,)`` unit vectors by document id, or None.

    Returns:
        ``ndcg@c``, ``recall@c``, ``success@c`` (any relevant document in the top c) and ``comp@c`` (all of them) at
        every cutoff c; ``map`` and ``mrr`` over the whole ranking. With aspects ``alpha-ndcg@c`` (Clarke et al.,
        SIGIR 2008); with vectors ``ils@c``, the mean cosine of two of the top c: the less, the more diverse;
        ``unjudged@c``, the share of the top c without a judgement.

    Raises:
        ValueError: A ranking names a document twice, or ``k`` is below 1.
    """
    for query, ranking in rankings.items():
        if len(set(ranking)) != len(ranking):
            raise ValueError(f"the ranking of query [{query}] names a document twice")
    names = metric_names(k, aspects=bool(aspects), vectors=vectors is not None)
    values = _by_ir_measures([name for name in names if _family(name) in _MEASURES], qrels, rankings, aspects)
    for name in names:
        if _family(name) == "comp":
            values[name] = _completeness(qrels, rankings, _cutoff(name))
        elif _family(name) == "ils" and vectors is not None:
            values[name] = _similarities(qrels, rankings, vectors, _cutoff(name))
        elif _family(name) == "unjudged":
            values[name] = _unjudged(qrels, rankings, _cutoff(name))
    return QueryScores(tuple(qrels), {name: values[name] for name in names})


def score_by(metric: str, qrels: Qrels, rankings: Rankings) -> Float64:
    """Return one metric's values, ``(n,)`` in the order of the judgements; see :func:`score`."""
    check_metric(metric)
    if _family(metric) == "comp":
        return _completeness(qrels, rankings, _cutoff(metric))
    return _by_ir_measures([metric], qrels, rankings, None)[metric]


def check_metric(name: str) -> None:
    """Raise an error for a name that is no metric of rankings."""
    family, _, cutoff = name.partition("@")
    if name in _WHOLE or (family in _FAMILIES and cutoff.isascii() and cutoff.isdigit() and int(cutoff) > 0):
        return
    known = ", ".join((*(f"{known}@k" for known in _FAMILIES), *_WHOLE))
    raise InvalidRequest(f"unknown metric [{name}]: take one of {known}, e.g. comp@5")


def complete(judged: Mapping[str, int], ranking: Sequence[str], k: int) -> bool:
    """Return whether all relevant documents, at least one, are in the top k (Comp@k of NNN decoding, section 4)."""
    relevant = {document for document, grade in judged.items() if grade > 0}
    return bool(relevant) and relevant <= set(ranking[:k])


def intra_list_similarity(vectors: Float32) -> float:
    """Return the mean cosine of two of ``(n, d)`` unit rows (Ziegler et al., WWW 2005); 0 where there are no two."""
    n = len(vectors)
    if n < 2:
        return 0.0
    total = vectors.sum(axis=0, dtype=np.float64)
    own = np.einsum("ij,ij->", vectors, vectors, dtype=np.float64)
    return float((total @ total - own) / (n * (n - 1)))


_MEASURES = {"ndcg": "nDCG", "recall": "R", "success": "Success", "map": "AP", "mrr": "RR", "alpha-ndcg": "alpha_nDCG"}
"""ir-measures' names."""


def _cutoffs(k: int) -> tuple[int, ...]:
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    return tuple(sorted({*CUTOFFS, k}))


def _set_cutoffs(k: int) -> tuple[int, ...]:
    return tuple(sorted({*OF_SETS, max(2, k)}))


def _family(metric: str) -> str:
    return metric.partition("@")[0]


def _cutoff(metric: str) -> int:
    return int(metric.partition("@")[2])


def _completeness(qrels: Qrels, rankings: Rankings, k: int) -> Float64:
    found = [complete(judged, rankings.get(query, ()), k) for query, judged in qrels.items()]
    return np.array(found, dtype=np.float64)


def _similarities(qrels: Qrels, rankings: Rankings, vectors: Mapping[str, Float32], k: int) -> Float64:
    """Return each query's ``ils``; documents without a vector are skipped."""
    values = np.zeros(len(qrels))
    for place, query in enumerate(qrels):
        rows = [vectors[document] for document in rankings.get(query, ())[:k] if document in vectors]
        values[place] = intra_list_similarity(np.stack(rows)) if rows else 0.0
    return values


def _unjudged(qrels: Qrels, rankings: Rankings, k: int) -> Float64:
    """Return the share of each query's top k that has no judgement, relevant or not; 0 where there is no document."""
    found = [
        np.mean([document not in judged for document in top]) if (top := rankings.get(query, ())[:k]) else 0.0
        for query, judged in qrels.items()
    ]
    return np.array(found, dtype=np.float64)


def _by_ir_measures(
    names: Sequence[str], qrels: Qrels, rankings: Rankings, aspects: Aspects | None
) -> dict[str, Float64]:
    try:
        import ir_measures
    except ImportError as error:
        raise ConfigurationError("metrics need ir-measures: pip install 'es-ttc[evaluate]'") from error

    def measure(name: str) -> Any:
        family, _, cutoff = name.partition("@")
        named = getattr(ir_measures, _MEASURES[family])
        named = named(alpha=ALPHA) if family == "alpha-ndcg" else named
        return named @ int(cutoff) if cutoff else named

    measures = {measure(name): name for name in names}
    by_aspect = [one for one, name in measures.items() if _family(name) == "alpha-ndcg"]
    judged: list[tuple[list[Any], Any]] = [
        (
            [measure for measure in measures if measure not in by_aspect],
            {query: dict(grades) for query, grades in qrels.items()},
        )
    ]
    if aspects and by_aspect:
        judged.append((by_aspect, [ir_measures.Qrel(*line) for line in _aspect_lines(aspects)]))
    positions = {query: position for position, query in enumerate(qrels)}
    values = {name: np.zeros(len(qrels)) for name in names}
    run = {query: _by_rank(rankings[query]) for query in qrels if rankings.get(query)}
    for some, judgements in judged:
        if run and some:  # ir-measures accepts no empty run; every query then scores zero
            for metric in ir_measures.iter_calc(some, judgements, run):
                values[measures[metric.measure]][positions[metric.query_id]] = metric.value
    return values


def _aspect_lines(aspects: Aspects) -> Iterator[tuple[str, str, int, str]]:
    for query, by_aspect in aspects.items():
        for aspect, grades in by_aspect.items():
            for document, grade in grades.items():
                yield query, document, grade, aspect


def _by_rank(ranking: Sequence[str]) -> dict[str, float]:
    """Return scores that strictly decrease down the ranking (whole numbers: trec_eval stores them as float32)."""
    return {document: float(len(ranking) - rank) for rank, document in enumerate(ranking)}
