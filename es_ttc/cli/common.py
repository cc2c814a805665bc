"""What the commands share: flags with one meaning everywhere, JSON output, consoles and progress bars."""

from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
engine_flag = click.option(
    "--engine",
    metavar="URL",
    help="The engine's URL, user:password@ allowed. Default: ES_TTC_ENGINE or 127.0.0.1:9200.",
)
encoder_flag = click.option(
    "--encoder", metavar="NAME", help="minilm, mpnet, any model name, or a folder. Default: ES_TTC_ENCODER or minilm."
)

stdout = Console()
stderr = Console(stderr=True)


def print_json(data: Any) -> None:
    """Print one JSON object on standard output."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    click.echo(orjson.dumps(data, option=options).decode())


class RateColumn(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        """Show the rate, or dashes before there is one."""
        return Text(f"{task.speed:,.1f}/s" if task.speed else "--/s", style="progress.data.speed")


def progress_bar() -> Progress:
    """Return a bar on stderr with count, rate and remaining time; silent where stderr is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
    )
