"""The running Python's standard library as a collection: one document a module, made from its docstrings.

Every machine that can run es-ttc has it, it is real prose, and its documents are long while what answers a question
is one line of them. The source is parsed, not imported (some modules open a browser or a window when imported); only
modules written in C, which have no source, are imported, and only those named here.
"""

import ast
import contextlib
import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from es_ttc.errors import ConfigurationError
from es_ttc.lab.demo.files import read_rows
from es_ttc.lab.evaluation.datasets import Collection, Document

# fmt: off
LEFT_OUT = frozenset((
    # Easter eggs, applications, tests, code pages, and the platform halves of os and os.path.
    "antigravity", "this", "idlelib", "lib2to3", "turtledemo", "test", "ensurepip", "encodings", "pydoc_data",
    "distutils", "genericpath", "nt", "ntpath", "posix",
))
IMPORTED = frozenset((
    # Written in C; importing them has no effect beyond loading them.
    "array", "atexit", "binascii", "builtins", "cmath", "errno", "fcntl", "gc", "grp", "itertools", "marshal",
    "math", "mmap", "nt", "posix", "pwd", "resource", "select", "sys", "syslog", "termios", "time", "unicodedata",
    "zlib", "_collections", "_contextvars", "_csv", "_functools", "_io", "_socket", "_struct", "_thread",
    "_weakref",
))
# fmt: on
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MODULE_WORDS = 120  # words kept of a module's own docstring; some are whole manuals
MEMBER_WORDS = 25  # words kept of a function's, class's or method's first paragraph
STANDARD_LIBRARY = f"python-{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Member:
    """A public function, class or method, as one line of a document."""

    name: str
    signature: str
    doc: str

    def __str__(self) -> str:
        """Return the line, e.g. ``ceil(x, /): Return the ceiling of x as an Integral``."""
        return f"{self.name}{self.signature}" + (f": {self.doc}" if self.doc else "")


@dataclass(frozen=True, slots=True)
class Module:
    """What a module says about itself."""

    doc: str
    members: Mapping[str, Member]

    def __str__(self) -> str:
        """The module's docstring, then one line a member."""
        return "\n".join(filter(None, [self.doc, *map(str, self.members.values())]))


def generate() -> Collection:
    """Return this Python's modules as documents, and the questions that it has an answer to."""
    documents = {name: Document(name, name, str(module)) for name, module in modules()}
    if len(documents) < len(IMPORTED):
        raise ConfigurationError(
            f"this Python has no source of its standard library in {_root()}: use a Python installed with its library"
        )
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for number, (question, answers) in enumerate(read_rows("stdlib_questions.tsv"), 1):
        relevant = [name for name in answers.split() if name in documents]
        if relevant:
            queries[f"q{number}"] = question
            qrels[f"q{number}"] = dict.fromkeys(relevant, 1)
    return Collection(STANDARD_LIBRARY, "test", tuple(documents.values()), queries, qrels)


def modules() -> Iterator[tuple[str, Module]]:
    """Yield every public module that says anything, by name; packages are followed by their public submodules."""
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in LEFT_OUT:
            continue
        path = _source(name)
        for full, source in _with_submodules(name, path) if path else [(name, None)]:
            module = _parsed(full, source) if source else _imported(full)
            if module is not None and str(module):
                yield full, module


