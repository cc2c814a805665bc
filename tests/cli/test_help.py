"""Help without arguments, and its sections."""

import subprocess
import sys

import pytest

from es_ttc.cli.app import SECTIONS, cli, run


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Usage: es-ttc [OPTIONS] COMMAND [ARGS]..."
    assert [line[:-1] for line in lines if line[:-1] in SECTIONS] == list(SECTIONS)
    assert not any(len(line) > 80 for line in lines)
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].strip() and line[:-1]]
    listed = [name for name in listed if name in cli.commands]
    assert listed == [command.name for commands in SECTIONS.values() for command in commands]


@pytest.mark.parametrize("group", ["engine", "index", "jobs", "graph", "train", "discover"])
def test_a_bare_group_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"Usage: es-ttc {group} [OPTIONS] COMMAND [ARGS]..."
    assert "Commands:" in lines


def test_help_imports_only_what_the_command_line_needs() -> None:
    heavy = {"aiohttp", "elasticsearch", "numpy", "onnxruntime", "opensearchpy", "torch", "transformers"}
    program = f"import sys, es_ttc.cli.app; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
