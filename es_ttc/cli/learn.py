"""`es-ttc learn` and `es-ttc trial`: an adapter of the encoder from the queries of an index, judged by clicks."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
from pydantic import Field
from rich.markup import escape

from es_ttc.cli import tables
from es_ttc.cli.common import AsJson, EncoderOptions, EngineUrl, print_json, print_result, require_packages
from es_ttc.cli.evaluating import stages
from es_ttc.cli.judged import interval_text, load_judged, report_written, with_llm_flag
from es_ttc.cli.model_options import FILE_PATH, FOLDER_PATH, command
from es_ttc.cli.search import encoder_of_index
from es_ttc.common.interruption import interruptible
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.report import require_writable
from es_ttc.lab.learning.evaluation import MIN_CLICKED, evaluation_of_trial
from es_ttc.lab.learning.query_log import QueryLog, read_log
from es_ttc.lab.learning.teachers import TEACHERS, require_scoring
from es_ttc.lab.ranking.index_pools import IndexSource
from es_ttc.lab.training.artefact import require_free
from es_ttc.reranking.rerankers.base import RerankerError
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM
from es_ttc.settings import GatewaySettings

if TYPE_CHECKING:
    from es_ttc.lab.learning.session import LearnedAdapter

_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class LearnOptions(EncoderOptions):
    """Options of `es-ttc learn`."""

    log: Annotated[
        Path | None,
        "--queries FILE",
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "Query log: one query per line, CSV or TSV with a column `query`, JSON, or UBI's searches and events; "
        ".gz too. Default: the judged queries of the index alone.",
    ] = None
    out: Annotated[Path, "--out FOLDER", FOLDER_PATH, "Folder for the adapter."]
    teachers: Annotated[
        tuple[Literal["judgements", "clicks", "reranker", "blend"], ...],
        "--teacher",
        "Source of the training target; may be given several times. Default: all; each query uses the first that "
        "covers it.",
    ] = ()
    max_queries: Annotated[
        int, "--max-queries N", Field(ge=20, le=100_000), "Number of queries of the log, the most frequent ones."
    ] = 2000
    reranker: Annotated[
        str | None,
        "--reranker NAME",
        f"Reranker that teaches queries without judgements and clicks: {MSMARCO_MINILM}, or one of the settings. It "
        "scores blend's first ten documents of each.",
    ] = None
    rerank_budget: Annotated[
        int,
        "--rerank-budget N",
        Field(ge=10),
        "Maximum number of documents that the reranker scores; frequent queries first.",
    ] = 10_000
    with_llm: Annotated[bool, with_llm_flag]
    force: Annotated[bool, "Write the adapter even if its gain is not clear."] = False
    engine: EngineUrl = None


@command(
    "es-ttc learn shop --queries queries.log --out encoders/shop",
    "es-ttc learn shop --queries ubi.jsonl --out encoders/shop",
    "es-ttc learn shop --out encoders/shop",
    'ES_TTC_QUERY_ADAPTERS=\'{"shop": "encoders/shop"}\' es-ttc serve',
)
def learn(name: str, /, *, options: LearnOptions, as_json: AsJson) -> None:
    """Learn better vectors of queries for the index NAME (or alias) from its queries.

    For each query the documents that blend would rank are scored once. A small network over the encoder's vectors of
    queries learns to order them as judgements (`es-ttc judge`), clicks, a reranker or, without these, blend itself do.
    It is tested on queries about documents that it has not learned from (five folds), and written only if blend's
    nDCG@10 is clearly better on 20 judged queries or more, else on 20 with clicks. With neither nothing is proved, and
    it is written with --force only, for a trial by clicks.

    If it is stopped, the same command goes on: until it ends, FOLDER.unfinished has what was read and scored, without
    texts of queries.

    Documents and their vectors do not change: a gateway serves the adapter by its setting `query_adapters`, and without
    the setting everything is as before.
    """
    require_packages("training", ("torch",), "train")
    out, reranker = options.out, options.reranker
    if "reranker" in options.teachers and reranker is None:
        raise click.UsageError("--teacher reranker needs --reranker NAME")
    from es_ttc.lab.learning.session import TrainingData, learn_from, write_adapter

    require_free(out)
    require_writable(file=out)
    settings = options.settings(GatewaySettings, engine=options.engine)
    settings = settings.model_copy(update={"query_adapters": {}})  # compared with the encoder alone
    if reranker is not None:
        require_scoring(settings, reranker)
    logged = None if options.log is None else _note_left_out(read_log(options.log), options.max_queries)
    queries = _queries(name, settings, logged, options.max_queries, with_llm=options.with_llm)
    base = encoder_of_index(settings, name)
    if base.identity.tokens is not None:
        raise InvalidRequest(
            f"the token vectors of [{name}] are another encoder's, [{base.identity.tokens.model}], and one adapter "
            "maps both kinds: attach the index with one encoder"
        )
    clicks = {} if logged is None else logged.clicks
    data = TrainingData(queries, clicks, options.teachers or TEACHERS, reranker, options.rerank_budget, SEED)
    keep = out.with_name(f"{out.name}.unfinished")
    try:
        with interruptible(), stages(name) as progress:
            found = learn_from(data, IndexSource(name, settings, lambda _spec: base), base.identity, keep, progress)
    except (KeyboardInterrupt, EngineError, RerankerError):
        click.echo(f"es-ttc: not finished; the same command goes on, from [{keep}]", err=True)
        raise
    except InvalidRequest:
        shutil.rmtree(keep, ignore_errors=True)
        raise
    written = found.evaluation.clear or options.force
    if written:
        write_adapter(out, found, base_name=settings.encoder, base=base.identity, cache_dir=settings.cache_dir)
    shutil.rmtree(keep)
    if as_json:
        print_json({"index": name, "folder": str(out), **found.as_dict()})
    else:
        _show(name, found)
        if written:
            click.echo(
                "serve it: put this into es-ttc.toml, and start `es-ttc serve` again; take it out to go back\n\n"
                f'[query_adapters]\n"{name}" = "{out.resolve()}"'
            )
    report_written(out, clear=found.evaluation.clear, force=options.force, what="adapter", default="the encoder alone")


def _note_left_out(log: QueryLog, most: int) -> QueryLog:
    """Say which lines of a log are not learned from."""
    if log.skipped:
        click.echo(f"note: {log.skipped:,} lines of the log were no query", err=True)
    if (left := len(log.counts) - most) > 0:
        click.echo(f"note: {left:,} less frequent queries of the log are left out (--max-queries {most})", err=True)
    return log


def _queries(name: str, settings: GatewaySettings, log: QueryLog | None, most: int, *, with_llm: bool) -> Collection:
    """Return the judged queries of the index and the most frequent ones of the log, by their texts."""
    judged = Collection(name, "log", (), {}, {})
    try:
        judged = load_judged(settings, name, with_llm=with_llm)
    except InvalidRequest:
        if log is None:
            raise
    texts = {text: judged.qrels[query] for query, text in judged.queries.items()}
    frequent = [] if log is None else sorted(log.counts, key=lambda text: -log.counts[text])[:most]
    qrels: dict[str, Mapping[str, int]] = {text: {} for text in frequent} | texts
    return replace(judged, queries={text: text for text in qrels}, qrels=qrels)


def _show(name: str, found: "LearnedAdapter") -> None:
    evaluation = found.evaluation
    queries_by_teacher = ", ".join(f"{count:,} by {teacher}" for teacher, count in found.adapters.taught.items())
    console = tables.heading(f"{name}: {len(found.pools):,} queries ({queries_by_teacher})")
    compared = [
        ("blend, by judgements", evaluation.blend),
        ("vectors alone, by judgements", evaluation.dense),
        ("blend, by clicks", evaluation.clicked),
        ("vectors alone, agreement with blend", evaluation.agreement),
    ]
    rows = [(what, interval_text(one), one.record) for what, one in compared if one is not None]
    columns = ("nDCG@10 of queries that were not learned from", "difference (95 % interval)", "won/tied/lost")
    console.print(tables.table(columns, rows))
    console.print(f"{evaluation.new_hits:.0%} of blend's first ten documents are new", highlight=False)
    moved = [change for change in evaluation.changes if change.before[:3] != change.after[:3]][:_SHOWN]
    shown = [(escape(one.query), escape(", ".join(one.before[:3])), escape(", ".join(one.after[:3]))) for one in moved]
    if shown:
        console.print(tables.table(("query", "first three before", "after"), shown))
    clicked = len(found.data.clicks) if "clicks" in found.data.teachers else 0
    if clicked and not {"clicks", "judgements"} & {*found.adapters.taught}:
        click.echo(
            f"note: {clicked:,} queries have clicks, and none teaches: a click must name the `_id` of a document of "
            f"[{name}], and a query needs two on the first hit or one further down",
            err=True,
        )
    if evaluation.blend is None and evaluation.clicked is None:
        click.echo(
            f"note: {evaluation.judged} queries are judged and few have clicks, so nothing proves that users see "
            f"better hits: judge some (`es-ttc judge pool {name}`), or write it with --force for a trial (`es-ttc "
            "trial`)",
            err=True,
        )


@command("es-ttc trial shop trial.jsonl --clicks ubi.jsonl")
def trial(
    name: str,
    file: Annotated[Path, FILE_PATH],
    /,
    *,
    clicks: Annotated[
        Path, "--clicks FILE", FILE_PATH, "Log with the clicks, in a form that `es-ttc learn --queries` reads."
    ],
    as_json: AsJson,
) -> None:
    """Decide by clicks whether the adapter on trial for the index NAME is better.

    FILE is that of the gateway's setting `trial_log`: for each search of the trial it says which ranking has put each
    hit there. A query counts once, with the share of its clicks that are on the adapter's hits.
    """
    found = evaluation_of_trial(file, name, read_log(clicks, weight=lambda _position: 1.0).clicks)
    lines = [f"{name}: {found.searches:,} searches of {found.queries:,} queries, {found.clicked:,} of them clicked"]
    if found.shares is None:
        lines.append(f"no verdict: [{MIN_CLICKED}] clicked queries are needed")
        winner = None
    else:
        one, low, high = found.shares, found.shares.interval.low, found.shares.interval.high
        winner = "adapter" if low > 0 else "encoder alone" if high < 0 else None
        lines += [
            f"queries with most clicks on the adapter's hits: {one.wins}, on others: {one.losses}, even: {one.ties}",
            f"share of clicks, adapter less encoder alone: {one.delta:+.2f} ({low:+.2f} to {high:+.2f})",
            f"better: {winner}" if winner else "neither is clearly better yet",
        ]
    print_result({"index": name, **asdict(found), "better": winner}, "\n".join(lines), as_json=as_json)
