"""Tables on the terminal, in one form."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import stdout

_PIPED_WIDTH = 120  # columns of tables where standard output is no terminal


def console(piped_width: int = _PIPED_WIDTH) -> Console:
    """Return the console of tables on standard output."""
    return stdout if stdout.is_terminal else Console(width=piped_width)


def heading(text: str) -> Console:
    """Print what the tables below it are about, and return their console."""
    made = console()
    made.print(text, style="italic", highlight=False, markup=False, soft_wrap=True)
    return made


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, texts: Sequence[str] = ()
) -> Table:
    """Return a table whose first column is a name and whose other columns are numbers."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number and column not in texts else "left")
    for row in rows:
        made.add_row(*row)
    return made


def properties(rows: Mapping[str, str]) -> Table:
    """Return labels with their values; empty values are left out."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows.items():
        if value:
            made.add_row(Text(label, "bold"), Text(value))
    return made
