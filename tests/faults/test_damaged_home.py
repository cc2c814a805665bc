import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_ttc.engine.node import account
from es_ttc.engine.node.files import link_or_copy
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.repair import repair
from es_ttc.settings import Settings


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder of nodes with the real artifacts in it, as copies: what is damaged here stays here."""
    common = account.base_folder(Settings().cache_dir, account.run_as())
    OpenSearchDistribution().install(common, lambda _: None)
    shutil.copytree(common / "artifacts", tmp_path / "artifacts")
    return tmp_path


def installed(base: Path) -> Path:
    return OpenSearchDistribution().install(base, lambda _: None)


@pytest.fixture
def home(base: Path) -> Iterator[Path]:
    found = installed(base)
    yield found
    for jar in found.rglob("*.jar"):
        assert zipfile.is_zipfile(jar), jar


def of_its_own(file: Path) -> Path:
    """Part a file from its second name in the cache, as where the file system has no links."""
    copy = file.with_suffix(".copy")
    shutil.copy2(file, copy)
    copy.replace(file)
    return file


def test_jars_that_were_cut_short_deleted_or_overwritten_are_replaced(base: Path, home: Path) -> None:
    first, second, third, fourth, *_ = (of_its_own(jar) for jar in sorted((home / "lib").glob("*.jar")))
    with first.open("r+b") as file:
        file.truncate(1000)
    second.write_bytes(b"")
    third.unlink()
    fourth.write_bytes(b"\0" * fourth.stat().st_size)
    descriptor = next(home.rglob("plugin-descriptor.properties"))
    told = descriptor.read_text()
    descriptor.write_text(told[:20])
    kept = (home / "lib").stat().st_ino
    assert installed(base) == home
    assert descriptor.read_text() == told
    assert (home / "lib").stat().st_ino == kept  # nobody else's home is pulled away
    assert installed(base) == home


def test_a_home_without_a_list_of_its_files_gets_one(base: Path, home: Path) -> None:
    (home / ".es-ttc-files.json").unlink()
    jar = of_its_own(next((home / "lib").glob("*.jar")))
    size = jar.stat().st_size
    with jar.open("r+b") as file:
        file.truncate(10)
    installed(base)
    assert jar.stat().st_size == size
    assert (home / ".es-ttc-files.json").exists()


def test_an_undamaged_home_is_not_built_again(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        link_or_copy(tmp_path / "a.jar", folder / "a.jar")

    (tmp_path / "a.jar").write_text("a")
    home = tmp_path / "home"
    home.mkdir()
    assert repair(home, build) == ["a.jar"]

    def never(_folder: Path) -> None:
        raise AssertionError

    assert repair(home, never) == []
