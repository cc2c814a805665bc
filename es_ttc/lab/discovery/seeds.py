"""The paper's twelve programs as initial programs of a search."""

from importlib.resources import files

from es_ttc.lab.discovery.grammar.known import KNOWN
from es_ttc.lab.discovery.grammar.render import render
from es_ttc.lab.discovery.records import Proposal
from es_ttc.rescorers.programs.catalogue import CATALOGUE, Entry

ORIGIN = "seed"


def seed(entry: Entry) -> Proposal:
    """Return one of the paper's programs as a proposal: as a tree if the grammar can express it, else as source."""
    tree = KNOWN.get(entry.name)
    summary = f"{entry.title} (section {entry.section})."
    return Proposal(
        source=_module(entry) if tree is None else render(tree, summary),
        origin=ORIGIN,
        title=entry.name,
        novelty=summary,
        genome=None if tree is None else tree.as_json(),
    )


def seeds(*, cheap: bool = False) -> list[Proposal]:
    """Return the twelve programs, cheapest first; `cheap` leaves out those that expand queries."""
    return [seed(entry) for entry in CATALOGUE.values() if not (cheap and entry.passes)]


def _module(entry: Entry) -> str:
    text = files("es_ttc.rescorers.programs").joinpath(f"{entry.name}.py").read_text(encoding="utf-8")
    return f"{text}\n\ndef program(Q, D, S, ctx):\n    return {entry.name}(Q, D, S, ctx)\n"
