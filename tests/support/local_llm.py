"""The small language model of `python -m es_ttc.llm.local`, for the time of a test session."""

import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_MAX_LOG = 2000  # last characters of the log, if it does not start


@contextmanager
def running_llm(*, threads: int = 1, port: int = 0) -> Iterator[str]:
    """Run the server in a process of its own and yield its base URL."""
    command = [sys.executable, "-m", "es_ttc.llm.local", "--threads", str(threads), "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        with process:
            try:
                yield _address(process, log)
            finally:
                _end(process)


def _address(process: "subprocess.Popen[bytes]", log: IO[bytes]) -> str:
    """Wait until the server prints its address."""
    if process.stdout is None:
        raise RuntimeError("the server's output is not read")
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline().decode().strip() if ready else ""
    if not line.startswith("http"):
        log.seek(0)
        log_tail = log.read().decode(errors="replace").strip()[-_MAX_LOG:]
        raise RuntimeError(f"the local model cannot be served: {log_tail or 'it does not say why'}")
    return line


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.communicate(timeout=_STOP_SECONDS)  # closes its standard input
    except subprocess.TimeoutExpired:
        process.kill()
