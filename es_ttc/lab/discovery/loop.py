"""Algorithm 1 of the paper (appendix A), with a persistent memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from es_ttc.lab.discovery.evaluator import Evaluation, Evaluator
from es_ttc.lab.discovery.memory import SearchLog
from es_ttc.lab.discovery.proposers.base import Proposer
from es_ttc.lab.discovery.records import Proposal, Record
from es_ttc.lab.discovery.screening import registry_of
from es_ttc.lab.discovery.summary import admits
from es_ttc.rescorers.programs.source import Reason, Refused


def search(
    memory: SearchLog,
    evaluator: Evaluator,
    proposer: Proposer,
    generations: int,
    *,
    seeds: Sequence[Proposal] = (),
    distance: float,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Run or resume a search up to a number of generations, and yield each record when it is on disk."""
    known = {record.name for record in memory.records}
    for place, seed in enumerate(seeds, 1 - len(seeds)):
        if seed.title not in known and not stopping():
            yield _generation(memory, evaluator, place, seed.title, partial(_given, seed), distance)
    done = max((record.generation for record in memory.records), default=0)
    for generation in range(max(1, done + 1), generations + 1):
        if stopping():
            return
        propose = partial(proposer.propose, generation)
        yield _generation(memory, evaluator, generation, f"g{generation:03d}", propose, distance)


def _given(seed: Proposal, _: Sequence[Record]) -> Proposal:
    return seed


def _generation(
    memory: SearchLog,
    evaluator: Evaluator,
    generation: int,
    name: str,
    propose: Callable[[Sequence[Record]], Proposal],
    distance: float,
) -> Record:
    """Run one generation: propose, screen, measure, store."""
    start = time.monotonic()
    proposal = Proposal(source="", origin="none")
    try:
        proposal = propose(memory.records)
        if not proposal.source.strip():
            raise Refused(Reason.NO_PROPOSAL, "the proposer gave no program")
        registry_of(memory.records, distance).screen(proposal.source)
        found = evaluator.evaluate(proposal.source)
        _require_unlike(found, memory.records)
        record = _measured(generation, name, proposal, found, memory.records)
    except Refused as refused:
        record = Record(
            generation=generation,
            name=name,
            proposal=proposal,
            verdict="rejected",
            reason=refused.reason,
            detail=refused.detail,
        )
    record = record.model_copy(update={"seconds": round(time.monotonic() - start, 3)})
    memory.append(record)
    return record


def _require_unlike(found: Evaluation, records: Sequence[Record]) -> None:
    for record in records:
        if record.fingerprint and record.fingerprint == found.fingerprint:
            raise Refused(Reason.NOT_DISTINCT, f"scores every task as [{record.name}] does")


def _measured(generation: int, name: str, proposal: Proposal, found: Evaluation, records: Sequence[Record]) -> Record:
    return Record(
        generation=generation,
        name=name,
        proposal=proposal,
        verdict="measured",
        tasks=found.tasks,
        mean=found.mean,
        wins=found.wins,
        ties=found.ties,
        losses=found.losses,
        cost=found.cost,
        admitted=admits(found.mean, records),
        fingerprint=found.fingerprint,
    )
