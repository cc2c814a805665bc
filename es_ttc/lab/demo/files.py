"""The demonstration's own lists, as they lie in ``data/``."""

from importlib import resources


def read_lines(name: str) -> list[str]:
    """Return the lines of one of the project's own lists."""
    return (resources.files("es_ttc.lab.demo") / "data" / name).read_text(encoding="utf-8").splitlines()


def read_rows(name: str) -> list[tuple[str, str]]:
    """Return the two columns of one of the project's own tab-separated tables, without its header."""
    rows = (line.split("\t") for line in read_lines(name)[1:])
    return [(left, right) for left, right in rows]
