"""Validate JSON from users and programs strictly, and describe the first error in one sentence."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar, get_args

import orjson
from pydantic import BaseModel, ValidationError

from es_ttc.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

_MAX_CHARACTERS = 80
_PLAIN = (
    ("^Extra inputs are not permitted", "is unknown"),
    ("^Field required", "is missing"),
    ("^Input is not a path.*", "must be a path"),
    ("greater than or equal to (\\S+)", r"\1 or more"),
    ("less than or equal to (\\S+)", r"at most \1"),
    ("greater than", "more than"),
    ("a valid (dictionary|object|mapping)", "an object"),
    ("a valid (tuple|array|list)", "a list"),
    ("a valid (integer)", r"an \1"),
    ("a valid (boolean|bool)", "true or false"),
    ("a valid ", "a "),
    (r"match pattern '\\S'", "have a character that is no space"),
)
"""Words of pydantic, as patterns, and plain ones."""


class FaultKind(StrEnum):
    """The kind of an error."""

    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(eq=False)
class Fault(Exception):
    """The first error in an object."""

    kind: FaultKind  # not JSON, an unknown key, a missing key, or a value of a wrong type or range
    path: tuple[str, ...]  # keys and positions from the object to the value; empty if the object as a whole is invalid
    known: tuple[str, ...]  # the keys of the model that the last part of the path belongs to
    value: Any
    problem: str  # the error, in lower case, without a full stop


def read_json(model: type[M], data: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> M:
    """Validate decoded JSON strictly, by JSON's own types, with a context for validators; raise Fault."""
    try:
        return model.model_validate_json(orjson.dumps(data), strict=True, context=context)
    except (TypeError, RecursionError) as error:  # a number beyond 64 bits, a lone surrogate
        raise Fault(FaultKind.UNREADABLE, (), _fields_of(model), data, str(error)) from error
    except ValidationError as error:
        raise _first_fault(model, error) from error


def read_object(model: type[M], data: Any) -> M:
    """Validate a decoded object strictly that JSON cannot represent, for example with bytes; raise Fault."""
    try:
        return model.model_validate(data, strict=True)
    except ValidationError as error:
        raise _first_fault(model, error) from error


def validated(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """Validate a JSON object of a request strictly."""
    try:
        return read_json(model, data)
    except Fault as fault:
        raise InvalidRequest(sentence(fault, where)) from fault


def unknown_field(key: str, known: Iterable[str], where: str) -> InvalidRequest:
    """Return the error for an unknown key, with the nearest valid one."""
    known = sorted(known)
    near = nearest(key, known)
    fix = f"did you mean [{near}]?" if near else f"known fields are [{', '.join(known)}]"
    return InvalidRequest(f"[{where}] unknown field [{key}], {fix}")


def did_you_mean(value: str, valid: Iterable[str], usual: Sequence[str] = ()) -> str:
    """Return ``: did you mean [x]?`` for the nearest valid name, or a list of all, the usual ones first."""
    valid = sorted(valid, key=lambda name: (usual.index(name) if name in usual else len(usual), name))
    near = nearest(value, valid)
    if near:
        return f": did you mean [{near}]?"
    return f": valid are {', '.join(f'[{name}]' for name in valid)}" if valid else ": there are none"


def nearest(value: str, known: Iterable[str]) -> str | None:
    """Return the valid name that is most similar to a value, ignoring case; None if none is similar."""
    by_case = {name.lower(): name for name in known}
    near = get_close_matches(value.lower(), by_case, n=1)
    return by_case[near[0]] if near else None


def shown(value: Any) -> str:
    """Return a value for a message: as JSON, shortened, on one line, without control characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        return "a value too deep or too long to be shown"
    cut = text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def sentence(fault: Fault, where: str) -> str:
    """Return the description of an error as one sentence."""
    if fault.kind is FaultKind.UNREADABLE:
        return f"[{where}] holds a value that cannot be read: {fault.problem}"
    if fault.kind is FaultKind.UNKNOWN and fault.known:
        return str(unknown_field(fault.path[-1], fault.known, ".".join((where, *fault.path[:-1]))))
    if fault.kind is FaultKind.MISSING:
        inside = ".".join((where, *fault.path[:-1]))
        return f"[{inside}.{fault.path[-1]}] is missing: give it beside the other fields of [{inside}]"
    path = fault.path if fault.known else fault.path[:1]  # parts that belong to no model are pydantic's own
    if fault.kind is FaultKind.UNKNOWN:
        return f"[{'.'.join((where, *path))}] unknown field [{fault.path[-1]}]"
    return f"[{'.'.join((where, *path))}] is wrong, got {shown(fault.value)}: {fault.problem}"


def problem_of(details: Mapping[str, Any]) -> str:
    """Return the problem of one of pydantic's errors in plain words, in lower case: `must be an integer`."""
    text = re.sub(r"(?<=.), (unable to|got) .*| after validation| or instance of .*", "", details["msg"])
    text = re.sub(r"^(Value error, |Assertion failed, )", "", text)
    text = re.sub(r"^\w+ should (be|have|match)", r"must \1", text)
    for pattern, plain in _PLAIN:
        text = re.sub(pattern, plain, text)
    return text if text[:2].isupper() else text[:1].lower() + text[1:]  # URL stays URL


def first_error(error: ValidationError) -> str:
    """Return the first error in a file of ours, for messages: ``[field]: problem``."""
    first = error.errors(include_url=False)[0]
    return f"[{'.'.join(map(str, first['loc'])) or 'it'}]: {problem_of(first)}"


def _fields_of(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _first_fault(model: type[BaseModel], error: ValidationError) -> Fault:
    errors = error.errors(include_url=False, include_context=False)
    first = min(errors, key=lambda found: found["type"] != "extra_forbidden")
    kind = {"extra_forbidden": FaultKind.UNKNOWN, "missing": FaultKind.MISSING}.get(first["type"], FaultKind.WRONG)
    parts = list(map(str, first["loc"]))
    # Pydantic adds parts of its own below a field: `[key]`, `literal[...]`.
    path = tuple(parts[:1] + [part for part in parts[1:] if part != "[key]" and not part.startswith("literal[")])
    problem = problem_of(first) + (_example(model, path) if first["type"].endswith("_type") else "")
    return Fault(kind, path, _known_at(model, path), first["input"], problem)


def _example(model: type[BaseModel], path: tuple[str, ...]) -> str:
    """Return the example that a field's description ends with, as the end of a message; empty if it has none."""
    description = model.model_fields[path[0]].description if path and path[0] in model.model_fields else None
    found = re.search(r", e\.g\. (\{.*?\}|[^\s{]*[^\s{.,])", description or "")
    return f", e.g. {found[1]}" if found and len(path) == 1 else ""


def _known_at(model: type[BaseModel], path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of the model that the last part of a path belongs to; none where it belongs to no model."""
    for key in path[:-1]:
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        types = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        inner = next((one for one in types if issubclass(one, BaseModel)), None)
        if inner is None:
            return ()
        model = inner
    return _fields_of(model)
