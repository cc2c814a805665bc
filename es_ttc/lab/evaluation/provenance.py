"""Where an evaluation was made: machine, versions, time."""

import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from es_ttc.engine.protocol import Capabilities
from es_ttc.engine.versions import dotted

REPORTED_PACKAGES = (
    "es-ttc",
    "numpy",
    "torch",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
    "bm25s",
    "pystemmer",
    "ir-measures",
    "pytrec-eval-terrier",
)


def machine() -> str:
    """Return processor, cores, memory and system."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"


def versions(packages: Iterable[str] = REPORTED_PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def product_and_version(engine: Capabilities) -> str:
    """Return an engine's product and version, as results name it."""
    return f"{engine.product} {dotted(engine.version)}"


def timestamp() -> str:
    """Return the time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
