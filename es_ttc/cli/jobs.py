"""`es-ttc jobs`: enrichment of a corpus by a language model, as jobs that workers process."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import click
from pydantic import Field
from rich.live import Live
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import (
    AsJson,
    EngineUrl,
    engine_flag,
    json_flag,
    print_json,
    print_result,
    provided,
    stderr,
    stdout,
    with_engine,
)
from es_ttc.cli.model_options import CommandGroup, command, examples, flags, model_options, nested
from es_ttc.cli.options import JsonObjectType
from es_ttc.cli.tables import properties
from es_ttc.common.durations import duration
from es_ttc.common.validation import Fault, read_object, sentence
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.progress import AnyStatus
from es_ttc.enrichment.jobs.record import Budget, EncodingJob, Job, Progress
from es_ttc.enrichment.jobs.submission import DryRun, JobRequest, SampledDocument
from es_ttc.errors import InvalidRequest, LlmError, LlmFailure
from es_ttc.settings import Settings

_STATES = ("running", "paused", "completed", "cancelled")
_UPDATE_SECONDS = 2.0
_MAX_PHRASES = 12
_MAX_TEXT = 160
_SHARES = (0.3, 0.5, 0.7)
_WRONG_API = (
    "a base model, which only continues texts, needs ES_TTC_LLM_API=completions, and an assistant needs "
    "ES_TTC_LLM_API=chat"
)
_PHRASES = model_options(
    "Phrases",
    JobRequest,
    {"prompt": "--prompt", "most": "--phrases"} | flags("tau", "min_similarity", "whole"),
)
_WORK = model_options(
    "Documents and work",
    JobRequest,
    flags("query", "redo", "continuous", "parallel", "priority"),
    types={"query": JsonObjectType('{"term": {"lang": "en"}}')},
)
_COSTS = model_options(
    "Costs",
    JobRequest,
    {
        "budget__tokens": "--budget-tokens",
        "budget__cost": "--budget-cost",
        "price__read": "--price-read",
        "price__written": "--price-written",
    },
)
_BUDGET = model_options("New budget, for the whole job", Budget, {"tokens": "--budget-tokens", "cost": "--budget-cost"})


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Submit, watch and control jobs. `es-ttc worker` processes them."""


@command(
    "es-ttc jobs submit products --dry-run",
    "es-ttc jobs submit products --prompt claims --tau 0.02",
    "es-ttc jobs submit products --continuous --budget-tokens 5000000",
    group=jobs,
)
@_PHRASES
@_WORK
@_COSTS
def submit(
    index: str,
    /,
    *,
    engine: EngineUrl,
    dry_run: Annotated[bool, "Process a sample without writing; show before, after, cost and time."] = False,
    sample: Annotated[int, Field(ge=1, le=100), "Number of documents for --dry-run."] = 5,
    as_json: AsJson,
    **options: Any,
) -> None:
    """Submit a job that enriches the documents of INDEX."""
    request = _job_request(index, options)
    if dry_run:
        with stderr.status(f"asking the model about {sample} documents"):
            trial = _run(engine, lambda client, settings: submission.dry_run(client, settings, request, sample))
        _show_trial(trial, as_json=as_json)
        if trial.documents and all(each.problem for each in trial.documents):
            raise LlmError(
                f"the model gave no phrases for any of {len(trial.documents)} documents; {_WRONG_API}",
                LlmFailure.MALFORMED,
            )
        return
    status = _run(engine, lambda client, settings: submission.submit_job(client, settings, request))
    waits = f"\nit waits for job {status.waits_for} on the same index" if status.waits_for else ""
    text = (
        f"submitted job {status.job.id}: {status.job.total:,} documents of [{status.job.index}]{waits}\n"
        f"follow it with `es-ttc jobs watch {status.job.id}`; `es-ttc worker` does the work"
    )
    print_result(status.as_dict(), text, as_json=as_json)


@command("es-ttc jobs list --state running", group=jobs, name="list")
def list_jobs(
    *,
    engine: EngineUrl,
    state: Annotated[
        tuple[str, ...],
        click.option(
            "--state",
            multiple=True,
            type=click.Choice(_STATES),
            help="State of the jobs to show; may be given several times.",
        ),
    ],
    as_json: AsJson,
) -> None:
    """List jobs, the newest first."""

    async def listed_with_workers(client: Engine, settings: Settings) -> tuple[list[AnyStatus], str]:
        return await commands.listed(client, settings, state), await commands.unattended(client, settings)

    found, unattended = _run(engine, listed_with_workers)
    if unattended and any(each.job.status == "running" for each in found):
        click.echo(unattended, err=True)
    none = "there are no jobs; `es-ttc jobs submit INDEX` makes one"
    print_result({"jobs": [each.as_dict() for each in found]}, _table(found) if found else none, as_json=as_json)


def _verb(name: str, summary: str, example: str, *options: Callable[..., Any]) -> None:

    @json_flag
    @engine_flag
    @click.argument("job")
    def command(job: str, engine: str | None, as_json: bool, **values: Any) -> None:
        function = getattr(commands, "shown_job" if name == "show" else name)
        status = _run(engine, lambda client, settings: function(client, settings, job, **values))
        print_result(status.as_dict(), _details(status), as_json=as_json)

    for option in options:
        command = option(command)
    jobs.command(name, help=summary, epilog=examples(f"es-ttc jobs {name} {example}"))(command)


