"""Find rewriters by name, and parse their parameters.

A package adds a rewriter by naming its class in the entry-point group ``es_ttc.rewriters``, as es-ttc itself does::

    [project.entry-points."es_ttc.rewriters"]
    mine = "my_package.mine:MyRewriter"
"""

from typing import Any, TypeGuard

from es_ttc.common import entry_points
from es_ttc.rescorers.base import Params
from es_ttc.rewriters.base import Rewriter

GROUP = "es_ttc.rewriters"
_METHODS = ("remembers", "fields", "enrichment", "expand", "query")


def _is_rewriter(made: object) -> TypeGuard[Rewriter[Any]]:
    return isinstance(made, Rewriter)


_GROUP: entry_points.MethodGroup[Rewriter[Any], Params] = entry_points.MethodGroup(
    GROUP,
    "rewriter",
    _is_rewriter,
    Params,
    (
        ("asks_model", lambda value: isinstance(value, bool), "must be True or False"),
        *((method, callable, "must be a method") for method in _METHODS),
    ),
)

names = _GROUP.names
load = _GROUP.load
problems = _GROUP.problems
parse_params = _GROUP.parse_params
