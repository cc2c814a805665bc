"""The supervisor of a node: it starts the node, stores its processes, and ends it when its owner is gone.

Run as ``python -m es_ttc.engine.node.supervisor`` with a `Launch` as JSON on standard input. It imports few modules,
because it runs as long as the node.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from es_ttc.common.files import remove, write_atomically
from es_ttc.common.private_files import open_private

WATCH_SECONDS = 0.25
GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process by its number and its creation time, because numbers are reused."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Return the identity of a living process."""
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """Return the process if it is still alive."""
        try:
            process = psutil.Process(self.pid)
            # The clock of creation times may be adjusted slightly.
            same = abs(process.create_time() - self.created) < 2
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, slots=True)
class Launch:
    """The configuration of a supervisor."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    user: str | None
    log: str
    state: str
    owner: ProcessId | None
    remove: list[str]

    def to_json(self) -> str:
        """Return the JSON for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Launch":
        """Parse the JSON of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        owner = fields.pop("owner")
        return cls(owner=ProcessId(**owner) if owner else None, **fields)


class _Supervisor:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._stopping = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        user = self._launch.user
        with open_private(Path(self._launch.log), "wb") as log:
            node = subprocess.Popen(  # noqa: S603 - the command line is ours
                self._launch.arguments,
                env=self._launch.environment,
                cwd=self._launch.folder,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._note(node.pid)
        while node.poll() is None and not self._stopping and self._owner_lives():
            time.sleep(WATCH_SECONDS)
        if node.poll() is not None:
            return node.returncode
        self._end(node)
        remove(self._launch.remove)
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _owner_lives(self) -> bool:
        return self._launch.owner is None or self._launch.owner.process() is not None

    def _note(self, pid: int) -> None:
        path = Path(self._launch.state)
        state = json.loads(path.read_text())
        state |= {"supervisor": asdict(ProcessId.of(os.getpid())), "node": asdict(ProcessId.of(pid))}
        write_atomically(path, json.dumps(state, indent=2) + "\n")

    def _end(self, node: subprocess.Popen[bytes]) -> None:
        """Ask the node's process group to end, and kill it after a timeout."""
        os.killpg(node.pid, signal.SIGTERM)
        try:
            node.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


if __name__ == "__main__":
    sys.exit(_Supervisor(Launch.from_json(sys.stdin.read())).run() & 0xFF)
