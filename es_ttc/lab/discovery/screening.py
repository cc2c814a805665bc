"""The constraints that are checked before a program is run (section 3.2)."""

from collections import Counter
from collections.abc import Iterable

from es_ttc.lab.discovery.records import Record
from es_ttc.lab.discovery.structure import distance, shapes, skeleton
from es_ttc.rescorers.programs.source import Reason, Refused, check


class ProposedPrograms:
    """All proposed programs that could be parsed; R of Algorithm 1.

    Args:
        least: Minimum structural distance of a new program from each measured one.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._texts: dict[str, str] = {}
        self._skeletons: dict[str, str] = {}
        self._shapes: list[tuple[str, Counter[str]]] = []

    def screen(self, source: str) -> None:
        """Raise an error for a program that violates a constraint."""
        check(source)
        known = self._texts.get(source.strip())
        if known is not None:
            raise Refused(Reason.EVALUATED_ONCE, f"the same text as [{known}], which has had its evaluation")
        alike = self._skeletons.get(skeleton(source))
        if alike is not None:
            raise Refused(
                Reason.EVALUATED_ONCE, f"[{alike}] with other constants: constants are fixed, there is no sweep"
            )
        own = shapes(source)
        near = min(((distance(own, other), name) for name, other in self._shapes), default=(1.0, ""))
        if near[0] < self._least:
            raise Refused(
                Reason.NOT_DISTINCT, f"a distance of {near[0]:.3f} from [{near[1]}]; {self._least:g} is the least"
            )

    def add(self, name: str, source: str) -> None:
        """Add a program; one that cannot be parsed is left out."""
        try:
            key, own = skeleton(source), shapes(source)
        except Refused:
            return
        self._texts.setdefault(source.strip(), name)
        self._skeletons.setdefault(key, name)
        self._shapes.append((name, own))


def registry_of(records: Iterable[Record], least: float) -> ProposedPrograms:
    """Return the registry of a memory: the programs that were measured or failed when they were run."""
    registry = ProposedPrograms(least)
    for record in records:
        if record.verdict == "measured" or record.reason not in _UNREAD:
            registry.add(record.name, record.proposal.source)
    return registry


_UNREAD = frozenset({Reason.SYNTAX, Reason.INTERFACE, Reason.NO_PROPOSAL, Reason.NOT_DISTINCT, Reason.EVALUATED_ONCE})
