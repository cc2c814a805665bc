"""Programs as source text: the permitted subset of Python, and compilation of such text to a function.

The text is checked without being run: a module with constants, helper functions and one ``def program(Q, D, S, ctx)``,
without access to files, network, processes, randomness or the interpreter's own objects. Anything else is refused, with
one of the paper's constraints (section 3.2) as the reason. Against malicious code the checks are the first of two
barriers; the second is the process in which :mod:`es_ttc.sandbox` runs them.
"""

import ast
import builtins
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from types import GenericAlias, MappingProxyType, ModuleType
from typing import Any, Final

from es_ttc.common.validation import nearest
from es_ttc.errors import EsTtcError
from es_ttc.rescorers.programs import clocked, syntax
from es_ttc.rescorers.programs.interface import ADAPTERS, Program
from es_ttc.rescorers.programs.syntax import printable
from es_ttc.vectors.chunks import GRANULARITIES

ENTRY: Final = "program"
PROGRAM_ARGUMENTS: Final = ("Q", "D", "S", "ctx")

MAX_SOURCE_CHARACTERS = 40_000
MAX_SOURCE_NODES = 6_000
MAX_NUMBERS = 64  # numbers in a program's code. A table of many numbers would be a learned model.
MAX_LISTED = 12  # numbers in one literal list, tuple, set or dict
MAX_WHOLE = 10**9
MAX_TEXT = 400  # characters of all literal texts of a program, without docstrings


class RefusalReason(StrEnum):
    """Why a program is refused. The first six are the paper's constraints (section 3.2)."""

    TASK_UNIVERSAL = "task_universal"
    DETERMINISTIC = "deterministic"
    EXTERNAL = "external_model"
    NOT_DISTINCT = "not_distinct"
    EVALUATED_ONCE = "evaluated_once"
    CONSTANTS = "fixed_constants"
    SYNTAX = "syntax"
    INTERFACE = "interface"
    FORBIDDEN = "forbidden"
    TIME = "time_limit"
    MEMORY = "memory_limit"
    ESCAPED = "forbidden_system_call"
    CRASHED = "crashed"
    FAILED = "failed"
    SHAPE = "wrong_shape"
    NOT_FINITE = "not_finite"
    COST = "too_costly"
    NO_PROPOSAL = "no_proposal"


class Refused(EsTtcError):
    """A program's text must not be run."""

    status = 400
    type = "ttc_program_refused_exception"

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail  # one sentence with the cause and the place


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PROGRAMS = "es_ttc.rescorers.programs"
_PRIMITIVES = "anchors discriminant feedback fusion lexical matching moments standardise vectors"
_OWN_MODULES = (
    *(f"{_PROGRAMS}.primitives.{name}" for name in _PRIMITIVES.split()),
    *(f"{_PROGRAMS}.{name}" for name in ("channels", "frontier", "interface", "rounds")),
    "es_ttc.vectors.chunks",
    "es_ttc.vectors.tokens",
)
_HIDDEN = frozenset({"run", "ProgramError", "pack_chunks", "unpack_chunks", "EncodeFn"})

_LIBRARIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "math": _names("ceil cos e exp floor hypot inf isfinite log log10 log1p log2 pi pow sin sqrt tanh"),
        "re": _names("I IGNORECASE UNICODE compile escape findall finditer match search split sub"),
        "itertools": _names("accumulate chain combinations islice pairwise product zip_longest"),
        "collections": _names("Counter defaultdict"),
        "collections.abc": _names("Callable Iterable Iterator Mapping Sequence"),
        "numpy.typing": frozenset({"NDArray"}),
        "typing": frozenset({"Any", "Final"}),
    }
)
_NUMPY = _names(
    """
    abs absolute add all allclose amax amin any append arange argmax argmin argpartition argsort argwhere array
    array_equal asarray ascontiguousarray atleast_1d atleast_2d average bincount bool_ broadcast_to ceil clip
    column_stack concatenate convolve copy corrcoef cos count_nonzero cov cumprod cumsum diag diagonal diff
    digitize divide dot e einsum empty empty_like exp expand_dims expm1 eye fill_diagonal finfo flatnonzero flip
    float32 float64 floor full full_like greater greater_equal histogram hstack hypot identity inf inner int32
    int64 intersect1d intp invert isclose isfinite isin isinf isnan less less_equal lexsort linspace log log10
    log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul max maximum mean median meshgrid
    min minimum moveaxis multiply nan nan_to_num nanmax nanmean nanmin nansum ndarray negative newaxis nonzero
    ones ones_like outer partition percentile pi power prod ptp put_along_axis quantile ravel reciprocal repeat
    reshape rint roll round searchsorted setdiff1d sign sin sinh sort sqrt square squeeze stack std subtract sum
    swapaxes take take_along_axis tanh tensordot tile trace transpose tril triu true_divide union1d unique
    unravel_index var vdot vstack where zeros zeros_like linalg add.reduceat maximum.reduceat minimum.reduceat
    maximum.accumulate minimum.accumulate maximum.reduce minimum.reduce linalg.cholesky linalg.det linalg.eigh
    linalg.inv linalg.lstsq linalg.norm linalg.pinv linalg.qr linalg.solve linalg.svd
    """
)
_RANDOM = frozenset({"random", "secrets", "time", "uuid", "datetime", "numpy.random"})
_HARMFUL = _names(
    """
    asyncio builtins ctypes gc importlib inspect io marshal mmap multiprocessing os pathlib pickle posix resource
    shutil signal socket ssl subprocess sys tempfile threading urllib
    """
)
_BUILTINS = _names(
    """
    abs all any bool dict divmod enumerate filter float frozenset int isinstance iter len list map max min next
    pow range reversed round set slice sorted str sum tuple zip True False None ArithmeticError Exception
    IndexError KeyError LookupError TypeError ValueError ZeroDivisionError
    """
)
_UNSTEADY = frozenset({"hash", "id"})

_CONTEXT = _names("query_texts doc_texts encode_fn chunks view expand lexicon note calibration lexical_scores")
_IDENTIFIERS = frozenset({"query_ids", "doc_ids"})
_ATTRIBUTES = (
    _names(
        """
    T all any argmax argmin argpartition argsort astype clip copy cumsum diagonal dot dtype fill flatten item max
    mean min ndim nonzero partition prod ravel repeat reshape round searchsorted shape size sort squeeze std sum
    swapaxes take tolist trace transpose var eps tiny vectors starts texts overlap bigrams coverage rare idf of
    similarities factor begin add fused orders expanded add_expansion add_consensus extremes hybrid rounds queries
    documents context append extend insert pop remove reverse index count get items keys values setdefault update
    most_common discard difference intersection issubset issuperset symmetric_difference union casefold capitalize
    endswith find isalnum isalpha isdigit join lower lstrip partition replace rsplit rstrip split splitlines
    startswith strip title upper end group groups start span findall finditer match search sub
    """
    )
    | _CONTEXT
)

_KNOWN_TEXTS = frozenset((*ADAPTERS, *GRANULARITIES))


