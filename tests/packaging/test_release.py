"""The version stands in one place, is cut everywhere at once, and the workflows are valid."""

import datetime
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import es_ttc
from release import cut, plugins

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_every_place_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert cut.versions() == {name: {version} for name in cut.PLACES}
    assert es_ttc.__version__ == version
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (*cut.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 9.8.7 (unreleased)\n\n- A line.\n\n## 0.0.1 (2020-01-01)\n"
    )
    return tmp_path


def test_a_release_is_cut_everywhere_at_once(checkout: Path) -> None:
    cut.cut("9.8.7", datetime.date(2026, 12, 1), checkout)
    assert cut.versions(checkout) == {name: {"9.8.7"} for name in cut.PLACES}
    assert (checkout / "CHANGELOG.md").read_text().startswith("# Changelog\n\n## 9.8.7 (2026-12-01)\n\n- A line.\n")
    with pytest.raises(ValueError, match=r"no section \[## 9.9.0 \(unreleased\)\]"):
        cut.cut("9.9.0", datetime.date(2026, 12, 1), checkout)


@pytest.mark.parametrize("version", ["v1.2.3", "1.2", "1.2.3rc1"])
def test_a_version_of_another_form_changes_nothing(checkout: Path, version: str) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"form 1\.2\.3"):
        cut.cut(version, datetime.date(2026, 12, 1), checkout)
    assert {path: path.read_bytes() for path in before} == before


def test_an_installation_says_its_versions(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(ValueError, match="installation"):
        plugins.of_installation(tmp_path)
    for jar in ("elasticsearch-9.5.3", "elasticsearch-core-9.5.3", "lucene-core-10.5.0", "log4j-api-2.26.1"):
        (tmp_path / "lib" / f"{jar}.jar").touch()
    assert plugins.of_installation(tmp_path) == [
        f"-Delasticsearch.home={tmp_path}",
        "-Delasticsearch.version=9.5.3",
        "-Delasticsearch.lucene.version=10.5.0",
        "-Delasticsearch.log4j.version=2.26.1",
    ]


def test_the_workflows_are_valid() -> None:
    assert WORKFLOWS
    for command in (
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
        ["yamllint", "--strict", "-c", "docker/.yamllint"],
    ):
        program = Path(sys.executable).with_name(command[0])
        done = subprocess.run(
            [program, *command[1:], *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
