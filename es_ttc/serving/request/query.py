"""What the clauses of a query are, by their names; without an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

FUNCTIONS = frozenset({"function_score", "script_score"})
RULES = frozenset({"rule", "rule_query"})
_UNSCORED_FUNCTIONS = frozenset({"_name", "boost", "boost_mode", "max_boost", "query", "score_mode"})

PARAMS_OF_QUERY = {
    "q": "query", "df": "default_field", "analyzer": "analyzer", "analyze_wildcard": "analyze_wildcard",
    "default_operator": "default_operator", "lenient": "lenient",
}  # fmt: skip
"""The URL parameters that are a query, and the options of `query_string` that they are."""


def query_of_url(params: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the query of the URL parameter `q`, which replaces that of the body; None without one."""
    if not params.get("q"):
        return None
    return {"query_string": {option: params[name] for name, option in PARAMS_OF_QUERY.items() if name in params}}


def changes_scores(query: Any) -> bool:
    """Return whether a query has a clause by which a score of 0 is meant: functions, scripts, boosting, rules."""
    if isinstance(query, list):
        return has_objects(query) and any(map(changes_scores, query))
    if not isinstance(query, Mapping):
        return False
    for kind, clause in query.items():
        if kind in FUNCTIONS | RULES | {"boosting"} and not (kind == "function_score" and has_no_functions(clause)):
            return True
        if isinstance(clause, Mapping | list) and changes_scores(clause):
            return True
    return False


def has_no_functions(clause: Any) -> bool:
    """Return whether a `function_score` changes no score."""
    return isinstance(clause, Mapping) and clause.keys() <= _UNSCORED_FUNCTIONS


def without_inner_hits(part: Any) -> Any:
    """Return queries without inner hits: those of the caller's query have the same names."""
    if isinstance(part, list):
        return [without_inner_hits(one) for one in part] if has_objects(part) else part
    if isinstance(part, Mapping):
        return {key: without_inner_hits(value) for key, value in part.items() if key != "inner_hits"}
    return part


def has_objects(values: Sequence[Any]) -> bool:
    """Return whether a list of a query holds clauses; not if it begins with a value: it may have thousands of terms."""
    return bool(values) and isinstance(values[0], Mapping | list)


def normalised_spaces(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def as_clauses(value: Any) -> list[Any]:
    """Return the clauses of a key that takes one or several."""
    return [*value] if isinstance(value, list) else [] if value is None else [value]
