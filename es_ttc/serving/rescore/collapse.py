"""`collapse` after rescoring: one hit per group, the one with the best final score.

The engines collapse in the first pass, so only the best first-pass document of a group would be rescored. Therefore the
window is requested without `collapse`, rescored and collapsed here. The groups without a document in the window follow
from the engine's own collapse of a search that leaves out those of the window. Inner hits come from its collapse of the
page's groups.

Guarantees: A group with documents in the window is displayed with the one that has the best final score, at that
score's place. The other groups follow in first-pass order, each with its first-pass document. Each group is on exactly
one page (of one size, of one state of the index). Scores never rise. If scoring fails, the groups are the engine's own.
The window has `window_size` documents on every page. Documents that join it, or that a strategy finds outside it,
belong to their groups too.

Limits: A group's documents outside the window are not scored and not displayed in place of one inside. A window with a
few large groups rescores few groups, so collapsed searches need a larger `window_size`. Totals count documents, as in
the engines.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.errors import InvalidRequest
from es_ttc.serving.plan.plan import Collapse
from es_ttc.serving.rescore.ranking import Ints, OrderedScores, below
from es_ttc.vectors.tokens import Float32

_OF_THE_SEARCH = frozenset({"aggregations", "aggs", "profile", "rescore", "suggest"})
_OF_INNER_HITS = frozenset(
    {
        "derived", "ext", "indices_boost", "pit", "post_filter", "runtime_mappings", "seq_no_primary_term", "timeout",
    }
)  # fmt: skip

Group = Hashable


@dataclass(frozen=True, slots=True)
class WindowGroups:
    """The groups of a window, and the scores of the groups that follow.

    Attributes:
        groups: The groups, including those that contain only documents from outside the first pass.
        complete: Whether the window contains all documents that the query finds, so that no other groups follow.
        factor: Factor of the first-pass scores of the groups that follow, in (0, 1]; the same for every page.
        floor: The last score of the window, which is the maximum of those that follow.
    """

    groups: frozenset[Group]
    complete: bool
    factor: np.float32
    floor: np.float32


def groups_of(hits: Sequence[Mapping[str, Any]], field: str) -> list[Group]:
    """Return each hit's group; documents without a value are one group, as in the engines."""
    groups: list[Group] = []
    for hit in hits:
        values = (hit.get("fields") or {}).get(field) or [None]
        # OpenSearch gives the value of a field twice if it is asked for by `docvalue_fields` too
        if any(value != values[0] for value in values) or isinstance(values[0], dict | list):
            raise InvalidRequest(f"[collapse.field] [{field}] has no single value in a document: collapse by one value")
        groups.append(values[0])
    return groups


def firsts(groups: Sequence[Group]) -> Ints:
    """Return the position of the first member of every group, in order."""
    positions: dict[Group, int] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group, position)
    return np.array(list(positions.values()), dtype=np.intp)


def collapsed(ranking: OrderedScores, groups: Sequence[Group]) -> OrderedScores:
    """Return a ranking with only the first document of every group."""
    best = firsts([groups[place] for place in ranking.order.tolist()])
    return OrderedScores(ranking.order[best], ranking.scores[best])


def window_groups(
    groups: Sequence[Group],
    asked: int,
    first_pass: Float32,
    ranking: OrderedScores | None,
    *,
    beyond: Sequence[Group] = (),
) -> WindowGroups:
    """Return the groups of a window.

    ``groups`` and ``first_pass`` are of the window's documents, of which ``asked`` were requested; ``beyond`` are the
    groups of documents in the ranking that it did not find. Without a ranking the order is that of the first pass.
    """
    factor, floor = np.float32(1), np.float32(np.inf)
    if ranking is not None and len(ranking.scores) and len(first_pass):
        floor = ranking.scores[-1]
        lowest = first_pass.min()
        factor = floor / lowest if lowest > floor else factor
    return WindowGroups(frozenset((*groups, *beyond)), len(groups) < asked, factor, floor)


def rest_of_page(
    body: Mapping[str, Any], collapse: Collapse, window: WindowGroups, start: int, size: int
) -> dict[str, Any] | None:
    """Return the request for those groups of a page that have no document in the window, or None if there are none.

    If no document of the window has a value, a request is returned in any case: the engine then returns the error of a
    field that cannot be collapsed.
    """
    first = max(0, start - len(window.groups))
    missing = 0 if window.complete else max(0, start + size - len(window.groups) - first)
    if not missing and window.groups != {None}:
        return None
    rest = {key: value for key, value in body.items() if key not in _OF_THE_SEARCH}
    own = [body["post_filter"]] if body.get("post_filter") else []
    # not around the query, whose explanation would show it
    others = {"bool": {"filter": own, "must_not": of_groups(collapse.field, window.groups)}}
    parts = {"post_filter": others, "collapse": {"field": collapse.field}, "from": first, "size": missing}
    return rest | parts | {"track_total_hits": False}


def of_groups(field: str, groups: Iterable[Group]) -> dict[str, Any]:
    """Return a query for the documents of some groups."""
    values = [group for group in groups if group is not None]
    none = {"bool": {"must_not": {"exists": {"field": field}}}}
    clauses = [*([{"terms": {field: values}}] if values else []), *([none] if None in groups else [])]
    return {"bool": {"should": clauses, "minimum_should_match": 1}}


def expanded(
    body: Mapping[str, Any], collapse: Collapse, query: Any, page: Sequence[Mapping[str, Any]], fields: Sequence[Any]
) -> dict[str, Any]:
    """Return the request for the inner hits of the groups of a page; ``fields`` are the doc values that name groups."""
    rest = {key: value for key, value in body.items() if key in _OF_INNER_HITS}
    groups = set(groups_of(page, collapse.field))
    must = {"must": [query]} if body.get("query") else {}  # without a query the engines score inner hits 0
    filtered_query = {"bool": {**must, "filter": [of_groups(collapse.field, groups)]}}
    asked = {"collapse": collapse.body, "docvalue_fields": fields, "size": len(groups), "_source": False}
    return rest | {"query": filtered_query} | asked


def add_inner_hits(page: Sequence[dict[str, Any]], field: str, expanded: Sequence[Mapping[str, Any]]) -> None:
    """Add the inner hits of the groups of a page, in place."""
    inner = dict(zip(groups_of(expanded, field), (hit.get("inner_hits", {}) for hit in expanded), strict=True))
    for hit, group in zip(page, groups_of(page, field), strict=True):
        hit["inner_hits"] = {**hit.get("inner_hits", {}), **inner.get(group, {})}


def following(hits: Sequence[dict[str, Any]], window: WindowGroups) -> Iterator[tuple[dict[str, Any], np.float32]]:
    """Yield the engine's groups of a page, with scores that are not greater than those of the window."""
    if hits:
        scores = np.array([hit.get("_score") or 0.0 for hit in hits], dtype=np.float32) * window.factor
        yield from zip(hits, below(scores, window.floor), strict=True)
