"""What every benchmark prints and measures with: the heading, the table, the clock, results that are kept."""

import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from es_ttc.common.files import replace_file


def heading(title: str, *, data: str, packages: Iterable[str] = ("numpy",)) -> str:
    """Return a Markdown heading that says what was measured, on what, with what, and by which command."""
    versions = [f"Python {platform.python_version()}", *(_named_version(package) for package in packages)]
    memory = psutil.virtual_memory().total / 2**30
    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name}" if module else sys.argv[0]
    arguments = " ".join(shlex.quote(argument) for argument in sys.argv[1:])
    return "\n".join(
        (
            f"## {title}",
            "",
            f"- machine: {_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}",
            f"- versions: {', '.join(versions)}",
            f"- data: {data}",
            f"- command: `{f'{command} {arguments}'.strip()}`",
            f"- date: {datetime.now(UTC):%Y-%m-%d}",
            "",
        )
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; numbers come formatted by the caller."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def milliseconds(
    call: Callable[[], object],
    *,
    repeat: int = 30,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Return the median and the 95th percentile of one call's time by a clock in seconds, in ms."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeat):
        start = clock()
        call()
        times.append((clock() - start) * 1000)
    times.sort()
    return statistics.median(times), times[min(len(times) - 1, int(0.95 * len(times)))]


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a result of an earlier run, or make it and keep it."""
    if not file.exists():
        replace_file(file, json.dumps(make()).encode())
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def _named_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (absent)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
