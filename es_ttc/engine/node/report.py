"""The nodes of this machine and their state."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from es_ttc.engine.node import account
from es_ttc.engine.node.state import HOST, State, open_folder, read_port


@dataclass(frozen=True, slots=True)
class Report:
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


def clusters(nodes: Sequence[Report]) -> list[dict[str, Any]]:
    """Return the clusters of the nodes, JSON-ready."""
    members: dict[str, list[Report]] = {}
    for node in nodes:
        if node.cluster is not None:
            members.setdefault(node.cluster, []).append(node)
    return [
        {"name": name, "nodes": [node.name for node in some], "urls": [node.url for node in some if node.url]}
        for name, some in members.items()
    ]


def reports(cache_dir: Path) -> list[Report]:
    """Return every node that has a folder below the cache, by name."""
    base = account.base_folder(cache_dir, account.run_as())
    names = sorted(note.stem for note in (base / "nodes").glob("*.json"))
    found = [_report(base, name) for name in names]
    return [report for report in found if report is not None]


def _report(base: Path, name: str) -> Report | None:
    folder = open_folder(base, name)
    state = State.read(folder.state)
    if state is None:
        return None
    process = state.node.process() if state.node else None
    port = read_port(folder) if process else None
    return Report(
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
