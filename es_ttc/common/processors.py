"""The processors that this process may use, and the instructions that they have."""

import math
import os
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def processor_count() -> int:
    """Return the number of processors that this process may use: those of its affinity, at most its cgroup's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return math.ceil(min(count, cgroup_quota()))


def cgroup_quota(mounted: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many processors' time this process may take; infinity without a limit.

    Groups of version 2 limit the groups below them; version 1 is read as a container sees it.
    """
    path = next((line[3:] for line in _read(own).splitlines() if line.startswith("0::")), "/")
    group = mounted / path.lstrip("/")
    limits = [_read(folder / "cpu.max").split() for folder in (group, *group.parents)]
    limits.append([_read(mounted / "cpu" / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")])
    quotas = [int(limit[0]) / int(limit[1]) for limit in limits if limit and limit[0].isdecimal()]
    return min((quota for quota in quotas if quota > 0), default=math.inf)


def instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the names of the processor's instruction sets, as Linux has them; none where they are not known."""
    lines = (line.split() for line in _read(cpuinfo).splitlines())
    return frozenset(next((line for line in lines if line[:1] == ["flags"]), ()))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
