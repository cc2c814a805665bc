"""JSON decoding and encoding that keeps numbers exactly as written.

A JSON decoder rounds numbers that exceed 64 bits, or have more digits than a double, without an error. Engines keep a
document's `_source` as it was sent, so code that reads and writes documents must keep such numbers too.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

import orjson

_SUSPICIOUS = rb"[0-9.]{17}|[0-9][eE][+-]?[0-9]{2}"
_MAY_LOSE = re.compile(_SUSPICIOUS)
_MAY_LOSE_TEXT = re.compile(_SUSPICIOUS.decode())
_EXACT_DIGITS = 15  # significant digits that a double always keeps
_EXACT_EXPONENT = 290
_MAX_INTEGER_LENGTH = 20
_LEAST, _GREATEST = -(2**63), 2**64 - 1


class ExactNumber:
    """A JSON number that is exact neither as a 64-bit integer nor as a double."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ExactNumber({self.text})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactNumber) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def integer(self) -> bool:
        """Whether it is an integer, written without point and exponent."""
        return self.text.removeprefix("-").isdecimal()


def loads(raw: bytes | str, *, lone_surrogates: bool = False) -> Any:
    """Decode JSON; a number that would change becomes an :class:`ExactNumber`.

    A lone surrogate is an error, but for the answers of engines, which keep those of documents.
    """
    suspicious = _MAY_LOSE_TEXT.search(raw) if isinstance(raw, str) else _MAY_LOSE.search(raw)
    if suspicious is None:
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            if not lone_surrogates:
                raise
    try:
        return json.loads(raw, parse_int=_integer, parse_float=number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def default(value: Any) -> Any:
    """Return an exact number's JSON, as the ``default`` of `orjson.dumps`."""
    if isinstance(value, ExactNumber):
        return orjson.Fragment(value.text.encode())
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def number(text: str) -> float | ExactNumber:
    """Return a decimal as a float if that is the same number, else as written."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) <= _EXACT_DIGITS + 1 and abs(int(exponent or 0)) < _EXACT_EXPONENT:
        return float(text)
    value = float(text)
    finite = value not in (float("inf"), float("-inf"))
    return value if finite and Decimal(repr(value)) == Decimal(text) else ExactNumber(text)


def exact_numbers_in(value: Any, path: str = "") -> list[tuple[str, ExactNumber]]:
    """Return the exact numbers in a decoded document, with their paths."""
    if isinstance(value, ExactNumber):
        return [(path, value)]
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}" if path else key, one) for key, one in value.items()]
        return [found for name, one in inner for found in exact_numbers_in(one, name)]
    if isinstance(value, list):
        return [one for inner in value for one in exact_numbers_in(inner, path)]
    return []


def _integer(text: str) -> int | ExactNumber:
    if len(text) <= _MAX_INTEGER_LENGTH and _LEAST <= (value := int(text)) <= _GREATEST:
        return value
    return ExactNumber(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
