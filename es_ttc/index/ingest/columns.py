"""Types of CSV columns: found from the first rows, or given, and applied to every cell."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from es_ttc.errors import InvalidRequest

MAX_ROWS = 1_000  # rows from which types are found

_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_COMMA = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,2}(?:\.[0-9]{3})+|[1-9][0-9]*)(?:,[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+")
_TIME = r"[0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?(?:Z|[+-][0-9:]{4,6})?"
_DATE = re.compile(rf"[0-9]{{4}}-[01][0-9]-[0-3][0-9](?:[T ]{_TIME})?")
_BOOLEANS = {"true": True, "false": False}
_EXACT_DIGITS = 15  # significant digits that a double always keeps


class ColumnType(StrEnum):
    """The type of a column's cells. An empty cell is an absent field, whatever the type."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    DECIMAL_COMMA = "decimal-comma"  # numbers such as 1.234,50
    BOOLEAN = "boolean"
    DATE = "date"  # ISO dates, which stay text in the document; engines map them as dates


class WrongCell(ValueError):
    """A cell is not of its column's type."""


def parse_types(text: str) -> dict[str, ColumnType] | None:
    """Return the columns that an option names, such as ``price=number,zip=text``; None for ``text``, all as text."""
    if text == ColumnType.TEXT:
        return None
    types: dict[str, ColumnType] = {}
    for part in text.split(",") if text != "auto" else ():
        name, equals, kind = (piece.strip() for piece in part.rpartition("="))
        if not equals or not name or kind not in [*ColumnType]:
            raise InvalidRequest(
                f"[--types] has [{part}]: give auto, text, or COLUMN=TYPE,... with {', '.join(ColumnType)}"
            )
        types[name] = ColumnType(kind)
    return types


def find_types(header: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, ColumnType]:
    """Return the type of each column: the first of boolean, integer, number, date that fits all of its cells.

    Postal codes (leading zeros), more digits than a double keeps, and ambiguous commas (1,234) are text.
    """
    columns: list[set[str]] = [set() for _ in header]
    for row in rows:
        if len(row) == len(header):
            for values, cell in zip(columns, row, strict=True):
                if cell:
                    values.add(cell.strip())
    return {name: _type_of(values) for name, values in zip(header, columns, strict=True)}


def _type_of(values: set[str]) -> ColumnType:
    if not values:
        return ColumnType.TEXT
    if all(value.lower() in _BOOLEANS for value in values):
        return ColumnType.BOOLEAN
    if all(map(_INTEGER.fullmatch, values)):
        return ColumnType.INTEGER
    if all(_NUMBER.fullmatch(value) and _is_exact(value) for value in values):
        return ColumnType.NUMBER
    with_comma = {value for value in values if "," in value}
    ambiguous = all(map(_THOUSANDS.fullmatch, with_comma))
    if with_comma and not ambiguous and all(_COMMA.fullmatch(value) and _is_exact(value) for value in values):
        return ColumnType.DECIMAL_COMMA
    return ColumnType.DATE if all(map(_DATE.fullmatch, values)) else ColumnType.TEXT


def _is_exact(text: str) -> bool:
    return sum(map(str.isdigit, re.split("[eE]", text)[0])) <= _EXACT_DIGITS


def _boolean(cell: str) -> bool:
    try:
        return _BOOLEANS[cell.lower()]
    except KeyError:
        raise ValueError(cell) from None


def _matching(pattern: re.Pattern[str], convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(cell: str) -> Any:
        if not pattern.fullmatch(cell):
            raise ValueError(cell)
        return convert(cell)

    return converted


_CONVERT: Mapping[ColumnType, Callable[[str], Any]] = {
    ColumnType.INTEGER: _matching(_INTEGER, int),
    ColumnType.NUMBER: _matching(_NUMBER, float),
    ColumnType.DECIMAL_COMMA: _matching(_COMMA, lambda cell: float(cell.replace(".", "").replace(",", "."))),
    ColumnType.BOOLEAN: _boolean,
    ColumnType.DATE: _matching(_DATE, str),
}


def convert(name: str, cell: str, kind: ColumnType) -> Any:
    """Return a cell's value."""
    if kind is ColumnType.TEXT:
        return cell
    try:
        return _CONVERT[kind](cell.strip())
    except ValueError:
        raise WrongCell(
            f"column [{name}] has [{cell[:60]}], and its first rows have the type {kind}: mend it, or take "
            f"--types {name}=text"
        ) from None
