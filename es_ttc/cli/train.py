"""`es-ttc train`: train maps over a frozen encoder's vectors from queries with relevance judgements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from es_ttc.cli import tables
from es_ttc.cli.common import (
    adapter_flag,
    encoder_flag,
    json_flag,
    print_result,
    progress_bar,
    provided,
    require_packages,
    with_adapter_of,
)
from es_ttc.cli.evaluating import cached_encoder, stages
from es_ttc.cli.model_options import CommandGroup, ModelCommand, all_of, examples, flags, model_options, nested, parted
from es_ttc.cli.train_rank import rank
from es_ttc.common.interruption import interruptible
from es_ttc.lab.training.options import ColtOptions, DenseOptions, HeadOptions, LateOptions, LoopOptions, NnnOptions
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

    from es_ttc.lab.training.late.session import LateResult
    from es_ttc.lab.training.loop import ReportTraining, TrainingProgress
    from es_ttc.lab.training.session import TrainingResult

_LOOP = flags("epochs", "batch", "learning_rate", "patience", "device", "precision")
_SAMPLE = "Number of queries, sampled at random. Default: all."


@click.group(
    cls=CommandGroup,
    epilog=examples(
        "es-ttc train dense data/mine --out encoders/mine-dense",
        "es-ttc train nnn data/mine --start encoders/mine-dense --out encoders/mine",
        "es-ttc train late data/mine --out encoders/mine-late",
        "es-ttc train rank data/mine --out models/mine.json",
        "es-ttc index create articles --encoder encoders/mine",
    ),
)
def train() -> None:
    """Train maps over a frozen encoder's vectors from judged queries.

    DATA is a BEIR folder with the split train. The split valid selects the epoch; without it, a seeded fifth of the
    train queries is held out. Test queries are only reported on. The result is one folder: an encoder for every command
    (--encoder FOLDER), and an adapter for stored vectors (`es-ttc attach NAME --adapter FOLDER`).

    `late` is different: it fine-tunes a small model with all its weights into a late-interaction model.

    `rank` is different too: it learns a ranking over the signals of blend, and writes a model for the method `learned`.
    """


train.add_command(rank)

_PATH = click.Path(path_type=Path)
_start_option = click.option(
    "--start", metavar="FOLDER", type=_PATH, help="Initial adapters, written by `es-ttc train dense`, as in the paper."
)


def _train(
    kind: str,
    data: Sequence[Path],
    model: Any,
    chosen: Mapping[str, Any],
    loop: LoopOptions,
    *,
    out: Path,
    encoder: str | None,
    adapter: str | None,
    sample: int | None,
    resume: bool,
    as_json: bool,
    start: Path | None = None,
) -> None:
    require_packages("training", ("torch",), "train")
    from es_ttc.lab.training.session import TrainingRequest, run_training

    if ("l1" in chosen) != ("l2" in chosen):
        raise click.UsageError("--l1 and --l2 go together: give both or neither")
    settings = with_adapter_of(Settings(**provided(encoder=encoder)), adapter)
    request = TrainingRequest(
        kind, data, out, model(**chosen), loop, start, sample, resume=resume, choose_penalty="l1" not in chosen
    )
    with interruptible():
        loaded = cached_encoder(settings)
        with stages(data[0].name) as progress, progress_bar() as bar:
            found = run_training(
                request,
                settings.encoder,
                loaded,
                cache_dir=settings.cache_dir,
                progress=progress,
                report=_reporter(bar, loop.epochs),
            )
    summary = _as_dict(out, found.identity.key, found.course) | {"metrics": found.metrics, "params": found.params}
    print_result(summary, lambda: _show(out, found), as_json=as_json)


def _as_dict(out: Path, encoder: str, course: "TrainingProgress") -> dict[str, Any]:
    return {"folder": str(out), "encoder": encoder, **course.course(), "step_losses": course.step_losses}


def _train_late(
    _: str, data: Sequence[Path], model: Any, chosen: Mapping[str, Any], loop: LoopOptions, *,
    out: Path, backbone: str, sample: int | None, resume: bool, as_json: bool,
) -> None:  # fmt: skip
    require_packages("training", ("torch", "sentence_transformers"), "train")
    from es_ttc.lab.training.late.session import LateRequest, run_late_training

    [folder] = data
    options = model(**chosen, queries=sample)
    request = LateRequest(folder, backbone, out, options, loop, resume=resume)
    with interruptible(), stages(folder.name) as progress, progress_bar() as bar:
        found = run_late_training(
            request, cache_dir=Settings().cache_dir, progress=progress, report=_reporter(bar, loop.epochs)
        )
    summary = _as_dict(out, found.encoder, found.course)
    print_result(summary, lambda: _show_late(folder, out, found, options.metric), as_json=as_json)


def _add(
    name: str,
    text: str,  # its help
    model: Any,  # its options, of which `fields` can be given
    fields: Mapping[str, str],
    loop: LoopOptions,  # defaults of the loop
    *,
    example: str = "",
    defaults: Mapping[str, Any] | None = None,
    several: bool = False,  # whether it learns from several collections
    more: Sequence[Callable[..., Any]] = (encoder_flag, adapter_flag),
    run: Callable[..., None] = _train,  # what trains
) -> None:
    """Add the command of a training."""
    arguments = {"metavar": "DATA...", "nargs": -1} if several else {"metavar": "DATA"}

    @all_of(
        [
            click.argument("data", required=True, type=_PATH, **arguments),
            click.option("--out", required=True, metavar="FOLDER", type=_PATH, help="Folder for the result."),
            *more,
            model_options("Model", model, fields, defaults=defaults),
            model_options("Course", LoopOptions, _LOOP, defaults={**asdict(loop), "device": "auto"}),
            click.option("--sample", type=click.IntRange(2), metavar="N", help=_SAMPLE),
            click.option("--resume", is_flag=True, help="Resume the stopped training in FOLDER."),
            json_flag,
        ]
    )
    def command(data: Any, **values: Any) -> None:
        chosen, values = parted(values, fields)
        steps, values = parted(values, _LOOP)
        run(name, data if several else (data,), model, nested(provided(**chosen)), replace(loop, **steps), **values)

    lines = examples(f"es-ttc train {name} data/mine --out encoders/mine{example}")
    train.command(name, cls=ModelCommand, help=text, epilog=lines)(command)


_add(
    "dense",
    "Train an adapter for queries and one for documents on cosines, with InfoNCE over the batch.",
    DenseOptions,
    flags("hidden", "metric", "tune"),
    LoopOptions(epochs=40, batch=512, learning_rate=3e-3, patience=4),
)
_add(
    "nnn",
    "Train adapters through the unrolled solver of the method `nnn` (NNN-Tr).",
    NnnOptions,
    flags("l1", "l2", "steps", "hidden", "metric", "tune"),
    LoopOptions(epochs=20, batch=64, learning_rate=1e-3, patience=3),
    example=" --start encoders/mine-dense",
    defaults={"l1": None, "l2": None},
    more=(encoder_flag, adapter_flag, _start_option),
)
_add(
    "colt",
    """Train the baseline COLT, which learns one vector per document.

    A document that was not in the training data keeps its original vector.""",
    ColtOptions,
    flags("layers", "metric"),
    LoopOptions(epochs=200, batch=2048, learning_rate=1e-3, patience=20, weight_decay=1e-7),
    more=(encoder_flag, adapter_flag, _start_option),
)
_add(
    "head",
    """Train one map for both queries and documents, from one collection or several.

    It fits the collections that it is trained on. On others it is usually worse than no map: evaluate before use.""",
    HeadOptions,
    flags("family", "hidden", "metric"),
    LoopOptions(epochs=40, batch=512, learning_rate=1e-3, patience=5),
    several=True,
)
_add(
    "late",
    """Fine-tune a backbone into a late-interaction model (ColBERT), by sentence-transformers' loss.

    Each train query's negatives are the documents of the other queries in the batch, and mined ones that BM25 finds.
    Documents that are judged relevant to a query are never its negatives. The result is a folder in
    sentence-transformers' own form (MultiVectorEncoder), an encoder for every command (--encoder FOLDER). It is written
    at the end, as a whole.""",
    LateOptions,
    {
        "shape__dimensions": "--dimensions",
        "shape__query_length": "--query-length",
        "shape__document_length": "--document-length",
    }
    | flags("train_length", "negatives", "layers", "metric"),
    LoopOptions(epochs=3, batch=16, learning_rate=5e-5, patience=2),
    example=" --layers 2 --epochs 2",
    more=(
        click.option(
            "--backbone",
            metavar="NAME",
            default="minilm",
            show_default=True,
            help="Model to begin from: minilm, mpnet, any dense encoder's name or folder, or a folder with a "
            "transformer's config.json, weights and tokenizer.json.",
        ),
    ),
    run=_train_late,
)


def _reporter(bar: "Progress", epochs: int) -> "ReportTraining":
    """Return a function that shows a training's course in a bar: epoch, loss, validation, rate and remaining time."""
    task = bar.add_task("training", total=None)

    def report(where: "TrainingProgress", steps: int) -> None:
        loss = where.step_losses[-1] if where.step_losses else 0.0
        description = f"epoch {min(where.epoch + 1, epochs)} of {epochs}, loss {loss:.3f}, valid {where.valid[-1]:.4f}"
        bar.update(task, description=description, completed=where.epoch * steps + where.step, total=epochs * steps)

    return report


