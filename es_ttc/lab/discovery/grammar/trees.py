"""Trees of the grammar: random, changed, crossed, written as Python. All choices come from a given random source."""

import random
import string
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from es_ttc.common.validation import nearest
from es_ttc.lab.discovery.grammar.operations import GRAMMAR, MAX_PARTS, PRIMITIVE_MODULES, Constant, Type, of_type

MAX_TREE_NODES = 60
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Tree:
    """An operation with its constants and parts."""

    name: str
    parts: tuple["Tree", ...] = ()
    constants: tuple[Constant, ...] = ()

    @property
    def gives(self) -> Type:
        """Its type."""
        return GRAMMAR[self.name].gives

    def nodes(self) -> Iterator["Tree"]:
        """Yield each different subtree once, parts before their parents."""
        seen: set[Tree] = set()

        def visit(tree: Tree) -> Iterator[Tree]:
            if tree in seen:
                return
            seen.add(tree)
            for part in tree.parts:
                yield from visit(part)
            yield tree

        yield from visit(self)

    def replaced(self, old: "Tree", new: "Tree") -> "Tree":
        """Return the tree with one subtree replaced wherever it occurs."""
        if self == old:
            return new
        if not any(old in part.nodes() for part in self.parts):
            return self
        return Tree(self.name, tuple(part.replaced(old, new) for part in self.parts), self.constants)

    def as_json(self) -> list[Any]:
        """Return the tree as nested lists."""
        return [self.name, list(self.constants), *(part.as_json() for part in self.parts)]

    @classmethod
    def from_json(cls, data: list[Any]) -> "Tree":
        """Return the tree of :meth:`as_json`."""
        name, constants, *parts = data
        if name not in GRAMMAR:
            near = nearest(str(name), GRAMMAR)
            raise ValueError(f"no operation [{name}]{f': did you mean [{near}]?' if near else ''}")
        return cls(name, tuple(cls.from_json(part) for part in parts), tuple(constants))


def draw(source: random.Random, gives: Type, depth: int = _DEPTH) -> Tree:
    """Return a random tree of a type, with a maximum depth if there are leaves of its type."""
    names = of_type(gives, leaves=depth <= 0 and _has_leaves(gives))
    (name,) = source.choices(names, [GRAMMAR[one].weight for one in names])
    operation = GRAMMAR[name]
    takes = list(operation.takes)
    if operation.more:
        takes += [takes[-1]] * source.randrange(3)
    parts = tuple(draw(source, take, depth - 1) for take in takes)
    return Tree(name, parts, tuple(source.choice(values) for values in operation.constants))


def mutate(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    """Return a tree with one change, and a short description of the change."""
    changes: list[tuple[Callable[[random.Random, Tree], tuple[Tree, str]], float]] = [
        (_regrow, 3),
        (_add, 4),
        (_drop, 2),
        (_wrap, 2),
        (_hoist, 1),
    ]
    (change,) = source.choices([one for one, _ in changes], [weight for _, weight in changes])
    return change(source, tree)


def cross(source: random.Random, tree: Tree, other: Tree) -> tuple[Tree, str]:
    """Return a tree with one subtree replaced by one of another tree, and a short description."""
    place = source.choice(list(tree.nodes()))
    alike = [node for node in other.nodes() if node.gives == place.gives and node != place]
    if not alike:
        return Tree("rrf", (tree, other)), "fused both parents by reciprocal rank"
    taken = source.choice(alike)
    return tree.replaced(place, taken), f"[{taken.name}] of the other parent in place of [{place.name}]"


def _regrow(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    place = source.choice(list(tree.nodes()))
    new = draw(source, place.gives, 2)
    return tree.replaced(place, new), f"[{new.name}] in place of [{place.name}]"


def _add(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    places = [node for node in tree.nodes() if GRAMMAR[node.name].more and len(node.parts) < MAX_PARTS]
    if not places:
        return _wrap(source, tree)
    place = source.choice(places)
    new = draw(source, GRAMMAR[place.name].takes[-1], 2)
    return tree.replaced(place, Tree(place.name, (*place.parts, new), place.constants)), (
        f"[{new.name}] as a further channel of [{place.name}]"
    )


def _drop(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    places = [node for node in tree.nodes() if len(node.parts) > len(GRAMMAR[node.name].takes)]
    if not places:
        return _regrow(source, tree)
    place = source.choice(places)
    gone = source.randrange(len(place.parts))
    kept = place.parts[:gone] + place.parts[gone + 1 :]
    return tree.replaced(place, Tree(place.name, kept, place.constants)), (
        f"without [{place.parts[gone].name}] in [{place.name}]"
    )


def _wrap(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    name = source.choice(("rrf", "zsum", "mix"))
    new = draw(source, "scores", 2)
    constants = tuple(source.choice(values) for values in GRAMMAR[name].constants)
    return Tree(name, (tree, new), constants), f"fused with [{new.name}] by [{name}]"


def _hoist(source: random.Random, tree: Tree) -> tuple[Tree, str]:
    inner = [node for node in tree.nodes() if node.gives == "scores" and node != tree and node.parts]
    if not inner:
        return _wrap(source, tree)
    chosen = source.choice(inner)
    return chosen, f"its [{chosen.name}] alone"


@cache
def _has_leaves(gives: Type) -> bool:
    return bool(of_type(gives, leaves=True))


_LETTERS = string.ascii_lowercase
_WIDTH = 100


def render_tree(tree: Tree, summary: str) -> str:
    """Return the source of a tree's program."""
    names: dict[Tree, str] = {}
    lines: list[str] = []
    used: set[str] = set()
    numbers: dict[str, int] = defaultdict(int)
    for node in tree.nodes():
        operation = GRAMMAR[node.name]
        used |= set(operation.imports)
        if not operation.takes and operation.code in ("S", "Q", "D"):
            names[node] = operation.code
            continue
        numbers[node.name] += 1
        out = f"{node.name}_{numbers[node.name]}"
        parts = [names[part] for part in node.parts]
        constants = dict(zip(_LETTERS, map(str, node.constants), strict=False))
        code = operation.code.format(*parts, parts=", ".join(parts), out=out, **constants)
        *before, last = code.split("\n")
        last = _broken(last)
        lines += before
        if node == tree:
            lines.append(f"return {last}")
        else:
            lines.append(f"{out} = {last}")
            names[node] = out
    if tree in names:
        lines.append(f"return {names[tree]}")
    body = "\n".join(f"    {line}" for line in lines)
    return f'"""{summary}"""\n\n{_imports(used, body)}\n\ndef program(Q, D, S, ctx):\n{body}\n'


def _broken(expression: str) -> str:
    """Put the channels of a long list on separate lines."""
    head, bracket, rest = expression.partition("([")
    inner, end, tail = rest.partition("])")
    if len(expression) < _WIDTH or not end:
        return expression
    channels = "".join(f"        {one},\n" for one in inner.split(", "))
    return f"{head}{bracket}\n{channels}    {end}{tail}"


def _imports(used: set[str], body: str) -> str:
    by_module: dict[str, list[str]] = defaultdict(list)
    for name in sorted(used):
        by_module[PRIMITIVE_MODULES[name]].append(name)
    lines = ["import numpy as np", ""] if "np." in body else []
    lines += [
        f"from es_ttc.rescorers.programs.{module} import {', '.join(names)}"
        for module, names in sorted(by_module.items())
    ]
    return "\n".join([*lines, ""]) if lines else ""
