"""The processes that this one has started."""

import psutil


def running(module: str) -> list[psutil.Process]:
    """Return the children that run a module; one that has ended, and that nobody has waited for yet, does not."""
    return [child for child in psutil.Process().children() if module in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
