"""No name that means something to the interpreter gets into a program, at whatever place of the syntax it stands."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.lab.discovery.screening import ProposedPrograms
from es_ttc.lab.discovery.seeds import program_source
from es_ttc.rescorers.programs import syntax
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.source import RefusalReason, Refused, check, compiled

PLAIN = "def program(Q, D, S, ctx):\n    return S\n"
RICH = '''"""Every kind of syntax that holds a name."""
import math as m
import numpy as np
from es_ttc.rescorers.programs.primitives.fusion import ranks as ordered

HALF: float = 0.5


def helper(first, /, second=1, *rest, third=2, **others):
    try:
        return [one for one in rest if (kept := one) and others]
    except ValueError as error:
        return error


def program(Q, D, S, ctx):
    total = np.zeros(S.shape, np.float32)
    for place, row in enumerate(S):
        total[place] = ordered(row[None])[0] * m.sqrt(HALF)
    total += sum((lambda value: value)(one) for one in helper(1, 2, 3, third=4, fourth=5))
    return {name: total for name in ctx.query_texts}[ctx.query_texts[0]]
'''
PLACES = {
    "an argument": "def f({0}):\n    return 1\n",
    "a positional argument": "def f({0}, /):\n    return 1\n",
    "an argument with a value": "def f({0}=1):\n    return 1\n",
    "a keyword-only argument": "def f(*, {0}=1):\n    return 1\n",
    "further arguments": "def f(*{0}):\n    return 1\n",
    "further keywords": "def f(**{0}):\n    return 1\n",
    "a function": "def {0}():\n    return 1\n",
    "an argument of a lambda": "def f():\n    return lambda {0}: 1\n",
    "a keyword of a call": "def f():\n    return dict({0}=1)\n",
    "an exception's name": "def f():\n    try:\n        pass\n    except ValueError as {0}:\n        pass\n",
    "a loop": "def f():\n    for {0} in (1, 2):\n        pass\n",
    "a comprehension": "def f():\n    return [1 for {0} in (1, 2)]\n",
    "a walrus": "def f():\n    return ({0} := 1)\n",
    "a name that is set": "def f():\n    {0} = 1\n",
    "a name that is read": "def f():\n    return {0}\n",
    "a constant": "{0} = 1\n",
    "a constant with a type": "{0}: int = 1\n",
    "an attribute": "def f(x):\n    return x.{0}\n",
    "a global": "def f():\n    global {0}\n",
    "a nonlocal": "def f():\n    x = 1\n    def g():\n        nonlocal {0}\n",
    "a module's other name": "import math as {0}\n",
    "an import's other name": "from es_ttc.rescorers.programs.primitives.fusion import ranks as {0}\n",
    "a module": "import {0}\n",
    "a capture": "def f(x):\n    match x:\n        case {0}:\n            pass\n",
    "a star capture": "def f(x):\n    match x:\n        case [*{0}]:\n            pass\n",
    "the rest of a mapping": "def f(x):\n    match x:\n        case {{**{0}}}:\n            pass\n",
    "a class pattern": "def f(x):\n    match x:\n        case int({0}=1):\n            pass\n",
    "a context": "def f(x):\n    with x as {0}:\n        pass\n",
    "a class": "class {0}:\n    pass\n",
    "what is deleted": "def f():\n    del {0}\n",
}
ATTACKS = {
    "its own clock": f"def f(__look__):\n    while True:\n        pass\n{PLAIN}",
    "its own import": f"def f(__import__=1):\n    return __import__\n{PLAIN}",
    "its own builtins": f"def f(**__builtins__):\n    return 1\n{PLAIN}",
    "a module's name": f"import numpy as np\ndef f(np):\n    return np.linalg\n{PLAIN}",
}
NODES = [one for one in vars(ast).values() if inspect.isclass(one) and issubclass(one, ast.AST)]


def named(kind: type[ast.AST]) -> list[str]:
    """The fields of a kind of node that hold names, by Python's own grammar."""
    found = re.findall(r"identifier[?*]* (\w+)", kind.__doc__ or "")
    return [field for field in found if field in kind._fields]


