"""Algorithm 1 of the paper (appendix A), with a persistent memory; and recorded proposals."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from es_ttc.common.validation import first_error
from es_ttc.errors import ConfigurationError
from es_ttc.lab.discovery.evaluator import Evaluator
from es_ttc.lab.discovery.records import ProgramRecord, ProposedProgram, SearchLog
from es_ttc.lab.discovery.screening import registry_of
from es_ttc.lab.discovery.summary import admits
from es_ttc.rescorers.programs.source import RefusalReason, Refused


class Proposer(Protocol):
    """Writes one program for each generation."""

    def propose(self, generation: int, records: Sequence[ProgramRecord]) -> ProposedProgram:
        """Return the next program.

        Raises:
            Refused: There is none this time; the reason is recorded.
        """


@dataclass
class ReplayProposer:
    """Returns recorded proposals, in order."""

    proposals: Sequence[ProposedProgram]

    @classmethod
    def read(cls, path: Path) -> "ReplayProposer":
        """Return the proposals of a file; each line is an object with `source` and optional other fields."""
        proposals = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigurationError(f"recorded proposals [{path}] cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                proposals.append(ProposedProgram.model_validate_json(line))
            except ValidationError as error:
                raise ConfigurationError(f"[{path}] line {number} is no proposal ({first_error(error)})") from error
        return cls(proposals)

    def propose(self, generation: int, records: Sequence[ProgramRecord]) -> ProposedProgram:  # noqa: ARG002
        """Return the recorded program of a generation."""
        if generation > len(self.proposals):
            raise Refused(RefusalReason.NO_PROPOSAL, f"the recording has {len(self.proposals)} programs")
        return self.proposals[generation - 1]


def search_programs(
    memory: SearchLog,
    evaluator: Evaluator,
    proposer: Proposer,
    generations: int,
    *,
    seeds: Sequence[ProposedProgram] = (),
    distance: float,
) -> Iterator[ProgramRecord]:
    """Run or resume a search up to a number of generations, and yield each record when it is on disk."""
    known = {record.name for record in memory.records}
    for place, seed in enumerate(seeds, 1 - len(seeds)):
        if seed.title not in known:
            yield _generation(memory, evaluator, place, seed.title, partial(_unchanged, seed), distance)
    done = max((record.generation for record in memory.records), default=0)
    for generation in range(max(1, done + 1), generations + 1):
        propose = partial(proposer.propose, generation)
        yield _generation(memory, evaluator, generation, f"g{generation:03d}", propose, distance)


def _unchanged(seed: ProposedProgram, _: Sequence[ProgramRecord]) -> ProposedProgram:
    return seed


def _generation(
    memory: SearchLog,
    evaluator: Evaluator,
    generation: int,
    name: str,
    propose: Callable[[Sequence[ProgramRecord]], ProposedProgram],
    distance: float,
) -> ProgramRecord:
    start = time.monotonic()
    proposal = ProposedProgram(source="", origin="none")
    outcome: dict[str, Any]
    try:
        proposal = propose(memory.records)
        if not proposal.source.strip():
            raise Refused(RefusalReason.NO_PROPOSAL, "the proposer gave no program")
        registry_of(memory.records, distance).screen(proposal.source)
        figures, _ = evaluator.evaluate(proposal.source)
        for known in memory.records:
            if known.fingerprint and known.fingerprint == figures.fingerprint:
                raise Refused(RefusalReason.NOT_DISTINCT, f"scores every task as [{known.name}] does")
        outcome = {**dict(figures), "verdict": "measured", "admitted": admits(figures.mean or 0.0, memory.records)}
    except Refused as refused:
        outcome = {"verdict": "rejected", "reason": refused.reason, "detail": refused.detail}
    seconds = round(time.monotonic() - start, 3)
    record = ProgramRecord(generation=generation, name=name, proposal=proposal, seconds=seconds, **outcome)
    memory.append(record)
    return record
