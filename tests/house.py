"""How large the house is: ``python -m tests.house`` prints it, and with ``--search`` what one search passes.

The second starts a real OpenSearch node and a gateway in this process, and records which functions of es_ttc a warm
`_search` with a `rescore.ttc` section and candidates calls, on every thread.
"""

import argparse
import ast
import dataclasses
import json
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "es_ttc"
_BODY = {"query": {"match": {"text": "cat drinks milk"}}, "rescore": {"window_size": 40, "ttc": {"timeout": "60s"}}}


class Size(NamedTuple):
    """What some files hold."""

    files: int = 0
    lines: int = 0
    docstrings: int = 0
    classes: int = 0
    functions: int = 0

    def plus(self, other: "Size") -> "Size":
        """Return the sum of two sizes."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


def size_of(path: Path) -> Size:
    """Return what one file holds."""
    text = path.read_text()
    tree = ast.parse(text)
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for place, statement in enumerate(node.body)
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        and (place == 0 or isinstance(node, ast.Module | ast.ClassDef))
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    nodes = Counter(type(node) for node in ast.walk(tree))
    functions = nodes[ast.FunctionDef] + nodes[ast.AsyncFunctionDef]
    return Size(1, text.count("\n"), len(docstrings), nodes[ast.ClassDef], functions)


def sizes(files: Iterator[Path] | list[Path]) -> Size:
    """Return what files hold together."""
    total = Size()
    for path in files:
        total = total.plus(size_of(path))
    return total


def python_files(folder: Path) -> list[Path]:
    """Return the modules below a folder, links left out."""
    return sorted(path for path in folder.rglob("*.py") if not path.is_symlink())


def table() -> list[tuple[str, Size]]:
    """Return the size of each package of es_ttc, of serving's parts, and of what stands beside es_ttc."""
    packages = sorted(folder for folder in PACKAGE.iterdir() if folder.is_dir() and python_files(folder))
    rows = [(f"es_ttc/{folder.name}", sizes(python_files(folder))) for folder in packages]
    rows.append(("es_ttc", sizes(python_files(PACKAGE))))
    rows += [(name, sizes(python_files(ROOT / name))) for name in ("tests", "benchmarks")]
    return rows


def settings_and_options() -> dict[str, int]:
    """Return the number of settings, of distinct options of the command line, and of commands without commands."""
    import click

    from es_ttc.cli.app import cli
    from es_ttc.settings import GatewaySettings

    def leaves(command: click.Command) -> Iterator[click.Command]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield from leaves(command.get_command(context, name) or command)
        else:
            yield command

    commands = list(leaves(cli))
    options = {
        option
        for command in commands
        for param in command.params
        if isinstance(param, click.Option)
        for option in param.opts
        if option.startswith("--")
    }
    return {"settings": len(GatewaySettings.model_fields), "options": len(options), "commands": len(commands)}


class Passed:
    """Records the functions of es_ttc that are called, and the types of the objects that they work on."""

    def __init__(self) -> None:
        self.on = False
        self.functions: set[tuple[str, str, int]] = set()
        self.types: set[type] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record one call."""
        if not self.on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(str(PACKAGE)):
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        elif code.co_filename != "<string>":  # what dataclasses generate
            return
        for name in ("self", "cls", "_cls"):
            held = frame.f_locals.get(name)
            kind = held if isinstance(held, type) else type(held)
            if kind.__module__.startswith("es_ttc."):
                self.types.add(kind)

    def value_objects(self) -> list[type]:
        """Return the recorded types that carry data: dataclasses, named tuples, models."""
        from pydantic import BaseModel
        from pydantic_settings import BaseSettings

        return sorted(
            (
                kind
                for kind in self.types
                if (dataclasses.is_dataclass(kind) or issubclass(kind, tuple | BaseModel))
                and not issubclass(kind, BaseSettings)
            ),
            key=lambda kind: (kind.__module__, kind.__qualname__),
        )


def one_search() -> Passed:
    """Return what a warm search passes."""
    from es_ttc.encoders import load_encoder
    from tests.serving.conftest import make_index
    from tests.support.gateway import gateway_to
    from tests.support.shared_nodes import SharedNodes, address, want

    passed = Passed()
    nodes = SharedNodes()
    try:
        want(nodes.folder, "opensearch")
        url = address(nodes.folder, "opensearch")
        encoder = load_encoder("minilm@onnx")
        make_index(url, "house", encoder)
        threading.setprofile(passed)
        sys.setprofile(passed)
        with gateway_to(url, encoder) as gateway:

            def search() -> dict[str, Any]:
                request = urllib.request.Request(
                    f"{gateway}/house/_search", json.dumps(_BODY).encode(), {"content-type": "application/json"}
                )
                with urllib.request.urlopen(request, timeout=60) as response:
                    answer: dict[str, Any] = json.load(response)
                return answer

            for _ in range(5):
                search()
            passed.on = True
            answer = search()
            passed.on = False
            assert answer["ttc"]["applied"]
            assert answer["ttc"]["candidates"]["joined"]
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
        nodes.stop()
    return passed


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", action="store_true", help="also record what one search passes")
    parser.add_argument("--names", action="store_true", help="with the files and value objects of the search")
    chosen = parser.parse_args()
    print(f"{'':22}{'files':>7}{'lines':>9}{'docstrings':>12}{'classes':>9}{'functions':>11}")
    for name, size in table():
        share = f"{100 * size.docstrings / max(1, size.lines):.1f} %"
        print(f"{name:22}{size.files:7}{size.lines:9,}{share:>12}{size.classes:9}{size.functions:11}")
    print(", ".join(f"{count} {name}" for name, count in settings_and_options().items()))
    if not chosen.search:
        return
    passed = one_search()
    files = sorted({Path(name) for name, *_ in passed.functions})
    of_serving = [path for path in files if path.is_relative_to(PACKAGE / "serving")]
    print("\none warm _search with rescore.ttc and candidates passes")
    for name, some in (("es_ttc", files), ("es_ttc/serving", of_serving)):
        size = sizes(some)
        called = sum(Path(file) in some for file, *_ in passed.functions)
        print(f"  {name}: {size.files} files, {size.lines:,} lines, {size.classes} classes, {called} functions called")
    print(f"  {len(passed.value_objects())} kinds of value objects")
    if chosen.names:
        print("\n".join(f"    {path.relative_to(ROOT)} ({size_of(path).lines})" for path in files))
        print("\n".join(f"    {kind.__module__}.{kind.__qualname__}" for kind in passed.value_objects()))


if __name__ == "__main__":
    main()
