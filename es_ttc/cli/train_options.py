"""What every training's command has: options, the loop's options from them, the display of its course."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from es_ttc.cli.common import json_flag
from es_ttc.cli.options import all_of
from es_ttc.errors import ConfigurationError

if TYPE_CHECKING:
    from es_ttc.lab.training.loop import LoopOptions, Report, TrainingProgress

PIPED_WIDTH = 120
"""Columns of tables where standard output is no terminal."""

data_argument = click.argument("data", metavar="DATA", type=click.Path(path_type=Path))


def training_options(
    epochs: int,
    batch: int,
    learning_rate: float,
    patience: int,
    weight_decay: float = 0.01,
    *,
    models: Sequence[Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of every training, with its defaults."""
    options = (
        click.option(
            "--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Folder for the result."
        ),
        *models,
        click.option(
            "--epochs", type=click.IntRange(1), default=epochs, show_default=True, help="Maximum number of epochs."
        ),
        click.option(
            "--batch", type=click.IntRange(2), default=batch, show_default=True, help="Number of examples per step."
        ),
        click.option(
            "--learning-rate", type=click.FloatRange(0, min_open=True), default=learning_rate, show_default=True,
            help="Learning rate of AdamW.",
        ),
        click.option(
            "--weight-decay", type=click.FloatRange(0), default=weight_decay, show_default=True,
            help="Weight decay of AdamW.",
        ),
        click.option(
            "--patience", type=click.IntRange(1), default=patience, show_default=True,
            help="Number of epochs without a better validation after which training ends.",
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random choices."
        ),
        click.option(
            "--queries", type=click.IntRange(2), metavar="N",
            help="Number of train queries, sampled at random. Default: all.",
        ),
        click.option(
            "--device", default="auto", show_default=True, help="Device: auto (CUDA if available), cpu, cuda, cuda:1..."
        ),
        click.option(
            "--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
            help="Precision of matrix products outside the solver.",
        ),
        click.option("--threads", type=click.IntRange(1), help="Number of processor threads. Default: torch's own."),
        click.option("--resume", is_flag=True, help="Resume the stopped training in FOLDER."),
        json_flag,
    )  # fmt: skip

    return all_of(options)


def require_torch() -> None:
    """Check that torch is installed.

    Raises:
        ConfigurationError: It is not; the message names the extra.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError("training needs torch: pip install 'es-ttc[train]'")


def loop_of(common: dict[str, Any]) -> "LoopOptions":
    """Return the loop's options from those of :func:`training_options`."""
    from es_ttc.lab.training.loop import LoopOptions

    return LoopOptions(**{name: common[name] for name in LoopOptions.__dataclass_fields__ if name in common})


def reporter(bar: Any, epochs: int) -> "Report":
    """Return a function that shows a training's course in a bar: epoch, loss, validation, rate and remaining time."""
    task = bar.add_task("training", total=None)

    def report(where: "TrainingProgress", steps: int) -> None:
        loss = where.step_losses[-1] if where.step_losses else 0.0
        description = f"epoch {min(where.epoch + 1, epochs)} of {epochs}, loss {loss:.3f}, valid {where.valid[-1]:.4f}"
        bar.update(task, description=description, completed=where.epoch * steps + where.step, total=epochs * steps)

    return report
