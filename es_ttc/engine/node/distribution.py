"""What has to be known of a product to start a node of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from es_ttc.engine.node.java import Java
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.progress import ProgressCallback
from es_ttc.engine.node.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """Where one node keeps its own.

    The node's user owns `config`, `logs`, `temporary` and `data`. What we trust, the note of its processes and the
    log that we write, lies outside of them, so that an engine gone wrong cannot turn root against others.
    """

    path: Path
    data: Path

    @property
    def config(self) -> Path:
        """The configuration, written anew at every start."""
        return self.path / "config"

    @property
    def logs(self) -> Path:
        """Files that the node itself writes beside its output."""
        return self.path / "logs"

    @property
    def log(self) -> Path:
        """Everything that the node said since its last start."""
        return self.path / "node.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor complained about; empty as a rule."""
        return self.path / "supervisor.log"

    @property
    def ports(self) -> Path:
        """Written by the node once it listens: ``address:port`` lines."""
        return self.logs / "http.ports"

    @property
    def home(self) -> Path:
        """The product's files with our plugin among them, where the node has it; made anew at every start."""
        return self.path / "home"

    @property
    def temporary(self) -> Path:
        """The node's own place for temporary files."""
        return self.path / "tmp"

    @property
    def state(self) -> Path:
        """The note of the node's processes."""
        return self.path.with_suffix(".json")

    @property
    def lock(self) -> Path:
        """Held while the node is being started."""
        return self.path.with_suffix(".lock")

    @property
    def all(self) -> tuple[Path, ...]:
        """Everything that is removed with the node."""
        return self.data, self.path, self.state, self.lock


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start: arguments, environment and working folder."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


class Distribution(Protocol):
    """A product of which nodes can be started."""

    @property
    def product(self) -> str:
        """``opensearch`` or ``elasticsearch``: the name of its settings file too."""
        ...

    @property
    def version(self) -> str:
        """The product's version."""
        ...

    @property
    def plugin(self) -> Plugin | None:
        """Our own plugin, where nodes are to have it."""
        ...

    def java(self) -> Java:
        """Return a Java that the product runs on."""
        ...

    def install(self, base: Path, on_progress: ProgressCallback) -> Path:
        """Return the folder with the product's files, fetching and building it at the first call."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Return the settings that only this product needs."""
        ...

    def configure(self, home: Path, folder: NodeFolder) -> None:
        """Add configuration files of the product's own beside settings and logging."""
        ...

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the process to start."""
        ...
