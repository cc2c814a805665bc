"""Find and replace damaged files of a product, at every start.

If a jar was truncated, emptied or deleted, the node fails with unrelated messages. Sizes and modification times detect
this without reading files.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from es_ttc.engine.node.files import make_folder, staging_folder, write_atomically
from es_ttc.errors import NodeError

logger = logging.getLogger(__name__)

_LIST = ".es-ttc-files.json"

Files = Mapping[str, tuple[int, int]]
"""Size and modification time in ns of each file of a home, by its path."""


def record(home: Path) -> None:
    """Store the list of a home's files.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(home / _LIST, orjson.dumps(_files(home)).decode())


def repair(home: Path, build: Callable[[Path], None]) -> list[str]:
    """Replace the files of a home that are missing, of another size, or changed since they were recorded.

    A running node keeps the files that it has open.

    Returns:
        The replaced files.

    Raises:
        NodeError: A damaged file cannot be replaced.
    """
    recorded, found = _recorded(home), _files(home)
    if recorded is not None and all(found.get(name) == entry for name, entry in recorded.items()):
        return []
    with staging_folder(home) as folder:
        staged = folder / home.name
        staged.mkdir()
        build(staged)
        expected = _files(staged)
        changed = {name for name, entry in (recorded or {}).items() if found.get(name) != entry}
        replaced = [
            name
            for name, (size, _) in sorted(expected.items())
            if name in changed or name not in found or found[name][0] != size
        ]
        try:
            for name in replaced:
                logger.warning("[%s] of %s is damaged: it is replaced", name, home)
                make_folder((home / name).parent)
                (staged / name).replace(home / name)
            record(home)
        except OSError as error:
            if replaced:
                raise NodeError(
                    f"[{home}] is damaged ({replaced[0]}) and cannot be repaired: delete it ({error.strerror})"
                ) from error
            logger.debug("the files of %s cannot be recorded: %s", home, error)
    return replaced


def _recorded(home: Path) -> dict[str, tuple[int, int]] | None:
    try:
        read = orjson.loads((home / _LIST).read_bytes())
        return {str(name): (int(size), int(changed)) for name, (size, changed) in read.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _files(home: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in home.rglob("*"):
        if path.is_file() and path.name != _LIST:
            status = path.stat()
            found[path.relative_to(home).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found
