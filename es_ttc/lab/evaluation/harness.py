"""The evaluation itself: rankings from a searcher, metrics of them, and the comparison with a baseline."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.bootstrap import RESAMPLES, TRUSTED_QUERIES, compare, interval, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.methods import Method
from es_ttc.lab.evaluation.metrics import QueryScores, score
from es_ttc.lab.evaluation.rankings import Progress, Run, Searcher, silent
from es_ttc.lab.evaluation.results import CollectionResult, MethodResult

MIN_UNJUDGED = 0.1
"""Difference in the share of unjudged documents from which a warning is given."""
SHOWN = 3
"""Documents of each ranking that the report shows."""

_LABEL = 80


def evaluate(
    collection: Collection,
    methods: Sequence[Method],
    searcher: Searcher,
    *,
    k: int = 10,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    progress: Progress = silent,
) -> CollectionResult:
    """Run methods on one collection and compare them."""
    reference = choose_baseline(methods, baseline)
    runs = {method.name: searcher.rank(method, progress) for method in methods}
    vectors = searcher.vectors
    scores = {
        name: score(collection.qrels, run.rankings, k=k, aspects=collection.aspects, vectors=vectors)
        for name, run in runs.items()
    }
    firsts = {name: {query: ranking[:SHOWN] for query, ranking in run.rankings.items()} for name, run in runs.items()}
    shown = {document for rankings in firsts.values() for ranking in rankings.values() for document in ranking}
    return CollectionResult(
        name=collection.name,
        split=collection.split,
        documents=searcher.documents,
        judgements=collection.judgements,
        relevant=collection.relevant,
        warnings=(*collection.warnings, *_few(collection), *_unjudged(collection, scores, reference, k)),
        baseline=reference,
        methods=_compared(methods, runs, scores, firsts, reference, resamples),
        texts=dict(collection.queries),
        labels={document.id: _label(document) for document in collection.documents if document.id in shown},
        right={
            query: frozenset(document for document, grade in judged.items() if grade > 0)
            for query, judged in collection.qrels.items()
        },
    )


def _few(collection: Collection) -> Iterator[str]:
    """Return a warning if intervals cannot be trusted."""
    if len(collection.queries) < TRUSTED_QUERIES:
        yield (
            f"intervals of {len(collection.queries)} queries are too narrow, trust them from {TRUSTED_QUERIES} on; "
            "p is of the exact sign-flip test"
        )


def _unjudged(collection: Collection, scores: Mapping[str, QueryScores], baseline: str, k: int) -> Iterator[str]:
    """Return a warning for each method with many more unjudged documents than the baseline.

    Where no document is judged not relevant, judgements name the relevant documents alone, and every other one is meant
    to count as not relevant.
    """
    if collection.judgements == collection.relevant:
        return
    metric = f"unjudged@{k}"
    least = scores[baseline].mean(metric)
    for name, one in scores.items():
        share = one.mean(metric)
        if share - least >= MIN_UNJUDGED:
            yield (
                f"{share:.0%} of the first {k} documents of {name} have no judgement, {least:.0%} of those of "
                f"{baseline}: they count as not relevant, so its figures may be too low"
            )


def _label(document: Document) -> str:
    """Return the title of a document, or the beginning of its text."""
    return document.title or textwrap.shorten(document.text, _LABEL, placeholder="\N{HORIZONTAL ELLIPSIS}")


def choose_baseline(methods: Sequence[Method], requested: str | None = None) -> str:
    """Return the name of the baseline: the requested one, else dense, else the first method."""
    names = [method.name for method in methods]
    if requested is not None and requested not in names:
        raise InvalidRequest(f"baseline [{requested}] is not among the methods: {', '.join(names)}")
    return requested or ("dense" if "dense" in names else names[0])


def _compared(
    methods: Sequence[Method],
    runs: dict[str, Run],
    scores: dict[str, QueryScores],
    firsts: Mapping[str, Mapping[str, Sequence[str]]],
    baseline: str,
    resamples: int,
) -> dict[str, MethodResult]:
    """Return the results of all methods, with intervals and comparisons from the same draws of the bootstrap."""
    series = [(name, metric) for name in scores for metric in scores[name].values]
    values = np.stack([scores[name].values[metric] for name, metric in series])
    means = dict(zip(series, resampled_means(values, resamples=resamples).T, strict=True))
    results = {}
    for method in methods:
        own = scores[method.name].values
        versus = {
            metric: compare(
                own[metric],
                scores[baseline].values[metric],
                means[method.name, metric],
                means[baseline, metric],
            )
            for metric in (own if method.name != baseline else ())
        }
        results[method.name] = MethodResult(
            name=method.name,
            params=method.params.model_dump(mode="json"),
            scores=scores[method.name],
            intervals={metric: interval(means[method.name, metric]) for metric in own},
            versus=versus,
            seconds=runs[method.name].seconds,
            firsts=firsts[method.name],
        )
    return results