_verb("show", "Show one job: plan, counts, cost, failures with reasons.", "enrich-products")
_verb("pause", "Pause JOB. Documents under way are finished, no further one is started.", "enrich-products")
_verb("resume", "Resume JOB.", "enrich-products --budget-tokens 10000000", _BUDGET)
_verb("cancel", "Cancel JOB. Existing enrichment is kept.", "enrich-products")
_verb("retry", "Process the failed documents of JOB again.", "enrich-products")


@command("es-ttc jobs watch enrich-products", group=jobs)
def watch(job: str, /, *, engine: EngineUrl, as_json: AsJson) -> None:
    """Show the progress of JOB until it pauses or ends; with --json one line per update."""
    with Live(console=stdout, auto_refresh=False, transient=True) as live:
        while True:
            status = _run(engine, lambda client, settings: commands.shown_job(client, settings, job))
            if as_json:
                live.stop()
                print_json(status.as_dict())
            else:
                live.update(_details(status), refresh=True)
            if status.job.status != "running":
                break
            time.sleep(_UPDATE_SECONDS)
    if not as_json:
        stdout.print(_details(status))


def _job_request(index: str, options: Mapping[str, Any]) -> JobRequest:
    try:
        return read_object(JobRequest, {"index": index, **nested(options)})
    except Fault as fault:
        raise InvalidRequest(sentence(fault, "job")) from fault


def _run(url: str | None, call: Callable[[Engine, Settings], Awaitable[Any]]) -> Any:
    settings = Settings(**provided(engine=url))
    return with_engine(settings, lambda client: call(client, settings))


def _table(found: list[AnyStatus]) -> Table:
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


def _details(status: AnyStatus) -> Table:
    job, progress, is_running = status.job, status.progress, status.state == "running"
    state = status.state + (f", since job {status.waits_for} has its turn" if status.waits_for else "")
    rows = {"job": job.id, "index": job.index, "state": state, "why": job.reason, "trouble": progress.trouble}
    rows |= _enrichment(job, progress, is_running) if isinstance(job, Job) else _encoding(job, progress)
    rows |= {"time left": _time(progress.remaining) if is_running else ""}
    table = properties(rows)
    for error in progress.errors:
        samples = "\n".join(sorted({f"{each['document']}: {each['reason']}" for each in error["samples"]}))
        table.add_row(Text(error["kind"], "yellow"), Text(f"{error['documents']:,} documents, such as\n{samples}"))
    return table


def _encoding(_: EncodingJob, progress: Progress) -> dict[str, str]:
    return {
        "documents": f"{progress.total:,}",
        "encoded": f"{progress.done:,}, repeated writes included",
        "failed": _count(progress.failed),
        "removed": _count(progress.removed, " deleted documents"),
        "pending": f"{progress.pending:,}",
        "rate": f"{progress.rate:.1f} documents a second of the encoder's time" if progress.rate else "",
    }


def _enrichment(job: Job, progress: Progress, is_running: bool) -> dict[str, str]:
    budget = f"; the budget is {job.budget.tokens:,}" if job.budget.tokens else ""
    return {
        "model": f"{job.plan.model}, by {job.plan.api}" if job.plan.model else "none yet",
        "prompt": f"{job.plan.prompt}, version {job.plan.template.version}",
        "similarity": "" if job.plan.min_similarity is None else f"{job.plan.min_similarity:g} at least",
        "tau": f"{job.plan.tau:g}, up to {job.plan.most} phrases of {job.plan.most_words} words",
        "done": f"{progress.done:,} of {progress.total:,}, {progress.phrases:,} phrases written",
        "had for nothing": _count(progress.reused, ", asked about before"),
        "failed": _count(progress.failed),
        "tried again": "" if job.status.over else _count(progress.deferred, " in a while"),
        "without text": _count(progress.skipped),
        "pending": f"{progress.pending:,}",
        "filtered": _filtered(job),
        "tokens": f"{progress.read:,} read, {progress.written:,} written{budget}",
        "cost": f"{progress.cost:,.2f}" if progress.cost else "",
        "rate": f"{progress.rate:.2f} documents a second" if progress.rate and is_running else "",
    }


def _count(number: int, what: str = "") -> str:
    return f"{number:,}{what}" if number else ""


def _filtered(job: Job) -> str:
    """Return when the proposals of all documents are filtered again, because the corpus has grown."""
    if job.refresh is None or not job.filtered:
        return ""
    times = f" ({job.plan.refreshed} times so far)" if job.plan.refreshed else ""
    return f"at {job.filtered:,} documents, again at {math.ceil(job.filtered * (1 + job.refresh)):,}{times}"


def _show_trial(trial: DryRun, *, as_json: bool) -> None:
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
    time_needed = f", {_time(trial.seconds)} with one question at a time" if trial.seconds else ""
    click.echo(
        f"no document was written. The whole: {trial.pending:,} documents, about {trial.read:,} tokens read and "
        f"{trial.written:,} written{cost}{time_needed}"
    )


def _sampled(each: SampledDocument) -> dict[str, Any]:
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
    return "" if seconds is None else duration(seconds)
