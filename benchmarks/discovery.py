"""A search for programs on five tasks, and how what it found does on collections that it did not see.

In steps; the first may be stopped and goes on where it was::

    python -m benchmarks.discovery search FOLDER [--generations 150] [--llm local]
    python -m benchmarks.discovery transfer FOLDER
    python -m benchmarks.discovery report FOLDER

`search` runs Algorithm 1 on train queries of SciFact, ToolLens and QMSum and on two generated tasks, samples of them,
so that one evaluation takes a second or two. `transfer` runs the frontier and the paper's programs on the queries held
out and on four other collections. `report` prints trajectory, frontier, transfer with intervals, and how proposals
fared, and draws the picture.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.programs import DATA, ROOT, load
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.discovery.charts import image
from es_ttc.lab.discovery.evaluator import Evaluator
from es_ttc.lab.discovery.frontier import frontier, measured
from es_ttc.lab.discovery.loop import search as generations_of
from es_ttc.lab.discovery.memory import SearchLog, read
from es_ttc.lab.discovery.planning import collections, load_tasks, plan_generated, plan_task
from es_ttc.lab.discovery.proposers.base import Proposer
from es_ttc.lab.discovery.proposers.grammar import GrammarProposer
from es_ttc.lab.discovery.proposers.llm import LlmProposer
from es_ttc.lab.discovery.records import Plan, Record
from es_ttc.lab.discovery.sandboxed import Limits
from es_ttc.lab.discovery.seeds import ORIGIN, seeds
from es_ttc.lab.discovery.summary import shares
from es_ttc.lab.discovery.tasks import task_of
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.llm.local import running_llm
from es_ttc.settings import LlmSettings, Settings

SEED = 2026
SEEN = {"scifact": (50, 250), "toollens": (50, 250), "qmsum-meetings": (50, 10)}
GENERATED = {"limit-style": (50, 60), "stdlib": (50, 25)}
"""Queries and documents of each task, at most."""
UNSEEN = ("limit-small", "hotpotqa-train-hipporag", "cranfield", "npl-vaswani")
SIZES: dict[str, tuple[int | None, int | None]] = {
    "hotpotqa-train-hipporag": (100, 500),
    "cranfield": (100, 700),
    "npl-vaswani": (60, 1500),
    "limit-small": (500, None),
}
"""Queries, and documents that are ranked: all judged ones among them."""
TRANSFER = "transfer.json"


@click.group()
def main() -> None:
    """A search for programs, and its transfer."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--generations", type=int, default=150, show_default=True)
