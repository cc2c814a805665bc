"""The processes that this one has started, and what it holds open."""

from contextlib import suppress
from pathlib import Path

import psutil


def running(module: str) -> list[psutil.Process]:
    """Return the children that run a module; one that has ended, and that nobody has waited for yet, does not."""
    return [child for child in psutil.Process().children() if module in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def pipes_and_memory() -> set[tuple[str, int]]:
    """Return this process's pipes and blocks of memory; other tests' servers open and close sockets meanwhile."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add((str(descriptor.readlink()), descriptor.stat().st_ino))
    return {(target, inode) for target, inode in found if target.startswith(("pipe:", "/memfd:es-ttc"))}
