"""`es-ttc jobs`: enrichment of a corpus by a language model, as jobs that workers process."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import connected, engine_flag, given, json_flag, print_json, stderr, stdout
from es_ttc.cli.options import JsonObjectType, WholeHelpGroup, examples
from es_ttc.errors import LlmError, LlmFailure
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.engine.protocol import Engine
    from es_ttc.enrichment.jobs.commands import AnyStatus
    from es_ttc.enrichment.jobs.encoding_service import EncodingStatus
    from es_ttc.enrichment.jobs.record import Job
    from es_ttc.enrichment.jobs.service import DryRun, JobRequest, JobStatus, SampledDocument

_STATES = ("running", "paused", "completed", "cancelled")
_MAX_PHRASES = 12
_MAX_TEXT = 160
_SHARES = (0.3, 0.5, 0.7)
_WRONG_API = (
    "a base model, which only continues texts, needs ES_TTC_LLM_API=completions, and an assistant needs "
    "ES_TTC_LLM_API=chat"
)


@click.group(cls=WholeHelpGroup)
def jobs() -> None:
    """Submit, watch and control jobs. `es-ttc worker` processes them."""


@jobs.command(
    epilog=examples(
        "es-ttc jobs submit products --dry-run",
        "es-ttc jobs submit products --prompt claims --tau 0.02",
        "es-ttc jobs submit products --continuous --budget-tokens 5000000",
    ),
)
@click.argument("index")
@engine_flag
@click.option(
    "--query", type=JsonObjectType('{"term": {"lang": "en"}}'), help="Query that selects documents. Default: all."
)
@click.option(
    "--prompt",
    metavar="NAME|FILE",
    help="Prompt: general, claims, arguments, duplicates, questions; base for a model that only continues texts; "
    "doc2query or doc2query-base, with --whole, for queries; or "
    "a file with {{document}} in it. Default: general, or base if ES_TTC_LLM_API is completions.",
)
@click.option(
    "--tau",
    type=float,
    default=0.05,
    show_default=True,
    help="Maximum share of documents that contain a phrase; phrases above are dropped, 1 keeps all.",
)
@click.option(
    "--min-similarity",
    type=click.FloatRange(-1, 1),
    help="Minimum cosine of a phrase's vector with its document's, by the index's encoder; phrases below are dropped. "
    "--dry-run shows which share of the phrases reaches which cosine.",
)
@click.option(
    "--phrases",
    type=click.IntRange(1, 50),
    default=10,
    show_default=True,
    help="Maximum number of phrases per document.",
)
@click.option(
    "--words", type=click.IntRange(1, 5), default=3, show_default=True, help="Maximum number of words per phrase."
)
@click.option(
    "--whole",
    is_flag=True,
    help="Write proposals as they are, as doc2query writes queries: not cut, nor filtered by text and document "
    "frequency; --min-similarity filters them, as in doc2query--.",
)
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="Temperature of the model."
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(8, 8192),
    default=256,
    show_default=True,
    help="Maximum length of an answer, in tokens.",
)
@click.option(
    "--characters",
    type=click.IntRange(100, 200_000),
    default=4000,
    show_default=True,
    help="Maximum number of characters of a document sent to the model.",
)
@click.option("--redo", is_flag=True, help="Also process documents enriched with another prompt, model or parameters.")
@click.option("--continuous", is_flag=True, help="Keep running and process later documents, until cancelled.")
@click.option(
    "--lanes", type=click.IntRange(1, 64), default=8, show_default=True, help="Number of partitions of the job."
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of model calls in flight per partition.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    default=5,
    show_default=True,
    help="Priority; jobs with a greater one run first.",
)
@click.option("--budget-tokens", type=click.IntRange(1), help="Budget in tokens; the job pauses when it is spent.")
@click.option(
    "--budget-cost", type=click.FloatRange(0, min_open=True), help="Budget in money; the job pauses when it is spent."
)
@click.option("--price-read", type=click.FloatRange(0), default=0.0, help="Price of a million tokens read.")
@click.option("--price-written", type=click.FloatRange(0), default=0.0, help="Price of a million tokens written.")
@click.option(
    "--most-failures",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Number of failures in a row after which the job pauses.",
)
@click.option("--dry-run", is_flag=True, help="Process a sample without writing; show before, after, cost and time.")
@click.option(
    "--sample", type=click.IntRange(1, 100), default=5, show_default=True, help="Number of documents for --dry-run."
)
@json_flag
def submit(index: str, engine: str | None, dry_run: bool, sample: int, as_json: bool, **options: Any) -> None:
    """Submit a job that enriches the documents of INDEX."""
    from es_ttc.enrichment.jobs import service

    request = _job_request(index, options)
    if dry_run:
        with stderr.status(f"asking the model about {sample} documents"):
            trial = _run(engine, lambda client, settings: service.dry_run(client, settings, request, sample))
        _show_trial(trial, as_json=as_json)
        if trial.documents and all(each.problem for each in trial.documents):
            raise LlmError(
                f"the model gave no phrases for any of {len(trial.documents)} documents; {_WRONG_API}",
                LlmFailure.MALFORMED,
            )
        return
    status = _run(engine, lambda client, settings: service.submit(client, settings, request))
    if as_json:
        print_json(status.as_dict())
        return
    click.echo(f"submitted job {status.job.id}: {status.job.total:,} documents of [{status.job.index}]")
    if status.waits_for:
        click.echo(f"it waits for job {status.waits_for} on the same index")
    click.echo(f"follow it with `es-ttc jobs watch {status.job.id}`; `es-ttc worker` does the work")


@jobs.command("list")
@engine_flag
@click.option(
    "--state", multiple=True, type=click.Choice(_STATES), help="State of the jobs to show; may be given several times."
)
@json_flag
def list_jobs(engine: str | None, state: tuple[str, ...], as_json: bool) -> None:
    """List jobs, the newest first."""
    from es_ttc.enrichment.jobs import commands

    async def listed_with_workers(client: "Engine", settings: Settings) -> "tuple[list[AnyStatus], str]":
        return await commands.listed(client, settings, state), await commands.unattended(client, settings)

    found, unattended = _run(engine, listed_with_workers)
    if unattended and any(each.job.status == "running" for each in found):
        stderr.print(unattended, highlight=False, soft_wrap=True)
    if as_json:
        print_json({"jobs": [each.as_dict() for each in found]})
    elif not found:
        click.echo("there are no jobs; `es-ttc jobs submit INDEX` makes one")
    else:
        stdout.print(_table(found))


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def show(job: str, engine: str | None, as_json: bool) -> None:
    """Show one job: plan, counts, cost, failures with reasons."""
    from es_ttc.enrichment.jobs import commands

    _report(_run(engine, lambda client, settings: commands.shown(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def pause(job: str, engine: str | None, as_json: bool) -> None:
    """Pause JOB. Documents under way are finished, no further one is started."""
    from es_ttc.enrichment.jobs import commands

    _report(_run(engine, lambda client, settings: commands.pause(client, settings, job)), as_json=as_json)


@jobs.command(
    epilog=examples(
        "es-ttc jobs resume JOB --budget-tokens 10000000",
    ),
)
@click.argument("job")
@engine_flag
@click.option("--budget-tokens", type=click.IntRange(1), help="New budget in tokens, for the whole job.")
@click.option("--budget-cost", type=click.FloatRange(0, min_open=True), help="New budget in money, for the whole job.")
@json_flag
def resume(job: str, engine: str | None, budget_tokens: int | None, budget_cost: float | None, as_json: bool) -> None:
    """Resume JOB."""
    from es_ttc.enrichment.jobs import commands

    found = _run(
        engine,
        lambda client, settings: commands.resume(client, settings, job, tokens=budget_tokens, cost=budget_cost),
    )
    _report(found, as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def cancel(job: str, engine: str | None, as_json: bool) -> None:
    """Cancel JOB. Existing enrichment is kept."""
    from es_ttc.enrichment.jobs import commands

    _report(_run(engine, lambda client, settings: commands.cancel(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def retry(job: str, engine: str | None, as_json: bool) -> None:
    """Process the failed documents of JOB again."""
    from es_ttc.enrichment.jobs import commands

    _report(_run(engine, lambda client, settings: commands.retry(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@click.option(
    "--every", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between two updates."
)
@json_flag
def watch(job: str, engine: str | None, every: float, as_json: bool) -> None:
    """Show the progress of JOB until it pauses or ends; with --json one line per update."""
    from es_ttc.enrichment.jobs import commands

    with Live(console=stdout, auto_refresh=False, transient=True) as live:
        while True:
            status = _run(engine, lambda client, settings: commands.shown(client, settings, job))
            if as_json:
                live.stop()
                print_json(status.as_dict())
            else:
                live.update(_details(status), refresh=True)
            if status.job.status != "running":
                break
            time.sleep(every)
    if not as_json:
        stdout.print(_details(status))


def _job_request(index: str, options: dict[str, Any]) -> "JobRequest":
    from es_ttc.common.validation import Fault, read_object, sentence
    from es_ttc.enrichment.jobs.record import Budget, Price
    from es_ttc.enrichment.jobs.service import JobRequest
    from es_ttc.errors import InvalidRequest

    budget = Budget(tokens=options.pop("budget_tokens"), cost=options.pop("budget_cost"))
    price = Price(read=options.pop("price_read"), written=options.pop("price_written"))
    named = {"most": options.pop("phrases"), "most_words": options.pop("words")}
    try:
        return read_object(JobRequest, {"index": index, "budget": budget, "price": price, **named, **options})
    except Fault as fault:
        raise InvalidRequest(sentence(fault, "job")) from fault


def _run(url: str | None, call: "Callable[[Engine, Settings], Awaitable[Any]]") -> Any:
    settings = Settings(**given(engine=url))

    async def connected_call() -> Any:
        async with connected(settings) as engine:
            return await call(engine, settings)

    return asyncio.run(connected_call())


def _report(status: "AnyStatus", *, as_json: bool) -> None:
    if as_json:
        print_json(status.as_dict())
    else:
        stdout.print(_details(status))


def _table(found: "list[AnyStatus]") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("job", no_wrap=True)
    named = all(each.job.index in each.job.id for each in found)  # as in jobs that follow writes
    if not named:
        table.add_column("index", overflow="fold", min_width=8)
    table.add_column("state", no_wrap=True)
    for name in ("done", "failed", "pending", "tokens", "rate", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        progress = each.progress
        rate = f"{progress.rate:.1f}/s" if progress.rate and each.state == "running" else ""
        left = _time(progress.remaining) if each.state == "running" else ""
        table.add_row(
            each.job.id,
            *(() if named else (each.job.index,)),
            each.state,
            *(f"{count:,}" for count in (progress.done, progress.failed, progress.pending, progress.tokens)),
            rate,
            left,
        )
    return table


def _details(status: "AnyStatus") -> Group:
    from es_ttc.enrichment.jobs.encoding_service import EncodingStatus

    return _encoding_details(status) if isinstance(status, EncodingStatus) else _enrichment_details(status)


def _encoding_details(status: "EncodingStatus") -> Group:
    job, progress = status.job, status.progress
    rows = {
        "job": job.id,
        "index": job.index,
        "state": status.state,
        "why": job.reason,
        "trouble": progress.trouble,
        "documents": f"{progress.total:,}",
        "encoded": f"{progress.done:,}, repeated writes included",
        "failed": f"{progress.failed:,}" if progress.failed else "",
        "removed": f"{progress.removed:,} deleted documents" if progress.removed else "",
        "pending": f"{progress.pending:,}",
        "rate": f"{progress.rate:.1f} documents a second of the encoder's time" if progress.rate else "",
        "time left": _time(progress.remaining) if status.state == "running" else "",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows.items():
        if value:
            table.add_row(Text(label, "bold"), Text(value))
    return Group(table)


def _enrichment_details(status: "JobStatus") -> Group:
    job, progress = status.job, status.progress
    state = status.state + (f", since job {status.waits_for} has its turn" if status.waits_for else "")
    rows = {
        "job": job.id,
        "index": job.index,
        "state": state,
        "why": job.reason,
        "trouble": progress.trouble,
        "model": f"{job.plan.model}, by {job.plan.api}" if job.plan.model else "none yet",
        "prompt": f"{job.plan.prompt}, version {job.plan.template.version}",
        "similarity": "" if job.plan.min_similarity is None else f"{job.plan.min_similarity:g} at least",
        "tau": f"{job.plan.tau:g}, up to {job.plan.most} phrases of {job.plan.most_words} words",
        "done": f"{progress.done:,} of {progress.total:,}, {progress.phrases:,} phrases written",
        "had for nothing": f"{progress.reused:,}, asked about before" if progress.reused else "",
        "failed": f"{progress.failed:,}" if progress.failed else "",
        "tried again": f"{progress.deferred:,} in a while" if progress.deferred and not job.status.over else "",
        "without text": f"{progress.skipped:,}" if progress.skipped else "",
        "pending": f"{progress.pending:,}",
        "filtered": _filtered(job),
        "tokens": f"{progress.read:,} read, {progress.written:,} written" + _of_budget(status),
        "cost": f"{progress.cost:,.2f}" if progress.cost else "",
        "rate": f"{progress.rate:.2f} documents a second" if progress.rate and status.state == "running" else "",
        "time left": _time(progress.remaining) if status.state == "running" else "",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows.items():
        if value:
            table.add_row(Text(label, "bold"), Text(value))
    for error in progress.errors:
        samples = {f"{each['document']}: {each['reason']}" for each in error["samples"]}
        table.add_row(
            Text(error["kind"], "yellow"),
            Text(f"{error['documents']:,} documents, such as\n" + "\n".join(sorted(samples))),
        )
    return Group(table)


def _filtered(job: "Job") -> str:
    """Return when the proposals of all documents are filtered again, because the corpus has grown."""
    if job.refresh is None or not job.filtered:
        return ""
    times = f" ({job.plan.refreshed} times so far)" if job.plan.refreshed else ""
    return f"at {job.filtered:,} documents, again at {math.ceil(job.filtered * (1 + job.refresh)):,}{times}"


def _of_budget(status: "JobStatus") -> str:
    tokens = status.job.budget.tokens
    return f"; the budget is {tokens:,}" if tokens else ""


def _show_trial(trial: "DryRun", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "sample": [_sampled(each) for each in trial.documents],
                "whole": {
                    "documents": trial.pending,
                    "read": trial.read,
                    "written": trial.written,
                    "cost": trial.cost,
                    "seconds_one_at_a_time": trial.seconds,
                },
                "similarity_reached": {f"{share:g}": trial.reached(share) for share in _SHARES},
            }
        )
        return
    for each in trial.documents:
        stdout.print(Text(each.text.key[0], "bold"), Text(f"  {_short(each.text.text)}"), sep="\n", soft_wrap=True)
        if each.problem:
            stdout.print(Text(f"  nothing: {each.problem}", "yellow"))
            continue
        stdout.print(Text.assemble(("  + ", "green"), ", ".join(each.filtered.kept) or "nothing is left"))
        for reason in dict.fromkeys(one.reason for one in each.filtered.dropped):
            left_out = [one.text for one in each.filtered.dropped if one.reason is reason][:_MAX_PHRASES]
            stdout.print(Text(f"  - {', '.join(left_out)}: {reason}", "dim"))
    reached = [f"{share:.0%} reach {found:.2f}" for share in _SHARES if (found := trial.reached(share)) is not None]
    if reached:
        click.echo(f"similarity of phrases to their documents: {', '.join(reached)}")
    cost = f", cost {trial.cost:,.2f}" if trial.cost else ""
    duration = f", {_time(trial.seconds)} with one question at a time" if trial.seconds else ""
    click.echo(
        f"no document was written. The whole: {trial.pending:,} documents, about {trial.read:,} tokens read and "
        f"{trial.written:,} written{cost}{duration}"
    )


def _sampled(each: "SampledDocument") -> dict[str, Any]:
    dropped = [
        {"phrase": one.text, "reason": one.reason, "documents": one.documents, "similarity": one.similarity}
        for one in each.filtered.dropped
    ]
    return {
        "_id": each.text.key[0],
        "text": each.text.text,
        "proposals": each.proposals,
        "kept": each.filtered.kept,
        "dropped": dropped,
        "read": each.usage.prompt_tokens,
        "written": each.usage.completion_tokens,
        "problem": each.problem,
    }


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _MAX_TEXT else f"{plain[:_MAX_TEXT]}..."


def _time(seconds: float | None) -> str:
    from es_ttc.enrichment.jobs.store import duration

    return "" if seconds is None else duration(seconds)
