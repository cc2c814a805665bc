"""`es-ttc train late`: fine-tune a backbone into a late-interaction model from judged queries."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from es_ttc.cli.common import print_json, progress_bar, stderr, stdout
from es_ttc.cli.evaluating import stages
from es_ttc.cli.options import examples
from es_ttc.cli.train_options import PIPED_WIDTH, data_argument, loop_of, reporter, require_torch, training_options
from es_ttc.common.interruption import interruptible
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.lab.training.late.session import LateResult

backbone_option = click.option(
    "--backbone",
    metavar="NAME",
    default="minilm",
    show_default=True,
    help="Model to begin from: minilm, mpnet, any dense encoder's name or folder, or a folder with a transformer's "
    "config.json, weights and tokenizer.json.",
)


@click.command(
    epilog=examples(
        "es-ttc train late data/mine --out encoders/mine-late",
        "es-ttc train late data/mine --out encoders/small --dimensions 64 --document-length 180",
        "es-ttc train late data/mine --out encoders/quick --layers 2 --queries 500 --epochs 2",
        "es-ttc evaluate data/mine --methods bm25,dense,maxsim,blend --encoder encoders/mine-late",
    )
)
@data_argument
@training_options(epochs=3, batch=16, learning_rate=5e-5, patience=2, models=(backbone_option,))
@click.option(
    "--dimensions", type=click.IntRange(1), default=128, show_default=True, help="Components of a token vector."
)
@click.option(
    "--query-length",
    type=click.IntRange(4),
    default=64,
    show_default=True,
    help="Maximum number of tokens of a query.",
)
@click.option(
    "--document-length",
    type=click.IntRange(4),
    metavar="N",
    help="Maximum number of tokens of a document, for serving too. Default: the backbone's own.",
)
@click.option(
    "--train-length",
    type=click.IntRange(4),
    default=128,
    show_default=True,
    help="Maximum number of tokens of a document in training only: shorter is faster.",
)
@click.option(
    "--negatives",
    type=click.IntRange(0, 50),
    default=1,
    show_default=True,
    help="Number of mined negatives of each query in a step, drawn from BM25's first 50 documents that are not judged "
    "relevant.",
)
@click.option(
    "--layers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of the backbone's last layers that are trained, with the projection. Default: all of the backbone.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Temperature of the loss, over sums of cosines.",
)
@click.option(
    "--valid-documents",
    type=click.IntRange(2),
    default=500,
    show_default=True,
    help="Number of documents that the validation queries rank: their relevant ones, and BM25's first.",
)
@click.option("--metric", default="ndcg@10", show_default=True, help="Metric that selects the epoch.")
def late(
    data: Path,
    backbone: str,
    out: Path,
    dimensions: int,
    query_length: int,
    document_length: int | None,
    train_length: int,
    negatives: int,
    layers: int | None,
    temperature: float,
    valid_documents: int,
    metric: str,
    **common: Any,
) -> None:
    """Fine-tune a backbone into a late-interaction model (ColBERT), by sentence-transformers' loss.

    Each train query's negatives are the documents of the other queries in the batch, and mined ones that BM25 finds.
    Documents that are judged relevant to a query are never its negatives. The result is a folder in
    sentence-transformers' own form (MultiVectorEncoder), an encoder for every command (--encoder FOLDER). It is written
    at the end, as a whole.
    """
    _require_libraries()
    from es_ttc.lab.training.late.backbone import LateShape
    from es_ttc.lab.training.late.session import LateOptions, LateRequest, run

    options = LateOptions(
        LateShape(dimensions, query_length, document_length),
        negatives=negatives,
        train_length=train_length,
        temperature=temperature,
        metric=metric,
        pool=valid_documents,
        layers=layers,
        queries=common["queries"],
    )
    request = LateRequest(data, backbone, out, options, loop_of(common), resume=common["resume"])
    with interruptible(), stages(data.name) as progress, progress_bar() as bar:
        found = run(
            request,
            cache_dir=Settings().cache_dir,
            progress=progress,
            report=reporter(bar, request.loop.epochs),
        )
    if common["as_json"]:
        print_json(_summary(out, found))
    else:
        _show(data, out, found, metric)


def _require_libraries() -> None:
    require_torch()
    if importlib.util.find_spec("sentence_transformers") is None:
        from es_ttc.encoders.packages import missing_package

        raise missing_package("sentence-transformers", "es-ttc[train]")


def _summary(out: Path, found: "LateResult") -> dict[str, Any]:
    course = found.course
    return {
        "folder": str(out),
        "encoder": found.encoder,
        "best_epoch": course.best,
        "losses": course.losses,
        "valid": course.valid,
        "step_losses": course.step_losses,
    }


def _show(data: Path, out: Path, found: "LateResult", metric: str) -> None:
    course = found.course
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("epoch", "mean loss", f"{metric}, validation"):
        table.add_column(column, justify="right")
    for epoch, value in enumerate(course.valid):
        table.add_row(str(epoch), f"{course.losses[epoch - 1]:.4f}" if epoch else "", f"{value:.4f}")
    console = stdout if stdout.is_terminal else Console(width=PIPED_WIDTH)
    console.print(table)
    sentence = f"best epoch {course.best} of {len(course.losses)}"
    if not course.best:
        sentence = "no epoch did better than none: the model is the backbone with its first projection"
    console.print(
        f"{sentence}\nencoder {found.encoder}\n"
        f"measure it: es-ttc evaluate {data} --methods bm25,dense,maxsim,blend --encoder {out}\n"
        f"serve it: es-ttc index create NAME --encoder {out}; es-ttc serve --encoder {out}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    stderr.print(f"written: {out}", highlight=False, markup=False, soft_wrap=True)
