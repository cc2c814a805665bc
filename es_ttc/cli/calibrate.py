"""`es-ttc calibrate`: statistics of queries in an index, and the relevance of its hits."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import click
from rich.markup import escape

from es_ttc.cli import tables
from es_ttc.cli.common import (
    AsJson,
    EncoderName,
    EngineUrl,
    loaded_encoder,
    print_result,
    provided,
    stderr,
    with_engine,
)
from es_ttc.cli.judged import JudgedQueries, with_llm_flag
from es_ttc.cli.model_options import FILE_PATH, FOLDER_PATH, CommandGroup, command
from es_ttc.common.files import replace_file
from es_ttc.common.interruption import interruptible
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.mappings.calibration import calibrate as write
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.report import rendered, require_writable, shown_score
from es_ttc.lab.learning.query_log import read_log
from es_ttc.lab.ranking.relevance import MIN_CALIBRATION_QUERIES, RelevanceFit, evaluated, judged_hits
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.relevance import METHOD, Calibration
from es_ttc.rescorers.tuned import Tuned
from es_ttc.rescorers.tuned import as_json as file_content
from es_ttc.settings import EngineSettings, Settings
from es_ttc.vectors.moments import Moments

_WINDOW = 100
_FEW = 100  # number of queries below which the ranking suffers (docs/how-to/choose-a-program.md)


@click.group(cls=CommandGroup)
def calibrate() -> None:
    """Relate the scores of an index to other queries, or to the relevance of hits."""


@command("es-ttc calibrate queries articles --queries queries.txt", group=calibrate)
def queries(
    name: str,
    /,
    *,
    file: Annotated[
        Path,
        "--queries FILE",
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "Query log: one query per line, CSV with a column `query`, JSON, or UBI's searches and events; .gz too.",
    ],
    engine: EngineUrl,
    encoder: EncoderName,
    as_json: AsJson,
) -> None:
    """Store statistics of a sample of queries in the index NAME.

    The program `bidirzscore` relates a document's score to its scores for other queries. This command computes the mean
    and the main directions of a sample of query vectors and stores them in the index's mapping. It stores no query.
    NAME may also be an attached index, an alias or a data stream. Running the command again replaces the sample;
    running gateways notice within a minute.

    A few hundred queries from a log are sufficient. Never use queries that you evaluate with.
    """
    texts = list(read_log(file).counts)
    settings = Settings(**provided(engine=engine, encoder=encoder))
    loaded = loaded_encoder(settings)
    moments = with_engine(settings, lambda client: _calibrate(client, name, texts, loaded))
    if moments.size < _FEW:
        stderr.print(
            f"[yellow]note:[/] {moments.size} queries are few: below {_FEW} a document's statistics are noise, and "
            "`bidirzscore` may rank worse than dense"
        )
    data = {"index": name, "queries": moments.size, "directions": len(moments.factor)}
    print_result(data, f"calibrated index [{name}] with {moments.size:,} queries", as_json=as_json)


async def _calibrate(engine: Engine, name: str, texts: list[str], encoder: Encoder) -> Moments:
    written = [
        await write(engine, held.index, texts, encoder) for held in (await Indices.behind(engine, name)).features()
    ]
    return written[0]


@dataclass(frozen=True, kw_only=True)
class RelevanceOptions(JudgedQueries):
    """Options of `es-ttc calibrate relevance`."""

    split: Annotated[str, "--split NAME", "Split of DATA's queries."] = "train"
    window: int | str = _WINDOW
    index: str | None = None
    with_llm: Annotated[bool, with_llm_flag] = False
    tuned: Annotated[
        Path | None,
        FILE_PATH,
        "--tuned FILE",
        "Weights of blend that the gateway serves, a file of `es-ttc tune`. Default: the default weights.",
    ] = None
    out: Annotated[
        Path | None,
        FILE_PATH,
        "File for the numbers, for `es-ttc serve --tuned`. It is not written with too few judgements or no gain.",
    ] = None
    report: Annotated[
        Path | None,
        FOLDER_PATH,
        "--report FOLDER",
        "Folder for a page with the reliability diagram (index.html) and for relevance.json.",
    ] = None


@command(
    "es-ttc calibrate relevance shop --out relevance.json",
    "es-ttc calibrate relevance shop --with-llm --out relevance.json --report relevance",
    "es-ttc calibrate relevance shop data/mine --split test --out relevance.json",
    "es-ttc serve --tuned relevance.json",
    group=calibrate,
)
def relevance(
    name: str, data: Annotated[Path | None, "[DATA]"] = None, /, *, options: RelevanceOptions, as_json: AsJson
) -> None:
    """Fit the relevance of hits of the index NAME to judgements.

    Relevance is the probability that a hit is relevant. A search with `"relevance": true` shows it, and
    `"min_relevance": 0.3` leaves out hits with less. It is fitted to the first ten hits of `blend` for each judged
    query, by logistic regression; no hit becomes less relevant by a greater signal. Judgements are those of `es-ttc
    judge`, whoever made them; or those of the BEIR folder DATA, where a document without a judgement is not relevant.

    All figures are of queries that were not fitted. Nothing is written with too few judgements, or if relevance is no
    better than one number for all hits; the message says what is missing. NAME may be an alias or a data stream: the
    numbers then hold for searches of this name, and of each index behind it.
    """
    out, report, tuned = options.out, options.report, options.tuned
    if data is not None and options.with_llm:
        raise click.UsageError("--with-llm is for the judgements of the index: leave DATA out")
    require_writable(folder=report, file=out)
    weights = None if tuned is None else Tuned.read(tuned)
    if weights is not None and weights.method != "blend":
        raise InvalidRequest(f"[{tuned}] is of method [{weights.method}]: name a file of `es-ttc tune --method blend`")
    blend = None if weights is None else weights.params.get("signals")
    judged = replace(options, index=name, judgements=name if data is None else None)
    with interruptible():
        settings = EngineSettings(**provided(engine=options.engine))
        indices = with_engine(settings, lambda client: Indices.behind(client, name))
        indices.shared_spec()  # one calibration is for one encoder
        collection = judged.load(data)
        pools = judged.pools([collection], DEFAULT_SIGNALS)
        hits = judged_hits(pools, collection.qrels if data is None else None, blend=blend)
        if hits.queries < 2:
            raise InvalidRequest(
                f"{hits.queries} queries have judged hits, and {MIN_CALIBRATION_QUERIES} are needed: judge more"
            )
        fit = evaluated(hits, seed=SEED)
    calibration = Calibration(
        names=tuple(dict.fromkeys((name, *(one.source.index for one in indices.present)))),
        encoder=pools.encoder,
        blend=blend,
        model=fit.model,
        few=fit.few,
        queries=hits.queries,
        auc=fit.figures.auc,
        error=fit.figures.error,
    )
    summary = {
        "method": METHOD,
        "params": calibration.model_dump(mode="json", exclude={"encoder"}),
        "data": collection.name,
        "split": collection.split,
        "encoder": pools.encoder,
        **pools.settings,
        "seed": SEED,
        "versions": provenance.versions(),
        "date": provenance.timestamp(),
        "report": fit.report(),
    }
    if report is not None:
        replace_file(report / "relevance.json", file_content(summary))
        page = rendered("relevance.html.j2", **{**summary, "index": name})
        replace_file(report / "index.html", page.encode())
        stderr.print(f"report: {escape(str(report / 'index.html'))}", highlight=False, soft_wrap=True)
    if out is not None and not fit.lacking:
        replace_file(out, file_content(summary))
        stderr.print(f"relevance: {escape(str(out))}", highlight=False, soft_wrap=True)
    print_result(summary, lambda: _show(name, fit), as_json=as_json)
    if fit.lacking:
        why = escape("; ".join(fit.lacking))
        stderr.print(f"[yellow]not to be trusted, and not written:[/] {why}", highlight=False, soft_wrap=True)
        raise click.exceptions.Exit(1)


def _show(name: str, fit: RelevanceFit) -> None:
    relevant = fit.hits.relevant
    console = tables.heading(
        f"{name}: {fit.hits.queries:,} queries, {len(relevant):,} judged hits, {int(relevant.sum()):,} relevant"
    )
    measured = [*fit.by_queries.items(), (f"{fit.hits.queries} (5 folds)", fit.figures)]
    rows = [(str(size), *map(shown_score, (one.auc, one.brier, one.error))) for size, one in measured]
    columns = ("judged queries", "AUC", "Brier score", "calibration error")
    console.print(tables.table(columns, rows, title="on queries that were not fitted"))
    shares = [(shown_score(one.relevance), shown_score(one.share), str(one.hits)) for one in fit.bins]
    console.print(tables.table(("mean relevance", "share of relevant hits", "hits"), shares))