@click.option("--seed", type=int, default=SEED, show_default=True)
@click.option("--llm", help="Base URL of a language model that proposes, asked by completions; local: gemma-3-270m.")
def search(folder: Path, generations: int, seed: int, llm: str | None) -> None:
    """Search, or go on."""
    encoder = _encoder()
    with SearchLog(folder) as memory:
        if memory.plan is None:
            tasks = [plan_task(DATA / name, None, None, *size, SEED) for name, size in SEEN.items()]
            tasks += [plan_generated(name, *size, SEED) for name, size in GENERATED.items()]
            memory.begin(
                Plan(
                    encoder="minilm",
                    identity=encoder.identity.key,
                    seed=seed,
                    proposer="llm" if llm else "grammar",
                    seeds="cheap" if llm else "all",
                    tasks=tuple(tasks),
                )
            )
        plan = memory.plan
        assert plan is not None
        evaluator = Evaluator(load_tasks(plan, encoder), _limits(plan), folder / "compute.lock")
        with running_llm() if llm == "local" else nullcontext(llm) as url:
            proposer: Proposer = GrammarProposer(plan.seed, plan.distance)
            if url:
                settings = LlmSettings(llm_url=url, llm_api="completions", llm_timeout=300)
                proposer = LlmProposer(settings, plan.seed, characters=2_700, tokens=200)
            begin = seeds(cheap=plan.seeds == "cheap")
            for one in generations_of(memory, evaluator, proposer, generations, seeds=begin, distance=plan.distance):
                click.echo(f"{one.name} {one.verdict} {one.mean} {one.cost} {one.reason}", err=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--only", type=click.Choice(["held out", "unseen"]), help="One kind of queries alone.")
def transfer(folder: Path, only: str | None) -> None:
    """Run the frontier, and the paper's programs that encode nothing for a query, where the search did not look.

    What is there already stays.
    """
    plan, records = read(folder)
    encoder = _encoder()
    known = [one for one in measured(records) if one.proposal.origin == ORIGIN and not _encodes_queries(one)]
    wanted = {one.name: one for one in (*frontier(records), *known)}
    path = folder / TRANSFER
    done: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    held = (task_of(collection, encoder) for collection in collections(plan, held=True))
    unseen = (task_of(load(name, sizes=SIZES[name]), encoder) for name in UNSEEN)
    for kind, tasks in (("unseen", unseen), ("held out", held)):
        for task in () if only not in (None, kind) else tasks:
            cell = done.setdefault(f"{kind}: {task.name}", {})
            cell["size"], cell["baseline"] = list(task.size), task.baseline.tolist()
            for record in wanted.values():
                if record.name in cell.setdefault("programs", {}):
                    continue
                evaluator = Evaluator([task], Limits(seconds=300, memory_mb=4096, cost=100), folder / "compute.lock")
                found = evaluator.evaluate(record.proposal.source)
                cell["programs"][record.name] = {"values": found.values[task.name].tolist(), "c": found.cost}
                path.write_bytes(orjson.dumps(done))
                click.echo(f"{task.name} {record.name} {found.mean:+.4f}", err=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--image", "drawn", type=click.Path(path_type=Path), help="Draw the picture here.")
def report(folder: Path, drawn: Path | None) -> None:
    """Print the tables."""
    plan, records = read(folder)
    sizes = ", ".join(f"{one.name} ({len(one.queries)} x {len(one.documents)})" for one in plan.tasks)
    print(heading("A search for programs", data=f"queries x documents: {sizes}", packages=("numpy", "sentencex")))
    print(_fared(plan, records))
    print(_trajectory(records))
    front = frontier(records)
    print(_front_table(plan, front))
    path = folder / TRANSFER
    if path.exists():
        print(_transfer_table(orjson.loads(path.read_bytes()), [one.name for one in front], records))
    if drawn is not None:
        image(records, drawn if drawn.is_absolute() else ROOT / drawn)


def _fared(plan: Plan, records: Sequence[Record]) -> str:
    found = shares([record for record in records if record.proposal.origin != ORIGIN])
    total = max(1, found["all"])
    rows = [
        ("valid", found["valid"]),
        *((f"rejected: {name}", count) for name, count in found["rejected"].items()),
        ("better than the cosine", found["gaining"]),
        ("admitted (better than all before)", found["admitted"]),
    ]
    shown = [(name, str(count), f"{count / total:.0%}") for name, count in rows]
    return f"{found['all']} proposals by {plan.proposer}:\n\n{table(('outcome', 'proposals', 'share'), shown)}"


def _trajectory(records: Sequence[Record]) -> str:
    rows = []
    for generation in (0, 10, 25, 50, 75, 100, 125, 150, 200, 250, 300):
        so_far = [record for record in measured(records) if record.generation <= generation]
        if generation > max(record.generation for record in records):
            break
        best = max(so_far, key=lambda record: record.mean or 0.0)
        rows.append((generation, best.name, f"{best.mean:+.4f}", f"{best.cost:.2f}", len(frontier(so_far))))
    return table(("generation", "best so far", "mean Δ", "c", "programs on the front"), rows)


def _front_table(plan: Plan, front: Sequence[Record]) -> str:
    names = [task.name for task in plan.tasks]
    rows = [
        (
            record.name,
            f"{record.cost:.2f}",
            f"{record.mean:+.4f}",
            f"{record.wins}/{record.ties}/{record.losses}",
            *(f"{record.tasks[name].delta:+.3f}" for name in names),
        )
        for record in front
    ]
    return table(("program", "c", "mean Δ", "W/T/L", *names), rows)


def _transfer_table(cells: dict[str, Any], front: Sequence[str], records: Sequence[Record]) -> str:
    named = [
        *front,
        *(one.name for one in measured(records) if one.proposal.origin == ORIGIN and one.name not in front),
    ]
    parts = []
    for title, cell in cells.items():
        baseline = np.array(cell["baseline"])
        base_means = resampled_means(baseline[None])[:, 0]
        rows = []
        for name in named:
            if name not in cell["programs"]:
                continue
            values = np.array(cell["programs"][name]["values"])
            versus = compare(values, baseline, resampled_means(values[None])[:, 0], base_means)
            rows.append(
                (
                    name,
                    f"{cell['programs'][name]['c']:.2f}",
                    f"{values.mean():.4f}",
                    f"{versus.delta:+.4f}",
                    f"{versus.interval.low:+.4f} to {versus.interval.high:+.4f}",
                    f"{versus.wins}/{versus.ties}/{versus.losses}",
                )
            )
        queries, documents = cell["size"]
        parts.append(
            f"### {title} ({queries} queries, {documents} documents; cosine {baseline.mean():.4f})\n\n"
            + table(("program", "c", "nDCG@10", "Δ", "95 % interval", "queries W/T/L"), rows)
        )
    return "\n".join(parts)


def _encodes_queries(record: Record) -> bool:
    return any(one.query_texts for one in record.tasks.values())


def _limits(plan: Plan) -> Limits:
    return Limits(plan.seconds, plan.memory_mb, plan.most_cost)


def _encoder() -> CachedEncoder:
    settings = Settings(encoder="minilm")
    return CachedEncoder(load_encoder("minilm", cache_dir=settings.cache_dir), settings.cache_dir / "encodings")


if __name__ == "__main__":
    main()
