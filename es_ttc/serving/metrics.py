"""The gateway's metrics for Prometheus: of one process, or of all its worker processes together.

Worker processes keep their numbers in files of one folder, as prometheus-client's multiprocess mode does when the
variable ``PROMETHEUS_MULTIPROC_DIR`` names it.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from es_ttc.common.caches import WatchedCache
from es_ttc.serving.process import SHARED_FOLDER

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST
GONE = 499
"""The status of a request whose client disconnected before the response."""

WATCHED = {
    "in_flight_requests": "Requests being answered.",
    "model_breaker_open": "Processes that do not contact the language model, because it has failed several times in a "
    "row.",
    "outstanding_documents": "Documents on their way to the engine that are being encoded, or wait for it.",
    "on_demand_queue": "Documents that wait to be encoded on demand.",
    "on_demand_windows": "Recent windows in indices that are encoded on demand, at most 1,000 of each process.",
    "on_demand_complete_windows": "Those of them in which every document had its features.",
    "feature_reads_bytes": "Expected bytes of feature reads in flight.",
    "feature_reads_capacity_bytes": "Maximum bytes of feature reads in flight.",
    "feature_reads_waiting": "Parts of windows that wait to be read.",
    "feature_cache_bytes": "Bytes of features in the cache.",
    "feature_cache_capacity_bytes": "Capacity of the feature cache in bytes.",
    "feature_cache_entries": "Documents whose features are cached.",
}
"""Gauges that take their values when they are read."""
ON_DEMAND = ("queue", "windows", "complete_windows", "index_documents", "encoded_documents")
"""Gauges of encoding on demand."""


class Metrics:
    """The gateway's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "es_ttc_requests",
            "Requests by kind (passthrough, write, search, msearch, rerank, embeddings, score, encode, explain, jobs, "
            "judgements) and outcome (ok, fallback, client_error, error, gone).",
            "kind",
            "outcome",
        )
        self.request_seconds = self._histogram(
            "es_ttc_request_seconds", "Seconds from a request's arrival to the end of its response.", "kind"
        )
        self.stage_seconds = self._histogram(
            "es_ttc_stage_seconds",
            "Seconds in the stages of a rescored search (first_pass, candidates, features, encode, score, graph), of "
            "kNN by a method (encode, search, features) and of rewriting (rewrite).",
            "stage",
        )
        self.fallbacks = self._counter(
            "es_ttc_fallbacks", "Searches answered with the engine's own ranking, by reason.", "reason"
        )
        self.rungs = self._counter(
            "es_ttc_load_rungs",
            "Searches by what they gave up because many others were answered (full: nothing; no_tokens, no_candidates, "
            "first_pass).",
            "rung",
        )
        self.skipped_documents = self._counter(
            "es_ttc_skipped_documents",
            "Documents of windows whose features were not used, by reason (marks, encoder, layout, damaged, "
            "dimensions, values).",
            "reason",
        )
        self.written_documents = self._counter(
            "es_ttc_written_documents",
            "Documents written through the gateway to indices that encode them on the way: encoded, or why not "
            "(own_fields, no_object, text, update, pipeline, size, format, late, busy, left, encoder).",
            "outcome",
        )
        self.on_demand_documents = self._counter(
            "es_ttc_on_demand_documents",
            "Documents that were taken from the queue of encoding on demand, by outcome (encoded; present: they had "
            "features by then; changed: or gone; without: no text, or one that cannot be encoded; error).",
            "outcome",
        )
        self.on_demand_index_documents = self._gauge(
            "es_ttc_on_demand_index_documents",
            "Documents of the indices that are encoded on demand, as this gateway has seen them searched.",
            together="livemax",
        )
        self.on_demand_encoded_documents = self._gauge(
            "es_ttc_on_demand_encoded_documents", "Those of them that need no encoding.", together="livemax"
        )
        self.pending_documents = self._gauge(
            "es_ttc_jobs_pending_documents",
            "Documents that running jobs have still to process, by what the jobs do (encode, enrich).",
            "kind",
            together="livemax",
        )
        self.backlog_seconds = self._gauge(
            "es_ttc_jobs_backlog_seconds",
            "Seconds for which running jobs have had pending documents without a break, as this gateway has seen it.",
            "kind",
            together="livemax",
        )
        self.jobs_readable = self._gauge(
            "es_ttc_jobs_readable",
            "Whether the gateway could read the jobs' records the last time: 1 or 0.",
            together="livemax",
        )
        self._watched: list[Callable[[], None]] = []
        self._labelled: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def answered(self, kind: str, status: int, seconds: float, *, applied: bool = True) -> None:
        """Count an answered request."""
        if status == GONE:
            outcome = "gone"
        elif status >= 400:
            outcome = "error" if status >= 500 else "client_error"
        else:
            outcome = "ok" if applied else "fallback"
        labelled = self._labelled.get((kind, outcome))
        if labelled is None:  # finding labels takes longer than counting
            labelled = self._labelled[kind, outcome] = (
                self.requests.labels(kind, outcome), self.request_seconds.labels(kind)
            )  # fmt: skip
        labelled[0].inc()
        labelled[1].observe(seconds)

    def skipped(self, reasons: Iterable[str]) -> None:
        """Count documents whose features were not used, by reason."""
        for reason in reasons:
            self.skipped_documents.labels(str(reason)).inc()

    def written(self, encoded: int, pending: Mapping[Any, int]) -> None:
        """Count documents that were written to indices that encode them on the way."""
        for outcome, documents in (("encoded", encoded), *pending.items()):
            if documents:
                self.written_documents.labels(str(outcome)).inc(documents)

    def watch_cache(self, cache: WatchedCache) -> None:
        """Show the size of the cache of features, which worker processes share, and count its hits."""
        values = {
            "feature_cache_bytes": lambda: cache.nbytes,
            "feature_cache_capacity_bytes": lambda: cache.capacity,
            "feature_cache_entries": lambda: len(cache),
        }
        self.watch(values)
        hits = self._counter("es_ttc_feature_cache_hits", "Features of documents in windows that the cache held.")
        misses = self._counter("es_ttc_feature_cache_misses", "Features of documents in windows that the cache lacked.")
        before = [0, 0]

        def take() -> None:
            now = [cache.hits, cache.misses]
            hits.inc(now[0] - before[0])
            misses.inc(now[1] - before[1])
            before[:] = now

        self._watched.append(take)

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
        return generate_latest(self._whole())

    def on_demand(self) -> dict[str, int]:
        """Return the gauges of encoding on demand by their names after `es_ttc_on_demand_`."""
        registry = self._whole()
        return {name: int(registry.get_sample_value(f"es_ttc_on_demand_{name}") or 0) for name in ON_DEMAND}

    def _whole(self) -> CollectorRegistry:
        """Return the metrics of all processes, with present values of this one."""
        self.refresh()
        folder = os.environ.get(SHARED_FOLDER)
        return self.registry if folder is None else _of_all_processes(Path(folder))

    def watch(self, values: Mapping[str, Callable[[], int]]) -> None:
        """Add gauges of :data:`WATCHED` that take their values when they are read."""
        for name, value in values.items():
            gauge = self._gauge(f"es_ttc_{name}", WATCHED[name], together="livesum")
            self._watched.append(partial(_set, gauge, value))

    def _gauge(self, name: str, what: str, *labels: str, together: Literal["livesum", "livemax"]) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry, multiprocess_mode=together)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, label: str) -> Histogram:
        return Histogram(name, what, (label,), buckets=_BUCKETS, registry=self.registry)


def _set(gauge: Gauge, value: Callable[[], int]) -> None:
    gauge.set(value())


def _of_all_processes(folder: Path) -> CollectorRegistry:
    """Return the metrics in a folder; processes that have ended have no gauges any more."""
    for file in folder.glob("gauge_live*.db"):
        process = int(file.stem.rpartition("_")[2])
        if not psutil.pid_exists(process):
            mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return registry
