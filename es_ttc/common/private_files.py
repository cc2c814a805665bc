"""Files that only their owner can read, whatever the umask; existing ones keep the mode that a user may have chosen."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file; if this creates it, only its owner can read and write it."""
    return open(path, mode, opener=_opener)


def touch_private(path: Path) -> None:
    """Create an empty file that only its owner can read and write, unless it exists."""
    open_private(path, "ab").close()


def make_private_folder(path: Path) -> Path:
    """Create a folder that only its owner can enter, unless it exists; missing parents get the usual mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return path


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces another one in one step when all of it is on the disk; it gets the other's mode."""
    fresh = path.with_name(f"{path.name}.tmp")
    with open_private(fresh, "wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        yield file
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextmanager
def private_umask() -> Iterator[None]:
    """Make all files that this process creates in the block private: for commands that write only private texts."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