NAMED = [(kind, field) for kind in NODES for field in named(kind)]
BAD = st.one_of(
    st.from_regex(r"_[A-Za-z0-9_]{1,20}", fullmatch=True),
    st.from_regex(r"__[a-z]{1,20}__", fullmatch=True),
    st.text("éßλжñ字", min_size=1, max_size=5).filter(str.isidentifier),
    st.just("a" * 81),
)


def refused(source: str) -> Refused:
    with pytest.raises(Refused) as caught:
        check(source)
    return caught.value


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_cannot_take_the_place_of_what_guards_it(attack: str) -> None:
    assert refused(ATTACKS[attack]).reason == RefusalReason.FORBIDDEN


def test_every_kind_of_syntax_is_either_listed_or_refused() -> None:
    check(RICH)
    present = {type(node) for node in ast.walk(ast.parse(RICH))}
    allowed = {(kind, field) for kind, field in NAMED if kind in syntax.ALLOWED_NODES}
    assert {kind for kind, _ in allowed} <= present  # so that mutations of it reach every place of a name
    assert {(ast.arg, "arg"), (ast.keyword, "arg"), (ast.alias, "asname"), (ast.ExceptHandler, "name")} <= allowed


@pytest.mark.parametrize(("kind", "field"), NAMED, ids=lambda value: getattr(value, "__name__", value))
def test_a_name_is_seen_in_every_field_that_holds_one(kind: type[ast.AST], field: str) -> None:
    node = kind()
    for one in kind._fields:
        setattr(node, one, None)
    setattr(node, field, "__import__")
    assert "__import__" in list(syntax.identifiers(node))
    setattr(node, field, ["x", "__import__"])
    assert "__import__" in list(syntax.identifiers(node))
    assert syntax.fault(node) is not None


class Unknown(ast.expr):
    """A kind of node that no version of Python has yet."""


def test_a_kind_of_node_that_is_not_known_is_refused() -> None:
    tree = ast.parse(PLAIN)
    tree.body.append(ast.Expr(Unknown(lineno=3, col_offset=0)))
    found = syntax.fault(tree)
    assert found is not None
    assert found.detail == "[Unknown] is not part of the programs' Python"


@given(name=BAD, place=st.sampled_from(sorted(PLACES)))
def test_no_such_name_passes_at_any_place_of_the_syntax(name: str, place: str) -> None:
    refused(PLACES[place].format(name) + PLAIN)


@given(data=st.data(), name=BAD)
def test_no_such_name_passes_anywhere_in_a_program_that_is_fine(data: st.DataObject, name: str) -> None:
    tree = ast.parse(data.draw(st.sampled_from(PROGRAMS)))
    node, field, place = data.draw(st.sampled_from(list(_places(tree))))
    if place is None:
        setattr(node, field, name)
    else:
        getattr(node, field)[place] = name
    refused(ast.unparse(tree))


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    for node in ast.walk(tree):
        for field in named(type(node)):
            value: Any = getattr(node, field)
            if isinstance(value, str):
                yield node, field, None
            elif isinstance(value, list):
                yield from ((node, field, place) for place in range(len(value)))


def test_numpy_imports_for_a_program_only_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy.f2py.crackfortran", raising=False)  # another test may have loaded it
    own = compiled(PLAIN).__globals__["__builtins__"]["__import__"]
    assert own("numpy.linalg") is not None
    for name in ("numpy.f2py.crackfortran", "os", "numpyx"):
        with pytest.raises(ImportError, match="import"):
            own(name)


@pytest.mark.parametrize("expression", ["S" + " + S" * 900, "-" * 900 + "S", "S" + ".T" * 900])
def test_a_deep_expression_is_refused_and_does_not_end_the_search(expression: str) -> None:
    source = f"def program(Q, D, S, ctx):\n    return {expression}\n"
    registry = ProposedPrograms(0.02)
    with pytest.raises(Refused, match="syntax: "):
        registry.screen(source)
    registry.add("g001", source)


PROGRAMS = [RICH, *map(program_source, CATALOGUE.values())]
