"""The archives of plugins."""

import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path

from es_ttc.common.files import make_folder
from es_ttc.errors import NodeError


def unpack_archive(archive: Path, folder: Path, *, without: Collection[str] = ()) -> None:
    """Unpack a plugin's archive."""
    try:
        _extract(archive, folder, without)
    except zipfile.BadZipFile as error:
        raise NodeError(f"[{archive}] is no zip: {error}") from error


def _extract(archive: Path, folder: Path, without: Collection[str]) -> None:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            if member.is_dir() or member.filename in without:
                continue
            target = make_folder((folder / member.filename).parent) / Path(member.filename).name
            if not target.resolve().is_relative_to(folder.resolve()):
                raise NodeError(f"{archive.name} holds a path that leaves its folder: {member.filename}")
            with content.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(0o644)
