"""The root of the command line: registers the commands and prints every failure as one sentence on stderr."""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import chain

import click
import stamina
from pydantic import ValidationError
from pydantic_settings import SettingsError

from es_ttc import __version__
from es_ttc.cli.attach import attach, detach, fill
from es_ttc.cli.calibrate import calibrate
from es_ttc.cli.demo import demo
from es_ttc.cli.discover import discover
from es_ttc.cli.doctor import doctor
from es_ttc.cli.engine import engine
from es_ttc.cli.evaluate import evaluate
from es_ttc.cli.explain import explain
from es_ttc.cli.graph import graph
from es_ttc.cli.index import index
from es_ttc.cli.ingest import ingest
from es_ttc.cli.jobs import jobs
from es_ttc.cli.judge import judge
from es_ttc.cli.learn import learn
from es_ttc.cli.mcp import mcp
from es_ttc.cli.model_options import CommandGroup
from es_ttc.cli.options import examples
from es_ttc.cli.search import search
from es_ttc.cli.serve import serve
from es_ttc.cli.train import train
from es_ttc.cli.trial import trial
from es_ttc.cli.tune import tune
from es_ttc.cli.ui import ui
from es_ttc.cli.worker import worker
from es_ttc.errors import EsTtcError
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import wrong_setting

SECTIONS: Mapping[str, tuple[click.Command, ...]] = {
    "Start": (demo, doctor, engine),
    "Index": (index, ingest, attach, fill, detach),
    "Search": (search, explain, ui, serve, mcp),
    "Improve": (judge, evaluate, tune, learn, trial, train, discover, calibrate, graph),
    "Operate": (worker, jobs),
}
"""All commands, in the order in which help lists them."""


_PASSWORD = re.compile(r"//[^/@\s]*:[^/@\s]+@")
_NO_ENGINE = "; start one with `es-ttc engine up`, or name yours with --engine or ES_TTC_ENGINE"


class SectionedGroup(CommandGroup):
    """A group whose help lists the commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands, each with the first sentence of its help."""
        for section, commands in SECTIONS.items():
            self._write_section(formatter, section, commands)


@click.group(
    cls=SectionedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "es-ttc demo",
        "es-ttc ingest articles articles.jsonl",
        'es-ttc search articles "insulin resistance in mice" --compare',
        "es-ttc serve --engine https://search.example.org:9200",
    ),
)
@click.option("--debug", is_flag=True, help="Show the traceback when a command fails.")
@click.version_option(__version__, prog_name="es-ttc", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Better ranking for the Elasticsearch or OpenSearch index you already run.

    es-ttc stores vectors of documents in the index or in a side index, and runs a gateway that rescores searches with
    them. `es-ttc COMMAND -h` explains a command.
    """
    context.obj = debug


for command in chain.from_iterable(SECTIONS.values()):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 on success, 1 on failure, 2 on wrong usage, 130 on Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(map(_PASSWORD.search, arguments)):
        click.echo(
            "es-ttc: other users of this machine can read the password in the URL: set ES_TTC_USERNAME and "
            "ES_TTC_PASSWORD_FILE instead",
            err=True,
        )
    # Warnings of libraries go to standard error: standard output contains only the command's output.
    configure_logs("auto", logging.DEBUG if "--debug" in arguments else logging.ERROR)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; with ``--debug`` unexpected errors keep their traceback."""
    # Without this stamina reports each retry on standard output.
    stamina.instrumentation.set_on_retry_hooks([])
    debug = "--debug" in arguments
    try:
        outcome = cli.main(arguments, prog_name="es-ttc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command: its message is the whole help
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _fail(error.format_message() + hint, 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 1)
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped", 130)
    except EsTtcError as error:
        if debug:
            raise
        return _fail(f"{error}{_NO_ENGINE if _is_unreachable(error) else ''}", 1)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ValidationError | SettingsError) and (problem := wrong_setting(error)) is not None:
            return _fail(problem, 1)
        return _fail(f"unexpected {type(error).__name__}: {error} (run `es-ttc --debug ...` for the traceback)", 1)
    return outcome if isinstance(outcome, int) else 0


def _is_unreachable(error: EsTtcError) -> bool:
    """Return whether the engine returned no response."""
    from es_ttc.engine.exchange import Unreachable  # imports the HTTP client

    return isinstance(error.__cause__, Unreachable)


def _fail(sentence: str, status: int) -> int:
    click.echo(f"es-ttc: {' '.join(sentence.split())}", err=True)
    return status
