"""Shared parts of the commands that measure methods on collections: the window, the encoder, progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.markup import escape

from es_ttc.cli.common import progress_bar, stderr
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.cache import cached
from es_ttc.lab.evaluation.rankings import ReportStage
from es_ttc.settings import Settings


class WindowType(click.ParamType[int | str]):
    """A number of documents, or ``all``."""

    name = "N|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number; ``all`` does not change."""
        if value == "all":
            return "all"
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is neither a number of documents, 1 or more, nor all", param, ctx)
        return number


window_option = click.option(
    "--window",
    type=WindowType(),
    metavar="N|all",
    default="100",
    show_default=True,
    help="Number of first-pass documents that a rescorer scores; all for the whole corpus.",
)


def cached_encoder(settings: Settings) -> Encoder:
    """Load the encoder with the disk cache."""
    with stderr.status(f"loading {escape(settings.encoder)}"):
        encoder = load_encoder(settings.encoder, cache_dir=settings.cache_dir)
    return cached(encoder, settings.cache_dir / "encodings")


@contextmanager
def stages(collection: str) -> Iterator[ReportStage]:
    """Yield a function that displays one bar for each stage."""
    with progress_bar() as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(f"{escape(collection)}: {escape(what)}", total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
