"""Figures of a search, the programs that are worth their cost, and the chart of both in the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from es_ttc.common.validation import did_you_mean
from es_ttc.errors import InvalidRequest
from es_ttc.lab.discovery.records import DiscoveryPlan, LlmUsage, ProgramRecord
from es_ttc.lab.discovery.seeds import SEED_ORIGIN


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points (cost, quality) no other point is at least as cheap and at least as good as, by cost."""
    order = sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1]))
    front: list[int] = []
    for place in order:
        if not front or points[place][1] > points[front[-1]][1]:
            front.append(place)
    return front


def measured_records(records: Iterable[ProgramRecord]) -> list[ProgramRecord]:
    """Return the programs with results."""
    return [record for record in records if record.verdict == "measured"]


def frontier(records: Iterable[ProgramRecord]) -> list[ProgramRecord]:
    """Return the programs with a gain for which no other one is as cheap and as good, by cost.

    P0 has cost 1 and gain 0; of equal programs the first is kept.
    """
    known = measured_records(records)
    points = [(1.0, 0.0), *((record.cost or 1.0, record.mean or 0.0) for record in known)]
    return [known[place - 1] for place in pareto_front(points) if place]


def admits(mean: float, records: Sequence[ProgramRecord]) -> bool:
    """Return whether a program enters the paper's frontier (section 3.5), whatever it costs.

    "[I]ts mean difference is positive and exceeds every previously admitted program."
    """
    best = max((record.mean or 0.0 for record in records if record.admitted), default=0.0)
    return mean > 0 and mean > best


def discovery_status(plan: DiscoveryPlan, records: Sequence[ProgramRecord]) -> dict[str, Any]:
    """Return the state of a search as JSON-ready values."""
    grown = [record for record in records if record.proposal.origin != SEED_ORIGIN]
    best = max(measured_records(records), key=lambda record: record.mean or 0.0, default=None)
    return {
        "proposer": plan.proposer,
        "encoder": plan.encoder,
        "seed": plan.seed,
        "tasks": {task.name: {"queries": len(task.queries), "documents": len(task.documents)} for task in plan.tasks},
        "generation": max((record.generation for record in records), default=0),
        "seeds": len(records) - len(grown),
        "proposals": proposal_shares(grown),
        "best": None if best is None else summary_line(best),
        "frontier": [summary_line(record) for record in frontier(records)],
        "seconds": round(sum(record.seconds for record in records), 1),
        "llm": llm(records).model_dump(),
    }


def proposal_shares(grown: Sequence[ProgramRecord]) -> dict[str, Any]:
    """Return the shares of proposals that were valid, rejected by reason, better than P0, better than all before."""
    reasons = Counter(str(record.reason) for record in grown if record.reason is not None)
    valid = measured_records(grown)
    return {
        "all": len(grown),
        "valid": len(valid),
        "rejected": dict(reasons.most_common()),
        "gaining": sum((record.mean or 0.0) > 0 for record in valid),
        "admitted": sum(record.admitted for record in valid),
    }


def summary_line(record: ProgramRecord) -> dict[str, Any]:
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


def named_program(records: Sequence[ProgramRecord], name: str, folder: Path) -> ProgramRecord:
    """Return a program of a search by its name."""
    by_name = {record.name: record for record in records}
    if name not in by_name:
        raise InvalidRequest(f"[{folder}] has no program [{name}]{did_you_mean(name, by_name)}")
    return by_name[name]


def llm(records: Sequence[ProgramRecord]) -> LlmUsage:
    """Return the cost of all proposals at an endpoint."""
    used = [record.proposal.llm for record in records if record.proposal.llm is not None]
    return LlmUsage(
        calls=sum(one.calls for one in used),
        prompt_tokens=sum(one.prompt_tokens for one in used),
        completion_tokens=sum(one.completion_tokens for one in used),
        seconds=round(sum(one.seconds for one in used), 2),
    )
