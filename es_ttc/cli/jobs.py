"""`es-ttc jobs`: enrichment of a corpus by a language model, as jobs that workers do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import connected, engine_flag, given, json_flag, print_json, stderr, stdout
from es_ttc.cli.options import JsonObjectType
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.engine.protocol import Engine
    from es_ttc.tasks.control import Sampled, Shown, Trial, Wanted

_STATES = ("running", "paused", "completed", "cancelled")
_SHOWN_PHRASES = 12
_TEXT_SHOWN = 160
_SHARES = (0.3, 0.5, 0.7)
_ROUGHLY_MINUTES = 10


@click.group()
def jobs() -> None:
    """Enrich a corpus by a language model: submit jobs, watch them, stop them. `es-ttc worker` does them."""


@jobs.command()
@click.argument("index")
@engine_flag
@click.option("--query", type=JsonObjectType('{"term": {"lang": "en"}}'), help="Only documents that match this query.")
@click.option(
    "--prompt",
    metavar="NAME|FILE",
    help="general, claims, arguments, duplicates, questions; base for a model that only continues texts; or a file of "
    "your own with {{document}} in it. Default: general, or base where ES_TTC_LLM_API is completions.",
)
@click.option(
    "--tau",
    type=float,
    default=0.05,
    show_default=True,
    help="Leave out phrases that more than this share of the documents has; 1 keeps all.",
)
@click.option(
    "--min-similarity",
    type=click.FloatRange(-1, 1),
    help="Leave out phrases whose vector has a smaller cosine to their document's, by the index's encoder. --dry-run "
    "shows which share of the phrases reaches what.",
)
@click.option("--phrases", type=click.IntRange(1, 50), default=10, show_default=True, help="Phrases kept a document.")
@click.option("--words", type=click.IntRange(1, 5), default=3, show_default=True, help="Words of a phrase, at most.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="Of the answers.")
@click.option(
    "--answer-tokens", type=click.IntRange(8, 8192), default=256, show_default=True, help="The longest answer."
)
@click.option(
    "--characters",
    type=click.IntRange(100, 200_000),
    default=4000,
    show_default=True,
    help="What the model reads of a document's text.",
)
@click.option("--redo", is_flag=True, help="Also documents that were enriched by another prompt, model or parameters.")
@click.option("--continuous", is_flag=True, help="Go on with documents that arrive later, until cancelled.")
@click.option(
    "--lanes", type=click.IntRange(1, 64), default=8, show_default=True, help="Parts for workers to do side by side."
)
@click.option(
    "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Questions in flight for one part."
)
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="Greater ones first.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Pause when so many tokens are spent.")
@click.option("--budget-cost", type=click.FloatRange(0, min_open=True), help="Pause when so much money is spent.")
@click.option("--price-read", type=click.FloatRange(0), default=0.0, help="Price of a million tokens read.")
@click.option("--price-written", type=click.FloatRange(0), default=0.0, help="Price of a million tokens written.")
@click.option(
    "--most-failures",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Pause when so many documents in a row fail.",
)
@click.option("--dry-run", is_flag=True, help="Enrich a sample, write no document; show before, after, cost and time.")
@click.option("--sample", type=click.IntRange(1, 100), default=5, show_default=True, help="Documents of --dry-run.")
@json_flag
def submit(index: str, engine: str | None, dry_run: bool, sample: int, as_json: bool, **options: Any) -> None:
    """Let workers enrich the documents of INDEX."""
    from es_ttc.tasks import control

    wanted = _wanted(index, options)
    if dry_run:
        with stderr.status(f"asking the model about {sample} documents"):
            trial = _run(engine, lambda client, settings: control.dry_run(client, settings, wanted, sample))
        _show_trial(trial, as_json=as_json)
        return
    shown = _run(engine, lambda client, settings: control.submit(client, settings, wanted))
    if as_json:
        print_json(shown.as_dict())
        return
    click.echo(f"submitted job {shown.job.id}: {shown.job.total:,} documents of [{shown.job.index}]")
    if shown.waits_for:
        click.echo(f"it waits for job {shown.waits_for} on the same index")
    click.echo(f"follow it with `es-ttc jobs watch {shown.job.id}`; `es-ttc worker` does the work")


@jobs.command("list")
@engine_flag
@click.option(
    "--state", multiple=True, type=click.Choice(_STATES), help="Only jobs of this state; several may be given."
)
@json_flag
def list_jobs(engine: str | None, state: tuple[str, ...], as_json: bool) -> None:
    """Show all jobs, the newest first."""
    from es_ttc.tasks import control

    found = _run(engine, lambda client, settings: control.listed(client, settings, state))
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
    """Show one job: its plan, its counts, what it spent, what failed and why."""
    from es_ttc.tasks import control

    _report(_run(engine, lambda client, settings: control.shown(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def pause(job: str, engine: str | None, as_json: bool) -> None:
    """Let JOB rest: documents under way are ended, no further one is begun."""
    from es_ttc.tasks import control

    _report(_run(engine, lambda client, settings: control.pause(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@click.option("--budget-tokens", type=click.IntRange(1), help="A new budget of tokens, for the whole of the job.")
@click.option("--budget-cost", type=click.FloatRange(0, min_open=True), help="A new budget of money.")
@json_flag
def resume(job: str, engine: str | None, budget_tokens: int | None, budget_cost: float | None, as_json: bool) -> None:
    """Let JOB go on where it stood."""
    from es_ttc.tasks import control

    found = _run(
        engine,
        lambda client, settings: control.resume(client, settings, job, tokens=budget_tokens, cost=budget_cost),
    )
    _report(found, as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def cancel(job: str, engine: str | None, as_json: bool) -> None:
    """End JOB; what it has enriched stays."""
    from es_ttc.tasks import control

    _report(_run(engine, lambda client, settings: control.cancel(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@json_flag
def retry(job: str, engine: str | None, as_json: bool) -> None:
    """Take up the documents of JOB that failed once more."""
    from es_ttc.tasks import control

    _report(_run(engine, lambda client, settings: control.retry(client, settings, job)), as_json=as_json)


@jobs.command()
@click.argument("job")
@engine_flag
@click.option("--every", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between two looks.")
@json_flag
def watch(job: str, engine: str | None, every: float, as_json: bool) -> None:
    """Show JOB until it rests or is over; with --json one line a look."""
    from es_ttc.tasks import control

    with Live(console=stdout, auto_refresh=False, transient=True) as live:
        while True:
            shown = _run(engine, lambda client, settings: control.shown(client, settings, job))
            if as_json:
                live.stop()
                print_json(shown.as_dict())
            else:
                live.update(_details(shown), refresh=True)
            if shown.job.status != "running":
                break
            time.sleep(every)
    if not as_json:
        stdout.print(_details(shown))


def _wanted(index: str, options: dict[str, Any]) -> "Wanted":
    from pydantic import ValidationError

    from es_ttc.errors import InvalidRequest
    from es_ttc.tasks.control import Wanted
    from es_ttc.tasks.record import Budget, Price

    budget = Budget(tokens=options.pop("budget_tokens"), cost=options.pop("budget_cost"))
    price = Price(read=options.pop("price_read"), written=options.pop("price_written"))
    named = {"most": options.pop("phrases"), "most_words": options.pop("words")}
    try:
        return Wanted(index=index, budget=budget, price=price, **named, **options)
    except ValidationError as error:
        raise InvalidRequest(str(error.errors()[0]["msg"])) from error


def _run(url: str | None, call: "Callable[[Engine, Settings], Awaitable[Any]]") -> Any:
    settings = Settings(**given(engine=url))

    async def connected_call() -> Any:
        async with connected(settings) as engine:
            return await call(engine, settings)

    return asyncio.run(connected_call())


def _report(shown: "Shown", *, as_json: bool) -> None:
    if as_json:
        print_json(shown.as_dict())
    else:
        stdout.print(_details(shown))


def _table(found: "list[Shown]") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("index", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("done", "failed", "pending", "tokens", "rate", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        progress = each.progress
        rate = f"{progress.rate:.1f}/s" if progress.rate and each.state == "running" else ""
        left = _time(progress.remaining) if each.state == "running" else ""
        table.add_row(
            each.job.id,
            each.job.index,
            each.state,
            *(f"{count:,}" for count in (progress.done, progress.failed, progress.pending, progress.tokens)),
            rate,
            left,
        )
    return table


def _details(shown: "Shown") -> Group:
    job, progress = shown.job, shown.progress
    state = shown.state + (f", since job {shown.waits_for} has its turn" if shown.waits_for else "")
    rows = {
        "job": job.id,
        "index": job.index,
        "state": state,
        "why": job.reason,
        "trouble": progress.trouble,
        "model": f"{job.plan.model}, by {job.plan.api}",
        "prompt": f"{job.plan.prompt}, version {job.plan.template.version}",
        "similarity": "" if job.plan.min_similarity is None else f"{job.plan.min_similarity:g} at least",
        "tau": f"{job.plan.tau:g}, up to {job.plan.most} phrases of {job.plan.most_words} words",
        "done": f"{progress.done:,} of {progress.total:,}, {progress.phrases:,} phrases written",
        "had for nothing": f"{progress.reused:,}, asked about before" if progress.reused else "",
        "failed": f"{progress.failed:,}" if progress.failed else "",
        "tried again": f"{progress.deferred:,} in a while" if progress.deferred and not job.status.over else "",
        "without text": f"{progress.skipped:,}" if progress.skipped else "",
        "pending": f"{progress.pending:,}",
        "tokens": f"{progress.read:,} read, {progress.written:,} written" + _of_budget(shown),
        "cost": f"{progress.cost:,.2f}" if progress.cost else "",
        "rate": f"{progress.rate:.2f} documents a second" if progress.rate and shown.state == "running" else "",
        "time left": _time(progress.remaining) if shown.state == "running" else "",
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


def _of_budget(shown: "Shown") -> str:
    tokens = shown.job.budget.tokens
    return f"; the budget is {tokens:,}" if tokens else ""


def _show_trial(trial: "Trial", *, as_json: bool) -> None:
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
            left_out = [one.text for one in each.filtered.dropped if one.reason is reason][:_SHOWN_PHRASES]
            stdout.print(Text(f"  - {', '.join(left_out)}: {reason}", "dim"))
    reached = [f"{share:.0%} reach {found:.2f}" for share in _SHARES if (found := trial.reached(share)) is not None]
    if reached:
        click.echo(f"similarity of phrases to their documents: {', '.join(reached)}")
    cost = f", cost {trial.cost:,.2f}" if trial.cost else ""
    click.echo(
        f"no document was written. The whole: {trial.pending:,} documents, about {trial.read:,} tokens read and "
        f"{trial.written:,} written{cost}, {_time(trial.seconds)} with one question at a time"
    )


def _sampled(each: "Sampled") -> dict[str, Any]:
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
    return plain if len(plain) <= _TEXT_SHOWN else f"{plain[:_TEXT_SHOWN]}..."


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min" if minutes >= _ROUGHLY_MINUTES else f"{minutes} min {rest:02} s"
