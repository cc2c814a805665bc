"""Find rescorers by name, and parse their parameters.

A package adds a rescorer by naming its class in the entry-point group ``es_ttc.rescorers``, as es-ttc itself does::

    [project.entry-points."es_ttc.rescorers"]
    mine = "my_package.mine:MyRescorer"
"""

from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Feature, Params, Rescorer

GROUP = "es_ttc.rescorers"


def _is_rescorer(made: object) -> TypeGuard[Rescorer[Any]]:
    return isinstance(made, Rescorer)


def _are_features(value: object) -> bool:
    return isinstance(value, frozenset) and all(isinstance(feature, Feature) for feature in value)


USUAL = ("blend", "hybrid", "spectral", "maxsim", "dense")
"""The methods among which most users choose."""

_GROUP: entry_points.MethodGroup[Rescorer[Any], Params] = entry_points.MethodGroup(
    GROUP,
    "rescorer",
    _is_rescorer,
    Params,
    (
        ("wants", _are_features, "must be a frozenset of Feature"),
        ("similarity", lambda value: isinstance(value, bool), "must be True or False"),
        ("needs", callable, "must be a method"),
        ("score", callable, "must be a method"),
        ("detail", callable, "must be a method"),
    ),
    USUAL,
)

names = _GROUP.names
load = _GROUP.load
problems = _GROUP.problems
parse_params = _GROUP.parse_params
