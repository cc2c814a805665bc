"""Figures of a search, the programs that are worth their cost, and the chart of both in the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from es_ttc.common.validation import did_you_mean
from es_ttc.errors import InvalidRequest
from es_ttc.lab.discovery.records import LlmUsage, Plan, Record
from es_ttc.lab.discovery.seeds import ORIGIN
from es_ttc.lab.evaluation.costs import pareto_front


def measured(records: Iterable[Record]) -> list[Record]:
    """Return the programs with results."""
    return [record for record in records if record.verdict == "measured"]


def frontier(records: Iterable[Record]) -> list[Record]:
    """Return the programs with a gain for which no other one is as cheap and as good, by cost.

    P0 has cost 1 and gain 0, so no program of the front has a mean difference of 0 or less. Of equal ones the first is
    kept.
    """
    known = measured(records)
    points = [(1.0, 0.0), *((record.cost or 1.0, record.mean or 0.0) for record in known)]
    return [known[place - 1] for place in pareto_front(points) if place]


def admits(mean: float, records: Sequence[Record]) -> bool:
    """Return whether a program enters the paper's frontier (section 3.5).

    "A program enters the frontier if its mean difference is positive and exceeds every previously admitted program",
    whatever it costs: so this is the line of records over time, while :func:`frontier` weighs cost too.
    """
    best = max((record.mean or 0.0 for record in records if record.admitted), default=0.0)
    return mean > 0 and mean > best


def status(plan: Plan, records: Sequence[Record]) -> dict[str, Any]:
    """Return the state of a search as JSON-ready values."""
    grown = [record for record in records if record.proposal.origin != ORIGIN]
    best = max(measured(records), key=lambda record: record.mean or 0.0, default=None)
    return {
        "proposer": plan.proposer,
        "encoder": plan.encoder,
        "seed": plan.seed,
        "tasks": {task.name: {"queries": len(task.queries), "documents": len(task.documents)} for task in plan.tasks},
        "generation": max((record.generation for record in records), default=0),
        "seeds": len(records) - len(grown),
        "proposals": shares(grown),
        "best": None if best is None else line(best),
        "frontier": [line(record) for record in frontier(records)],
        "seconds": round(sum(record.seconds for record in records), 1),
        "llm": llm(records).model_dump(),
    }


def shares(grown: Sequence[Record]) -> dict[str, Any]:
    """Return the shares of proposals that were valid, rejected by reason, better than P0, better than all before."""
    reasons = Counter(str(record.reason) for record in grown if record.reason is not None)
    valid = measured(grown)
    return {
        "all": len(grown),
        "valid": len(valid),
        "rejected": dict(reasons.most_common()),
        "gaining": sum((record.mean or 0.0) > 0 for record in valid),
        "admitted": sum(record.admitted for record in valid),
    }


def line(record: Record) -> dict[str, Any]:
    """Return a description of a program in one line."""
    return {
        "name": record.name,
        "generation": record.generation,
        "c": record.cost,
        "mean": record.mean,
        "wins": record.wins,
        "ties": record.ties,
        "losses": record.losses,
        "origin": record.proposal.origin,
        "novelty": record.proposal.novelty,
    }


def named(records: Sequence[Record], name: str, folder: Path) -> Record:
    """Return a program of a search by its name."""
    by_name = {record.name: record for record in records}
    if name not in by_name:
        raise InvalidRequest(f"[{folder}] has no program [{name}]{did_you_mean(name, by_name)}")
    return by_name[name]


def llm(records: Sequence[Record]) -> LlmUsage:
    """Return the cost of all proposals at an endpoint."""
    used = [record.proposal.llm for record in records if record.proposal.llm is not None]
    return LlmUsage(
        calls=sum(one.calls for one in used),
        prompt_tokens=sum(one.prompt_tokens for one in used),
        completion_tokens=sum(one.completion_tokens for one in used),
        seconds=round(sum(one.seconds for one in used), 2),
    )


_WIDTH, _HEIGHT = 72, 16


def terminal(records: Sequence[Record], width: int = _WIDTH, height: int = _HEIGHT) -> str:
    """Return cost against gain as text: ``o`` a program of the frontier, ``.`` another one, the line P0."""
    known = [record for record in measured(records) if record.mean is not None and record.cost is not None]
    if not known:
        return "no program has been measured yet"
    front = {record.name for record in frontier(records)}
    costs, means = [record.cost or 1.0 for record in known], [record.mean or 0.0 for record in known]
    right, (low, high) = max([*costs, 2.0]), _range(means)
    field = [[" "] * width for _ in range(height)]

    def place(cost: float, mean: float) -> tuple[int, int]:
        column = round((cost - 1) / (right - 1) * (width - 1))
        return height - 1 - round((mean - low) / (high - low) * (height - 1)), column

    zero = place(1, 0)[0]
    field[zero] = ["-"] * width
    for record in sorted(known, key=lambda one: one.name in front):
        row, column = place(record.cost or 1.0, max(low, record.mean or 0.0))
        field[row][column] = "o" if record.name in front else "."
    labels = {0: f"{high:+.3f}", height - 1: f"{low:+.3f}", zero: " 0.000"}
    lines = [f"{labels.get(number, ''):>7} |{''.join(row).rstrip()}" for number, row in enumerate(field)]
    axis = f"{'':>7} +{'-' * width}\n{'c':>7}  1{right:>{width - 1}.1f}"
    return "\n".join([*lines, axis])


def _range(means: Sequence[float]) -> tuple[float, float]:
    """Return the displayed range of gains: as far below the cosine as above it; worse gains are drawn at the edge."""
    high = max([*means, 0.01])
    return max(min([*means, 0.0]), -high), high
