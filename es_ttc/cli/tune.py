"""`es-ttc tune`: choose a method's parameters on queries that nothing is reported on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import orjson
from pydantic import Field
from rich.markup import escape
from rich.table import Table

from es_ttc.cli import tables
from es_ttc.cli.common import AsJson, print_result
from es_ttc.cli.evaluating import cached_encoder, stages
from es_ttc.cli.judged import (
    JudgedQueries,
    folds_of,
    interval_text,
    judgements_option,
    report_written,
    require_one_source,
    with_llm_flag,
)
from es_ttc.cli.model_options import FILE_PATH, command
from es_ttc.cli.options import JsonObjectType, first_pass_option, params_option
from es_ttc.common.files import replace_file
from es_ttc.common.interruption import interruptible
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.datasets import Collection, splits
from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.lab.evaluation.plan import EvaluationPlan, open_searcher
from es_ttc.lab.evaluation.report import shown_p_value, shown_score, signed
from es_ttc.lab.evaluation.tuning import Tuning, given_params, grid_candidates, summary_of
from es_ttc.lab.evaluation.tuning import tune_method as chosen
from es_ttc.lab.ranking.pools import signal_names
from es_ttc.lab.ranking.weights import WeightTuning, summary_of_weights, tune_weights
from es_ttc.rescorers import registry
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.tuned import as_json as file_content
from es_ttc.settings import Settings

TEST = "test"
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class TuneOptions(JudgedQueries):
    """Options of `es-ttc tune`."""

    method: Annotated[str, "--method NAME", "Method to tune."]
    metric: Annotated[
        str | None,
        "--metric NAME",
        "Metric to maximise: ndcg@k, recall@k, success@k, comp@k (all relevant documents in the top k), map or mrr. "
        "Default: ndcg@10 for blend, comp@5 for other methods.",
    ] = None
    grid: Annotated[
        dict[str, Any] | None,
        "--grid JSON",
        JsonObjectType('{"l1": [0.1, 0.2]}'),
        "Values to try, by parameter. Default: those declared by the method.",
    ] = None
    params: Annotated[dict[str, Any], params_option("Fixed parameters.", '{"l2": 0}')]
    folds: Annotated[
        int | None,
        "--folds N",
        Field(ge=2, le=100),
        "Number of folds; each fold is answered with parameters chosen on the others (cross-fitting). Default: 5 for "
        "the weights of blend, none for other methods.",
    ] = None
    signals: Annotated[
        str | None,
        "--signals NAMES",
        "For blend: signals to weigh, separated by commas. Default: lexical,dense,spectral,late_interaction.",
    ] = None
    force: Annotated[bool, "For blend: write the weights even if their gain over the default is not clear."] = False
    first_pass: Annotated[str, first_pass_option(["bm25", "dense", "hybrid"], "bm25", "First pass.")]
    judgements: Annotated[
        str | None,
        judgements_option(
            "For blend: index of the engine, in place of DATA: weights are chosen by its judgements (`es-ttc judge`)."
        ),
    ] = None
    with_llm: Annotated[bool, with_llm_flag] = False
    out: Annotated[
        Path | None, FILE_PATH, "File for the parameters, for `es-ttc evaluate --tuned` and `es-ttc serve --tuned`."
    ] = None

    @property
    def of_weights(self) -> bool:
        """Whether weights of blend are chosen, in place of parameters from a grid."""
        return self.method == "blend" and self.grid is None and "signals" not in self.params

    @property
    def maximised(self) -> str:
        """The metric to maximise."""
        return self.metric or ("ndcg@10" if self.method == "blend" else "comp@5")


@command(
    "es-ttc tune data/mine --method blend --out blend.json",
    "es-ttc tune data/mine --method blend --out blend.json --index shop",
    "es-ttc tune --judgements shop --method blend --out blend.json",
    "es-ttc tune data/mine --method nnn --out nnn.json",
    "es-ttc tune data/mine --method mmr --split valid --metric recall@5",
    "es-ttc tune data/mine --method nnn --grid '{\"l1\": [0.05, 0.1, 0.2]}'",
    "es-ttc tune data/mine --method nnn --split test --folds 5",
)
def tune(data: Annotated[Path | None, "DATA"] = None, /, *, options: TuneOptions, as_json: AsJson) -> None:
    """Choose a method's parameters on the BEIR folder DATA, or by the judgements of an index.

    Every combination of the grid's values is run in memory on the same queries. The combination with the best mean of
    the metric wins, or the method's defaults if none is better. A paired bootstrap (10,000 resamples) compares the
    winner with the defaults: without --folds on the queries that chose it, which is optimistic; with --folds each query
    uses the parameters that the other folds chose.

    For blend without --grid the weights of its signals are found: every signal is scored once for each query, and all
    combinations of weights on a fine grid are tried on these scores. A table says what each signal is worth. The
    weights are written only if the cross-fitted gain over the default is clear (its 95 % interval lies above 0), or
    with --force. With --index NAME the signals are those of an index, as a gateway would score them.

    With --judgements INDEX queries and judgements are those of `es-ttc judge`, and signals those of the index.

    Test queries are refused, because parameters tuned on them must not be reported on them. If a collection has no
    other queries, --split test --folds 5 gives figures that may be reported.
    """
    require_one_source([data] if data else [], options.judgements, with_llm=options.with_llm)
    check_metric(options.maximised)
    (_tune_weights if options.of_weights else _tune_params)(options, data, as_json=as_json)


def _tune_params(options: TuneOptions, data: Path | None, *, as_json: bool) -> None:
    if data is None or options.index is not None or options.engine is not None:
        raise click.UsageError("--index, --engine and --judgements are for --method blend without --grid")
    if options.signals is not None or options.force:
        raise click.UsageError("--signals and --force are for --method blend without --grid")
    methods = grid_candidates(options.method, options.params, options.grid)
    require_other_queries(data, options.split, options.folds)
    collection = options.load(data)
    plan = EvaluationPlan(
        methods=methods,
        first_pass=options.first_pass,  # type: ignore[arg-type]  # click has checked it
        window=None if isinstance(options.window, str) else options.window,
    )
    with interruptible():
        found, identity = _tuned(plan, collection, options)
    summary = summary_of(
        found,
        collection.name,
        collection.split,
        plan.settings(),
        identity,
        options.folds,
        SEED,
        sampled=options.sample is not None,
    )
    if options.out is not None:
        replace_file(options.out, file_content(summary))
        click.echo(f"parameters: {options.out}", err=True)
    print_result(summary, lambda: show(found, summary), as_json=as_json)


def _tune_weights(options: TuneOptions, data: Path | None, *, as_json: bool) -> None:
    if options.judgements is not None and options.index not in (None, options.judgements):
        raise click.UsageError("--judgements names the index already: leave --index out")
    if data is not None:
        require_other_queries(data, options.split, options.folds)
    fixed = registry.parse_params(registry.load("blend"), options.params)
    assert isinstance(fixed, BlendParams)  # noqa: S101 - blend's own
    names = signal_names(options.signals)
    collection = options.load(data)
    folds = folds_of(options.folds, len(collection.queries))
    with interruptible():
        pools = options.pools([collection], names)
        with stages(collection.name) as progress:
            found = tune_weights(
                pools,
                options.maximised,
                folds=folds,
                names=names,
                normalise=fixed.normalise,
                seed=SEED,
                progress=progress,
            )
    summary = summary_of_weights(found, pools, folds, SEED, sampled=options.sample is not None)
    summary["worth"] = [asdict(one) for one in found.worth]
    if options.out is not None and (found.clear or options.force):
        replace_file(options.out, file_content(summary))
    print_result(summary, lambda: show(found.tuning, summary, _worth_table(found)), as_json=as_json)
    if options.out is not None:
        report_written(
            options.out, clear=found.clear, force=options.force, what="weights", default="the default weights"
        )


def _worth_table(found: WeightTuning) -> Table:
    metric, folds = found.tuning.metric, len(found.tuning.by_fold)
    rows = [(one.signal, interval_text(one.equal), interval_text(one.refitted)) for one in found.worth]
    columns = ("without", "equal weights", f"weights refitted in {folds} folds")
    return tables.table(columns, rows, title=f"{metric} without a signal, against all signals (95 % interval)")


def require_other_queries(data: Path, split: str, folds: int | None) -> None:
    """Refuse to tune on test queries, but for cross-fitting where there are no others."""
    found = splits(data) if data.is_dir() else []
    others = [name for name in found if name != TEST]
    if split == TEST and others:
        raise InvalidRequest(f"[{data}] has other queries than those of [test]: tune with --split {others[0]}")
    if found == [TEST] and (split != TEST or folds is None):
        raise InvalidRequest(
            f"[{data}] has test queries only, and what is tuned on them must not be reported on them: "
            "cross-fit with --split test --folds 5"
        )


def _tuned(plan: EvaluationPlan, collection: Collection, options: TuneOptions) -> tuple[Tuning, str | None]:
    """Return the outcome, and the encoder's identity where one was needed."""
    encoder = cached_encoder(options.settings(Settings)) if plan.needs_encoder else None
    with stages(collection.name) as progress, open_searcher(plan, collection, encoder, progress) as (searcher, _, _):
        found = chosen(
            collection, plan.methods, searcher, options.maximised, folds=options.folds, seed=SEED, progress=progress
        )
    return found, encoder.identity.key if encoder else None


