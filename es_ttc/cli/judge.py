"""`es-ttc judge`: pools of documents to judge, what judges have done, and judgements in and out."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import orjson
from pydantic import Field
from rich.markup import escape

from es_ttc.cli.common import (
    AsJson,
    EngineUrl,
    print_json,
    print_result,
    progress_bar,
    provided,
    stderr,
    stdout,
    with_engine,
)
from es_ttc.cli.judge_pool import grade_by_llm, make_pools
from es_ttc.cli.judged import interval_text, read_judged, with_llm_flag
from es_ttc.cli.model_options import FILE_PATH, CommandGroup, command
from es_ttc.cli.options import NamesType, params_option
from es_ttc.cli.search import GatewayOptions
from es_ttc.cli.tables import table
from es_ttc.common.files import replace_file
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.evaluation.datasets import CORPUS
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.judging import formats
from es_ttc.lab.judging.formats import Format, Judged
from es_ttc.lab.judging.overview import Overview
from es_ttc.lab.judging.records import PooledMethod, PooledQuery, check_judge, query_id
from es_ttc.lab.judging.standing import TunedWeights
from es_ttc.lab.judging.store import JudgementStore
from es_ttc.lab.learning.query_log import records, text_in
from es_ttc.settings import EngineSettings, Settings

_MAX_QUERIES = 10_000
_SHOWN_UNKNOWN = 5  # documents that the index does not have

index_argument = click.argument("index", metavar="INDEX")
format_option = click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in Format]),
    required=True,
    help="beir: folder with queries.jsonl and qrels/SPLIT.tsv. trec: TREC qrels. trec-run: TREC run. workbench: "
    "judgement list of OpenSearch's Search Relevance Workbench. quepid: Quepid's CSV.",
)
split_option = click.option(
    "--split", metavar="NAME", default="test", show_default=True, help="Split of a BEIR folder: qrels/NAME.tsv."
)


@click.group(cls=CommandGroup)
def judge() -> None:
    """Judge what searches of an index find, on the page of `es-ttc serve --ui`; judgements in and out.

    Pools and judgements are documents of the index ttc-judgements in the engine.
    """


@command(
    "es-ttc judge pool articles queries.txt",
    'es-ttc judge pool articles --query "red shoes" --methods blend,bm25 --depth 20',
    "es-ttc judge pool articles --by llm",
    group=judge,
)
def pool(
    index: Annotated[str, index_argument],
    file: Annotated[Path | None, FILE_PATH, "[QUERIES]"] = None,
    /,
    *,
    texts: Annotated[tuple[str, ...], "--query TEXT", "A query; may be given several times."] = (),
    methods: Annotated[
        tuple[str, ...],
        click.option(
            "--methods",
            type=NamesType(),
            default="blend,hybrid,bm25",
            show_default=True,
            metavar="NAMES",
            help="Methods whose documents are judged.",
        ),
    ],
    params: Annotated[
        dict[str, dict[str, Any]],
        params_option("Parameters by method.", '{"blend": {"signals": {"lexical": 1}}}', nested=True),
    ],
    depth: Annotated[int, Field(ge=1, le=100), "Documents of each method's ranking that are judged."] = 10,
    by: Annotated[
        Literal["llm"] | None,
        "Let the configured language model (ES_TTC_LLM_URL) grade the pooled documents that it has not graded; "
        "without QUERIES those of the existing pools.",
    ] = None,
    through: GatewayOptions,
    as_json: AsJson,
) -> None:
    """Search INDEX for queries by several methods, and pool the documents to judge.

    QUERIES is a file of queries, one per line: text, or a JSON object with `text` and, if it has one, `_id`; or CSV. A
    query's pool is the union of the first documents of every method. A query that is pooled again gets a new pool; its
    judgements stay.

    The pool also keeps the signals of blend, from which `es-ttc judge status` and the page choose weights.
    """
    settings = EngineSettings(**provided(engine=through.engine))
    with_engine(settings, lambda client: JudgementStore(client, index).require_index())
    queries = queries_of(file, texts)
    if not queries and by is None:
        raise click.UsageError("name queries: a file QUERIES, or --query TEXT")
    found: dict[str, Any] = {"index": index}
    if queries:
        resolve(methods, params)
        pooling = [PooledMethod(name, params.get(name, {})) for name in dict.fromkeys(methods)]
        pooled, note = make_pools(index, queries, pooling, depth, through)
        documents = sum(len(one.documents) for one in pooled)
        found |= {"queries": len(pooled), "documents": documents, "signals": not note}
        if note:
            click.echo(f"note: {note}", err=True)
        if not as_json:
            click.echo(f"pooled {len(pooled):,} queries of index [{index}]: {documents:,} documents to judge")
    if by is not None:
        model, graded, unreadable = asyncio.run(grade_by_llm(Settings(**provided(engine=through.engine)), index))
        found |= {"judge": model, "graded": graded, "unreadable": unreadable}
        if not as_json:
            click.echo(f"[{model}] graded {graded:,} documents; {unreadable:,} answers held no grade")
    text = f"judge them on the page of `es-ttc serve --ui`; `es-ttc judge status {index}` shows what is judged"
    print_result(found, text, as_json=as_json)


@command("es-ttc judge status articles", "es-ttc judge status articles --with-llm --json", group=judge)
def status(
    index: Annotated[str, index_argument],
    /,
    *,
    with_llm: Annotated[bool, with_llm_flag],
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Show what is judged, how judges agree, and how the pooled methods stand.

    Of several judges the median counts. nDCG@10 takes a document without a judgement for not relevant; unjudged@10 is
    the share of such documents among a method's first ten.
    """
    overview = read_judged(EngineSettings(**provided(engine=engine)), index, with_llm=with_llm)
    tuned = overview.tuned()
    stands = overview.standing()
    if as_json:
        chosen: Any = tuned.as_dict() if isinstance(tuned, TunedWeights) else {"why": tuned}
        print_json(overview.as_dict() | {"standing": stands.as_dict(), "tuned": chosen})
        return
    _show(overview)
    if stands.methods:
        rows = [
            (
                escape(one.method),
                f"{one.ndcg:.3f}",
                f"{one.interval.low:.3f} to {one.interval.high:.3f}",
                "" if one.behind is None else interval_text(one.behind),
                f"{one.unjudged:.0%}",
            )
            for one in stands.methods
        ]
        columns = ("method", "nDCG@10", "95 % interval", "best against it", "unjudged@10")
        stdout.print(table(columns, rows, title=f"{stands.judged_queries:,} judged queries"))
        best = stands.methods[0].method
        sentence = "is clearly better than each other one" if stands.clear else "is not clearly better yet"
        click.echo(f"[{best}] {sentence}")
    if isinstance(tuned, TunedWeights):
        gain = interval_text(tuned.found.tuning.against_default)
        params = orjson.dumps(tuned.summary["params"]).decode()
        unclear = "" if tuned.found.clear else "; no clear gain yet"
        stdout.print(f"tuning would choose {escape(params)}: nDCG@10 {gain}, cross-fitted{unclear}", soft_wrap=True)
    else:
        click.echo(f"no weights of blend are chosen: {tuned}")


