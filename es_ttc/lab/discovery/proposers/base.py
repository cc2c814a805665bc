"""The contract of a proposer, a function from the memory to the next program; and a recording as one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from es_ttc.common.validation import first_error
from es_ttc.errors import ConfigurationError
from es_ttc.lab.discovery.records import Proposal, Record
from es_ttc.rescorers.programs.source import Reason, Refused


class Proposer(Protocol):
    """Writes one program for each generation."""

    def propose(self, generation: int, records: Sequence[Record]) -> Proposal:
        """Return the next program.

        Raises:
            Refused: There is none this time; the reason is recorded.
        """


class ReplayProposer:
    """Returns recorded proposals, in order."""

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self._proposals = proposals

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
                proposals.append(Proposal.model_validate_json(line))
            except ValidationError as error:
                raise ConfigurationError(f"[{path}] line {number} is no proposal ({first_error(error)})") from error
        return cls(proposals)

    def propose(self, generation: int, records: Sequence[Record]) -> Proposal:  # noqa: ARG002
        """Return the recorded program of a generation."""
        if generation > len(self._proposals):
            raise Refused(Reason.NO_PROPOSAL, f"the recording has {len(self._proposals)} programs")
        return self._proposals[generation - 1]
