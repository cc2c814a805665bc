"""Numeric fields of documents that a ranking model reads, as `es-ttc train rank --field` names them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from es_ttc.errors import InvalidRequest
from es_ttc.vectors.tokens import Float64

MAX_FIELDS = 32  # fields of one model; every search with the model reads all of them
_MISSING = ":missing="
_NAME = re.compile(r"[^\s,*?:\"\\<>|{}\[\]]{1,255}")
_OURS = "ttc"


@dataclass(frozen=True, slots=True)
class NumericField:
    """A numeric field; `missing` is its value in a document that has none, or None if the trees have a side for it."""

    name: str
    missing: float | None = None

    def filled(self, values: Float64) -> Float64:
        """Return values with that of a document that has none in the places of NaN."""
        return values if self.missing is None else np.where(np.isnan(values), self.missing, values)


def parse_field(given: str) -> NumericField:
    """Return the field that ``NAME`` or ``NAME:missing=VALUE`` names."""
    name, given_missing, value = given.partition(_MISSING)
    missing: float | None = None
    if given_missing:
        try:
            missing = float(value)
        except ValueError:
            missing = math.nan
        if not math.isfinite(missing):
            raise InvalidRequest(f"[field] {given}: [{value}] after [missing=] is no number, as in price:missing=0")
    problem = name_problem(name)
    if problem is not None:
        raise InvalidRequest(f"[field] {given}: {problem}; write NAME or NAME:missing=VALUE, as in price:missing=0")
    return NumericField(name, missing)


def parse_fields(given: Sequence[str]) -> tuple[NumericField, ...]:
    """Return several fields; see :func:`parse_field`."""
    fields = tuple(map(parse_field, given))
    problem = fields_problem(fields)
    if problem is not None:
        raise InvalidRequest(f"[field] {problem}")
    return fields


def name_problem(name: str) -> str | None:
    """Return why a text cannot be the name of such a field; None if it can."""
    if not _NAME.fullmatch(name) or name.startswith(("_", ".")) or name.endswith("."):
        return f"[{name}] is no name of a field"
    if name == _OURS or name.startswith(f"{_OURS}."):
        return f"[{name}] is a field of es-ttc itself"
    return None


def fields_problem(fields: Sequence[NumericField]) -> str | None:
    """Return why these cannot be the fields of one model; None if they can."""
    if len(fields) > MAX_FIELDS:
        return f"names {len(fields)} fields, and a model reads at most {MAX_FIELDS}"
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"names [{twice}] twice"
    return next((problem for name in names if (problem := name_problem(name)) is not None), None)


def field_columns(fields: Sequence[NumericField], numbers: Mapping[str, Float64], documents: int) -> Float64:
    """Return the fields' values as a model reads them, ``(k, f)``; NaN where a document has none."""
    columns = np.full((documents, len(fields)), np.nan)
    for place, field in enumerate(fields):
        if field.name in numbers:
            columns[:, place] = numbers[field.name]
        columns[:, place] = field.filled(columns[:, place])
    return columns


def as_number(values: object) -> float | None:
    """Return the number of a field, the least of several; None if there is none."""
    several: Iterable[object] = values if isinstance(values, list) else [values]
    found = [_number(value) for value in several if value is not None]
    return min(found, default=None)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number
