"""Compile the scoring loops into the wheel; where there is no C compiler, the wheel is pure Python and numpy scores.

A checkout without the libraries of the playground's page fetches them first, where npm is there.

`ES_TTC_PURE=1` leaves the compiler alone: a release has a wheel for platforms that have none of their own.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

MODULE = "es_ttc.rescorers.compiled.loops"
STABLE_ABI = "cp311-abi3"
"""One binary serves this version of Python and later ones: see Py_LIMITED_API in module.c."""


class CompiledLoops(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, or puts it beside its sources for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together."""
        self._fetch_libraries(Path(self.root) / "release" / "vendor.py")
        root, name = Path(self.root), f"{MODULE.replace('.', '/')}.abi3.so"
        if version == "editable":
            (root / name).unlink(missing_ok=True)  # of older sources
        if os.environ.get("ES_TTC_PURE"):
            return
        self._built = TemporaryDirectory(prefix="es-ttc-loops-")
        try:
            module = compiled(root, Path(self._built.name))
        except (BaseError, CompileError, LinkError) as error:
            self.app.display_warning(f"the scoring loops are not compiled, numpy will score: {error}")
            return
        if version == "editable":
            shutil.copy2(module, root / name)
            return
        build_data["force_include"][str(module)] = name
        build_data["pure_python"] = False
        build_data["tag"] = f"{STABLE_ABI}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _fetch_libraries(self, fetch: Path) -> None:
        """Fetch the page's libraries; an sdist has them, and no script that does."""
        if not fetch.is_file():
            return
        command = [sys.executable, str(fetch)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        if done.stderr:
            self.app.display_warning(done.stderr.strip())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled."""
        if hasattr(self, "_built"):
            self._built.cleanup()


def compiled(root: Path, folder: Path) -> Path:
    """Compile the module into a folder; return its file.

    Raises:
        CompileError: There is no compiler, or it refuses the sources.
        LinkError: What it compiled cannot be linked.
        BaseError: This platform's compiler is not known.
    """
    sources = root / "es_ttc" / "rescorers" / "compiled" / "source"
    extension = Extension(
        MODULE,
        sorted(str(path.relative_to(root)) for path in sources.glob("*.c")),
        extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fno-math-errno", "-fvisibility=hidden"],
        py_limited_api=True,
    )
    command = build_ext(Distribution({"name": "es-ttc", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))
