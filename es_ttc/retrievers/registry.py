"""Find retrievers by name, and parse their parameters.

A package adds a retriever by naming its class in the entry-point group ``es_ttc.retrievers``, as es-ttc itself does::

    [project.entry-points."es_ttc.retrievers"]
    mine = "my_package.mine:MyRetriever"
"""

from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Params
from es_ttc.retrievers.base import Retriever

GROUP = "es_ttc.retrievers"


def _is_retriever(made: object) -> TypeGuard[Retriever[Any]]:
    return isinstance(made, Retriever)


_GROUP: entry_points.MethodGroup[Retriever[Any], Params] = entry_points.MethodGroup(
    GROUP,
    "retriever",
    _is_retriever,
    Params,
    (
        ("similarity", lambda value: isinstance(value, bool), "must be True or False"),
        ("needs", callable, "must be a method"),
        ("searches", callable, "must be a method"),
        ("retrieve", callable, "must be a method"),
    ),
)

names = _GROUP.names
load = _GROUP.load
problems = _GROUP.problems
parse_params = _GROUP.parse_params
