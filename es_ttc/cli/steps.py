"""Display the steps of a long command while they run, and one line with its time for each finished step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Maximum width of lines in cells, however wide the terminal."""


class _KnownTotalColumn(ProgressColumn):
    """Shows a column only for tasks whose size is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return self._column.render(task) if task.total else Text()


class Step:
    """One running step."""

    def __init__(self, progress: Progress, doing: str) -> None:
        self.done = doing
        self._progress = progress
        self._task = progress.add_task(doing, total=None)

    def advance_to(self, completed: float, total: float | None, doing: str | None = None) -> None:
        """Report the progress; a total turns the spinner into a bar."""
        if doing is None:
            self._progress.update(self._task, completed=completed, total=total)
        else:
            self._progress.update(self._task, completed=completed, total=total, description=doing)


class Steps:
    """Displays steps on one console.

    Args:
        console: A terminal displays a spinner or bar, which disappears; otherwise a line is printed when a step begins.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, doing: str) -> Iterator[Step]:
        """Run the body as a step; if it raises, no line is printed."""
        begin = time.perf_counter()
        if not self._console.is_terminal:
            self._console.print(f"  {doing} ...", markup=False, highlight=False, soft_wrap=True)
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _KnownTotalColumn(BarColumn(bar_width=30)),
            _KnownTotalColumn(TimeRemainingColumn(compact=True)),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as progress:
            step = Step(progress, doing)
            yield step
        self._console.print(self._line(step.done, time.perf_counter() - begin))

    def _line(self, done: str, seconds: float) -> Table:
        line = Table.grid(padding=(0, 1), expand=True)
        line.width = min(self._console.width, WIDTH)
        line.add_column(width=1)
        line.add_column(ratio=1, overflow="fold")
        line.add_column(justify="right", no_wrap=True)
        line.add_row(Text("✓", "green"), Text(done), Text(f"{seconds:.1f} s", "dim"))
        return line
