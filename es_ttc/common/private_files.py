"""Files that hold people's texts: only their owner may read them, whatever the umask.

A file or folder that is there already keeps its mode, for somebody may have chosen it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file; where it is made by that, only its owner may read and write it.

    Raises:
        OSError: It cannot be opened.
    """
    return open(path, mode, opener=_opener)


def touch_private(path: Path) -> None:
    """Make an empty file that only its owner may read and write, unless it is there.

    Raises:
        OSError: It cannot be made.
    """
    open_private(path, "ab").close()


def make_private_folder(path: Path) -> Path:
    """Make a folder that only its owner may enter, unless it is there; its missing parents get the usual mode.

    Raises:
        OSError: It cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return path


def keep_mode(descriptor: int, of: Path) -> None:
    """Give an open file the mode of another one, which it is about to replace."""
    os.fchmod(descriptor, of.stat().st_mode & 0o777)


@contextmanager
def private_umask() -> Iterator[None]:
    """Let every file that this process makes meanwhile be its owner's alone: for commands that write texts alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
