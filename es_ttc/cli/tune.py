"""`es-ttc tune`: choose a method's parameters on queries that nothing is reported on."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click
import orjson
from pydantic import Field
from rich.markup import escape
from rich.table import Table

from es_ttc.cli import tables
from es_ttc.cli.common import AdapterName, AsJson, EncoderName, adapted, given, print_result
from es_ttc.cli.evaluating import cached_encoder, stages, window_option
from es_ttc.cli.judged import (
    SEED,
    JudgedQueries,
    folds_of,
    index_options,
    interval_text,
    judgements_option,
    require_one_source,
    told_of_file,
    with_llm_flag,
)
from es_ttc.cli.model_options import FILE, command
from es_ttc.cli.options import JsonObjectType, first_pass_option, params_option
from es_ttc.common.interruption import interruptible
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, load_collection, sample, splits
from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.lab.evaluation.plan import Plan, opened
from es_ttc.lab.evaluation.report import p_value, replace, score, signed
from es_ttc.lab.evaluation.tuning import Tuning, candidates, given_params, summary_of
from es_ttc.lab.evaluation.tuning import tune as chosen
from es_ttc.lab.ranking.pools import signal_names
from es_ttc.lab.ranking.weights import WeightTuning, summary_of_weights, tune_weights
from es_ttc.rescorers import registry
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.tuned import as_json as file_content
from es_ttc.settings import Settings

TEST = "test"
_SHOWN = 8


@command(
    "es-ttc tune data/mine --method blend --out blend.json",
    "es-ttc tune data/mine --method blend --out blend.json --index shop",
    "es-ttc tune --judgements shop --method blend --out blend.json",
    "es-ttc tune data/mine --method nnn --out nnn.json",
    "es-ttc tune data/mine --method mmr --split valid --metric recall@5",
    "es-ttc tune data/mine --method nnn --grid '{\"l1\": [0.05, 0.1, 0.2]}'",
    "es-ttc tune data/mine --method nnn --split test --folds 5",
)
@index_options
def tune(
    data: Annotated[Path | None, "DATA"] = None,
    /,
    *,
    method: Annotated[str, "--method NAME", "Method to tune."],
    split: Annotated[
        str,
        "--split NAME",
        "Split of the queries: train, valid...; test only with --folds, if there is no other split.",
    ] = "train",
    metric: Annotated[
        str | None,
        "--metric NAME",
        "Metric to maximise: ndcg@k, recall@k, success@k, comp@k (all relevant documents in the top k), map or mrr. "
        "Default: ndcg@10 for blend, comp@5 for other methods.",
    ] = None,
    grid: Annotated[
        dict[str, Any] | None,
        "--grid JSON",
        JsonObjectType('{"l1": [0.1, 0.2]}'),
        "Values to try, by parameter. Default: those declared by the method.",
    ] = None,
    params: Annotated[dict[str, Any], params_option("Fixed parameters.", '{"l2": 0}')],
    folds: Annotated[
        int | None,
        "--folds N",
        Field(ge=2, le=100),
        "Number of folds; each fold is answered with parameters chosen on the others (cross-fitting). Default: 5 for "
        "the weights of blend, none for other methods.",
    ] = None,
    signals: Annotated[
        str | None,
        "--signals NAMES",
        "For blend: signals to weigh, separated by commas. Default: lexical,dense,spectral,late_interaction.",
    ] = None,
    force: Annotated[bool, "For blend: write the weights even if their gain over the default is not clear."] = False,
    queries: Annotated[
        int | None, "--queries N", Field(ge=2), "Number of queries, sampled at random. Default: all."
    ] = None,
    window: Annotated[int | str, window_option],
    first_pass: Annotated[str, first_pass_option(["bm25", "dense", "hybrid"], "bm25", "First pass.")],
    index: str | None,
    engine: str | None,
    judgements: Annotated[
        str | None,
        judgements_option(
            "For blend: index of the engine, in place of DATA: weights are chosen by its judgements (`es-ttc judge`)."
        ),
    ],
    with_llm: Annotated[bool, with_llm_flag],
    encoder: EncoderName,
    adapter: AdapterName,
    out: Annotated[
        Path | None, FILE, "File for the parameters, for `es-ttc evaluate --tuned` and `es-ttc serve --tuned`."
    ] = None,
    as_json: AsJson,
) -> None:
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
    require_one_source([data] if data else [], judgements, with_llm=with_llm)
    settings = adapted(Settings(**given(encoder=encoder)), adapter)
    weighing = method == "blend" and grid is None and "signals" not in params
    metric = metric or ("ndcg@10" if method == "blend" else "comp@5")
    check_metric(metric)
    if weighing:
        if judgements is not None:
            if index not in (None, judgements):
                raise click.UsageError("--judgements names the index already: leave --index out")
            index = judgements
        elif data is not None:
            require_other_queries(data, split, folds)
        judged = JudgedQueries(split, queries, window, index, engine, encoder, adapter, judgements, with_llm)
        _tune_weights(judged, data, metric, folds, signals, params, out=out, force=force, as_json=as_json)
        return
    if data is None or index is not None or engine is not None:
        raise click.UsageError("--index, --engine and --judgements are for --method blend without --grid")
    if signals is not None or force:
        raise click.UsageError("--signals and --force are for --method blend without --grid")
    methods = candidates(method, params, grid)
    require_other_queries(data, split, folds)
    collection = load_collection(data, split)
    if queries is not None:
        collection = sample(collection, queries, SEED)
    plan = Plan(
        methods=methods,
        first_pass=first_pass,  # type: ignore[arg-type]  # click has checked it
        window=None if isinstance(window, str) else window,
    )
    with interruptible():
        found, identity = _tuned(plan, collection, settings, metric, folds)
    summary = summary_of(
        found, collection.name, collection.split, plan.settings(), identity, folds, SEED, sampled=queries is not None
    )
    if out is not None:
        replace(out, file_content(summary))
        click.echo(f"parameters: {out}", err=True)
    print_result(summary, lambda: show(found, summary), as_json=as_json)


def _tune_weights(
    judged: JudgedQueries,
    data: Path | None,
    metric: str,
    folds: int | None,
    signals: str | None,
    params: Mapping[str, Any],
    *,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    fixed = registry.parse_params(registry.load("blend"), params)
    assert isinstance(fixed, BlendParams)  # noqa: S101 - blend's own
    names = signal_names(signals)
    collection = judged.load(data)
    folds = folds_of(folds, len(collection.queries))
    with interruptible():
        pools = judged.pools([collection], names)
        with stages(collection.name) as progress:
            found = tune_weights(
                pools,
                metric,
                folds=folds,
                names=names,
                normalise=fixed.normalise,
                seed=SEED,
                progress=progress,
            )
    summary = summary_of_weights(found, pools, folds, SEED, sampled=judged.queries is not None)
    summary["worth"] = [asdict(one) for one in found.worth]
    if out is not None and (found.clear or force):
        replace(out, file_content(summary))
    print_result(summary, lambda: show(found.tuning, summary, _worth_table(found)), as_json=as_json)
    if out is not None:
        told_of_file(out, clear=found.clear, force=force, what="weights", default="the default weights")


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


def _tuned(
    plan: Plan, collection: Collection, settings: Settings, metric: str, folds: int | None
) -> tuple[Tuning, str | None]:
    """Return the outcome, and the encoder's identity where one was needed."""
    encoder = cached_encoder(settings) if plan.needs_encoder else None
    with stages(collection.name) as progress, opened(plan, collection, encoder, progress) as (searcher, _, _):
        found = chosen(collection, plan.methods, searcher, metric, folds=folds, seed=SEED, progress=progress)
    return found, encoder.identity.key if encoder else None


