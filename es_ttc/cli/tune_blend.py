"""`es-ttc tune --method blend`: the weights of blend's signals, and what each signal is worth."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from es_ttc.cli.common import print_json, stderr
from es_ttc.cli.evaluating import stages
from es_ttc.cli.judged import SEED, JudgedQueries
from es_ttc.cli.tables import table
from es_ttc.common.interruption import interruptible
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.report import replace, signed
from es_ttc.lab.evaluation.tuning import summary_of
from es_ttc.lab.ranking.pools import signal_names
from es_ttc.lab.ranking.weights import WeightTuning, tune_weights
from es_ttc.rescorers import registry
from es_ttc.rescorers.blend.rescorer import BlendParams

_FOLDS = 5
_MAX_TRIED = 20
"""Candidates that the file keeps."""


@dataclass(frozen=True, slots=True)
class WeightsRequest:
    """What the command line asks for; see `es-ttc tune --help`."""

    data: Path | None
    queries: JudgedQueries
    metric: str
    folds: int | None
    signals: str | None
    params: Mapping[str, Any]
    out: Path | None
    force: bool


def tune_blend(request: WeightsRequest, *, as_json: bool) -> None:
    """Find the weights, display them, and write them if they gain something clear."""
    from es_ttc.cli.tune import show

    fixed = registry.parse_params(registry.load("blend"), request.params)
    assert isinstance(fixed, BlendParams)  # noqa: S101 - blend's own
    names = signal_names(request.signals)
    asked = request.queries
    collection = asked.load(request.data)
    folds = folds_of(request.folds, len(collection.queries))
    with interruptible():
        pools = asked.pools([collection], names)
        with stages(collection.name) as progress:
            found = tune_weights(
                pools,
                request.metric,
                folds=folds,
                names=names,
                normalise=fixed.normalise,
                seed=SEED,
                progress=progress,
            )
    sampled = asked.queries is not None
    summary = summary_of(
        found.tuning,
        collection.name,
        collection.split,
        pools.settings,
        pools.encoder,
        folds,
        SEED,
        sampled=sampled,
        most=_MAX_TRIED,
    )
    summary |= {"clear": found.clear, "worth": [asdict(one) for one in found.worth]}
    written = request.out is not None and (found.clear or request.force)
    if request.out is not None and written:
        write(request.out, summary)
    if as_json:
        print_json(summary)
    else:
        show(found.tuning, summary, worth_table(found))
    if request.out is not None:
        told_of_file(request.out, clear=found.clear, force=request.force, what="weights", default="the default weights")


def folds_of(given: int | None, queries: int) -> int:
    """Return the number of folds."""
    folds = _FOLDS if given is None else given
    if folds > queries:
        raise InvalidRequest(f"[folds] is {folds}, and there are {queries} queries: give fewer folds or more queries")
    return folds


def write(out: Path, summary: Mapping[str, Any]) -> None:
    """Write the file of tuned parameters."""
    from es_ttc.rescorers.tuned import as_json

    replace(out, as_json(summary))


def told_of_file(out: Path, *, clear: bool, force: bool, what: str, default: str) -> None:
    """Say whether a file was written; without a clear gain and --force the command fails.

    Raises:
        click.exceptions.Exit: Nothing was written.
    """
    if clear or force:
        click.echo(f"{what}: {out}", err=True)
        if not clear:
            stderr.print(f"mind: written by --force, without a clear gain over {default}")
        return
    click.echo(
        f"not written: {out}: the gain over {default} is not clear. Keep the default, judge "
        "more queries, or write the file all the same with --force",
        err=True,
    )
    raise click.exceptions.Exit(1)


def worth_table(found: WeightTuning) -> Table:
    """Return what is lost by leaving each signal out."""
    metric, folds = found.tuning.metric, len(found.tuning.by_fold)
    rows = [(one.signal, interval_text(one.equal), interval_text(one.refitted)) for one in found.worth]
    columns = ("without", "equal weights", f"weights refitted in {folds} folds")
    return table(columns, rows, title=f"{metric} without a signal, against all signals (95 % interval)")


def interval_text(one: Comparison) -> str:
    """Return a difference with its interval; bold where it is clear."""
    text = f"{signed(one.delta)} ({signed(one.interval.low)} to {signed(one.interval.high)})"
    return f"[bold]{text}[/]" if one.interval.low > 0 or one.interval.high < 0 else text