@command(
    "es-ttc judge import articles data/scifact --format beir --split train",
    "es-ttc judge import articles ratings.csv --format quepid --highest 10",
    "es-ttc judge import articles qrels.txt --format trec --queries queries.jsonl",
    group=judge,
    name="import",
)
def import_(
    index: Annotated[str, index_argument],
    path: Annotated[Path, click.Path(exists=True, path_type=Path)],
    /,
    *,
    form: Annotated[str, format_option],
    name: Annotated[str, "--judge NAME", "Name of the judge who gets the grades."] = "import",
    split: Annotated[str, split_option],
    highest: Annotated[
        float | None,
        "--highest N",
        Field(gt=0),
        "Greatest grade of the file's scale from 0, which is scaled to 0 to 3. Default: its grades are 0 to 3.",
    ] = None,
    queries_file: Annotated[
        Path | None,
        "--queries",
        FILE_PATH,
        "Texts of the queries, for TREC forms, whose files have ids alone: JSON objects with `_id` and `text`. "
        "Queries that are pooled already are known.",
    ] = None,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Read judgements of INDEX from PATH; or, of a TREC run, the documents of a method into the pools.

    A judge's earlier grades of the same documents are replaced. Grades of documents that INDEX does not have are left
    out, and a note says of how many and which.
    """
    check_judge(name)
    texts = dict(queries_of(queries_file, ())) if queries_file is not None else {}

    async def import_into(client: Engine) -> dict[str, Any]:
        store = JudgementStore(client, index)
        await store.require_index()
        pools = await store.pools()
        known = {query.id: query.text for query in pools} | texts
        if form == "trec-run":
            changed = with_runs(pools, formats.read_runs(path), known)
            unknown = await store.unknown({name for one in changed for run in one.runs for name in run})
            await store.put_pools(changed)
            return {"index": index, "queries": len(changed), "unknown_documents": sorted(unknown), "runs": True}
        judged = formats.read_judgements(Format(form), path, known, split=split, highest=highest)
        unknown = await store.unknown(documents := judged.documents)
        judged = judged.without(unknown)
        if not judged.qrels:
            raise InvalidRequest(
                f"index [{index}] has none of the {len(documents):,} judged documents, such as [{min(documents)}]: "
                "give the ids that its documents have"
            )
        pooled = {query.id for query in pools}
        await store.put_pools([PooledQuery(query, text) for query, text in judged.texts.items() if query not in pooled])
        count = await store.put_grades(judged.qrels, name)
        return {
            "index": index,
            "queries": len(judged.qrels),
            "judgements": count,
            "judge": name,
            "unknown_documents": sorted(unknown),
        }

    with stderr.status("importing"):
        found = with_engine(EngineSettings(**provided(engine=engine)), import_into)
    if unknown := found["unknown_documents"]:
        what = "their grades are left out" if "judgements" in found else "nobody can judge them"
        shown = ", ".join(f"[{one}]" for one in unknown[:_SHOWN_UNKNOWN])
        click.echo(f"note: index [{index}] does not have {len(unknown):,} documents, {what}: {shown}", err=True)
    text = f"imported runs of {found['queries']:,} queries into the pools of index [{index}]"
    if "judgements" in found:
        text = (
            f"imported {found['judgements']:,} judgements of {found['queries']:,} queries of index [{index}], "
            f"by judge [{name}]"
        )
    print_result(found, text, as_json=as_json)


@command(
    "es-ttc judge export articles --format beir --out judged --corpus",
    "es-ttc judge export articles --format workbench --out judgements.json",
    group=judge,
)
def export(
    index: Annotated[str, index_argument],
    /,
    *,
    form: Annotated[str, format_option],
    out: Annotated[Path, "--out PATH", "File; folder for beir."],
    name: Annotated[str | None, "--judge NAME", "Judge whose grades are written. Default: the median of all."] = None,
    with_llm: Annotated[bool, with_llm_flag],
    split: Annotated[str, split_option],
    corpus: Annotated[bool, "For beir: also write the index's documents, for `es-ttc evaluate`."] = False,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Write the judgements of INDEX, or with --format trec-run what the pooled methods found."""
    if corpus and form != "beir":
        raise click.UsageError("--corpus goes with --format beir")
    settings = EngineSettings(**provided(engine=engine))
    overview = read_judged(settings, index, with_llm=with_llm)
    if form == "trec-run":
        runs = runs_of(overview.queries)
        replace_file(out, formats.trec_runs(runs))
        found: dict[str, Any] = {"index": index, "runs": sorted(runs), "out": str(out)}
    else:
        qrels = overview.qrels if name is None else overview.of_judge(name)
        known = {query.id: query.text for query in overview.queries}
        judged = Judged({query: known[query] for query in qrels}, qrels)
        if not qrels:
            raise InvalidRequest(f"index [{index}] has no judgement to export")
        match form:
            case "beir":
                formats.write_beir(out, judged, split)
                if corpus:
                    with_engine(settings, lambda client: _write_corpus(client, index, out))
            case "trec":
                replace_file(out, formats.trec(qrels))
            case "workbench":
                replace_file(
                    out, formats.workbench(judged, f"es-ttc {index}", f"Judgements of index {index} by es-ttc")
                )
            case _:
                replace_file(out, formats.quepid(judged))
        count = sum(map(len, qrels.values()))
        found = {"index": index, "queries": len(qrels), "judgements": count, "out": str(out)}
    what = f"{found['judgements']:,} judgements" if "judgements" in found else f"{len(found['runs'])} runs"
    print_result(found, f"wrote {what} of index [{index}] to {out}", as_json=as_json)


def queries_of(file: Path | None, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return ids and texts of queries, of a file and of the command line, each text once."""
    if file is not None and not file.exists():
        raise InvalidRequest(f"there is no file [{file}] of queries; a query itself is given with --query TEXT")
    found: dict[str, str] = {}
    for record in () if file is None else records(file):
        text, name = text_in(record), record.get("_id")
        if not text:
            raise ConfigurationError(f"[{file}] has a line without a query: {str(dict(record))[:80]}")
        if found.setdefault(query_id(text) if name is None else str(name), text) != text:
            raise ConfigurationError(f"[{file}] repeats [_id] [{name}] with another text")
    for text in texts:
        if not text.strip():
            raise InvalidRequest("[query] is blank: give a text")
        found.setdefault(query_id(text), text.strip())
    if len(found) > _MAX_QUERIES:
        raise InvalidRequest(f"{len(found):,} queries are too many: give up to {_MAX_QUERIES:,}")
    return list(found.items())


def with_runs(
    pools: Sequence[PooledQuery], runs: Mapping[str, Mapping[str, Sequence[str]]], texts: Mapping[str, str]
) -> list[PooledQuery]:
    """Return the pools of a run's queries, with the run as one more method, or in place of the one of its name."""
    changed = {query.id: query for query in pools}
    touched: dict[str, None] = {}
    for tag, by_query in runs.items():
        for name, run in by_query.items():
            if name not in texts:
                raise InvalidRequest(f"the text of query [{name}] is not known: give the queries with --queries FILE")
            query = changed.get(name) or PooledQuery(name, texts[name])
            of_method = dict(zip(query.methods, query.runs, strict=True)) | {PooledMethod(tag): tuple(run)}
            changed[name] = PooledQuery(name, query.text, tuple(of_method), tuple(of_method.values()), query.depth)
            touched[name] = None
    return [changed[name] for name in touched]


def runs_of(queries: Sequence[PooledQuery]) -> dict[str, dict[str, Sequence[str]]]:
    """Return what the pooled methods found, by method and query."""
    runs: dict[str, dict[str, Sequence[str]]] = {}
    for query in queries:
        for method, run in zip(query.methods, query.runs, strict=True):
            runs.setdefault(method.name, {})[query.id] = run
    if not runs:
        raise InvalidRequest("nothing is pooled: there are no runs to export")
    return runs


def _show(overview: Overview) -> None:
    click.echo(
        f"index [{overview.index}]: {len(overview.queries):,} queries, {overview.pooled:,} pooled documents, "
        f"{overview.unjudged:,} without a judgement"
    )
    for name, (source, count) in overview.judges.items():
        click.echo(f"  {name} ({source}): {count:,} judgements")
    for pair in overview.agreement:
        kappa = "undefined" if pair.kappa is None else f"{pair.kappa:.2f}"
        click.echo(
            f"  {' and '.join(pair.judges)} both judged {pair.both:,}: {pair.equal:.0%} equal, kappa {kappa} (Cohen's, "
            "linear weights)"
        )


async def _write_corpus(client: Engine, index: str, out: Path) -> None:
    fields = (await Indices.behind(client, index)).shared_spec().text_fields
    rest = [name for name in fields if name != "title"]
    with progress_bar() as bar, (out / CORPUS).open("wb") as lines:
        task = bar.add_task("documents", total=await client.count(index))
        async for hit in client.scan(index, {"match_all": {}}, source=list(fields)):
            source = hit.get("_source") or {}
            title = compose(source, ["title"])[0] if "title" in fields else ""
            record = {"_id": hit["_id"], "title": title, "text": compose(source, rest)[0]}
            lines.write(orjson.dumps(record) + b"\n")
            bar.advance(task)
