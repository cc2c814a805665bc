"""The processors that a process may use."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from es_ttc.common.processors import cgroup_quota


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/slice/unit", {"slice/unit/cpu.max": "max 100000", "slice/cpu.max": "200000 100000"}, 2),
        ("0::/slice/unit", {"slice/unit/cpu.max": "50000 100000", "slice/cpu.max": "200000 100000"}, 0.5),
        ("1:cpu:/docker/a\n0::/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpu:/docker/a\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_quota_of_cgroups(own: str, files: Mapping[str, str], expected: float, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert cgroup_quota(tmp_path, tmp_path / "own") == expected
