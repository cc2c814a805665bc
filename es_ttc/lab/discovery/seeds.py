"""The paper's twelve programs as initial programs of a search."""

import ast
import inspect

from es_ttc.lab.discovery.grammar.known import KNOWN
from es_ttc.lab.discovery.grammar.trees import render
from es_ttc.lab.discovery.records import Proposal
from es_ttc.rescorers.programs import frontier
from es_ttc.rescorers.programs.catalogue import CATALOGUE, Entry

ORIGIN = "seed"


def seed(entry: Entry) -> Proposal:
    """Return one of the paper's programs as a proposal: as a tree if the grammar can express it, else as source."""
    tree = KNOWN.get(entry.name)
    summary = f"{entry.title} (section {entry.section})."
    return Proposal(
        source=source_of(entry) if tree is None else render(tree, summary),
        origin=ORIGIN,
        title=entry.name,
        novelty=summary,
        genome=None if tree is None else tree.as_json(),
    )


def seeds(*, cheap: bool = False) -> list[Proposal]:
    """Return the twelve programs, cheapest first; `cheap` leaves out those that expand queries."""
    return [seed(entry) for entry in CATALOGUE.values() if not (cheap and entry.passes)]


def source_of(entry: Entry) -> str:
    """Return a program's function with what it imports, and what it takes from the programs before it."""
    own = inspect.getsource(entry.program)
    used = {node.id for node in ast.walk(ast.parse(own)) if isinstance(node, ast.Name)} - {entry.name}
    lines = ["import numpy as np\n"] if "np" in used else []
    defined: set[str] = set()
    for node in ast.parse(inspect.getsource(frontier)).body:
        if isinstance(node, ast.ImportFrom):
            lines += _import(str(node.module), used & {alias.name for alias in node.names})
        elif isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        else:
            defined |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    lines += _import(frontier.__name__, used & defined)
    return f"{''.join(lines)}\n\n{own}\n\ndef program(Q, D, S, ctx):\n    return {entry.name}(Q, D, S, ctx)\n"


def _import(module: str, names: set[str]) -> list[str]:
    return [f"from {module} import {', '.join(sorted(names))}\n"] if names else []
