"""Help without arguments, and its sections."""

import pytest

from es_ttc.cli.app import SECTIONS, cli, run


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Usage: es-ttc [OPTIONS] COMMAND [ARGS]..."
    assert [line[:-1] for line in lines if line[:-1] in SECTIONS] == list(SECTIONS)
    assert not any(len(line) > 80 for line in lines)
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in cli.commands]
    assert listed == [command.name for commands in SECTIONS.values() for command in commands]


@pytest.mark.parametrize("group", ["engine", "index", "jobs", "graph", "train", "discover"])
def test_a_bare_group_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"Usage: es-ttc {group} [OPTIONS] COMMAND [ARGS]..."
    assert "Commands:" in lines
