"""The contract of a proposer: a function from the memory to the next program."""

from collections.abc import Sequence
from typing import Protocol

from es_ttc.lab.discovery.records import Proposal, Record


class Proposer(Protocol):
    """Writes one program for each generation."""

    def propose(self, generation: int, records: Sequence[Record]) -> Proposal:
        """Return the next program.

        Raises:
            Refused: There is none this time; the reason is recorded.
        """
