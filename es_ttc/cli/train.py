"""`es-ttc train`: train maps over a frozen encoder's vectors from queries with relevance judgements."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from es_ttc.cli.common import (
    adapted,
    adapter_flag,
    encoder_flag,
    given,
    print_json,
    progress_bar,
    stderr,
    stdout,
)
from es_ttc.cli.evaluating import cached_encoder, stages
from es_ttc.cli.options import WholeHelpGroup
from es_ttc.cli.train_late import late
from es_ttc.cli.train_options import PIPED_WIDTH, data_argument, loop_of, reporter, require_torch, training_options
from es_ttc.cli.train_rank import rank
from es_ttc.common.interruption import interruptible
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.lab.training.data import Task
    from es_ttc.lab.training.session import Sides, Trainable, TrainingResult

T = TypeVar("T")

_EXAMPLES = """\b
Examples:
  es-ttc train dense data/mine --out encoders/mine-dense
  es-ttc train nnn data/mine --start encoders/mine-dense --out encoders/mine
  es-ttc train late data/mine --out encoders/mine-late
  es-ttc train rank data/mine --out models/mine.json
  es-ttc index create articles --encoder encoders/mine
"""


@click.group(cls=WholeHelpGroup, epilog=_EXAMPLES)
def train() -> None:
    """Train maps over a frozen encoder's vectors from judged queries.

    DATA is a BEIR folder with the split train. The split valid selects the epoch; without it, a seeded fifth of the
    train queries is held out. Test queries are only reported on. The result is one folder: an encoder for every command
    (--encoder FOLDER), and an adapter for stored vectors (`es-ttc attach NAME --adapter FOLDER`).

    `late` is different: it fine-tunes a small model with all its weights into a late-interaction model.

    `rank` is different too: it learns a ranking over the signals of blend, and writes a model for the method `learned`.
    """


train.add_command(late)
train.add_command(rank)


def _common(
    epochs: int, batch: int, learning_rate: float, patience: int, weight_decay: float = 0.01
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of every training over a frozen encoder, with its defaults."""
    return training_options(epochs, batch, learning_rate, patience, weight_decay, models=(encoder_flag, adapter_flag))


start_option = click.option(
    "--start",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Initial adapters, written by `es-ttc train dense`, as in the paper.",
)
metric_option = click.option(
    "--metric",
    default="comp@5",
    show_default=True,
    help="Metric that selects the epoch: comp@k (all relevant documents in the top k), recall@k or ndcg@k.",
)


def _hidden(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--hidden", type=click.IntRange(1), default=default, show_default=True, help="Width of the adapters."
    )


def _tune(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--tune", type=click.Choice(["adapters", "encoder"]), default="adapters", show_default=True,
        help=f"Trained part: small networks over frozen vectors, or {what} with all its weights (for accelerators: "
        "use a learning rate of about 1e-5 and a small batch).",
    )  # fmt: skip


@train.command()
@data_argument
@_common(epochs=40, batch=512, learning_rate=3e-3, patience=4)
@_hidden(768)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=0.05,
    show_default=True,
    help="Temperature of InfoNCE.",
)
@metric_option
@_tune("for both roles a copy of the encoder")
def dense(data: Path, hidden: int, temperature: float, metric: str, tune: str, **common: Any) -> None:
    """Train an adapter for queries and one for documents on cosines, with InfoNCE over the batch."""
    require_torch()
    from es_ttc.lab.training.recipes.dense import DenseRecipe

    def recipe(tasks: "Sequence[Task]", side: "Sides") -> "Trainable":
        [task] = tasks
        own = {} if tune == "adapters" else {"queries": side(task, "query"), "documents": side(task, "document")}
        return DenseRecipe(task, hidden=hidden, temperature=temperature, metric=metric, **own)

    options = {"tune": tune, "hidden": hidden, "temperature": temperature, "metric": metric}
    _train("dense", (data,), recipe, options, None, common)