def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _source(name: str) -> Path | None:
    """Return the file that holds a module's source; None for one that has none here."""
    base = _root().joinpath(*name.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def _with_submodules(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    yield name, path
    if path.name != "__init__.py":
        return
    for entry in sorted(path.parent.iterdir()):
        stem = entry.stem
        if stem.startswith("_") or stem in ("test", "tests"):
            continue
        inner = _source(f"{name}.{stem}")
        if inner is not None:
            yield from _with_submodules(f"{name}.{stem}", inner)


def _imported(name: str) -> Module | None:
    """Read a C module through the interpreter's own introspection."""
    if name not in IMPORTED:
        return None
    try:
        module = importlib.import_module(name)
    except ImportError:  # not on this platform
        return None
    members: dict[str, Member] = {}
    for key, value in vars(module).items():
        if key.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        members[key] = _compiled(key, value)
        if inspect.isclass(value) and not issubclass(value, BaseException):
            members |= _methods(key, value)
    return Module(_cut(inspect.cleandoc(module.__doc__ or ""), MODULE_WORDS), members)


def _methods(owner: str, value: type) -> dict[str, Member]:
    return {
        f"{owner}.{key}": _compiled(f"{owner}.{key}", method)
        for key, method in vars(value).items()
        if not key.startswith("_") and inspect.isroutine(method)
    }


def _compiled(name: str, value: object) -> Member:
    """Describe a function or class written in C, whose signature may stand in the first line of its docstring."""
    signature = getattr(value, "__text_signature__", None)
    doc = inspect.cleandoc(value.__doc__ or "")
    if signature is None and doc.startswith(f"{name.rpartition('.')[2]}("):
        line, _, doc = doc.partition("\n")
        signature = line[line.index("(") :]
    implicit = re.compile(r"\(\$(module|self|type)(, /)?(, )?")
    return Member(name, implicit.sub("(", signature or ""), _first(doc.lstrip()))


def _parsed(name: str, path: Path) -> Module | None:
    """Read a module from its source; names that it takes from private modules are its own."""
    tree = ast.parse(path.read_bytes())
    exported = _exported(tree)
    members: dict[str, Member] = {}
    for member in _members(tree, name, path):
        top = member.name.split(".")[0]
        if top in exported if exported is not None else not top.startswith("_"):
            members.setdefault(member.name, member)
    return Module(_cut(ast.get_docstring(tree) or "", MODULE_WORDS), members)


def _exported(tree: ast.Module) -> frozenset[str] | None:
    """Return ``__all__`` where it is one plain list of names; None where there is none or it is built up."""
    top_level = [node for node in _statements(tree.body) if not isinstance(node, _DEFINITIONS)]
    mentions = [node for line in top_level for node in ast.walk(line) if isinstance(node, ast.Name)]
    targets = [node for node in mentions if node.id == "__all__"]
    for line in top_level:
        if isinstance(line, ast.Assign) and line.targets == targets:
            with contextlib.suppress(ValueError):
                return frozenset(ast.literal_eval(line.value))
    return None


def _members(tree: ast.Module, name: str, path: Path) -> Iterator[Member]:
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Member(node.name, f"({ast.unparse(node.args)})", _first(ast.get_docstring(node)))
            case ast.ClassDef():
                yield from _class(node)
            case ast.ImportFrom():
                yield from _reexported(node, name, path)
            case _:
                pass


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, those under a top-level ``if`` or ``try`` included (accelerated and fallback versions)."""
    for node in body:
        match node:
            case ast.If():
                yield from _statements(node.body + node.orelse)
            case ast.Try():
                yield from _statements(node.body + [line for h in node.handlers for line in h.body] + node.orelse)
            case _:
                yield node


def _class(node: ast.ClassDef) -> Iterator[Member]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield Member(node.name, f"({bases})" if bases else "", _first(ast.get_docstring(node)))
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            signature = f"({ast.unparse(method.args)})"
            yield Member(f"{node.name}.{method.name}", signature, _first(ast.get_docstring(method)))


def _reexported(node: ast.ImportFrom, name: str, path: Path) -> Iterator[Member]:
    """Yield the members that ``from _private import ...`` brings in."""
    target = node.module or ""
    if node.level:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        target = f"{package}.{target}"
    if not target.rpartition(".")[2].startswith("_") and target not in ("nt", "posix"):
        return
    source = _source(target)
    module = _parsed(target, source) if source else _imported(target)
    if module is None:
        return
    taken = {alias.name: alias.asname or alias.name for alias in node.names}
    for member in module.members.values():
        top, dot, rest = member.name.partition(".")
        if "*" in taken or top in taken:
            yield replace(member, name=taken.get(top, top) + dot + rest)


def _first(doc: str | None) -> str:
    """Return the first paragraph of a docstring on one line, cut."""
    return _cut(inspect.cleandoc(doc or "").partition("\n\n")[0], MEMBER_WORDS)


def _cut(text: str, words: int) -> str:
    return " ".join(text.split()[:words])
