"""Write trees as readable Python: one line for each subtree, equal subtrees once."""

import string
from collections import defaultdict

from es_ttc.lab.discovery.grammar.operations import MODULES, OPERATIONS
from es_ttc.lab.discovery.grammar.trees import Tree

_LETTERS = string.ascii_lowercase
_WIDTH = 100


def render(tree: Tree, summary: str) -> str:
    """Return the source of a tree's program."""
    names: dict[Tree, str] = {}
    lines: list[str] = []
    used: set[str] = set()
    numbers: dict[str, int] = defaultdict(int)
    for node in tree.nodes():
        operation = OPERATIONS[node.name]
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
        by_module[MODULES[name]].append(name)
    lines = ["import numpy as np", ""] if "np." in body else []
    lines += [
        f"from es_ttc.rescorers.programs.{module} import {', '.join(names)}"
        for module, names in sorted(by_module.items())
    ]
    return "\n".join([*lines, ""]) if lines else ""