@train.command()
@data_argument
@_common(epochs=20, batch=64, learning_rate=1e-3, patience=3)
@start_option
@_hidden(768)
@click.option("--l1", type=click.FloatRange(0, 1), help="l1 of the method nnn. Default: chosen on validation queries.")
@click.option("--l2", type=click.FloatRange(0, 1000), help="l2 of the method nnn. Give both or neither.")
@click.option(
    "--learn-penalty", is_flag=True, help="Also learn l1 and l2, starting with these values; the paper fixes them."
)
@click.option(
    "--steps", type=click.IntRange(1), default=20, show_default=True, help="Number of steps of the unrolled solver."
)
@click.option("--learn-steps", is_flag=True, help="Also learn the length of each step; the paper uses 1/L.")
@click.option(
    "--decode-steps",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of solver steps in validation.",
)
@click.option(
    "--margin",
    type=click.FloatRange(1),
    default=1.2,
    show_default=True,
    help="Factor by which relevant documents must exceed the others.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=0.02,
    show_default=True,
    help="Temperature of the smooth minimum and maximum in the loss.",
)
@click.option(
    "--slack",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Weight of the distance of an unselected relevant document from being selected; 0 gives it no gradient, as "
    "in the paper.",
)
@click.option(
    "--dictionary",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Maximum corpus size for which all documents compete in each step; above, those nearest to the queries.",
)
@click.option(
    "--nearest", type=click.IntRange(1), default=50, show_default=True, help="Number of nearest documents per query."
)
@metric_option
@_tune("for queries a copy of the encoder, beside the adapter for documents")
def nnn(data: Path, start: Path | None, tune: str, **options: Any) -> None:
    """Train adapters through the unrolled solver of the method `nnn` (NNN-Tr)."""
    require_torch()
    from es_ttc.lab.training.recipes.nnn import NnnOptions, NnnRecipe, choose_penalty

    if (options["l1"] is None) != (options["l2"] is None):
        raise click.UsageError("--l1 and --l2 go together: give both or neither")
    searched = options["l1"] is None
    chosen, common = _parted(NnnOptions, given(**options))

    def recipe(tasks: "Sequence[Task]", side: "Sides") -> "Trainable":
        [task] = tasks
        l1, l2 = choose_penalty(task, chosen.metric) if searched else (chosen.l1, chosen.l2)
        queries = None if tune == "adapters" else side(task, "query")
        return NnnRecipe(task, replace(chosen, l1=l1, l2=l2), queries=queries)

    recorded = asdict(chosen) | ({"l1": "chosen", "l2": "chosen"} if searched else {})
    _train("nnn", (data,), recipe, {"tune": tune, **recorded}, start, common)


@train.command()
@data_argument
@_common(epochs=200, batch=2048, learning_rate=1e-3, patience=20, weight_decay=1e-7)
@start_option
@click.option(
    "--layers",
    type=click.IntRange(0, 8),
    default=1,
    show_default=True,
    help="Number of layers of the graph convolution.",
)
@click.option(
    "--balance", type=click.FloatRange(0), default=0.04, show_default=True, help="Weight of the contrastive loss."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Temperature of the contrastive loss.",
)
@click.option(
    "--listed",
    type=click.IntRange(2),
    default=10,
    show_default=True,
    help="Number of documents in a query's list: the relevant ones and random others.",
)
@click.option(
    "--dropped", type=click.FloatRange(0, 0.99), default=0.2, show_default=True, help="Share of edges that are dropped."
)
@click.option(
    "--scenes",
    type=click.Choice(["initial", "current"]),
    default="initial",
    show_default=True,
    help="Vectors of sets of documents: means of their initial vectors, as published, or of their current ones.",
)
@metric_option
def colt(data: Path, start: Path | None, **options: Any) -> None:
    """Train the baseline COLT, which learns one vector per document.

    A document that was not in the training data keeps its original vector.
    """
    require_torch()
    from es_ttc.lab.training.recipes.colt import ColtOptions, ColtRecipe

    chosen, common = _parted(ColtOptions, options)

    def recipe(tasks: "Sequence[Task]", _: "Sides") -> "Trainable":
        return ColtRecipe(tasks[0], chosen)

    _train("colt", (data,), recipe, asdict(chosen), start, common)


