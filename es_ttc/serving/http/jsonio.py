"""JSON decoding and encoding that is exact for all engine documents: long integers, lone surrogates."""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

from es_ttc.common.long_steps import long_step
from es_ttc.errors import InvalidRequest

_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_PIECE = 2**20
LONG = 2**18
"""Bytes of JSON that are decoded and encoded on a thread; less takes about a millisecond."""
_LONG_NUMBER = 19  # an integer of this many digits may not fit into 64 bits
_BEFORE_INTEGERS = frozenset(b" \t\n\r\f\v[,:-")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def loads_json(raw: bytes) -> Any:
    """Decode JSON; integers are exact whatever their length, lone surrogates survive."""
    if not _may_have_long_integer(raw):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # orjson is stricter than the engines: try the standard library too
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


async def loads_answer(raw: bytes) -> Any:
    """Decode an answer of the engine as :func:`loads`, a long one on a thread; what follows is a long step."""
    decoded = await asyncio.to_thread(loads_json, raw) if len(raw) > LONG else None
    await long_step()
    return loads_json(raw) if len(raw) <= LONG else decoded


def loads_unique(raw: bytes) -> Any:
    """Decode JSON of a caller that is sent to the engine again, changed: only what the engine reads in the same way."""
    if _may_have_long_integer(raw):
        data = _exact(raw)
    else:
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError:
            data = _exact(raw)
    keys = _count_keys(data)
    if keys != raw.count(b":") and keys != _STRING.sub(b"", raw).count(b":"):  # most strings have no colon
        raise ValueError("a key stands twice in one object")
    return data


def dumps(data: Any, *, pretty: bool = False) -> bytes:
    """Encode JSON; the reverse of :func:`loads`."""
    try:
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if pretty else None)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        separators = None if pretty else (",", ":")
        return json.dumps(data, indent=2 if pretty else None, separators=separators).encode()


def is_pretty(params: Mapping[str, str]) -> bool:
    """Return whether a request's parameters ask for indented JSON, as the engines read them."""
    return params.get("pretty", "false") in ("", "true")


def _may_have_long_integer(raw: bytes) -> bool:
    """Return whether a long run of digits begins where an integer may; most are parts of hashes and fractions."""
    run = b"0" * _LONG_NUMBER
    for piece in range(0, len(raw), _PIECE):  # other threads run between two pieces
        digits = raw[piece : piece + _PIECE + _LONG_NUMBER].translate(_DIGITS_TO_ZERO)
        start = digits.find(run)
        while start >= 0 and piece + start > 0 and raw[piece + start - 1] not in _BEFORE_INTEGERS:
            start = digits.find(run, start + _LONG_NUMBER)
        if start >= 0:
            return True
    return False


def has_digits(raw: bytes, count: int) -> bool:
    """Return whether a run of this many digits or more occurs."""
    return b"0" * count in raw.translate(_DIGITS_TO_ZERO)


def loads_object(raw: bytes, what: str) -> dict[str, Any]:
    """Decode one JSON object from a caller."""
    try:
        data = loads_unique(raw)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequest(f"{what} must be a JSON object, got {type(data).__name__}")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _exact(raw: bytes) -> Any:
    """Decode JSON in UTF-8 with the standard library."""
    try:
        return json.loads(raw.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is beyond the range of a double")
    return number


def _count_keys(data: Any) -> int:
    """Return the number of keys in decoded JSON."""
    count, stack = 0, [data]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            count += len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return count
