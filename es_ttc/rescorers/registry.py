"""Finding rescorers by name, and reading their parameters from a request.

A package adds a rescorer by naming its class in the entry-point group ``es_ttc.rescorers``, as es-ttc itself does::

    [project.entry-points."es_ttc.rescorers"]
    mine = "my_package.mine:MyRescorer"
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.rescorers.base import Feature, Params, Rescorer

GROUP = "es_ttc.rescorers"


def names() -> list[str]:
    """Return the names of all rescorers that are installed, in alphabetical order; nothing is imported."""
    return sorted({point.name for point in entry_points(group=GROUP)})


@lru_cache(maxsize=256)
def load(name: str) -> Rescorer[Any]:
    """Return a rescorer; the same object at every call.

    Raises:
        InvalidRequest: There is no rescorer of this name; the message names the nearest.
        ConfigurationError: It cannot be imported or breaks the contract; the message names the entry point. Other
            rescorers are not concerned.
    """
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        raise InvalidRequest(f"unknown method [{name}]{did_you_mean(name, names())}")
    if len({point.value for point in found}) > 1:
        values = ", ".join(sorted(f"[{point.value}]" for point in found))
        raise ConfigurationError(
            f"rescorer [{name}] is registered by several packages ({values}): uninstall all but one"
        )
    return _instance(found[0])


def problems() -> dict[str, str]:
    """Load every rescorer and return, for each that cannot be used, its name and why."""
    found = {}
    for name in names():
        try:
            load(name)
        except ConfigurationError as error:
            found[name] = str(error)
    return found


def parse_params(rescorer: Rescorer[Any], raw: Mapping[str, Any]) -> Params:
    """Read a rescorer's parameters from the decoded JSON of a request's ``params``.

    Types are JSON's own: no number is read from a string, no flag from a number.

    Raises:
        InvalidRequest: An unknown key (the nearest valid one is named), a wrong type or a value out of range.
    """
    try:
        return rescorer.Params.model_validate_json(orjson.dumps(raw), strict=True)
    except TypeError as error:  # orjson's own errors are TypeErrors
        raise InvalidRequest(f"the parameters of method [{rescorer.name}] are not JSON: {error}") from error
    except ValidationError as error:
        raise InvalidRequest(_sentence(rescorer, error.errors(include_url=False)[0])) from error


def did_you_mean(value: str, valid: Iterable[str]) -> str:
    """Return ``: did you mean [x]?`` for the nearest valid name, or a list of all where none is near."""
    valid = sorted(valid)
    near = get_close_matches(value, valid, n=1)
    if near:
        return f": did you mean [{near[0]}]?"
    return f": valid are {', '.join(f'[{name}]' for name in valid)}" if valid else ": there are none"


def _sentence(rescorer: Rescorer[Any], error: ErrorDetails) -> str:
    """Say which parameter of which method is wrong, its value and what it should be."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = (field.alias or name for name, field in rescorer.Params.model_fields.items())
        nearest = did_you_mean(where, known)
        return f"unknown parameter [{where}] of method [{rescorer.name}]{nearest}"
    problem = error["msg"].removeprefix("Value error, ")
    if not where:
        return f"parameters of method [{rescorer.name}]: {problem}"
    return f"parameter [{where}] of method [{rescorer.name}] is {_short(error['input'])}: {problem}"


def _short(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _instance(point: EntryPoint) -> Rescorer[Any]:
    try:
        made: object = point.load()()
    except Exception as error:  # another package's code may fail in any way
        raise ConfigurationError(
            f"rescorer [{point.name}] ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    broken = _broken(point.name, made)
    if broken or not isinstance(made, Rescorer):
        raise ConfigurationError(f"rescorer [{point.name}] ({point.value}) breaks the contract: {broken}")
    return made


def _broken(name: str, made: object) -> str:
    """Return what of the contract an object breaks, or an empty string."""
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("name", lambda value: value == name and name == name.lower(), f"must be [{name}], in lower case"),
        ("Params", _has_defaults, "must be a subclass of Params in which every field has a default"),
        ("wants", _are_features, "must be a frozenset of Feature"),
        ("similarity", lambda value: isinstance(value, bool), "must be True or False"),
        ("needs", callable, "must be a method"),
        ("score", callable, "must be a method"),
        ("detail", callable, "must be a method"),
    )
    for attribute, holds, wanted in checks:
        if not hasattr(made, attribute):
            return f"[{attribute}] is missing"
        if not holds(getattr(made, attribute)):
            return f"[{attribute}] {wanted}"
    return ""


def _has_defaults(model: object) -> bool:
    if not (isinstance(model, type) and issubclass(model, Params)):
        return False
    return not any(field.is_required() for field in model.model_fields.values())


def _are_features(value: object) -> bool:
    return isinstance(value, frozenset) and all(isinstance(feature, Feature) for feature in value)
