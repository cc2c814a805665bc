"""An interactive prompt for searches: plain text is a query, a line that begins with a colon is a command."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from es_ttc.common.validation import nearest
from es_ttc.errors import EsTtcError

PAGE_SIZES = range(1, 51)


@dataclass(slots=True)
class Choices:
    """The options of the next query."""

    index: str
    method: str
    size: int = 5
    compare: bool = False


ShowResult = Callable[[str, Choices], RenderableType]  # returns the result of a query for display


@dataclass(slots=True, kw_only=True)
class DemoPrompt:
    """Reads lines until the end: `:quit`, Ctrl-D, or Ctrl-C twice; once, it drops the line.

    `others` are methods that exist and cannot be chosen.
    """

    choices: Choices
    indices: Sequence[str]
    methods: Sequence[str]
    others: Sequence[str] = ()
    answer: ShowResult
    curl: Callable[[str, Choices], str]
    console: Console
    read: Callable[[str], str] = input
    last: str = ""

    def run(self) -> None:
        """Answer line after line."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() a history and line editing

        stopping = False
        while True:
            try:
                line = self.read(f"{self.choices.index} · {self.choices.method} > ").strip()
            except EOFError:
                self.console.print()
                return
            except KeyboardInterrupt:
                self.console.print()
                if stopping:
                    return
                stopping = True
                self._say("Ctrl-D ends, and so does Ctrl-C once more")
                continue
            stopping = False
            if line in (":quit", ":q", ":exit"):
                return
            if line:
                self._obey(line)

    def _obey(self, line: str) -> None:
        try:
            if line.startswith(":"):
                name, _, argument = line[1:].partition(" ")
                self._command(name.strip().lower(), argument.strip())
            else:
                self.last = line
                self.console.print(self.answer(line, self.choices))
        except EsTtcError as error:
            self._say(str(error))
        except KeyboardInterrupt:
            self._say("stopped")

    def _command(self, name: str, argument: str) -> None:
        match name:
            case "help" | "h" | "":
                self.console.print(self._help())
            case "method":
                if argument in self.others:
                    self._say(f"[{argument}] needs more than the demonstration has: a graph, a model, further features")
                else:
                    self.choices.method = self._chosen(argument, self.methods, self.choices.method)
            case "index":
                self.choices.index = self._chosen(argument, self.indices, self.choices.index)
            case "size":
                self._resize(argument)
            case "compare":
                self.choices.compare = not self.choices.compare
                self._say("the engine's own rankings are shown " + ("too" if self.choices.compare else "no longer"))
            case "curl":
                self.console.print(self.curl(self.last or "your query", self.choices), markup=False, soft_wrap=True)
            case _:
                self._say(f"there is no :{name}; :help lists what there is")

    def _chosen(self, requested: str, known: Sequence[str], current: str) -> str:
        if requested in known:
            return requested
        near = nearest(requested, known)
        hint = f"did you mean {near}? " if near else ""
        self._say(f"{hint}choose one of {', '.join(known)} (now {current})")
        return current

    def _resize(self, argument: str) -> None:
        if argument.isdecimal() and int(argument) in PAGE_SIZES:
            self.choices.size = int(argument)
        else:
            self._say(f"choose {PAGE_SIZES.start} to {PAGE_SIZES.stop - 1} (now {self.choices.size})")

    def _help(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for command, meaning in (
            ("some words", "search"),
            (":compare", "switch the engine's own BM25 and dense rankings on or off"),
            (":method NAME", ", ".join(self.methods)),
            (":index NAME", ", ".join(self.indices)),
            (":size N", "number of hits"),
            (":curl", "the same search as a curl command"),
            (":quit", "end (Ctrl-D too)"),
            *((("further methods", f"need more than this index has: {', '.join(self.others)}"),) * bool(self.others)),
        ):
            table.add_row(f"[bold]{escape(command)}[/bold]", escape(meaning))
        return table

    def _say(self, sentence: str) -> None:
        self.console.print(sentence, style="yellow", markup=False, highlight=False)
