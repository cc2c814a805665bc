"""Numbers and booleans of a search as the engines read them: a string or a fraction in place of an integer is taken."""

import math
import re
from typing import Any

_MAX_INTEGER = 2**31 - 1
_MAX_DIGITS = 100  # far more than a number needs; longer text takes quadratic time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_URL_INTEGER = re.compile(r"[+-]?\d+")  # of any script
_BOOLEANS = {"true": True, "false": False, "": False}


def body_number(value: Any) -> float | None:
    """Return the number that an engine reads from a value in a body; None if it reads none."""
    if isinstance(value, str):
        text = value.strip()
        return float(text) if len(text) <= _MAX_DIGITS and _NUMBER.fullmatch(text) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def body_integer(value: Any) -> int | None:
    """Return the integer that an engine reads from a value in a body, without its fraction; None if it reads none."""
    number = body_number(value)
    return None if number is None or not abs(number) <= _MAX_INTEGER or not math.isfinite(number) else int(number)


def url_integer(text: str) -> int | None:
    """Return the integer that an engine reads from a URL parameter; None if it reads none."""
    number = int(text) if len(text) <= _MAX_DIGITS and _URL_INTEGER.fullmatch(text) else None
    return None if number is None or abs(number) > _MAX_INTEGER else number


def boolean(value: Any) -> bool | None:
    """Return the boolean that an engine reads from a value, an empty one as false; None if it reads none."""
    return value if isinstance(value, bool) else _BOOLEANS.get(value) if isinstance(value, str) else None
