"""The products' versions: which ones es-ttc works with, and what only some of them can do.

This is the only module that compares version numbers. What depends on an installation rather than on a version (a
plugin, a licence, a limit) is detected; see :class:`es_ttc.engine.protocol.Capabilities`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from es_ttc.errors import EngineError, UnsupportedEngine

Product = Literal["opensearch", "elasticsearch"]
Version = tuple[int, ...]

NAMES: Mapping[Product, str] = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch"}
OLDEST: Mapping[Product, Version] = {"opensearch": (2, 19), "elasticsearch": (8, 13)}
"""The oldest versions that es-ttc works with.

Older ones would rank wrongly or fail halfway: before OpenSearch 2.19, ``knn_score`` of a cosine is another number;
before Elasticsearch 8.13, a kNN search needs ``num_candidates`` and HNSW options need ``m`` and ``ef_construction``.
"""
MAINTAINED: Mapping[Product, tuple[Version, ...]] = {
    "opensearch": ((2, 19), (3, 9)),
    "elasticsearch": ((8, 19), (9, 0)),
}
"""By major version, the oldest version that its vendor maintains (November 2026).

OpenSearch maintains the newest minor version of each major version: each of its releases ends the one before it.
"""


@dataclass(frozen=True, slots=True)
class VersionedFeature:
    """An ability that only some versions have."""

    what: str
    without: str
    since: Mapping[Product, Version]


SHARD_DOC_SORT = VersionedFeature(
    "sort by `_shard_doc` inside a point in time",
    "documents are scanned in the order of `_id`, which takes memory of the engine",
    {"opensearch": (3, 3), "elasticsearch": (7, 12)},
)
RANK_VECTORS = VersionedFeature(
    "field type `rank_vectors`",
    "`--tokens rank_vectors` is refused",
    {"elasticsearch": (9, 0)},
)
VECTORS_OUTSIDE_SOURCE = VersionedFeature(
    "vectors are left out of `_source`",
    "`_source` holds the vectors that the mapping does not exclude",
    {"elasticsearch": (9, 2)},
)
ENGINE_FEATURES = (SHARD_DOC_SORT, RANK_VECTORS, VECTORS_OUTSIDE_SOURCE)


SERVERLESS_MANAGED_SETTINGS = frozenset(
    {
        "number_of_shards", "number_of_routing_shards", "routing_partition_size", "number_of_replicas",
        "auto_expand_replicas",
    }
)  # fmt: skip
"""Settings below ``index`` that Elasticsearch Serverless refuses: it chooses shards and copies itself."""
SERVERLESS_REFUSAL = "not available when running in serverless mode"  # part of the message by which it refuses them
_SHOWN = 80  # characters of another program's answer in a message
NOT_OFFERED = frozenset({401, 403, 404, 410})  # the user may not use it, or the service lacks it (410 on Serverless)


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """A product and its version; Serverless is newer than any version and tells old numbers."""

    product: Product
    numbers: Version
    serverless: bool = False

    def __str__(self) -> str:
        if self.serverless:
            return f"{NAMES[self.product]} Serverless"
        return f"{NAMES[self.product]} {dotted(self.numbers)}"

    def has(self, feature: VersionedFeature) -> bool:
        """Return whether this version has a feature."""
        since = feature.since.get(self.product)
        return since is not None and (self.serverless or self.numbers >= since)

    def accepts_media_types_of(self, major: int) -> bool:
        """Return whether it accepts media types that are compatible with a major version of Elasticsearch."""
        return self.serverless or major <= self.numbers[0]

    @property
    def too_old(self) -> bool:
        """Whether es-ttc does not work with it."""
        return not self.serverless and self.numbers < OLDEST[self.product]

    @property
    def unmaintained(self) -> bool:
        """Whether its vendor does not maintain it any more."""
        oldest = [line for line in MAINTAINED[self.product] if line[0] <= self.numbers[0]]
        return not self.serverless and (not oldest or self.numbers < oldest[-1])

    def refusal(self, engine: str) -> UnsupportedEngine | None:
        """Return the error for a version that es-ttc does not work with; None for any other."""
        if not self.too_old:
            return None
        return UnsupportedEngine(f"{engine} runs {self}, which is too old: {oldest_versions()} or newer is needed")


def identify(info: Any, url: str) -> EngineVersion:
    """Return the product and the version that a response to ``GET /`` names."""
    version: Mapping[str, Any] = info.get("version", {}) if isinstance(info, Mapping) else {}
    if version.get("distribution") == "opensearch":
        return EngineVersion("opensearch", version_numbers(info))
    if isinstance(info, Mapping) and info.get("tagline") == "You Know, for Search":
        return EngineVersion("elasticsearch", version_numbers(info), version.get("build_flavor") == "serverless")
    raise neither(url, f"with [{ascii(info)[:_SHOWN]}]")


def neither(url: str, answered: str) -> EngineError:
    """Return the error for an address where another program answers."""
    return EngineError(
        f"[{url}] is neither Elasticsearch nor OpenSearch: it answers GET / {answered}; give the address of an engine, "
        f"{oldest_versions()} or newer"
    )


def maintained_versions(product: Product) -> str:
    """Return the versions of a product that its vendor maintains, for messages."""
    *older, newest = MAINTAINED[product]
    return " or ".join([*(f"{dotted(line)}.x" for line in older), f"{dotted(newest)} or newer"])


def oldest_versions() -> str:
    """Return the oldest versions that es-ttc works with, for messages."""
    return " or ".join(f"{NAMES[product]} {dotted(numbers)}" for product, numbers in OLDEST.items())


def version_numbers(info: Mapping[str, Any]) -> Version:
    """Return the version's numbers from the response to ``GET /``: "9.4.3-SNAPSHOT" is (9, 4, 3)."""
    number = str(info["version"]["number"]).partition("-")[0]
    return tuple(int(part) for part in number.split("."))


def dotted(numbers: Version) -> str:
    """Return a version as it is written."""
    return ".".join(map(str, numbers))
