"""The paper's programs as trees, as initial programs of a search."""

import ast
import inspect

from es_ttc.lab.discovery.grammar.trees import Tree, render_tree
from es_ttc.lab.discovery.records import ProposedProgram
from es_ttc.rescorers.programs import frontier
from es_ttc.rescorers.programs.catalogue import CATALOGUE, Entry

_Q, _D, _S = Tree("Q"), Tree("D"), Tree("S")
_GRANULARITIES = ("sentences", "pairs", "paragraphs")


def _best(granularity: str) -> Tree:
    return Tree("best", (_Q, Tree("chunks", (), (granularity,))))


def _coverage() -> tuple[Tree, ...]:
    """Return the eight channels of CoverageTriple (B.4)."""
    whole = [Tree("cosine", (_Q, Tree("debias", (documents,)))) for documents in (_D, Tree("topic"))]
    chunked = []
    for granularity in _GRANULARITIES:
        pieces = Tree("debiased", (Tree("chunks", (), (granularity,)),))
        chunked += [Tree("best", (_Q, pieces)), Tree("topmean", (_Q, pieces))]
    return (*whole, *chunked)


def _rounds() -> tuple[Tree, Tree, list[Tree]]:
    """Return the channels, the first round, and all three rounds of CrossRoundRRF (B.6)."""
    hybrid = Tree("hybrid", (), (True, False))
    first = Tree("round", (hybrid, _Q))
    moved = Tree("round", (hybrid, Tree("rocchio", (_Q, first))))
    rest = Tree("residual", (_Q, first))
    remaining = Tree("substantial", (rest, Tree("round", (hybrid, rest)), first), (0.1,))
    return hybrid, first, [first, moved, remaining]


def _dual() -> Tree:
    """Return DiverseDualCtx (B.7)."""
    hybrid, first, rounds = _rounds()
    order = Tree("order", (Tree("rrf", tuple(rounds)),))
    for anchor in ("first", "diverse"):
        expanded = Tree("expanded", (_Q, Tree(anchor, (order,))), ("QUERY",))
        rounds.append(Tree("gated", (expanded, Tree("round", (hybrid, expanded)), first), (0.5,)))
    return Tree("rrf", tuple(rounds))


KNOWN: dict[str, Tree] = {
    "sentmaxsim": _best("sentences"),
    "adaptgran": Tree("zmax", (_best("paragraphs"), _best("sentences"))),
    "covtriple": Tree("zsum", _coverage()),
    "lexhybridrrf": Tree("rrf", (*_coverage(), Tree("cosine", (_Q, Tree("reversed"))), Tree("words"), Tree("bigrams"))),
    "crossroundrrf": Tree("rrf", tuple(_rounds()[2])),
    "diversedualctx": _dual(),
}


SEED_ORIGIN = "seed"


def seed(entry: Entry) -> ProposedProgram:
    """Return one of the paper's programs as a proposal: as a tree if the grammar can express it, else as source."""
    tree = KNOWN.get(entry.name)
    summary = f"{entry.title} (section {entry.section})."
    return ProposedProgram(
        source=program_source(entry) if tree is None else render_tree(tree, summary),
        origin=SEED_ORIGIN,
        title=entry.name,
        novelty=summary,
        genome=None if tree is None else tree.as_json(),
    )


def seeds(*, cheap: bool = False) -> list[ProposedProgram]:
    """Return the twelve programs, cheapest first; `cheap` leaves out those that expand queries."""
    return [seed(entry) for entry in CATALOGUE.values() if not (cheap and entry.passes)]


def program_source(entry: Entry) -> str:
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
