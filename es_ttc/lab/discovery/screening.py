"""The constraints that are checked before a program is run (section 3.2), and the distance of two programs."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from es_ttc.lab.discovery.records import ProgramRecord
from es_ttc.rescorers.programs.source import RefusalReason, Refused, check, parse


class ProposedPrograms:
    """All proposed programs that could be parsed (R of Algorithm 1), each of a `least` distance from the others."""

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
            raise Refused(RefusalReason.EVALUATED_ONCE, f"the same text as [{known}], which has had its evaluation")
        alike = self._skeletons.get(skeleton(source))
        if alike is not None:
            raise Refused(
                RefusalReason.EVALUATED_ONCE, f"[{alike}] with other constants: constants are fixed, there is no sweep"
            )
        own = shapes(source)
        near = min(((distance(own, other), name) for name, other in self._shapes), default=(1.0, ""))
        if near[0] < self._least:
            raise Refused(
                RefusalReason.NOT_DISTINCT,
                f"a distance of {near[0]:.3f} from [{near[1]}]; {self._least:g} is the least",
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


def registry_of(records: Iterable[ProgramRecord], least: float) -> ProposedPrograms:
    """Return the registry of a memory: the programs that were measured or failed when they were run."""
    registry = ProposedPrograms(least)
    for record in records:
        if record.verdict == "measured" or record.reason not in _UNREAD:
            registry.add(record.name, record.proposal.source)
    return registry


_UNREAD = frozenset(
    {
        RefusalReason.SYNTAX,
        RefusalReason.INTERFACE,
        RefusalReason.NO_PROPOSAL,
        RefusalReason.NOT_DISTINCT,
        RefusalReason.EVALUATED_ONCE,
    }
)


_HEIGHTS = (1, 2, 3)
_KEPT = 4096


@lru_cache(maxsize=_KEPT)
def shapes(source: str) -> Counter[str]:
    """Return a program's subtrees up to a height of three, with counts; its own names and constants are ignored."""
    tree = _bare(parse(source))
    own, found = _own_names(tree), Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):
            for height in _HEIGHTS:
                found[_shape(node, height, own)] += 1
    return found


def distance(one: Counter[str], other: Counter[str]) -> float:
    """Return the share of subtrees that only one of two programs has (weighted Jaccard): 0 equal, 1 none in common."""
    union = (one | other).total()
    return 1 - (one & other).total() / union if union else 0.0


@lru_cache(maxsize=_KEPT)
def skeleton(source: str) -> str:
    """Return a digest of the structure: equal for programs that differ only in constants, names and comments."""
    tree = _bare(parse(source))
    return _digest(_shape(tree, None, _own_names(tree)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a program gives to its variables, arguments and functions."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.add(name)
            case _:
                pass
    return frozenset(names)


def _shape(node: ast.AST, height: int | None, own: frozenset[str]) -> str:
    label = _label(node, own)
    if height == 0:
        return label
    below = None if height is None else height - 1
    inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
    children = [_shape(child, below, own) for child in inner]
    return f"{label}({','.join(children)})" if children else label


def _label(node: ast.AST, own: frozenset[str]) -> str:
    match node:
        case ast.Name(id=name):
            return "v" if name in own else name
        case ast.Attribute(attr=name):
            return f".{name}"
        case ast.Constant(value=value):
            return "text" if isinstance(value, str) else "number"
        case ast.alias(name=name):
            return name
        case ast.ImportFrom(module=module):
            return f"from {module}"
        case _:
            return type(node).__name__


def _bare(tree: ast.Module) -> ast.Module:
    """Remove docstrings and annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            node.name = "f"
        if isinstance(node, ast.arg):
            node.annotation = None
    return tree