@train.command()
@click.argument("data", metavar="DATA...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_common(epochs=40, batch=512, learning_rate=1e-3, patience=5)
@click.option(
    "--family",
    type=click.Choice(["whiten", "linear", "low-rank", "mlp"]),
    default="linear",
    show_default=True,
    help="Kind of map: a whitening (uses no labels), a matrix, a residual low-rank matrix, a residual network.",
)
@click.option("--rank", type=click.IntRange(1), default=64, show_default=True, help="Rank of low-rank.")
@_hidden(768)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=0.05,
    show_default=True,
    help="Temperature of InfoNCE.",
)
@click.option(
    "--metric",
    default="ndcg@10",
    show_default=True,
    help="Metric that selects the epoch, averaged over the collections.",
)
def head(data: tuple[Path, ...], **options: Any) -> None:
    """Train one map for both queries and documents, from one collection or several.

    It fits the collections that it is trained on. On others it is usually worse than no map: evaluate before use.
    """
    require_torch()
    from es_ttc.lab.training.recipes.head import HeadOptions, HeadRecipe

    chosen, common = _parted(HeadOptions, options)

    def recipe(tasks: "Sequence[Task]", _: "Sides") -> "Trainable":
        return HeadRecipe(tasks, chosen)

    _train("head", data, recipe, asdict(chosen), None, common)


def _parted(kind: type[T], options: dict[str, Any]) -> tuple[T, dict[str, Any]]:
    """Return a recipe's options as an object, and those of every training."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    own = kind(**{name: value for name, value in options.items() if name in names})
    return own, {name: value for name, value in options.items() if name not in names}


def _train(
    kind: str,
    data: Sequence[Path],
    recipe: "Callable[[Sequence[Task], Sides], Trainable]",
    options: dict[str, Any],
    start: Path | None,
    common: dict[str, Any],
) -> None:
    """Run one training, and display the result."""
    from es_ttc.lab.training.session import TrainingRequest, run

    settings = adapted(Settings(**given(encoder=common.get("encoder"))), common.get("adapter"))
    request = TrainingRequest(
        kind=kind,
        data=data,
        out=common["out"],
        recipe=recipe,
        options=options,
        loop=loop_of(common),
        start=start,
        most_queries=common.get("queries"),
        resume=common["resume"],
    )
    with interruptible():
        encoder = cached_encoder(settings)
        with stages(data[0].name) as progress, progress_bar() as bar:
            outcome = run(
                request,
                settings.encoder,
                encoder,
                cache_dir=settings.cache_dir,
                progress=progress,
                report=reporter(bar, request.loop.epochs),
            )
    if common["as_json"]:
        print_json(_summary(common["out"], outcome))
    else:
        _show(common["out"], outcome)


def _summary(out: Path, outcome: "TrainingResult") -> dict[str, Any]:
    return {
        "folder": str(out),
        "encoder": outcome.identity.key,
        "best_epoch": outcome.course.best,
        "losses": outcome.course.losses,
        "valid": outcome.course.valid,
        "step_losses": outcome.course.step_losses,
        "metrics": outcome.metrics,
        "params": outcome.params,
    }


def _show(out: Path, outcome: "TrainingResult") -> None:
    from es_ttc.lab.training.artefact import TUNED

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("queries, ranked by, vectors")
    for metric in next(iter(outcome.metrics.values())):
        table.add_column(metric, justify="right")
    for name, found in outcome.metrics.items():
        table.add_row(escape(name), *(f"{value:.4f}" for value in found.values()))
    console = stdout if stdout.is_terminal else Console(width=PIPED_WIDTH)
    console.print(table)
    course = outcome.course
    sentence = "no epoch did better than none: the vectors stay as they were"
    if course.best:
        sentence = f"best epoch {course.best} of {len(course.losses)}"
    elif not course.losses:
        sentence = "nothing was learned from labels"
    console.print(sentence, highlight=False, soft_wrap=True)
    tuned = f" --tuned {out / TUNED}" if "nnn" in outcome.params else ""
    console.print(
        f"encoder {outcome.identity.key}\n"
        f"serve it: es-ttc index create NAME --encoder {out}; es-ttc serve --encoder {out}{tuned}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    stderr.print(f"written: {escape(str(out))}", highlight=False, soft_wrap=True)
