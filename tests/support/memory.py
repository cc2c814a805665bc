"""Where the nodes of the tests have their data: in memory, where each index is made in a third of the time."""

import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH = 4 * 2**30
"""Bytes free: engines refuse writes on a full disk, and a container's shared memory may be 64 MB."""


def data_folder(node: str) -> Path | None:
    """Return the folder of a node's data by the node's name, or None where there is no such memory."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ENOUGH:
        return None
    return _MEMORY / f"es-ttc-{node}"
