"""What Prometheus is told."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The gateway's measurements, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "es_ttc_requests",
            "Requests by kind (passthrough, search, msearch, own) and outcome (ok, fallback, client_error, error, gone).",
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
        self.in_flight = Gauge("es_ttc_in_flight_requests", "Requests being answered.", registry=self.registry)
        self.cache_bytes = Gauge("es_ttc_feature_cache_bytes", "Memory of cached features.", registry=self.registry)
        self.cache_entries = Gauge("es_ttc_feature_cache_entries", "Cached features.", registry=self.registry)
        self.cache_hits = Counter("es_ttc_feature_cache_hits", "Features found in memory.", registry=self.registry)
        self.cache_misses = Counter("es_ttc_feature_cache_misses", "Features fetched.", registry=self.registry)

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self.registry)