def _show(out: Path, outcome: "TrainingResult") -> None:
    from es_ttc.lab.training.artefact import TUNED

    console = tables.console()
    rows = [(escape(name), *(f"{value:.4f}" for value in found.values())) for name, found in outcome.metrics.items()]
    console.print(tables.table(("queries, ranked by, vectors", *next(iter(outcome.metrics.values()))), rows))
    course = outcome.course
    sentence = "no epoch did better than none: the vectors stay as they were"
    if course.best:
        sentence = f"best epoch {course.best} of {len(course.losses)}"
    elif not course.losses:
        sentence = "nothing was learned from labels"
    click.echo(sentence)
    tuned = f" --tuned {out / TUNED}" if "nnn" in outcome.params else ""
    click.echo(
        f"encoder {outcome.identity.key}\n"
        f"serve it: es-ttc index create NAME --encoder {out}; es-ttc serve --encoder {out}{tuned}"
    )
    click.echo(f"written: {out}", err=True)


def _show_late(data: Path, out: Path, found: "LateResult", metric: str) -> None:
    course = found.course
    console = tables.console()
    losses = ["", *(f"{loss:.4f}" for loss in course.losses)]
    rows = [(str(epoch), losses[epoch], f"{value:.4f}") for epoch, value in enumerate(course.valid)]
    console.print(tables.table(("epoch", "mean loss", f"{metric}, validation"), rows))
    sentence = f"best epoch {course.best} of {len(course.losses)}"
    if not course.best:
        sentence = "no epoch did better than none: the model is the backbone with its first projection"
    click.echo(
        f"{sentence}\nencoder {found.encoder}\n"
        f"measure it: es-ttc evaluate {data} --methods bm25,dense,maxsim,blend --encoder {out}\n"
        f"serve it: es-ttc index create NAME --encoder {out}; es-ttc serve --encoder {out}"
    )
    click.echo(f"written: {out}", err=True)
