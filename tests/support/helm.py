"""Helm, which renders the chart: Python's package registry has no build of it, so Go builds it once from its module."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
import pytest
import yaml

from es_ttc.engine.node.files import locked, make_folder

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "v3.22.0"
KUBERNETES = "1.33.0"
"""A Helm that Go has built takes a Kubernetes from long ago for the cluster's, unless it is told."""
CHART = Path(__file__).parents[2] / "docker" / "helm" / "es-ttc"
_BUILD_SECONDS = 1200
_SECONDS = 120


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Helm on the chart."""
    line = [program(), *command.split(), str(CHART), "--kube-version", KUBERNETES, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    """Return the manifests of a release named r."""
    done = run("template r", *arguments)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def program() -> str:
    """Return the path of Helm: that on the PATH, or one that is built at the first call (some minutes).

    The test is skipped where there is no Helm, and no Go that can build it.
    """
    if found := shutil.which("helm"):
        return found
    folder = make_folder(platformdirs.user_cache_path("es-ttc") / "tests" / f"helm-{VERSION}")
    built = folder / "helm"
    with locked(folder / "build.lock"):
        if not built.is_file():
            _build(folder)
    return str(built)


def _build(folder: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        _cannot("there is no helm and no go on the PATH")
    staging = make_folder(folder / "staging")
    environment = {**os.environ, "GOBIN": str(staging), "GOFLAGS": ""}
    try:
        subprocess.run(
            [go, "install", f"{MODULE}@{VERSION}"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _cannot(f"go could not build {MODULE}: {str(error.stderr)[-2000:]}")
    (staging / "helm").replace(folder / "helm")


def _cannot(why: str) -> NoReturn:
    pytest.skip(f"the chart is not rendered: {why}")
