"""`es-ttc train rank`: learn a ranking over blend's signals and numeric fields from judged queries."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field
from rich.markup import escape

from es_ttc.cli import tables
from es_ttc.cli.common import AsJson, print_json
from es_ttc.cli.evaluating import stages
from es_ttc.cli.judged import JudgedQueries, folds_of, interval_text, report_written
from es_ttc.cli.model_options import FILE_PATH, command
from es_ttc.cli.tune import require_other_queries
from es_ttc.common.files import replace_file
from es_ttc.common.interruption import interruptible
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.lab.evaluation.report import require_writable, shown_score
from es_ttc.lab.ranking.lambdamart import RankOptions, RankTraining, require_lightgbm, train_trees
from es_ttc.lab.ranking.pools import signal_names
from es_ttc.rescorers.learned.fields import parse_fields
from es_ttc.rescorers.learned.model import RankingModel, check_model_name

TREES = RankOptions()


@dataclass(frozen=True, kw_only=True)
class RankingOptions(JudgedQueries):
    """Options of `es-ttc train rank`."""

    out: Annotated[Path, FILE_PATH, "File for the model, NAME.json; requests name it by NAME."]
    metric: Annotated[
        str, "Metric by which the model is compared with blend: ndcg@k, recall@k, success@k, comp@k, map or mrr."
    ] = "ndcg@10"
    folds: Annotated[
        int | None,
        "--folds N",
        Field(ge=2, le=100),
        "Number of folds for the comparison; each is ranked by trees of the others. Default: 5.",
    ] = None
    signals: Annotated[
        str | None,
        "--signals NAMES",
        "Signals to learn from, separated by commas. Default: lexical,dense,spectral,late_interaction.",
    ] = None
    fields: Annotated[
        tuple[str, ...],
        "--field NAME[:missing=V]",
        "Numeric field of the documents to learn from too, by its path; can be given several times. Documents without "
        "it take the trees' branch for missing values, or count as V.",
    ] = ()
    force: Annotated[bool, "Write the model even if its gain over blend is not clear."] = False


@command(
    "es-ttc train rank data/mine --out models/mine.json",
    "es-ttc train rank data/mine data/others --out models/both.json",
    "es-ttc train rank data/mine --out models/mine.json --field clicks:missing=0",
    "es-ttc train rank data/mine --out models/mine.json --index shop",
    "es-ttc serve --ranking-models models",
    "es-ttc evaluate data/mine --methods blend,learned --ranking-models models",
)
def rank(data: Annotated[tuple[Path, ...], "DATA..."], /, *, options: RankingOptions, as_json: AsJson) -> None:
    """Learn a ranking over blend's signals and numeric fields (LambdaMART, by LightGBM) from one collection or several.

    Every signal is scored once for each query's candidates: what BM25 finds, joined by the nearest documents. Trees are
    fitted that begin from blend's mean. They are compared with blend on queries that the trees did not see
    (cross-fitting), and written only if the gain is clear (its 95 % interval lies above 0), or with --force.

    With --index NAME the documents are those of an index: what a gateway would score for a search of each query's text
    is logged from it in few requests, each document's features once.

    The file holds the trees as numbers. `es-ttc serve --ranking-models FOLDER` serves it as the method `learned`,
    without LightGBM.
    """
    out, metric = options.out, options.metric
    check_metric(metric)
    check_model_name(out)
    names, fields = signal_names(options.signals), parse_fields(options.fields)
    require_lightgbm()
    collections = []
    for folder in data:
        require_other_queries(folder, options.split, options.folds)
        collections.append(options.load(folder))
    folds = folds_of(options.folds, sum(len(collection.queries) for collection in collections))
    with interruptible():
        pools = options.pools(collections, names, [field.name for field in fields])
        with stages(pools.data) as progress:
            found = train_trees(
                pools, metric, folds=folds, names=names, fields=fields, options=TREES, seed=SEED, progress=progress
            )
    pools = pools.of(names)
    summary = {
        "model": out.stem,
        "data": pools.data,
        "split": pools.split,
        "queries": len(pools),
        "encoder": pools.encoder,
        "signals": pools.signals,
        **({"fields": [asdict(field) for field in fields]} if fields else {}),
        "metric": found.metric,
        "value": float(found.reached.mean()),
        "blend": float(found.default.mean()),
        "against_blend": {**found.against_default.as_json(), "folds": folds},
        "clear": found.clear,
        "gains": dict(found.gains),
        "options": asdict(TREES),
        "seed": SEED,
        **pools.settings,
        "versions": provenance.versions(),
        "date": provenance.timestamp(),
    }
    if found.clear or options.force:
        model = RankingModel(out.stem, pools.signals, TREES.blend, found.trees, summary, fields)
        require_writable(file=out)
        replace_file(out, model.content())
    if as_json:
        print_json(summary)
    else:
        heading = f"learned on {pools.data} ({pools.split}): {len(pools):,} queries, {folds} folds"
        _show(found, heading, "signal or field" if fields else "signal")
    report_written(out, clear=found.clear, force=options.force, what="model", default="blend")


def _show(found: RankTraining, heading: str, learned_from: str) -> None:
    out = tables.heading(heading)
    against = found.against_default
    rows = [
        ("blend", shown_score(found.default.mean()), "", ""),
        ("learned", shown_score(found.reached.mean()), interval_text(against), against.record),
    ]
    out.print(tables.table(("ranking", found.metric, "difference (95 % interval)", "won/tied/lost"), rows))
    shares = sorted(found.gains.items(), key=lambda item: -item[1])
    cells = [(escape(name), f"{share:.0%}") for name, share in shares]
    out.print(tables.table((learned_from, "share"), cells, title="share in what the trees gain"))
    if not found.clear:
        verdict = "worse than blend" if against.interval.high < 0 else "no clear gain over blend"
        click.echo(verdict, err=True)
