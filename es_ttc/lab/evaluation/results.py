"""What an evaluation found: dataclasses for reports, and the ``results.json`` that scripts read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation import bootstrap
from es_ttc.lab.evaluation.bootstrap import Comparison, Interval
from es_ttc.lab.evaluation.metrics import QueryScores, headline_metrics

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method on one collection; intervals of means and comparisons with the baseline by metric.

    `seconds` is ``(q,)``: first pass included, encoding left out where it was done before.
    """

    name: str
    params: Mapping[str, Any]
    scores: QueryScores
    intervals: Mapping[str, Interval]
    versus: Mapping[str, Comparison]
    seconds: NDArray[np.float64]
    firsts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def latency_ms(self) -> dict[str, float]:
        """Mean, median and 95th percentile of a query's time in ms."""
        ms = self.seconds * 1000
        p50, p95 = np.percentile(ms, (50, 95))
        return {"mean": float(ms.mean()), "p50": float(p50), "p95": float(p95)}

    def as_json(self, k: int) -> dict[str, Any]:
        """Return the value of ``methods.METHOD``: every metric's mean at the top level, the rest under its own key."""
        return {
            **_rounded(self.scores.means()),
            "seconds": _rounded(float(self.seconds.sum())),
            "params": dict(self.params),
            "latency_ms": _rounded(self.latency_ms),
            "intervals": {metric: [_rounded(one.low), _rounded(one.high)] for metric, one in self.intervals.items()},
            "versus": {metric: _rounded(asdict(one)) for metric, one in self.versus.items()},
            "per_query": {metric: _rounded(self.scores.values[metric].tolist()) for metric in headline_metrics(k)},
        }


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """All methods on one collection."""

    name: str
    split: str
    documents: int
    judgements: int
    relevant: int
    warnings: tuple[str, ...]
    baseline: str
    methods: Mapping[str, MethodResult]
    texts: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    right: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def as_json(self, k: int) -> dict[str, Any]:
        """Return the value of ``data.NAME``."""
        return {
            "queries": len(self.texts),
            "documents": self.documents,
            "split": self.split,
            "judgements": self.judgements,
            "relevant": self.relevant,
            "warnings": list(self.warnings),
            "baseline": self.baseline,
            "query_ids": list(self.texts),
            "methods": {name: method.as_json(k) for name, method in self.methods.items()},
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All collections, and everything that is needed to do it again."""

    collections: tuple[CollectionResult, ...]
    k: int
    encoder: str | None
    encoder_backend: str | None
    engine: str
    settings: Mapping[str, Any]
    machine: str
    versions: Mapping[str, str]
    command: str
    date: str
    bootstrap: ClassVar[Mapping[str, Any]] = {
        "resamples": bootstrap.RESAMPLES,
        "seed": bootstrap.SEED,
        "confidence": bootstrap.CONFIDENCE,
        "tie": bootstrap.TIE,
    }

    def as_json(self) -> dict[str, Any]:
        """Return ``results.json``."""
        return {
            "data": {collection.name: collection.as_json(self.k) for collection in self.collections},
            "k": self.k,
            "encoder": self.encoder,
            "encoder_backend": self.encoder_backend,
            "engine": self.engine,
            "settings": dict(self.settings),
            "bootstrap": dict(self.bootstrap),
            "machine": self.machine,
            "versions": dict(self.versions),
            "command": self.command,
            "date": self.date,
        }


def _rounded(value: Any) -> Any:
    """Round the numbers of a JSON-ready value: six digits are more than the bootstrap resolves."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
