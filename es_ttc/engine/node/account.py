"""The user that a node runs as: engines refuse to run as root, so root starts them as an unprivileged user."""

import os
import pwd
import shutil
import stat
from pathlib import Path

import platformdirs

from es_ttc.common.files import link_or_copy, make_folder, publish, staging_folder
from es_ttc.errors import ConfigurationError

UNPRIVILEGED = "nobody"


def run_as() -> str | None:
    """Return the user to switch to, or None if the current one can be used."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise ConfigurationError(
            f"the engine refuses to run as root and there is no user [{UNPRIVILEGED}]: run es-ttc as another user"
        ) from None
    return UNPRIVILEGED


def is_reachable_by(path: Path, user: str | None) -> bool:
    """Return whether the node's user can enter every folder on the way to `path`."""
    if user is None:
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def base_folder(cache: Path, user: str | None) -> Path:
    """Return the folder for all files of nodes: `cache`, or the system's cache if the user cannot enter it."""
    chosen = cache if is_reachable_by(cache, user) else Path(platformdirs.site_cache_dir("es-ttc"))
    return make_folder(chosen.absolute())


def give(folder: Path, user: str | None) -> None:
    """Change the owner of a folder to the node's user."""
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid, follow_symlinks=False)


def reachable_copy(folder: Path, base: Path, user: str | None) -> Path:
    """Return `folder`, or its copy below `base` if the node's user cannot enter the original."""
    if is_reachable_by(folder, user):
        return folder
    copy = base / "java" / f"{folder.name}-{folder.stat().st_mtime_ns:x}"
    if not copy.exists():
        with staging_folder(copy) as staging:
            shutil.copytree(folder, staging, copy_function=link_or_copy, symlinks=True, dirs_exist_ok=True)
            publish(staging, copy)
    return copy