def parse(source: str) -> ast.Module:
    """Return a program's syntax tree."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise Refused(
            RefusalReason.SYNTAX, f"{len(source):,} characters; programs have at most {MAX_SOURCE_CHARACTERS:,}"
        )
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        problem = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deeply"
        raise Refused(RefusalReason.SYNTAX, f"{place}{problem}") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_SOURCE_NODES:
        raise Refused(RefusalReason.SYNTAX, f"more than {MAX_SOURCE_NODES:,} nodes of syntax")
    if syntax.depth(tree) > syntax.MAX_TREE_DEPTH:
        raise Refused(RefusalReason.SYNTAX, f"nested more than {syntax.MAX_TREE_DEPTH} levels deep")
    return tree


def check(source: str) -> ast.Module:
    """Return the syntax tree of a program that follows the rules; nothing is run."""
    tree = parse(source)
    _Checks(tree).whole()
    return tree


def compiled(source: str, *, seconds: float | None = None) -> Program:
    """Check a program and return its function, which ends itself after `seconds` (:mod:`.clocked`), if given."""
    tree = check(source)
    namespace: dict[str, Any] = {"__builtins__": _restricted(), "__name__": "candidate"}
    if seconds is not None:
        tree = clocked.looking(tree)
        namespace[clocked.LOOK] = clocked.look_at_clock
    try:
        exec(compile(tree, "<program>", "exec"), namespace)  # noqa: S102 - checked above; without builtins of effect
    except Exception as error:
        raise Refused(RefusalReason.FAILED, f"{type(error).__name__} while it was defined: {error}") from error
    program: Program = namespace[ENTRY]
    return program if seconds is None else clocked.limited(program, seconds)


@cache
def importable(module: str) -> frozenset[str]:
    """Return the names that programs may import from one of our modules: its functions, classes and constants."""
    loaded = importlib.import_module(module)
    return frozenset(
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and name not in _HIDDEN and not isinstance(value, ModuleType) and _is_ours(value)
    )


def allowed_modules() -> tuple[str, ...]:
    """Return the modules that programs may import from."""
    return ("numpy", *_LIBRARIES, *_OWN_MODULES)


def _is_ours(value: object) -> bool:
    if isinstance(value, GenericAlias):
        return True
    home = getattr(value, "__module__", None)
    if home is None:
        return isinstance(value, str | int | float | tuple)
    return home.startswith((_PROGRAMS, "es_ttc.vectors")) or home in ("typing", "types")


def _restricted() -> dict[str, Any]:
    names = {name: getattr(builtins, name) for name in _BUILTINS}
    return {**names, "__import__": _import, "iter": _iter}


def _iter(iterable: Iterable[Any]) -> Iterator[Any]:
    """Return the builtin with one argument: with two it may never end, without a check of the clock."""
    return iter(iterable)


def _import(name: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0) -> ModuleType:
    # numpy's compiled code imports parts of itself in the name of whoever calls it; those are loaded already.
    if level or (name not in allowed_modules() and not (name.startswith("numpy.") and name in sys.modules)):
        raise ImportError(f"programs may not import [{name}]")
    return __import__(name, scope, local, names, level)


class _Checks:
    """The rules, on one syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._docstrings = {id(node) for node in _docstrings(tree)}
        self._modules: dict[str, str] = {}
        self._bound: set[str] = set()

    def whole(self) -> None:
        """Check everything; the widest rules first, so that the reason is the one that matters."""
        self._imports()
        self._top_level()
        self._bound |= _bindings(self._tree)
        hidden = self._bound & self._modules.keys()
        if hidden:
            raise Refused(RefusalReason.FORBIDDEN, f"[{min(hidden)}] is a module: no other thing can have its name")
        for node in ast.walk(self._tree):
            self._node(node)
        found = syntax.fault(self._tree)
        if found is not None:
            raise Refused(RefusalReason.FORBIDDEN, f"line {found.line}: {found.detail}")
        self._literals()

    def _imports(self) -> None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._module(node, alias.name)
                    if alias.name not in ("numpy", *_LIBRARIES) or "." in alias.name:
                        self._refuse(RefusalReason.FORBIDDEN, node, f"write [from {alias.name} import ...]")
                    self._modules[alias.asname or alias.name] = alias.name
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    self._refuse(RefusalReason.EXTERNAL, node, "relative imports name no module that programs may use")
                self._module(node, module)
                if module == "numpy":
                    self._refuse(RefusalReason.FORBIDDEN, node, "write [import numpy as np]")
                names = _LIBRARIES[module] if module in _LIBRARIES else importable(module)
                for alias in node.names:
                    if alias.name not in names:
                        detail = f"[{module}] gives programs no [{printable(alias.name)}]{_hint(alias.name, names)}"
                        self._refuse(RefusalReason.EXTERNAL, node, detail)
                    self._bound.add(alias.asname or alias.name)

    def _module(self, node: ast.AST, name: str) -> None:
        if name in allowed_modules():
            return
        root = name.partition(".")[0]
        if name in _RANDOM or root in _RANDOM:
            self._refuse(RefusalReason.DETERMINISTIC, node, f"imports [{name}]: equal inputs must give equal scores")
        if root in _HARMFUL:
            self._refuse(RefusalReason.FORBIDDEN, node, f"imports [{name}]: programs compute on their inputs alone")
        self._refuse(
            RefusalReason.EXTERNAL,
            node,
            f"imports [{printable(name)}]: programs use numpy, the primitives and ctx.encode_fn, and nothing else",
        )

    def _top_level(self) -> None:
        entries = 0
        for node in self._tree.body:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                    continue
                case ast.FunctionDef():
                    if node.decorator_list:
                        self._refuse(RefusalReason.FORBIDDEN, node, "decorators are not needed")
                    entries += node.name == ENTRY
                    if node.name == ENTRY:
                        self._signature(node)
                case ast.Assign() | ast.AnnAssign():
                    if not _is_constant(node.value):
                        self._refuse(
                            RefusalReason.CONSTANTS,
                            node,
                            "a module's values are literal numbers, texts or tuples of them",
                        )
                case _:
                    self._refuse(RefusalReason.INTERFACE, node, "a program is imports, constants and functions")
        if entries != 1:
            raise Refused(
                RefusalReason.INTERFACE,
                f"{entries} functions [def {ENTRY}({', '.join(PROGRAM_ARGUMENTS)})]; there is one",
            )

    def _signature(self, node: ast.FunctionDef) -> None:
        given = node.args
        names = tuple(argument.arg for argument in given.args)
        if given.defaults or given.kw_defaults or given.kwonlyargs:
            self._refuse(RefusalReason.CONSTANTS, node, "parameters with values would be tuned: constants are fixed")
        if names != PROGRAM_ARGUMENTS or given.posonlyargs or given.vararg or given.kwarg:
            self._refuse(RefusalReason.INTERFACE, node, f"it is [def {ENTRY}({', '.join(PROGRAM_ARGUMENTS)})]")

    def _node(self, node: ast.AST) -> None:
        match node:
            case ast.Global() | ast.Nonlocal():
                self._refuse(RefusalReason.CONSTANTS, node, "state that outlives a call is no constant")
            case ast.FunctionDef() | ast.Lambda():
                if any(not _is_constant(one) for one in (*node.args.defaults, *filter(None, node.args.kw_defaults))):
                    self._refuse(RefusalReason.CONSTANTS, node, "defaults are literal constants")
            case ast.Name():
                self._name(node)
            case ast.Attribute():
                self._attribute(node)
            case ast.Compare():
                self._comparison(node)
            case ast.Dict():
                if any(isinstance(key, ast.Constant) and _is_telling(key.value) for key in node.keys):
                    self._refuse(RefusalReason.TASK_UNIVERSAL, node, "a table by number can hold one entry a task")
            case _:
                return

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if not isinstance(node.ctx, ast.Load):
            if name.startswith("__") or name in self._modules or name == PROGRAM_ARGUMENTS[-1]:
                self._refuse(RefusalReason.FORBIDDEN, node, f"[{printable(name)}] cannot be set")
            return
        if name in self._modules or name in self._bound:
            return
        if name in _UNSTEADY:
            self._refuse(RefusalReason.DETERMINISTIC, node, f"[{name}] differs from process to process")
        if name not in _BUILTINS:
            self._refuse(RefusalReason.FORBIDDEN, node, f"[{printable(name)}] is no name that programs may use")

    def _attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        if not isinstance(node.ctx, ast.Load):
            self._refuse(RefusalReason.FORBIDDEN, node, f"[.{printable(name)}] cannot be set")
        dotted = _dotted(node)
        module = self._modules.get(dotted.partition(".")[0]) if dotted else None
        if module is not None and dotted is not None:
            self._library(node, module, dotted.partition(".")[2])
            return
        if name in _IDENTIFIERS:
            self._refuse(RefusalReason.TASK_UNIVERSAL, node, f"[.{name}] names the task's own texts")
        if isinstance(node.value, ast.Name) and node.value.id == "ctx" and name not in _CONTEXT:
            self._refuse(
                RefusalReason.FORBIDDEN, node, f"[ctx.{printable(name)}]: ctx gives {', '.join(sorted(_CONTEXT))}"
            )
        if name.startswith("_") or name not in _ATTRIBUTES:
            hint = _hint(name, _ATTRIBUTES, ".")
            self._refuse(
                RefusalReason.FORBIDDEN, node, f"[.{printable(name)}] is no attribute that programs may use{hint}"
            )

    def _library(self, node: ast.AST, module: str, path: str) -> None:
        if module == "numpy" and path.partition(".")[0] == "random":
            self._refuse(RefusalReason.DETERMINISTIC, node, "numpy.random: equal inputs must give equal scores")
        known = _NUMPY if module == "numpy" else _LIBRARIES[module]
        if path not in known:
            detail = f"[{module}.{printable(path)}] is not one that programs may use{_hint(path, known)}"
            self._refuse(RefusalReason.FORBIDDEN, node, detail)

    def _comparison(self, node: ast.Compare) -> None:
        if not any(isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for one in node.ops):
            return
        for side in (node.left, *node.comparators):
            for part in ast.walk(side):
                if isinstance(part, ast.Constant) and _is_telling(part.value):
                    self._refuse(
                        RefusalReason.TASK_UNIVERSAL,
                        node,
                        f"compares with [{printable(str(part.value))}]: a rule for one task, text or size",
                    )

    def _literals(self) -> None:
        """Refuse tables: a program may have only a few constants."""
        numbers, text = 0, 0
        for node in ast.walk(self._tree):
            if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
                listed = node.values if isinstance(node, ast.Dict) else node.elts
                if sum(_is_number(one) for one in listed) > MAX_LISTED:
                    self._refuse(
                        RefusalReason.EXTERNAL, node, f"more than {MAX_LISTED} numbers in a row are parameters"
                    )
            if not isinstance(node, ast.Constant) or id(node) in self._docstrings:
                continue
            if isinstance(node.value, bytes):
                self._refuse(RefusalReason.EXTERNAL, node, "bytes hold parameters")
            if isinstance(node.value, str) and node.value not in _KNOWN_TEXTS:
                text += len(node.value)
            if isinstance(node.value, int | float | complex) and not isinstance(node.value, bool):
                numbers += 1
                if abs(node.value) > MAX_WHOLE:
                    self._refuse(RefusalReason.EXTERNAL, node, "a number of so many digits holds parameters")
        if numbers > MAX_NUMBERS:
            raise Refused(
                RefusalReason.EXTERNAL, f"{numbers} numbers are parameters: programs have at most {MAX_NUMBERS}"
            )
        if text > MAX_TEXT:
            raise Refused(
                RefusalReason.TASK_UNIVERSAL, f"{text} characters of text in the code: programs have at most {MAX_TEXT}"
            )

    def _refuse(self, reason: RefusalReason, node: ast.AST, detail: str) -> None:
        raise Refused(reason, f"line {getattr(node, 'lineno', 1)}: {detail}")


def _hint(name: str, known: frozenset[str], sign: str = "") -> str:
    near = nearest(name, known)
    return f": did you mean [{sign}{near}]?" if near else ""


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _bindings(tree: ast.Module) -> set[str]:
    """Return the names that the module gives values itself."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
    return bound


def _dotted(node: ast.Attribute) -> str | None:
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return ".".join(reversed([*parts, inner.id])) if isinstance(inner, ast.Name) else None


def _is_constant(node: ast.AST | None) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_constant(inner)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left) and _is_constant(right)
        case ast.Tuple(elts=elements):
            return all(_is_constant(element) for element in elements)
        case ast.Name(id=name):
            return name.isupper()  # one of the interface's own constants
        case _:
            return False


def _is_number(node: ast.AST | None) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=inner):
            return _is_number(inner)
        case _:
            return False


def _is_telling(value: object) -> bool:
    """Return whether a literal in a comparison can identify a task: a text, a size."""
    if isinstance(value, str):
        return value not in _KNOWN_TEXTS and len(value) > 1
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > 2
