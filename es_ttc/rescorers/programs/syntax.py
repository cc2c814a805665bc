"""The syntax and the names that programs may use: everything else is refused.

Names are found by the fields of a node, whatever its kind: each text in a field that holds no value is one. So an
argument, a keyword, an alias or an exception's name cannot be left out, nor can those of a later version of Python.
"""

import ast
import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_TREE_DEPTH: Final = 150  # maximum depth of a tree. Deeper ones would exceed the interpreter's recursion limit.

UNUSED: Final = "_"  # the only name that does not begin with a letter: for unused values

IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,79}")

ALLOWED_NODES: Final[frozenset[type[ast.AST]]] = frozenset(
    {
        ast.Module,
        # statements
        ast.AnnAssign, ast.Assert, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Expr, ast.For,
        ast.FunctionDef, ast.If, ast.Import, ast.ImportFrom, ast.Pass, ast.Raise, ast.Return, ast.Try, ast.While,
        # their parts
        ast.ExceptHandler, ast.alias, ast.arg, ast.arguments, ast.comprehension, ast.keyword,
        # expressions
        ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.DictComp,
        ast.FormattedValue, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp, ast.Name,
        ast.NamedExpr, ast.Set, ast.SetComp, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
        ast.Load, ast.Store,
        # operators
        ast.Add, ast.And, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Div, ast.FloorDiv, ast.Invert, ast.LShift, ast.MatMult,
        ast.Mod, ast.Mult, ast.Not, ast.Or, ast.Pow, ast.RShift, ast.Sub, ast.UAdd, ast.USub,
        ast.Eq, ast.Gt, ast.GtE, ast.In, ast.Is, ast.IsNot, ast.Lt, ast.LtE, ast.NotEq, ast.NotIn,
    }
)  # fmt: skip

_NO_NAMES = frozenset({(ast.Constant, "value"), (ast.Constant, "kind")})  # fields with texts that are not names
_DOTTED = frozenset({(ast.ImportFrom, "module"), (ast.alias, "name")})  # fields with dotted names
_IGNORED = "type_comment"


class SyntaxFault(NamedTuple):
    """The first part of a tree that programs may not use."""

    line: int
    detail: str


def fault(tree: ast.AST) -> SyntaxFault | None:
    """Return the first kind of node or name that is not allowed, or None."""
    line = 1
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        if type(node) not in ALLOWED_NODES:
            return SyntaxFault(line, f"[{type(node).__name__}] is not part of the programs' Python")
        for name in identifiers(node):
            if not is_identifier(name):
                return SyntaxFault(
                    line,
                    f"[{printable(name)}] cannot be a name: it begins with a letter and has letters a-z, digits and "
                    "underscores, 80 at most",
                )
    return None


def is_identifier(name: str) -> bool:
    """Return whether programs may use a name at all."""
    return name == UNUSED or IDENTIFIER.fullmatch(name) is not None


def identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names in a node itself, without those of its children."""
    for field, value in ast.iter_fields(node):
        if field == _IGNORED or (type(node), field) in _NO_NAMES:
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from text.split(".") if (type(node), field) in _DOTTED else [text]


def depth(tree: ast.AST) -> int:
    """Return the number of levels of a tree, without recursion."""
    waiting = deque([(tree, 1)])
    deepest = 0
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting.extend((child, level + 1) for child in ast.iter_child_nodes(node))
    return deepest


def printable(name: str) -> str:
    """Return a name for a message: shortened, without control characters."""
    cut = name if len(name) <= 40 else f"{name[:37]}..."
    return "".join(char if char.isprintable() else "?" for char in cut)
