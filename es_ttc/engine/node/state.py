"""The stored state of a node, by which its process, port and log are found."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from es_ttc.engine.node.distribution import NodeFolder
from es_ttc.engine.node.files import write_atomically
from es_ttc.engine.node.supervisor import ProcessId

HOST = "127.0.0.1"
LOG_TAIL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class State:
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
    state = State.read(inside.state) if data is None else None
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
