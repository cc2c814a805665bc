"""The protocol of a product whose nodes can be started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from es_ttc.engine.node.java import Java
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeSpec, ProgressCallback


class NodeFolder:
    """The folder of one node.

    The node's user owns `config`, `logs`, `temporary` and `data`. The state file and the log that es-ttc writes are
    outside of them, so that a compromised engine cannot misuse root.
    """

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self.data = data
        self.config = path / "config"  # written at every start
        self.logs = path / "logs"  # what the node itself writes in addition to its output
        self.ports = self.logs / "http.ports"  # written by the node when it listens: `address:port` lines
        self.log = path / "node.log"  # the node's output since its last start
        self.supervisor_log = path / "supervisor.log"  # the supervisor's errors; usually empty
        self.home = path / "home"  # the product's files with the es-ttc plugin, if the node has it
        self.temporary = path / "tmp"
        self.state = path.with_suffix(".json")
        self.lock = path.with_suffix(".lock")  # locked while the node is being started
        self.all = (data, path, self.state, self.lock)  # what is removed with the node


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start: arguments, environment and working folder."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


class Distribution(Protocol):
    """A product whose nodes can be started."""

    @property
    def product(self) -> str:
        """``opensearch`` or ``elasticsearch``; also the name of its settings file."""

    @property
    def version(self) -> str:
        """The product's version."""

    @property
    def plugin(self) -> Plugin | None:
        """The es-ttc plugin, if nodes are to have it."""

    def java(self) -> Java:
        """Return a Java that can run the product."""

    def install(self, base: Path, on_progress: ProgressCallback) -> Path:
        """Return the folder with the product's files; the first call downloads and builds it."""

    def settings(self) -> Mapping[str, str]:
        """Return the settings of this product only."""

    def configure(self, home: Path, folder: NodeFolder) -> None:
        """Add configuration files of the product, in addition to settings and logging."""

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the process to start."""
