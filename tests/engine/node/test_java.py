from pathlib import Path

import pytest

from es_ttc.engine.node import java
from es_ttc.errors import ConfigurationError


def install(home: Path, version: str, modules: str = "java.base") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no Java but what the test installs in this folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(java, "FOLDERS", (tmp_path / "jvm",))
    monkeypatch.setattr(java, "_bundled", lambda: None)
    return tmp_path / "jvm"


def test_the_newest_of_the_machine_is_taken(machine: Path) -> None:
    install(machine / "17", "17.0.15")
    install(machine / "25", "25.0.3")
    install(machine / "21", "21")
    (machine / "broken").mkdir()
    assert (java.find_java().version, java.find_java().home.name) == (25, "25")


def test_java_home_comes_first_if_it_is_new_enough(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine / "25", "25.0.3")
    monkeypatch.setenv("JAVA_HOME", str(install(machine / "own", "21.0.1")))
    assert java.find_java().version == 21
    monkeypatch.setenv("JAVA_HOME", str(install(machine / "old", "17.0.1")))
    assert java.find_java().version == 25


def test_an_older_one_is_taken_where_a_newer_one_will_not_do(machine: Path) -> None:
    install(machine / "17", "17.0.15")
    install(machine / "25", "25.0.3")
    assert java.find_java(oldest=17, newest=23).version == 17
    assert java.find_java(oldest=17, newest=25).version == 25
    with pytest.raises(ConfigurationError, match="no Java of version 18 to 23 was found: install one"):
        java.find_java(oldest=18, newest=23)


def test_a_full_kit_is_told_from_a_runtime(machine: Path) -> None:
    install(machine / "25", "25.0.3")
    install(machine / "24", "24", modules="java.base jdk.jlink")
    assert java.find_java().version == 25
    assert java.find_java(jdk=True).version == 24


def test_none_is_said_with_the_remedy(machine: Path) -> None:
    install(machine / "17", "17.0.15")
    with pytest.raises(ConfigurationError, match=r"no Java of version 21 or newer .*es-ttc\[node\]"):
        java.find_java()
    with pytest.raises(ConfigurationError, match=r"no JDK of version 21 or newer .*JAVA_HOME"):
        java.find_java(jdk=True)


def test_the_packaged_runtime_serves_where_there_is_no_other(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = java._bundled()
    assert found is not None
    assert found.version >= 21
    assert found.executable.exists()
    assert not found.is_jdk
