"""An evaluation's headline as tables in Markdown, and what methods gained over all collections."""

from collections.abc import Iterator, Sequence

import numpy as np

from es_ttc.lab.evaluation.bootstrap import TIE
from es_ttc.lab.evaluation.metrics import headline_metrics
from es_ttc.lab.evaluation.report import score, signed
from es_ttc.lab.evaluation.results import CollectionResult, Evaluation

Row = Sequence[str]


def markdown(evaluation: Evaluation) -> str:
    """Return every table in Markdown."""
    return "\n".join(f"## {title}\n\n{_markdown(head, rows)}" for title, head, rows in _tables(evaluation))


def _tables(evaluation: Evaluation) -> Iterator[tuple[str, Row, list[Row]]]:
    metric = headline_metrics(evaluation.k)[0]
    if len(evaluation.collections) > 1:
        pooled = ("method", "mean delta", "median delta", "collections won/tied/lost")
        yield f"{metric}, all collections", pooled, list(_pooled(evaluation.collections, metric))
    for one in evaluation.collections:
        head = ("method", metric, "delta", "95 % interval", "queries won/tied/lost")
        title = f"{one.name} ({one.split}): {one.documents:,} documents, {len(one.texts):,} queries"
        yield title, head, list(_rows(one, metric))


def _rows(result: CollectionResult, metric: str) -> Iterator[Row]:
    for method in result.methods.values():
        mean = score(method.scores.mean(metric))
        if metric not in method.versus:
            yield method.name, mean, "baseline", "", ""
            continue
        versus = method.versus[metric]
        interval = f"{signed(versus.interval.low)} to {signed(versus.interval.high)}"
        yield method.name, mean, signed(versus.delta), interval, f"{versus.wins}/{versus.ties}/{versus.losses}"


def _pooled(collections: Sequence[CollectionResult], metric: str) -> Iterator[Row]:
    """Pool the collections' differences, as the paper on programs does (section 4.2)."""
    for name in collections[0].methods:
        versus = [one.methods[name].versus for one in collections]
        deltas = np.array([one[metric].delta for one in versus if metric in one])
        if len(deltas):
            wins, losses = int(np.sum(deltas > TIE)), int(np.sum(deltas < -TIE))
            record = f"{wins}/{len(deltas) - wins - losses}/{losses}"
            yield name, signed(float(deltas.mean())), signed(float(np.median(deltas))), record


def _markdown(head: Row, rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"
