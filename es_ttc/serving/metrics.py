"""What Prometheus is told."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from es_ttc.common.caches import LruCache
from es_ttc.serving.features.skip_reasons import SkipReason

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST
GONE = 499
"""Stands for a status where the client went away before it got one."""


class Metrics:
    """The gateway's measurements, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "es_ttc_requests",
            "Requests by kind (passthrough, search, msearch, rerank, score, encode) and outcome (ok, fallback, "
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
        self.in_flight = Gauge("es_ttc_in_flight_requests", "Requests being answered.", registry=self.registry)
        self._known: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def answered(self, kind: str, status: int, seconds: float, *, applied: bool = True) -> None:
        """Count a request that is over.

        Args:
            kind: What kind it was.
            status: Its HTTP status; :data:`GONE` where nobody waited for it any more.
            seconds: What it took.
            applied: Whether methods of ours did their work, if any were asked for.
        """
        if status == GONE:
            outcome = "gone"
        elif status >= 400:
            outcome = "error" if status >= 500 else "client_error"
        else:
            outcome = "ok" if applied else "fallback"
        known = self._known.get((kind, outcome))
        if known is None:  # looking labels up takes longer than counting
            known = self._known[kind, outcome] = (
                self.requests.labels(kind, outcome), self.request_seconds.labels(kind)
            )  # fmt: skip
        known[0].inc()
        known[1].observe(seconds)

    def skipped(self, faults: Iterable[SkipReason]) -> None:
        """Count documents whose features were not used."""
        for fault in faults:
            self.skipped_documents.labels(fault.value).inc()

    def watch_reads(
        self, in_flight: Callable[[], int], waiting: Callable[[], int], capacity: Callable[[], int]
    ) -> None:
        """Report reads of features whenever the metrics are read.

        Args:
            in_flight: Gives the bytes that are being read.
            waiting: Gives the parts that wait.
            capacity: Gives the bound of the bytes.
        """
        for name, what, value in (
            ("es_ttc_feature_reads_bytes", "Features that are being read, as expected.", in_flight),
            ("es_ttc_feature_reads_capacity_bytes", "Their bound.", capacity),
            ("es_ttc_feature_reads_waiting", "Parts of windows that wait to be read.", waiting),
        ):
            Gauge(name, what, registry=self.registry).set_function(value)

    def watch_cache(self, cache: LruCache[Any, Any]) -> None:
        """Report what a cache of features holds whenever the metrics are read."""
        self.registry.register(_CacheCollector(cache))

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self.registry)


class _CacheCollector(Collector):
    def __init__(self, cache: LruCache[Any, Any]) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        """Yield the cache's measurements."""
        cache = self._cache
        yield GaugeMetricFamily("es_ttc_feature_cache_bytes", "Memory of cached features.", cache.weight)
        yield GaugeMetricFamily("es_ttc_feature_cache_capacity_bytes", "Its bound.", cache.capacity)
        yield GaugeMetricFamily("es_ttc_feature_cache_entries", "Cached features.", len(cache))
        yield CounterMetricFamily("es_ttc_feature_cache_hits", "Features found in memory.", cache.hits)
        yield CounterMetricFamily("es_ttc_feature_cache_misses", "Features not found in memory.", cache.misses)
