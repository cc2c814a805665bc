"""The gateway's metrics for Prometheus: of one process, or of all its worker processes together.

Worker processes keep their numbers in files of one folder, as prometheus-client's multiprocess mode does when the
variable ``PROMETHEUS_MULTIPROC_DIR`` names it.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from es_ttc.common.caches import WatchedCache

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST
GONE = 499
"""The status of a request whose client disconnected before the response."""
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of worker processes' numbers."""


class Metrics:
    """The gateway's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "es_ttc_requests",
            "Requests by kind (passthrough, write, search, msearch, rerank, score, encode) and outcome (ok, fallback, "
            "client_error, error, gone).",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "es_ttc_request_seconds", "Whole requests.", ("kind",), buckets=_BUCKETS, registry=self.registry
        )
        self.stage_seconds = Histogram(
            "es_ttc_stage_seconds",
            "Stages of a rescored search (first_pass, features, encode, score).",
            ("stage",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.fallbacks = Counter(
            "es_ttc_fallbacks", "Searches answered with the engine's own ranking.", ("reason",), registry=self.registry
        )
        self.skipped_documents = Counter(
            "es_ttc_skipped_documents",
            "Documents of windows whose features were not used, by reason (marks, encoder, layout, codebook, damaged, "
            "dimensions, values).",
            ("reason",),
            registry=self.registry,
        )
        self.written_documents = Counter(
            "es_ttc_written_documents",
            "Documents written through the gateway to indices that encode them on the way: encoded, or why not "
            "(own_fields, no_object, text, update, pipeline, size, format, late, busy, encoder).",
            ("outcome",),
            registry=self.registry,
        )
        self.pending_documents = Gauge(
            "es_ttc_jobs_pending_documents",
            "Documents that running jobs have still to process, by what the jobs do (encode, enrich).",
            ("kind",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.backlog_seconds = Gauge(
            "es_ttc_jobs_backlog_seconds",
            "Time for which there have been such documents without a break, as this gateway has seen it.",
            ("kind",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.jobs_seen = Gauge(
            "es_ttc_jobs_seen",
            "Whether the gateway could read the jobs' records the last time: 1 or 0.",
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._watched: list[Callable[[], None]] = []
        self._known: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def answered(self, kind: str, status: int, seconds: float, *, applied: bool = True) -> None:
        """Count an answered request."""
        if status == GONE:
            outcome = "gone"
        elif status >= 400:
            outcome = "error" if status >= 500 else "client_error"
        else:
            outcome = "ok" if applied else "fallback"
        known = self._known.get((kind, outcome))
        if known is None:  # finding labels takes longer than counting
            known = self._known[kind, outcome] = (
                self.requests.labels(kind, outcome), self.request_seconds.labels(kind)
            )  # fmt: skip
        known[0].inc()
        known[1].observe(seconds)

    def skipped(self, reasons: Iterable[str]) -> None:
        """Count documents whose features were not used, by reason."""
        for reason in reasons:
            self.skipped_documents.labels(str(reason)).inc()

    def written(self, encoded: int, pending: Mapping[Any, int]) -> None:
        """Count documents that were written to indices that encode them on the way."""
        for outcome, documents in (("encoded", encoded), *pending.items()):
            if documents:
                self.written_documents.labels(str(outcome)).inc(documents)

    def watch_requests(self, in_flight: Callable[[], int]) -> None:
        """Add a metric of requests."""
        self._gauge("es_ttc_in_flight_requests", "Requests being answered.", in_flight)

    def watch_model(self, closed: Callable[[], bool]) -> None:
        """Add a metric of the language model."""
        what = "Processes that do not contact the language model, because it has failed several times in a row."
        self._gauge("es_ttc_model_breaker_open", what, closed)

    def watch_writes(self, outstanding: Callable[[], int]) -> None:
        """Add a metric of documents on their way.

        Args:
            outstanding: Returns the number of documents that wait for their encoding, or are encoded and not yet sent.
        """
        what = "Documents on their way to the engine that are being encoded, or wait for it."
        self._gauge("es_ttc_outstanding_documents", what, outstanding)

    def watch_reads(
        self, in_flight: Callable[[], int], waiting: Callable[[], int], capacity: Callable[[], int]
    ) -> None:
        """Add metrics of reads of features.

        Args:
            in_flight: Returns the bytes in flight.
            waiting: Returns the number of waiting parts.
            capacity: Returns the maximum of bytes in flight.
        """
        for name, what, value in (
            ("es_ttc_feature_reads_bytes", "Features that are being read, as expected.", in_flight),
            ("es_ttc_feature_reads_capacity_bytes", "Their bound.", capacity),
            ("es_ttc_feature_reads_waiting", "Parts of windows that wait to be read.", waiting),
        ):
            self._gauge(name, what, value)

    def watch_cache(self, cache: WatchedCache) -> None:
        """Add metrics of a cache of features, which worker processes share."""
        size = "es_ttc_feature_cache_bytes", "Memory of cached features."
        self._gauge(*size, lambda: cache.nbytes, together="livemax")
        self._gauge("es_ttc_feature_cache_capacity_bytes", "Its bound.", lambda: cache.capacity, together="livemax")
        self._gauge(
            "es_ttc_feature_cache_entries",
            "Documents whose features are cached.",
            lambda: len(cache),
            together="livemax",
        )
        self._counter("es_ttc_feature_cache_hits", "Features found in memory.", lambda: cache.hits)
        self._counter("es_ttc_feature_cache_misses", "Features not found in memory.", lambda: cache.misses)

    @property
    def shared(self) -> bool:
        """Whether other processes read this process's metrics."""
        return SHARED_FOLDER in os.environ

    def refresh(self) -> None:
        """Take the present values of what is watched."""
        for take in self._watched:
            take()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format; with worker processes, those of all of them."""
        self.refresh()
        folder = os.environ.get(SHARED_FOLDER)
        return generate_latest(self.registry if folder is None else _of_all_processes(Path(folder)))

    def _gauge(
        self,
        name: str,
        what: str,
        value: Callable[[], int],
        *,
        together: Literal["livesum", "livemax"] = "livesum",
    ) -> None:
        """Add a gauge."""
        gauge = Gauge(name, what, registry=self.registry, multiprocess_mode=together)
        self._watched.append(lambda: gauge.set(value()))

    def _counter(self, name: str, what: str, value: Callable[[], int]) -> None:
        counter, counted = Counter(name, what, registry=self.registry), 0

        def take() -> None:
            nonlocal counted
            now = value()
            counter.inc(now - counted)
            counted = now

        self._watched.append(take)


def _of_all_processes(folder: Path) -> CollectorRegistry:
    """Return the metrics in a folder; processes that have ended have no gauges any more."""
    for file in folder.glob("gauge_live*.db"):
        process = int(file.stem.rpartition("_")[2])
        if not psutil.pid_exists(process):
            mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return registry
