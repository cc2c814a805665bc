"""Help without arguments, and its sections."""

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from es_ttc.cli.app import SECTIONS, cli, load_command, run
from es_ttc.cli.model_options import MAX_SENTENCE


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Usage: es-ttc [OPTIONS] COMMAND [ARGS]..."
    assert [line[:-1] for line in lines if line[:-1] in SECTIONS] == list(SECTIONS)
    assert not any(len(line) > 80 for line in lines)
    told = {name: sentence for commands in SECTIONS.values() for name, sentence in commands.items()}
    assert [line.split()[0] for line in lines if re.match(" {2}\\w", line) and line.split()[0] in told] == [*told]
    assert told == {name: load_command(name).get_short_help_str(MAX_SENTENCE) for name in told}
    assert run(["serch"]) == 2
    assert "No such command 'serch': did you mean [search]?" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["engine", "index", "jobs", "graph", "train", "discover"])
def test_a_bare_group_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"Usage: es-ttc {group} [OPTIONS] COMMAND [ARGS]..."
    assert "Commands:" in lines


def helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command and of those below it, for a terminal of 80 columns."""
    context = click.Context(command, parent, name, terminal_width=80)
    yield context.command_path, command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for below in command.list_commands(context):
        found = command.get_command(context, below)
        assert found is not None
        yield from helps(found, context, below)


def test_no_help_is_cut_off_at_80_columns() -> None:
    for path, text in helps(cli, None, "es-ttc"):
        _, *lines = text.splitlines()
        assert [line for line in lines if len(line) > 80 or line.endswith("...")] == [], path


def test_help_imports_only_what_the_command_line_needs() -> None:
    heavy = {"aiohttp", "elasticsearch", "numpy", "onnxruntime", "opensearchpy", "torch", "transformers"}
    program = f"import sys, es_ttc.cli.app; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
