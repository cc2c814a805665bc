"""Find rewriters by name, and parse their parameters.

A package adds a rewriter by naming its class in the entry-point group ``es_ttc.rewriters``, as es-ttc itself does::

    [project.entry-points."es_ttc.rewriters"]
    mine = "my_package.mine:MyRewriter"
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Params
from es_ttc.rewriters.base import Rewriter

GROUP = "es_ttc.rewriters"
_METHODS = ("remembers", "fields", "enrichment", "expand", "query")


def names() -> list[str]:
    """Return the names of all installed rewriters, in alphabetical order; nothing is imported."""
    return _GROUP.names()


@lru_cache(maxsize=256)
def load(name: str) -> Rewriter[Any]:
    """Return a rewriter; the same object at every call.

    Raises:
        InvalidRequest: There is no rewriter of this name; the message names the nearest.
        ConfigurationError: It cannot be imported or violates the contract; the message names the entry point. Other
            rewriters are not affected.
    """
    return _GROUP.load(name)


def problems() -> dict[str, str]:
    """Load every rewriter and return name and reason for each that cannot be used."""
    return _GROUP.problems(load)


def parse_params(rewriter: Rewriter[Any], raw: Mapping[str, Any]) -> Params:
    """Parse a rewriter's parameters from the decoded JSON of a request's ``params``.

    Raises:
        InvalidRequest: An unknown key (the nearest valid one is named), a wrong type or a value out of range.
    """
    return entry_points.parse_params(rewriter.Params, raw, rewriter.name)


def _is_rewriter(made: object) -> TypeGuard[Rewriter[Any]]:
    return isinstance(made, Rewriter)


_GROUP: entry_points.Group[Rewriter[Any]] = entry_points.Group(
    GROUP,
    "rewriter",
    _is_rewriter,
    (
        (
            "Params",
            lambda value: entry_points.has_defaults(value, Params),
            "must be a subclass of Params in which every field has a default",
        ),
        ("asks_model", lambda value: isinstance(value, bool), "must be True or False"),
        *((method, callable, "must be a method") for method in _METHODS),
    ),
)
