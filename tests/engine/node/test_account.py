"""Which user a node runs as, and what that user can reach."""

import os
from pathlib import Path

import pytest

from es_ttc.common.files import make_folder
from es_ttc.engine.node import account

NOBODY = "nobody"


@pytest.fixture
def shut(tmp_path: Path) -> Path:
    """A folder inside one that only its owner can enter."""
    outer = tmp_path / "home"
    outer.mkdir(mode=0o700)
    return make_folder(outer / "inside")


def test_only_root_hands_the_node_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert account.run_as() == NOBODY
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert account.run_as() is None


def test_our_own_user_reaches_everything_of_ours(shut: Path) -> None:
    assert account.is_reachable_by(shut, None)
    assert account.base_folder(shut, None) == shut
    assert account.reachable_copy(shut, shut, None) == shut


def test_another_user_is_stopped_by_a_folder_on_the_way(shut: Path) -> None:
    assert not account.is_reachable_by(shut, NOBODY)
    assert account.is_reachable_by(Path("/usr/bin"), NOBODY)


def test_the_nodes_go_to_the_systems_cache_where_ours_is_shut(
    shut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.site_cache_dir", lambda name: str(tmp_path / "system" / name))
    base = account.base_folder(shut, NOBODY)
    assert base == tmp_path / "system" / "es-ttc"
    assert base.stat().st_mode & 0o777 == 0o755


def test_a_java_out_of_reach_is_copied_once(shut: Path, tmp_path: Path) -> None:
    (shut / "bin").mkdir()
    (shut / "bin" / "java").write_text("#!")
    (shut / "bin" / "java").chmod(0o755)
    copy = account.reachable_copy(shut, tmp_path / "base", NOBODY)
    assert copy.is_relative_to(tmp_path / "base")
    assert (copy / "bin" / "java").stat().st_mode & 0o777 == 0o755
    (copy / "marker").touch()
    assert account.reachable_copy(shut, tmp_path / "base", NOBODY) == copy
    assert (copy / "marker").exists()