def show(found: Tuning, summary: Mapping[str, Any], *further: Table) -> None:
    """Display what was chosen, its candidates, and further tables before the verdict."""
    console = tables.heading(
        f"{summary['method']} on {summary['data']} ({summary['split']}): {summary['queries']:,} queries, "
        f"{len(found.candidates):,} candidates"
    )
    for table in (candidates_table(found), *further):
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
        row = (escape(f"{text} (defaults)" if place == 0 else text), score(means[place]))
        rows.append([f"[bold]{cell}[/]" for cell in row] if place == found.chosen else row)
    return tables.table(("parameters", found.metric), rows)


def verdict(summary: Mapping[str, Any]) -> str:
    """Return in words what was chosen, and how it compares with the defaults."""
    against = summary["against_default"]
    low, high = against["interval"]
    params = orjson.dumps(summary["params"]).decode() if summary["params"] else "the defaults"
    figures = (
        f"{score(against['value'])} against {score(summary['default']['value'])} with the defaults "
        f"({signed(against['delta'])}, 95 % interval {signed(low)} to {signed(high)}, p {p_value(against['p'])})"
    )
    how = (
        "each query under what the other folds chose"
        if against["cross_fitted"]
        else "on the queries that chose them, which flatters them"
    )
    clear = "" if low > 0 else "; no clear gain: the defaults will do as well"
    return f"chosen: {params}\n{summary['metric']} {figures}, {how}{clear}"
