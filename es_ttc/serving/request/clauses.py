"""Clauses that the gateway answers: `ttc` queries, and kNN clauses with a text or a section; found, and replaced."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from es_ttc.errors import InvalidRequest
from es_ttc.serving.request.section import KEY

TEXT = "query_text"
Place = tuple[str | int, ...]
"""Keys and positions from the body to an object."""


class FoundClause(NamedTuple):
    """A clause as it stands in a body.

    Attributes:
        hook: ``query`` for a `ttc` query; for a kNN clause ``top``, ``knn`` (in a query) or ``retriever``.
        place: Its place: of the object that contains the section, or of the ``knn`` object.
        value: The object there.
    """

    hook: str
    place: Place
    value: Mapping[str, Any]

    @property
    def is_knn(self) -> bool:
        """Whether it is a kNN clause."""
        return self.hook != "query"


def find_clauses(body: Mapping[str, Any]) -> list[FoundClause]:
    """Return the clauses of a search body that the gateway answers, in their order.

    Raises:
        InvalidRequest: The query is nested too deeply.
    """
    top = body.get("knn")
    found = []
    if isinstance(top, dict) and _has_text_or_section(top):
        found.append(FoundClause("top", ("knn",), top))
    for position, value in enumerate(top if isinstance(top, list) else ()):
        if _has_text_or_section(value):
            found.append(FoundClause("top", ("knn", position), value))
    try:
        found += _below(body.get("query"), ("query",), "knn")
        found += _below(body.get("retriever"), ("retriever",), "retriever")
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    return found


def _below(value: Any, place: Place, hook: str) -> Iterator[FoundClause]:
    if isinstance(value, list):
        for position, one in enumerate(value):
            yield from _below(one, (*place, position), hook)
    elif isinstance(value, dict):
        if _is_query(value, place):
            yield FoundClause("query", place, value)
            return
        for key, one in value.items():
            if key == "knn" and _has_text_or_section(one):
                yield FoundClause(hook, (*place, key), one)
            elif key != KEY:
                yield from _below(one, (*place, key), "knn" if key == "query" else hook)


def _is_query(value: Mapping[str, Any], place: Place) -> bool:
    """Return whether an object is a `ttc` query: the whole query, or one inside it that names a method."""
    if KEY not in value or "knn" in place:
        return False
    return place == ("query",) or (isinstance(value[KEY], dict) and "method" in value[KEY])


def _has_text_or_section(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if TEXT in value or KEY in value:
        return True
    fields = list(value.values())
    return len(fields) == 1 and isinstance(fields[0], dict) and (TEXT in fields[0] or KEY in fields[0])


def put_at(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of nested JSON with a new value in one place."""
    if not place:
        return new
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = put_at(value[place[0]], place[1:], new)
    return copy
