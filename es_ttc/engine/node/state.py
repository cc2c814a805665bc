"""The stored state of a node, by which its process, port and log are found, and the report of all nodes."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import orjson
import psutil

from es_ttc.common.files import write_atomically
from es_ttc.engine.node import account
from es_ttc.engine.node.distribution import NodeFolder
from es_ttc.engine.node.supervisor import ProcessId

HOST = "127.0.0.1"
LOG_TAIL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class NodeState:
    """The stored state."""

    name: str
    product: str
    version: str
    data: str
    heap: str
    keep_data: bool
    owner: ProcessId | None
    supervisor: ProcessId | None = None
    node: ProcessId | None = None
    plugin: str | None = None
    members: tuple[str, ...] = ()
    transport: int | None = None

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the state; None if there is none."""
        try:
            fields: dict[str, Any] = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        for key in ("owner", "supervisor", "node"):
            fields[key] = ProcessId(**fields[key]) if fields.get(key) else None
        fields["members"] = tuple(fields.get("members", ()))
        known = {field.name for field in dataclasses.fields(cls)}
        # Another version may store more fields.
        return cls(**{name: value for name, value in fields.items() if name in known})

    def write(self, path: Path) -> None:
        """Write the state."""
        write_atomically(path, orjson.dumps(self, option=orjson.OPT_INDENT_2).decode() + "\n")

    @property
    def lives(self) -> bool:
        """Return whether the engine's process is alive; it may still be starting."""
        return self.node is not None and self.node.process() is not None


def open_folder(base: Path, name: str, data: Path | None = None) -> NodeFolder:
    """Return a node's folder below `base`, with its data at `data`, else at the stored place, else inside."""
    path = base / "nodes" / name
    inside = NodeFolder(path, path / "data")
    state = NodeState.read(inside.state) if data is None else None
    return NodeFolder(path, data or (Path(state.data) if state else inside.data))


def read_port(folder: NodeFolder) -> int | None:
    """Return the port that the node has written, or None."""
    try:
        addresses = folder.ports.read_text().split()
    except FileNotFoundError:
        return None
    return next((int(address.rpartition(":")[2]) for address in addresses if address.startswith(HOST)), None)


def log_tail(path: Path, lines: int) -> str:
    """Return the last lines of a log, from at most its last MiB; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The present state of a node."""

    name: str
    status: Literal["running", "starting", "stopped"]
    url: str | None
    product: str
    version: str
    pid: int | None
    memory_bytes: int | None
    heap: str
    data: str
    log: str
    cluster: str | None = None


def clusters(nodes: Sequence[NodeReport]) -> list[dict[str, Any]]:
    """Return the clusters of the nodes, JSON-ready."""
    members: dict[str, list[NodeReport]] = {}
    for node in nodes:
        if node.cluster is not None:
            members.setdefault(node.cluster, []).append(node)
    return [
        {"name": name, "nodes": [node.name for node in some], "urls": [node.url for node in some if node.url]}
        for name, some in members.items()
    ]


def reports(cache_dir: Path) -> list[NodeReport]:
    """Return every node that has a folder below the cache, by name."""
    base = account.base_folder(cache_dir, account.run_as())
    names = sorted(note.stem for note in (base / "nodes").glob("*.json"))
    found = [_report(base, name) for name in names]
    return [report for report in found if report is not None]


def _report(base: Path, name: str) -> NodeReport | None:
    folder = open_folder(base, name)
    state = NodeState.read(folder.state)
    if state is None:
        return None
    process = state.node.process() if state.node else None
    port = read_port(folder) if process else None
    return NodeReport(
        name=name,
        status="stopped" if process is None else "starting" if port is None else "running",
        url=f"http://{HOST}:{port}" if port else None,
        product=state.product,
        version=state.version,
        pid=process.pid if process else None,
        memory_bytes=_memory(process) if process else None,
        heap=state.heap,
        data=state.data,
        log=str(folder.log),
        cluster=state.members[0] if state.members else None,
    )


def _memory(process: psutil.Process) -> int:
    total = 0
    for member in (process, *process.children(recursive=True)):
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
