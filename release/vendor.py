"""Fetch the libraries of the playground's page: `python release/vendor.py`.

`es_ttc/playground/vendor.lock.json` names packages of npm, their files and the files' SHA-256. `npm pack` fetches the
packages; a file that is not the one that the lock names is an error, and nothing is written then. `--lock` writes the
SHA-256 of the versions in the lock instead, after a version was changed there.

A file imports others by the names of their modules, which browsers do not understand: it is written with relative
names. A declaration beside it leads TypeScript to the package's own types, in `release/page`. Without npm the page is
not there, and all else works.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "es_ttc" / "playground" / "vendor.lock.json"
VENDOR = ROOT / "es_ttc" / "playground" / "assets" / "vendor"
TYPES = 'export * from "{0}";\nexport {{ default }} from "{0}";\n'
SECONDS = 120
WITHOUT_NPM = (
    "npm is not there: the page of `es-ttc serve --ui` is left out, and all else works; install npm (Node.js 20 or "
    "newer) and run `python release/vendor.py`"
)


class VendorError(Exception):
    """A library cannot be fetched, or is not the one that the lock names."""


def packed(package: Mapping[str, Any], folder: Path) -> Path:
    """Fetch a package by npm and return its archive.

    Raises:
        VendorError: npm could not.
    """
    named = f"{package['name']}@{package['version']}"
    command = ["npm", "pack", "--silent", "--ignore-scripts", named]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        raise VendorError(f"npm could not fetch {named}: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise VendorError(f"npm could not fetch {named} within {SECONDS} s") from error
    return folder / done.stdout.split()[-1]


def contents(archive: Path, path: str) -> bytes:
    """Return a file of a package's archive.

    Raises:
        VendorError: It is not there.
    """
    with tarfile.open(archive) as tar:
        try:
            member = tar.extractfile(f"package/{path}")
        except KeyError:
            member = None
        if member is None:
            raise VendorError(f"{archive.name} holds no file {path}")
        return member.read()


def with_relative_imports(text: str, imports: Mapping[str, str]) -> str:
    """Return a module that imports by relative names, without the line that names its source map."""
    for name, relative in imports.items():
        text = re.sub(rf"""(from|import)\s*(["']){re.escape(name)}\2""", rf"\1\2{relative}\2", text)
    return re.sub(r"\n*//# sourceMappingURL=\S+\s*$", "\n", text)


def fetch(lock: dict[str, Any], *, write_lock: bool) -> dict[str, bytes]:
    """Return the files to write, by name.

    Args:
        lock: The lock; with `write_lock` its SHA-256 are replaced.
        write_lock: Whether the files' SHA-256 are taken as they are.

    Raises:
        VendorError: A package cannot be fetched, or a file is another one.
    """
    files: dict[str, bytes] = {}
    modules = {file["module"]: f"./{file['as']}" for package in lock["packages"] for file in package["files"]}
    with tempfile.TemporaryDirectory() as temporary:
        for package in lock["packages"]:
            archive = packed(package, Path(temporary))
            for file in [*package["files"], package["licence_file"]]:
                found = contents(archive, file["path"])
                digest = hashlib.sha256(found).hexdigest()
                if write_lock:
                    file["sha256"] = digest
                elif digest != file["sha256"]:
                    raise VendorError(
                        f"{package['name']} {package['version']}: {file['path']} has the SHA-256 {digest}, and the "
                        f"lock names {file['sha256']}"
                    )
                if "module" in file:
                    found = with_relative_imports(found.decode(), modules).encode()
                    declaration = file["as"].removesuffix(".js") + ".d.ts"
                    files[declaration] = TYPES.format(file["module"]).encode()
                files[file["as"]] = found
    return files


def up_to_date(lock_text: str) -> bool:
    """Return whether the libraries of this lock are there."""
    stamp = VENDOR / ".lock"
    return stamp.is_file() and stamp.read_text("utf-8") == hashlib.sha256(lock_text.encode()).hexdigest()


def main() -> None:
    """Fetch the libraries, or write their SHA-256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", action="store_true", help="write the SHA-256 of the lock's versions")
    write_lock = parser.parse_args().lock
    text = LOCK.read_text("utf-8")
    if not write_lock and up_to_date(text):
        return
    if shutil.which("npm") is None:
        print(WITHOUT_NPM, file=sys.stderr)  # noqa: T201
        return
    lock = json.loads(text)
    try:
        files = fetch(lock, write_lock=write_lock)
    except VendorError as error:
        sys.exit(str(error))
    if write_lock:
        text = json.dumps(lock, indent=2) + "\n"
        LOCK.write_text(text, "utf-8")
    shutil.rmtree(VENDOR, ignore_errors=True)
    VENDOR.mkdir(parents=True)
    for name, data in files.items():
        (VENDOR / name).write_bytes(data)
    (VENDOR / ".lock").write_text(hashlib.sha256(text.encode()).hexdigest(), "utf-8")


if __name__ == "__main__":
    main()
