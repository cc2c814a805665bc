"""`es-ttc train rank`: learn a ranking over blend's signals and numeric fields from judged queries."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from pydantic import Field
from rich.markup import escape

from es_ttc.cli.common import AdapterName, AsJson, EncoderName, print_json
from es_ttc.cli.evaluating import stages, window_option
from es_ttc.cli.judged import SEED, JudgedQueries, folds_of, index_options, interval_text, told_of_file
from es_ttc.cli.signatures import FILE, command
from es_ttc.cli.tables import heading, table
from es_ttc.cli.tune import require_other_queries
from es_ttc.common.interruption import interruptible
from es_ttc.errors import ConfigurationError

if TYPE_CHECKING:
    from es_ttc.lab.ranking.lambdamart import RankOptions, RankTraining
    from es_ttc.lab.ranking.pools import Pools
    from es_ttc.rescorers.learned.fields import NumericField


@dataclass(frozen=True, slots=True)
class _Training:
    """What a training came to, and on what."""

    pools: "Pools"
    fields: "tuple[NumericField, ...]"
    found: "RankTraining"
    options: "RankOptions"
    folds: int


@command(
    "es-ttc train rank data/mine --out models/mine.json",
    "es-ttc train rank data/mine data/others --out models/both.json",
    "es-ttc train rank data/mine --out models/mine.json --field clicks:missing=0",
    "es-ttc train rank data/mine --out models/mine.json --index shop",
    "es-ttc serve --ranking-models models",
    "es-ttc evaluate data/mine --methods blend,learned --ranking-models models",
)
@index_options
def rank(
    data: Annotated[tuple[Path, ...], "DATA..."],
    /,
    *,
    out: Annotated[Path, FILE, "File for the model, NAME.json; requests name it by NAME."],
    split: Annotated[str, "--split NAME", "Split of the queries."] = "train",
    metric: Annotated[
        str, "Metric by which the model is compared with blend: ndcg@k, recall@k, success@k, comp@k, map or mrr."
    ] = "ndcg@10",
    folds: Annotated[
        int | None,
        "--folds N",
        Field(ge=2, le=100),
        "Number of folds for the comparison; each is ranked by trees of the others. Default: 5.",
    ] = None,
    queries: Annotated[
        int | None, "--queries N", Field(ge=2), "Number of queries of each collection, sampled at random. Default: all."
    ] = None,
    signals: Annotated[
        str | None,
        "--signals NAMES",
        "Signals to learn from, separated by commas. Default: lexical,dense,spectral,late_interaction.",
    ] = None,
    given_fields: Annotated[
        tuple[str, ...],
        "--field NAME[:missing=V]",
        "Numeric field of the documents to learn from too, by its path; can be given several times. Documents without "
        "it go the way that the trees learn for them, or count as V.",
    ] = (),
    force: Annotated[bool, "Write the model even if its gain over blend is not clear."] = False,
    window: Annotated[int | str, window_option],
    index: str | None,
    engine: str | None,
    encoder: EncoderName,
    adapter: AdapterName,
    as_json: AsJson,
) -> None:
    """Learn a ranking over blend's signals and numeric fields (LambdaMART, by LightGBM) from one collection or several.

    Every signal is scored once for each query's candidates: what BM25 finds, joined by the nearest documents. Trees are
    fitted that begin from blend's mean. They are compared with blend on queries that the trees did not see
    (cross-fitting), and written only if the gain is clear (its 95 % interval lies above 0), or with --force.

    With --index NAME the documents are those of an index: what a gateway would score for a search of each query's text
    is logged from it in few requests, each document's features once.

    The file holds the trees as numbers. `es-ttc serve --ranking-models FOLDER` serves it as the method `learned`,
    without LightGBM.
    """
    from es_ttc.lab.evaluation.metrics import check_metric
    from es_ttc.lab.ranking.lambdamart import RankOptions, require_lightgbm, train
    from es_ttc.lab.ranking.pools import signal_names
    from es_ttc.rescorers.learned.fields import parse_fields
    from es_ttc.rescorers.learned.model import check_name

    check_metric(metric)
    check_name(out)
    names, fields = signal_names(signals), parse_fields(given_fields)
    require_lightgbm()
    asked = JudgedQueries(split, queries, window, index, engine, encoder, adapter)
    collections = []
    for folder in data:
        require_other_queries(folder, split, folds)
        collections.append(asked.load(folder))
    number = folds_of(folds, sum(len(collection.queries) for collection in collections))
    options = RankOptions()
    with interruptible():
        pools = asked.pools(collections, names, [field.name for field in fields])
        with stages(pools.data) as progress:
            found = train(
                pools,
                metric,
                folds=number,
                names=names,
                fields=fields,
                options=options,
                seed=SEED,
                progress=progress,
            )
    made = _Training(pools.of(names), fields, found, options, number)
    summary = _summary(made, out.stem)
    if found.clear or force:
        _write(out, made, summary)
    if as_json:
        print_json(summary)
    else:
        _show(made)
    told_of_file(out, clear=found.clear, force=force, what="model", default="blend")


def _write(out: Path, made: _Training, summary: Mapping[str, Any]) -> None:
    from es_ttc.lab.evaluation.report import replace
    from es_ttc.rescorers.learned.model import RankingModel

    signals, found = made.pools.signals, made.found
    model = RankingModel(out.stem, signals, made.options.blend, found.trees, summary, made.fields)
    try:
        replace(out, model.content())
    except OSError as error:
        raise ConfigurationError(f"[{out}] cannot be written: {error.strerror}") from error


def _summary(made: _Training, name: str) -> dict[str, Any]:
    """Return where the model comes from and what it gains."""
    from es_ttc.lab.evaluation import provenance

    pools, found = made.pools, made.found
    return {
        "model": name,
        "data": pools.data,
        "split": pools.split,
        "queries": len(pools),
        "encoder": pools.encoder,
        "signals": pools.signals,
        **({"fields": [asdict(field) for field in made.fields]} if made.fields else {}),
        "metric": found.metric,
        "value": float(found.reached.mean()),
        "blend": float(found.default.mean()),
        "against_blend": {**found.against_default.as_json(), "folds": made.folds},
        "clear": found.clear,
        "gains": dict(found.gains),
        "options": asdict(made.options),
        "seed": SEED,
        **pools.settings,
        "versions": provenance.versions(),
        "date": provenance.now(),
    }


def _show(made: _Training) -> None:
    from es_ttc.lab.evaluation.report import score

    found, pools = made.found, made.pools
    out = heading(f"learned on {pools.data} ({pools.split}): {len(pools):,} queries, {made.folds} folds")
    against = found.against_default
    rows = [
        ("blend", score(found.default.mean()), "", ""),
        ("learned", score(found.reached.mean()), interval_text(against), against.record),
    ]
    out.print(table(("ranking", found.metric, "difference (95 % interval)", "won/tied/lost"), rows))
    shares = sorted(found.gains.items(), key=lambda item: -item[1])
    columns = ("signal or field" if made.fields else "signal", "share")
    cells = [(escape(name), f"{share:.0%}") for name, share in shares]
    out.print(table(columns, cells, title="share in what the trees gain"))
    if not found.clear:
        verdict = "worse than blend" if against.interval.high < 0 else "no clear gain over blend"
        click.echo(verdict, err=True)
