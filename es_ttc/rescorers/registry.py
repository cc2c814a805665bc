"""Finding rescorers by name, and reading their parameters from a request.

A package adds a rescorer by naming its class in the entry-point group ``es_ttc.rescorers``, as es-ttc itself does::

    [project.entry-points."es_ttc.rescorers"]
    mine = "my_package.mine:MyRescorer"
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Feature, Params, Rescorer

GROUP = "es_ttc.rescorers"


def names() -> list[str]:
    """Return the names of all rescorers that are installed, in alphabetical order; nothing is imported."""
    return _GROUP.names()


@lru_cache(maxsize=256)
def load(name: str) -> Rescorer[Any]:
    """Return a rescorer; the same object at every call.

    Raises:
        InvalidRequest: There is no rescorer of this name; the message names the nearest.
        ConfigurationError: It cannot be imported or breaks the contract; the message names the entry point. Other
            rescorers are not concerned.
    """
    return _GROUP.load(name)


def problems() -> dict[str, str]:
    """Load every rescorer and return, for each that cannot be used, its name and why."""
    return _GROUP.problems(load)


def parse_params(rescorer: Rescorer[Any], raw: Mapping[str, Any]) -> Params:
    """Read a rescorer's parameters from the decoded JSON of a request's ``params``.

    Raises:
        InvalidRequest: An unknown key (the nearest valid one is named), a wrong type or a value out of range.
    """
    return entry_points.parse_params(rescorer.Params, raw, rescorer.name)


def _is_rescorer(made: object) -> TypeGuard[Rescorer[Any]]:
    return isinstance(made, Rescorer)


def _are_features(value: object) -> bool:
    return isinstance(value, frozenset) and all(isinstance(feature, Feature) for feature in value)


_GROUP: entry_points.Group[Rescorer[Any]] = entry_points.Group(
    GROUP,
    "rescorer",
    _is_rescorer,
    (
        (
            "Params",
            lambda value: entry_points.has_defaults(value, Params),
            "must be a subclass of Params in which every field has a default",
        ),
        ("wants", _are_features, "must be a frozenset of Feature"),
        ("similarity", lambda value: isinstance(value, bool), "must be True or False"),
        ("needs", callable, "must be a method"),
        ("score", callable, "must be a method"),
        ("detail", callable, "must be a method"),
    ),
)
