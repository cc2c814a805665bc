"""The spec of a node, and the progress of its start."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from es_ttc.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Progress of one step: ``fetch`` counts bytes, ``start`` seconds up to the timeout."""

    stage: Literal["fetch", "start"]
    done: float
    total: float
    detail: str


ProgressCallback = Callable[[NodeProgress], None]


def ignore(_: NodeProgress) -> None:
    """Ignore the progress."""


NODE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
HEAP = re.compile(r"[1-9][0-9]*[mgMG]")

_COLLECTION = ("-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30")
"""As in both products' own `jvm.options`: their circuit breakers count garbage, so it must be collected early."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The cluster of a node."""

    name: str
    members: tuple[str, ...]
    seeds: tuple[str, ...]
    transport: int


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The spec of a node."""

    cache_dir: Path  # folder of downloads and nodes (`Settings.cache_dir`)
    name: str = "default"
    port: int | None = None  # HTTP port; None for 9200 or the next free one, 0 for any free one
    data_dir: Path | None = None  # folder of the data; None for the node's own folder
    heap: str = "1g"
    owned: bool = False  # whether the node ends with this process, even if that is killed
    # Whether it starts in about half of the processor time (5.0 s against 9.5 s measured), with slower searches later:
    # the compiler optimises less. For tests and demonstrations.
    short_lived: bool = False
    keep_data: bool = True
    timeout: float = 180.0  # timeout of the start in seconds, without downloads
    cluster: ClusterSpec | None = None

    @property
    def java_options(self) -> tuple[str, ...]:
        """The options of the Java machine, for both products."""
        quick = ("-XX:TieredStopAtLevel=1",) if self.short_lived else ()
        return (f"-Xms{self.heap}", f"-Xmx{self.heap}", *_COLLECTION, "-XX:-OmitStackTraceInFastThrow", *quick)

    def check(self) -> None:
        """Raise an error for invalid values."""
        check_node_name(self.name)
        if not HEAP.fullmatch(self.heap):
            raise InvalidRequest(f"heap [{self.heap}] is not a size: give a number with m or g, such as 1g")
        if self.port is not None and not 0 <= self.port <= 65535:
            raise InvalidRequest(f"port [{self.port}] is not a port: give 0 to 65535")


def check_node_name(name: str) -> None:
    """Raise an error for a node name that cannot be the name of a folder."""
    if not NODE_NAME.fullmatch(name):
        raise InvalidRequest(f"node name [{name}] is not allowed: use lower-case letters, digits, _ and -")
