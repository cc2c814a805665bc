"""`es-ttc discover`: search for programs on your own data, show the results, promote programs for serving."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import Field
from rich.markup import escape
from rich.table import Table

from es_ttc.cli.common import AsJson, EncoderOptions, print_json, print_result, stderr
from es_ttc.cli.evaluating import cached_encoder, stages
from es_ttc.cli.model_options import FILE_PATH, FOLDER_PATH, CommandGroup, command
from es_ttc.cli.tables import console, table
from es_ttc.common.files import replace_file
from es_ttc.common.interruption import interruptible
from es_ttc.common.private_files import private_umask
from es_ttc.errors import InvalidRequest
from es_ttc.lab.discovery import promotion
from es_ttc.lab.discovery.evaluator import Evaluator, Limits
from es_ttc.lab.discovery.loop import Proposer, ReplayProposer
from es_ttc.lab.discovery.loop import search_programs as generations_of
from es_ttc.lab.discovery.promotion import HeldOutResult, exported_program
from es_ttc.lab.discovery.proposers.grammar import GrammarProposer
from es_ttc.lab.discovery.proposers.llm import LlmProposer
from es_ttc.lab.discovery.records import DiscoveryPlan, ProgramRecord, SearchLog, read_memory
from es_ttc.lab.discovery.seeds import seeds
from es_ttc.lab.discovery.summary import discovery_status as summarised
from es_ttc.lab.discovery.summary import named_program
from es_ttc.lab.discovery.tasks import load_tasks, plan_generated, plan_task
from es_ttc.sandbox.confinement import seccomp
from es_ttc.settings import GatewaySettings, LlmSettings, Settings

_SEED = 2026
_LOCK = "discover.lock"


@click.group(cls=CommandGroup)
def discover() -> None:
    """Search for programs that rank your own collections better.

    A proposer writes programs. Each program runs in a sandbox on all tasks. The folder SEARCH holds the log of the
    search. A found program is served only after you have promoted it.
    """


search_argument = click.argument("search", metavar="SEARCH", type=click.Path(file_okay=False, path_type=Path))


@command(
    "es-ttc discover run my-search data/mine data/other --generations 150",
    "es-ttc discover run my-search                        (resume it)",
    "es-ttc discover run tryout --generated limit-style --seeds cheap",
    "es-ttc discover run mine --proposer programs.jsonl",
    group=discover,
)
def run(
    search: Annotated[Path, search_argument],
    data: Annotated[tuple[Path, ...], "[DATA]..."] = (),
    /,
    *,
    generated: Annotated[
        tuple[str, ...], "--generated NAME", "Generated task, in addition to DATA: limit-style or stdlib."
    ] = (),
    proposer: Annotated[
        str | None,
        "--proposer grammar|llm|FILE",
        "Source of programs: the grammar over the primitives, the language model at ES_TTC_LLM_URL, or a file of JSON "
        "lines, each with `source`. Default: grammar, or the previous proposer of this search.",
    ] = None,
    generations: Annotated[int, "--generations N", Field(ge=0), "Number of the last generation."] = 150,
    split: Annotated[str | None, "--split NAME", "Split that the search uses. Default: train, if there is one."] = None,
    queries: Annotated[int, "--max-queries N", Field(ge=2), "Maximum number of queries per task."] = 60,
    documents: Annotated[int, "--max-documents N", Field(ge=10), "Number of documents per task."] = 300,
    asked: Annotated[
        Literal["full", "blind"],
        "--prompt",
        "Prompt for --proposer llm; blind: without the primitives, ideas and initial programs, so that what the model "
        "finds is its own.",
    ] = "full",
    encoding: EncoderOptions,
    seeds_from: Annotated[
        Literal["all", "cheap", "none"],
        "--seeds",
        "Initial programs, from the paper; cheap: those that encode nothing for a query.",
    ] = "all",
    as_json: AsJson,
) -> None:
    """Search for programs on the BEIR folders DATA, or resume a stopped search.

    SEARCH is a folder. Its file memory.jsonl has one line per generation, written before the next one begins. Stop the
    search at any time, and run the command again to resume it. An existing search needs no further flags; its tasks,
    limits and seed do not change.
    """
    seccomp()  # missing parts are reported before anything is encoded
    with private_umask(), SearchLog(search) as memory, interruptible():
        if memory.plan is None:
            if not data and not generated:
                raise InvalidRequest(
                    f"[{search}] holds no search yet: name folders of data, or --generated limit-style"
                )
            tasks = [plan_task(folder, split, None, queries, documents, _SEED) for folder in data]
            tasks += [plan_generated(name, queries, documents, _SEED) for name in generated]
            _require_names([task.name for task in tasks])
            settings = encoding.settings(Settings)
            loaded = cached_encoder(settings)
            memory.begin(
                DiscoveryPlan(
                    encoder=settings.encoder,
                    identity=loaded.identity.key,
                    seed=_SEED,
                    proposer=proposer or "grammar",
                    tasks=tuple(tasks),
                    seeds=seeds_from,
                )
            )
        elif data or generated:
            raise InvalidRequest(f"[{search}] holds a search, which keeps its tasks: leave DATA out to go on with it")
        else:
            loaded = cached_encoder(Settings(encoder=memory.plan.encoder))
        plan = memory.plan
        assert plan is not None  # noqa: S101 - begun above
        writer = _proposer(plan, proposer or plan.proposer, blind=asked == "blind")
        with stages(search.name) as progress:
            tasks_ready = load_tasks(plan, loaded, progress=progress)
        evaluator = Evaluator(
            tasks_ready, Limits(plan.seconds, plan.memory_mb, plan.most_cost), Settings().cache_dir / _LOCK
        )
        begin = [] if plan.seeds == "none" else seeds(cheap=plan.seeds == "cheap")
        found = generations_of(memory, evaluator, writer, generations, seeds=begin, distance=plan.distance)
        for record in found:
            click.echo(_line(record), err=True)
        summary = summarised(plan, memory.records)
    print_result(summary, lambda: _show(summary), as_json=as_json)


@command("es-ttc discover status my-search", group=discover)
def status(search: Annotated[Path, search_argument], /, *, as_json: AsJson) -> None:
    """Show the state of a search: generations, the front of cost and gain, proposals, use of the language model.

    The search may be running in another process.
    """
    plan, records = read_memory(search)
    summary = summarised(plan, records)
    if as_json:
        print_json(summary)
        return
    _show(summary)
    used = summary["llm"]
    if used["calls"]:
        text = (
            f"language model: {used['calls']:,} calls, {used['prompt_tokens']:,} tokens read, "
            f"{used['completion_tokens']:,} written, {used['seconds']:,.0f} s"
        )
        click.echo(text)


@command("es-ttc discover show my-search p12", group=discover)
def show(search: Annotated[Path, search_argument], name: str, /, *, as_json: AsJson) -> None:
    """Show one program: its origin, its gain on each task, its source."""
    record = named_program(read_memory(search)[1], name, search)
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    out = console()
    click.echo(_about(record))
    if record.tasks:
        columns = ("task", "nDCG@10", "Δ", "texts encoded by the index", "by queries", "reads")
        rows = [
            (
                task,
                f"{one.value:.4f}",
                f"{one.delta:+.4f}",
                f"{one.index_texts:,}",
                f"{one.query_texts:,}",
                ", ".join(one.readings),
            )
            for task, one in record.tasks.items()
        ]
        out.print(table(columns, rows, texts=("reads",)))
    click.echo(record.proposal.source)


@command("es-ttc discover promote my-search p12 --as mine", group=discover)
def promote(
    search: Annotated[Path, search_argument],
    name: str,
    /,
    *,
    served_as: Annotated[str | None, "--as NAME", "Name for requests. Default: its name in the search."] = None,
    folder: Annotated[
        Path | None, "--to FOLDER", FOLDER_PATH, "Folder of promoted programs. Default: ES_TTC_PROGRAMS."
    ] = None,
    yes: Annotated[bool, "Skip the confirmation: you have read the source."] = False,
    as_json: AsJson,
) -> None:
    """Measure a program on queries that the search never used, and release it for serving.

    The command shows the program's source: read it before you confirm. The gateway reads the folder of promoted
    programs when it starts (`es-ttc serve --programs FOLDER`), and runs each program in a sandboxed process.
    """
    plan, records = read_memory(search)
    record = named_program(records, name, search)
    target = folder or GatewaySettings().programs
    if target is None:
        raise InvalidRequest("name the gateway's folder of programs: --to FOLDER, or ES_TTC_PROGRAMS")
    chosen = served_as or record.name
    promotion.require_servable(record, chosen)
    if not yes and (as_json or not stderr.is_terminal):
        raise InvalidRequest("a person promotes a program: read its source (`es-ttc discover show`), then say --yes")
    with interruptible(), stages(search.name) as progress:
        encoder = cached_encoder(Settings(encoder=plan.encoder))
        tasks = load_tasks(plan, encoder, held=True, progress=progress)
        samples = promotion.samples(plan, encoder)
        limits = Limits(plan.seconds, plan.memory_mb, plan.most_cost)
        calibrated = promotion.is_calibrated(record, tasks[0], samples[0], limits)
        if calibrated:  # as in serving: with the sample of queries, not with the other queries of the batch
            tasks = [replace(task, sample=sample) for task, sample in zip(tasks, samples, strict=True)]
        report = promotion.held_out(record, Evaluator(tasks, limits, Settings().cache_dir / _LOCK))
    if not as_json:
        out = console()
        click.echo(_about(record))
        out.print(_held_out_table(report))
    if not yes:
        click.echo(record.proposal.source, err=True)
        click.confirm(f"Serve it as [{chosen}]?", abort=True, err=True)
    target.mkdir(parents=True, exist_ok=True)
    path = promotion.write_program(record, plan, chosen, report, target, calibrated=calibrated)
    if as_json:
        print_json({"name": chosen, "file": str(path), "held_out": [one.as_json() for one in report]})
    else:
        click.echo(f"written: {path}")
        if calibrated:
            click.echo("the index needs a sample of its queries: es-ttc calibrate queries INDEX --queries FILE")
        click.echo(f"serve it: es-ttc serve --programs {target}   (a running gateway reads the folder when it starts)")
        click.echo(f'ask for it: "ttc": {{"method": "program", "params": {{"name": "{chosen}"}}}}')


@command("es-ttc discover export my-search programs.jsonl", group=discover)
def export(
    search: Annotated[Path, search_argument],
    file: Annotated[Path, FILE_PATH],
    /,
) -> None:
    """Write all programs of a search to FILE, as JSON lines for --proposer."""
    if file.suffix != ".jsonl":
        raise InvalidRequest(f"an export is .jsonl, not [{file.suffix}]")
    records = read_memory(search)[1]
    replace_file(file, exported_program(records))
    click.echo(f"{len(records)} programs: {file}", err=True)


def _held_out_table(report: Sequence[HeldOutResult]) -> Table:
    rows = [
        (
            escape(one.task),
            escape(one.split),
            str(one.queries),
            f"{one.baseline:.4f}",
            f"{one.value:.4f}",
            f"{one.versus.delta:+.4f}",
            f"{one.versus.interval.low:+.4f} to {one.versus.interval.high:+.4f}",
            one.versus.record,
        )
        for one in report
    ]
    columns = ("task", "split", "queries", "cosine", "nDCG@10", "Δ", "95 % interval", "W/T/L")
    return table(columns, rows, title="on queries that the search never saw", texts=("split",))


def _require_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"two tasks are named [{twice[0]}]: tasks go by the names of their folders")


def _proposer(plan: DiscoveryPlan, name: str, *, blind: bool) -> Proposer:
    if name == "grammar":
        return GrammarProposer(plan.seed, plan.distance)
    if name == "llm":
        return LlmProposer(LlmSettings(), plan.seed, blind=blind)
    if not Path(name).is_file():
        raise InvalidRequest(f"there is no file [{name}]: [--proposer] is grammar, llm or a file of programs")
    return ReplayProposer.read(Path(name))


def _headline(summary: dict[str, Any]) -> str:
    best, cost = summary["best"], summary["llm"]
    leader = f"best {best['name']} {best['mean']:+.4f} at c {best['c']:.1f}" if best else "nothing measured yet"
    calls = f", {cost['calls']:,} LLM calls ({cost['prompt_tokens'] + cost['completion_tokens']:,} tokens)"
    return f"generation {summary['generation']}: {leader}{calls if cost['calls'] else ''}"


def _line(record: ProgramRecord) -> str:
    if record.verdict == "rejected":
        return f"{record.name}: rejected, {record.reason}: {record.detail}"
    mark = " *" if record.admitted else ""
    return f"{record.name}: {record.mean:+.4f} at c {record.cost:.2f}{mark}  {record.proposal.novelty}"


def _show(summary: dict[str, Any]) -> None:
    out = console()
    tasks = ", ".join(f"{name} ({one['queries']} x {one['documents']})" for name, one in summary["tasks"].items())
    shares = summary["proposals"]
    rejected = ", ".join(f"{count} {reason}" for reason, count in shares["rejected"].items()) or "none"
    lines = [
        _headline(summary),
        f"tasks (queries x documents): {tasks}",
        f"proposals by {summary['proposer']}: {shares['all']}, valid {shares['valid']}, better than the cosine "
        f"{shares['gaining']}, better than all before {shares['admitted']}",
        f"rejected: {rejected}",
    ]
    click.echo("\n".join(lines))
    out.print(_frontier_table(summary["frontier"]))


def _frontier_table(front: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            one["name"],
            f"{one['c']:.2f}",
            f"{one['mean']:+.4f}",
            f"{one['wins']}/{one['ties']}/{one['losses']}",
            escape(one["novelty"]),
        )
        for one in front
    ]
    return table(("program", "c", "mean Δ", "W/T/L", "what is new"), rows, texts=("what is new",))


def _about(record: ProgramRecord) -> str:
    proposal = record.proposal
    outcome = (
        f"{record.mean:+.4f} at c {record.cost:.2f}, tasks {record.wins}/{record.ties}/{record.losses}"
        if record.verdict == "measured"
        else f"rejected, {record.reason}: {record.detail}"
    )
    lines = [f"{record.name} by {proposal.origin}: {outcome}"]
    lines += [f"from: {', '.join(proposal.parents)}"] if proposal.parents else []
    lines += [f"new: {proposal.novelty}"] if proposal.novelty else []
    lines += [f"hypothesis: {proposal.hypothesis}"] if proposal.hypothesis else []
    return "\n".join(lines)
