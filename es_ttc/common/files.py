"""Files that are written completely or not at all, and folders that another user can read."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from es_ttc.errors import ConfigurationError

READABLE_FOLDER = 0o755


@contextmanager
def locked(path: Path, extra: str = "es-ttc[node]") -> Iterator[None]:
    """Hold a lock file: one process at a time enters the block; an extra of es-ttc brings the library for it."""
    try:
        from filelock import FileLock
    except ImportError as error:
        raise ConfigurationError(f"package [filelock] is not installed: pip install '{extra}'") from error
    with FileLock(path):
        yield


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """Create a folder and its missing parents, readable by every user whatever the umask."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        folder.chmod(READABLE_FOLDER)
    return path


@contextmanager
def staging_folder(near: Path) -> Iterator[Path]:
    """Yield an empty folder on the file system of `near`'s parent, so that its content can be moved by renaming."""
    parent = make_folder(near.parent)
    folder = Path(tempfile.mkdtemp(prefix=".staging-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(staging: Path, target: Path) -> None:
    """Rename a finished folder to its place; if another process was faster, its folder stays."""
    staging.chmod(READABLE_FOLDER)
    try:
        staging.rename(target)
    except OSError:
        if not target.exists():
            raise


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    with staging_folder(path) as folder:
        staged = folder / path.name
        staged.write_text(text)
        staged.chmod(0o644)
        staged.replace(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it holds its old content or all of the new; who may read it follows from the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def remove(paths: Iterable[str | Path]) -> None:
    """Remove files and folders with their contents; missing ones are ignored."""
    for path in map(Path, paths):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it if the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
