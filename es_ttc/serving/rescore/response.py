"""What is left to do to a response that has been put in order."""

from dataclasses import dataclass

from es_ttc.serving.rescore.candidates import NONE_JOINED, JoinedCandidates
from es_ttc.serving.rescore.collapse import WindowGroups


@dataclass(frozen=True, slots=True)
class RescoredResponse:
    """A response that has been put in order.

    Attributes:
        applied: Whether the order is the method's.
        groups: The groups of all documents with a place, where the request collapses.
        joined: The documents that joined the window: those on the page are bare, and still have to be read.
    """

    applied: bool
    groups: WindowGroups | None = None
    joined: JoinedCandidates = NONE_JOINED