def show(found: Tuning, summary: Mapping[str, Any], *more_tables: Table) -> None:
    """Display what was chosen, its candidates, and further tables before the verdict."""
    console = tables.heading(
        f"{summary['method']} on {summary['data']} ({summary['split']}): {summary['queries']:,} queries, "
        f"{len(found.candidates):,} candidates"
    )
    for table in (candidates_table(found), *more_tables):
        console.print(table)
    click.echo(verdict(summary))


def candidates_table(found: Tuning) -> Table:
    """Return the best candidates and the defaults."""
    means = found.values.mean(axis=1)
    order = sorted(range(len(means)), key=lambda place: (-means[place], place))
    shown = order[:_SHOWN] if 0 in order[:_SHOWN] else [*order[: _SHOWN - 1], 0]
    rows = []
    for place in shown:
        text = orjson.dumps(given_params(found.candidates[place])).decode()
        row = (escape(f"{text} (defaults)" if place == 0 else text), shown_score(means[place]))
        rows.append([f"[bold]{cell}[/]" for cell in row] if place == found.chosen else row)
    return tables.table(("parameters", found.metric), rows)


def verdict(summary: Mapping[str, Any]) -> str:
    """Return in words what was chosen, and how it compares with the defaults."""
    against = summary["against_default"]
    low, high = against["interval"]
    params = orjson.dumps(summary["params"]).decode() if summary["params"] else "the defaults"
    figures = (
        f"{shown_score(against['value'])} against {shown_score(summary['default']['value'])} with the defaults "
        f"({signed(against['delta'])}, 95 % interval {signed(low)} to {signed(high)}, p {shown_p_value(against['p'])})"
    )
    how = (
        "each query under what the other folds chose"
        if against["cross_fitted"]
        else "on the queries that chose them, which flatters them"
    )
    clear = "" if low > 0 else "; no clear gain: the defaults will do as well"
    return f"chosen: {params}\n{summary['metric']} {figures}, {how}{clear}"
