"""Find retrievers by name, and parse their parameters.

A package adds a retriever by naming its class in the entry-point group ``es_ttc.retrievers``, as es-ttc itself does::

    [project.entry-points."es_ttc.retrievers"]
    mine = "my_package.mine:MyRetriever"
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Params
from es_ttc.retrievers.base import Retriever

GROUP = "es_ttc.retrievers"


def names() -> list[str]:
    """Return the names of all installed retrievers, in alphabetical order; nothing is imported."""
    return _GROUP.names()


@lru_cache(maxsize=256)
def load(name: str) -> Retriever[Any]:
    """Return a retriever; the same object at every call.

    Raises:
        InvalidRequest: There is no retriever of this name; the message names the nearest.
        ConfigurationError: It cannot be imported or violates the contract; the message names the entry point. Other
            retrievers are not affected.
    """
    return _GROUP.load(name)


def problems() -> dict[str, str]:
    """Load every retriever and return name and reason for each that cannot be used."""
    return _GROUP.problems(load)


def parse_params(retriever: Retriever[Any], raw: Mapping[str, Any]) -> Params:
    """Parse a retriever's parameters from the decoded JSON of a request's ``params``.

    Raises:
        InvalidRequest: An unknown key (the nearest valid one is named), a wrong type or a value out of range.
    """
    return entry_points.parse_params(retriever.Params, raw, retriever.name)


def _is_retriever(made: object) -> TypeGuard[Retriever[Any]]:
    return isinstance(made, Retriever)


_GROUP: entry_points.Group[Retriever[Any]] = entry_points.Group(
    GROUP,
    "retriever",
    _is_retriever,
    (
        (
            "Params",
            lambda value: entry_points.has_defaults(value, Params),
            "must be a subclass of Params in which every field has a default",
        ),
        ("similarity", lambda value: isinstance(value, bool), "must be True or False"),
        ("needs", callable, "must be a method"),
        ("searches", callable, "must be a method"),
        ("retrieve", callable, "must be a method"),
    ),
)
