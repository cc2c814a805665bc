"""JSON decoding and encoding that is exact for all engine documents: long integers, lone surrogates."""

import json
from typing import Any, NoReturn

import orjson

from es_ttc.errors import InvalidRequest

_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = 19  # an integer of this many digits may not fit into 64 bits
_BEFORE_INTEGERS = frozenset(b" \t\n\r\f\v[,:-")


def loads(raw: bytes) -> Any:
    """Decode JSON; integers are exact whatever their length, lone surrogates survive.

    Raises:
        ValueError: It is not JSON (NaN and Infinity are not), or nested too deeply.
    """
    if not _may_have_long_integer(raw):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # orjson is stricter than the engines: try the standard library too
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def dumps(data: Any, *, pretty: bool = False) -> bytes:
    """Encode JSON; the reverse of :func:`loads`."""
    try:
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if pretty else None)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        separators = None if pretty else (",", ":")
        return json.dumps(data, indent=2 if pretty else None, separators=separators).encode()


def _may_have_long_integer(raw: bytes) -> bool:
    """Return whether a long run of digits begins where an integer may; most are parts of hashes and fractions."""
    digits, run = raw.translate(_DIGITS_TO_ZERO), b"0" * _LONG_NUMBER
    start = digits.find(run)
    while start > 0 and raw[start - 1] not in _BEFORE_INTEGERS:
        start = digits.find(run, start + _LONG_NUMBER)
    return start >= 0


def has_digits(raw: bytes, count: int) -> bool:
    """Return whether a run of this many digits or more occurs."""
    return b"0" * count in raw.translate(_DIGITS_TO_ZERO)


def loads_object(raw: bytes, what: str) -> dict[str, Any]:
    """Decode one JSON object from a caller.

    Raises:
        InvalidRequest: It is not JSON, or not an object.
    """
    try:
        data = loads(raw)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequest(f"{what} must be a JSON object, got {type(data).__name__}")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
