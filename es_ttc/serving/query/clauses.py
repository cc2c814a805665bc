"""`ttc` queries in a search body: ``{"ttc": {"method": ...}}`` wherever an engine takes a query that ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import InvalidRequest
from es_ttc.serving.http.limits import DEFAULT_LIMITS, RequestLimits
from es_ttc.serving.knn.clauses import Place
from es_ttc.serving.search.section import KEY, Section, parse_section, require_clause


@dataclass(frozen=True, slots=True)
class QueryClause:
    """One `ttc` query.

    Attributes:
        place: Keys and positions from the body to the object that contains the section.
        section: Its section.
        text: The query's text.
    """

    place: Place
    section: Section
    text: str


def clauses_of(body: Mapping[str, Any], *, limits: RequestLimits = DEFAULT_LIMITS) -> list[QueryClause]:
    """Return the `ttc` queries in a search body.

    Args:
        body: The decoded body.
        limits: Limits of their number and contents.

    Raises:
        InvalidRequest: One is invalid.
    """
    try:
        found = [*_below(body.get("query"), ("query",)), *_below(body.get("retriever"), ("retriever",))]
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    limits.check_clauses(len(found), "query")
    return [_read(place, value, limits) for place, value in found]


def _below(value: Any, place: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    if isinstance(value, list):
        for position, one in enumerate(value):
            yield from _below(one, (*place, position))
    elif isinstance(value, dict):
        if _is_ours(value, place):
            yield place, value
            return
        for key, one in value.items():
            if key != "knn":  # a section there belongs to the other hook
                yield from _below(one, (*place, key))


def _is_ours(value: Mapping[str, Any], place: Place) -> bool:
    """Return whether an object is a `ttc` query: the whole query, or one inside it that names a method."""
    if KEY not in value:
        return False
    return place == ("query",) or (isinstance(value[KEY], dict) and "method" in value[KEY])


def _read(place: Place, value: Mapping[str, Any], limits: RequestLimits) -> QueryClause:
    for key in value:
        if key != KEY:
            raise InvalidRequest(f"[query] holds [{key}] beside [{KEY}]: join the two by a [bool] query")
    section = parse_section(value[KEY], limits)
    require_clause(
        section,
        "query",
        lambda key: "leave it out" if key == "candidates" else f"in [query] give [{KEY}.params] a weight",
    )
    if section.query_texts is not None:
        raise InvalidRequest(f"[{KEY}.query_texts] belongs to [rescore]: in [query] give one text in [query_text]")
    if section.query_text is None:
        raise InvalidRequest(f"[{KEY}.query_text] is missing: give the query's text beside [{KEY}.method]")
    return QueryClause(place, section, section.query_text)
