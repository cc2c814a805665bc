"""Programs with a time limit: every loop iteration and every call of the program's own functions checks the clock.

The check is the first statement of each loop's body, outside of the program's own ``try``, so no ``except`` and no
``finally`` keeps a loop alive. A single call (numpy, a regular expression) is not interrupted: that needs a process.
"""

import ast
import functools
import threading
import time
from typing import Any, Final

from es_ttc.rescorers.programs.interface import Context, Program, ProgramError
from es_ttc.vectors.tokens import Float32

LOOK: Final = "__look__"  # no program can have this name: the checks refuse it

_now = threading.local()


class _DeadlineReached(BaseException):
    """Not an Exception, because programs may catch those."""


def look_at_clock() -> bool:
    """Return True, as long as the running program has time left."""
    if time.monotonic() > _now.end:
        raise _DeadlineReached
    return True


def looking(tree: ast.Module) -> ast.Module:
    """Insert checks of the clock into a program's tree, in place, and return it."""
    ticking: ast.Module = ast.fix_missing_locations(_DeadlineChecks().visit(tree))
    return ticking


def limited(program: Program, seconds: float) -> Program:
    """Return a program that ends after a number of seconds, if its tree came from :func:`looking`."""

    @functools.wraps(program)
    def run(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        _now.end = time.monotonic() + seconds
        try:
            return program(Q, D, S, ctx)
        except _DeadlineReached:
            raise ProgramError(f"the program ran for more than {seconds:g} s and was ended") from None

    return run


class _DeadlineChecks(ast.NodeTransformer):
    def visit_While(self, node: ast.While) -> ast.AST:
        return self._body(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._body(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = ast.BoolOp(ast.And(), [_look(), node.body])
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs.insert(0, _look())
        return node

    def _body(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_look()))
        found: ast.AST = node
        return found


def _look() -> ast.Call:
    return ast.Call(ast.Name(LOOK, ast.Load()), [], [])
