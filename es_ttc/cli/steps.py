"""Display the steps of a long command while they run, and one line with its time for each finished step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text


@dataclass(slots=True)
class Step:
    """One running step; `done` is the line that is shown at its end."""

    done: str
    progress: Progress
    task: TaskID

    def advance_to(self, completed: float, total: float | None, doing: str | None = None) -> None:
        """Report the progress."""
        self.progress.update(self.task, completed=completed, total=total, description=doing)


@contextmanager
def step(console: Console, doing: str) -> Iterator[Step]:
    """Run the body as a step; if it raises, no line is printed.

    A terminal displays a bar, which disappears; otherwise a line is printed when a step begins.
    """
    begin = time.perf_counter()
    if not console.is_terminal:
        console.print(f"  {doing} ...", markup=False, highlight=False, soft_wrap=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        running = Step(doing, progress, progress.add_task(doing, total=None))
        yield running
    seconds = time.perf_counter() - begin
    console.print(Text.assemble(("✓ ", "green"), running.done, (f"  {seconds:.1f} s", "dim")))
