"""The root of the command line: registers the commands and prints every failure as one sentence on stderr."""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click
import stamina
from pydantic import ValidationError
from pydantic_settings import SettingsError

from es_ttc import __version__
from es_ttc.cli.model_options import CommandGroup, examples
from es_ttc.common.validation import did_you_mean
from es_ttc.errors import EsTtcError
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import wrong_setting

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "demo": "Show how the methods rank two collections in a real engine.",
        "doctor": "Check what works and what does not.",
        "engine": "Run an OpenSearch node on this machine.",
    },
    "Index": {
        "index": "Create, show, change and delete indices with features.",
        "ingest": "Write documents with their features into the index NAME.",
        "attach": "Create and fill the features of an existing index NAME.",
        "fill": "Update the features of the index NAME.",
        "detach": "Remove everything that `es-ttc attach` has created for NAME.",
    },
    "Search": {
        "search": "Search the index NAME for TEXT.",
        "explain": "Explain a document's rank in a search of the index NAME for TEXT, or why it is not found.",
        "ui": "Open the playground: search an index, compare methods side by side, and judge results.",
        "serve": "Run the gateway in front of the engine.",
        "mcp": "Offer search to agents as tools of the Model Context Protocol.",
    },
    "Improve": {
        "judge": "Judge what searches of an index find, on the page of `es-ttc serve --ui`; judgements in and out.",
        "evaluate": "Measure methods on judged collections, or on an index by its judgements.",
        "tune": "Choose a method's parameters on the BEIR folder DATA, or by the judgements of an index.",
        "learn": "Learn better vectors of queries for the index NAME (or alias) from its queries.",
        "trial": "Decide by clicks whether the adapter on trial for the index NAME is better.",
        "train": "Train maps over a frozen encoder's vectors from judged queries.",
        "discover": "Search for programs that rank your own collections better.",
        "calibrate": "Relate the scores of an index to other queries, or to the relevance of hits.",
        "graph": "Build and maintain the neighbour graph of an index.",
    },
    "Operate": {
        "worker": "Process jobs until stopped.",
        "jobs": "Submit, watch and control jobs.",
    },
}
"""All commands with the first sentence of their help, in the order in which help lists them."""
_MODULES = {"fill": "attach", "detach": "attach", "explain": "search", "ui": "serve", "trial": "learn"}
"""Modules of commands that do not have the command's name."""


_PASSWORD = re.compile(r"//[^/@\s]*:[^/@\s]+@")
_NO_ENGINE = "; start one with `es-ttc engine up`, or name yours with --engine or ES_TTC_ENGINE"


def load_command(name: str) -> click.Command:
    """Return the command of a name; its module is imported."""
    found: click.Command = getattr(import_module(f"es_ttc.cli.{_MODULES.get(name, name)}"), name)
    return found


class SectionedGroup(CommandGroup):
    """A group whose help lists the commands by section, and which imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return [name for commands in SECTIONS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        return load_command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by the first of some arguments; name the nearest ones if there is none."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], names)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands, each with the first sentence of its help."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([*commands.items()])


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
    configure_logs(logging.DEBUG if "--debug" in arguments else logging.ERROR)
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
        from es_ttc.engine.exchange import is_no_engine  # imports the HTTP client

        return _fail(f"{error}{_NO_ENGINE if is_no_engine(error) else ''}", 1)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ValidationError | SettingsError) and (problem := wrong_setting(error)) is not None:
            return _fail(problem, 1)
        return _fail(f"unexpected {type(error).__name__}: {error} (run `es-ttc --debug ...` for the traceback)", 1)
    return outcome if isinstance(outcome, int) else 0


def _fail(sentence: str, status: int) -> int:
    click.echo(f"es-ttc: {' '.join(sentence.split())}", err=True)
    return status
