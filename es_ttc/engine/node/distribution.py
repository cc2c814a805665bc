"""The protocol of a product whose nodes can be started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from es_ttc.engine.node.java import Java
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeSpec, ProgressCallback


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The folder of one node.

    The node's user owns `config`, `logs`, `temporary` and `data`. The state file and the log that es-ttc writes are
    outside of them, so that a compromised engine cannot misuse root.
    """

    path: Path
    data: Path

    @property
    def config(self) -> Path:
        """The configuration, written at every start."""
        return self.path / "config"

    @property
    def logs(self) -> Path:
        """Files that the node itself writes in addition to its output."""
        return self.path / "logs"

    @property
    def log(self) -> Path:
        """The node's output since its last start."""
        return self.path / "node.log"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's errors; usually empty."""
        return self.path / "supervisor.log"

    @property
    def ports(self) -> Path:
        """Written by the node when it listens: ``address:port`` lines."""
        return self.logs / "http.ports"

    @property
    def home(self) -> Path:
        """The product's files with the es-ttc plugin, if the node has it; created at every start."""
        return self.path / "home"

    @property
    def temporary(self) -> Path:
        """The node's folder for temporary files."""
        return self.path / "tmp"

    @property
    def state(self) -> Path:
        """The state file with the node's processes."""
        return self.path.with_suffix(".json")

    @property
    def lock(self) -> Path:
        """Locked while the node is being started."""
        return self.path.with_suffix(".lock")

    @property
    def all(self) -> tuple[Path, ...]:
        """All files that are removed with the node."""
        return self.data, self.path, self.state, self.lock


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
