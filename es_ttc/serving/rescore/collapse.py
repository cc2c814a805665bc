"""`collapse` after rescoring: one hit a group, and the final score says which.

The engines collapse inside the first pass, so a group would stand or fall by its best first-pass document. Therefore
the window is asked for without `collapse`, rescored, and collapsed here; groups that no document of the window is in
follow from the engine's own collapse. Both engines rank groups by their best document, so the groups of a window of the
first pass are the first groups of the engine's own list, and what follows begins where they end.

What is promised: a group with documents in the window shows the one of them that has the best final score, and stands
where that score puts it; every other group follows in first-pass order with its first-pass document and never
overtakes; every group stands on exactly one page (of one size, of one state of the index); scores never rise. When
scoring fails, the groups are those of the engine alone. The window is `window_size` documents, or one page where that
is more, on every page. Documents that a walk finds beyond the window belong to their groups as those of the window do;
a group that they alone bring is left out of what follows from the engine, wherever it stands there.

What is not: a group's document outside the window is not scored and not shown in place of one inside; a window of few
large groups rescores few groups, so collapsed searches want a wider `window_size`. Totals count documents, as the
engines count them.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.common.validation import shown, unknown_field
from es_ttc.errors import InvalidRequest
from es_ttc.serving.rescore.page import Ints, Ranking, below
from es_ttc.serving.search.section import KEY
from es_ttc.vectors.tokens import Float32

_KEYS = ["field", "max_concurrent_group_searches"]
_OF_THE_SEARCH = frozenset({"aggregations", "aggs", "profile", "rescore", "suggest"})

Group = Hashable


@dataclass(frozen=True, slots=True)
class Collapse:
    """What a request says of collapsing.

    Attributes:
        field: The field whose value is a document's group.
        body: The request's own words.
    """

    field: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WindowGroups:
    """The groups of a window, and how what follows them is scored.

    Attributes:
        groups: The groups, those included that only documents found beyond the first pass are in.
        added: How many of these there are. The engine's own list may have them further down.
        complete: Whether the window holds all that the query finds: there are no other groups.
        factor: Of the first-pass scores of what follows, in (0, 1]; the same for every page.
        floor: The last score of the window: none that follows is greater.
    """

    groups: frozenset[Group]
    added: int
    complete: bool
    factor: np.float32
    floor: np.float32

    def following(self, start: int, size: int) -> tuple[int, int]:
        """Return how many of the groups that follow stand before a page, and how many on it."""
        before = max(0, start - len(self.groups))
        return before, 0 if self.complete else max(0, start + size - len(self.groups) - before)


def parse_collapse(data: Any) -> Collapse:
    """Read `collapse`.

    Raises:
        InvalidRequest: It has `inner_hits`, or cannot be meant as it stands.
    """
    if not isinstance(data, dict) or not isinstance(data.get("field"), str):
        raise InvalidRequest(f'[collapse] must be an object such as {{"field": "group"}}, got {shown(data)}')
    if "inner_hits" in data:
        raise InvalidRequest(f"[collapse] with [inner_hits] cannot be used with [rescore.{KEY}]: leave inner_hits out")
    for key in data:
        if key not in _KEYS:
            raise unknown_field(key, _KEYS, "collapse")
    return Collapse(data["field"], data)


def groups_of(hits: Sequence[Mapping[str, Any]], field: str) -> list[Group]:
    """Return each hit's group; documents without a value are one group, as the engines have it.

    Raises:
        InvalidRequest: A document has several values.
    """
    groups: list[Group] = []
    for hit in hits:
        values = (hit.get("fields") or {}).get(field) or [None]
        if len(values) > 1:
            raise InvalidRequest(f"[collapse.field] [{field}] has several values in a document: collapse by one value")
        groups.append(values[0])
    return groups


def firsts(groups: Sequence[Group]) -> Ints:
    """Return the position of the first member of every group, in order."""
    positions: dict[Group, int] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group, position)
    return np.array(list(positions.values()), dtype=np.intp)


def collapsed(ranking: Ranking, groups: Sequence[Group]) -> Ranking:
    """Keep the best of every group.

    Args:
        ranking: Of n documents.
        groups: Their groups, in first-pass order.
    """
    kept = firsts([groups[place] for place in ranking.order.tolist()])
    return Ranking(ranking.order[kept], ranking.scores[kept])


def window_groups(
    groups: Sequence[Group],
    asked: int,
    first_pass: Float32,
    ranking: Ranking | None,
    *,
    beyond: Sequence[Group] = (),
) -> WindowGroups:
    """Return what a window leaves to the engine's own collapse.

    Args:
        groups: Of each document of the window.
        asked: How many documents were asked for.
        first_pass: Their first-pass scores; what follows has none that is greater.
        ranking: Their collapsed ranking, or None where the first pass stands.
        beyond: Of documents in the ranking that the first pass did not find.
    """
    factor, floor = np.float32(1), np.float32(np.inf)
    if ranking is not None and len(first_pass):
        floor = ranking.scores[-1]
        lowest = first_pass.min()
        factor = floor / lowest if lowest > floor else factor
    own, every = frozenset(groups), frozenset((*groups, *beyond))
    return WindowGroups(every, len(every) - len(own), len(groups) < asked, factor, floor)


def rest_of_page(
    body: Mapping[str, Any], collapse: Collapse, window: WindowGroups, start: int, size: int
) -> dict[str, Any] | None:
    """Return the request for the groups of a page that no document of the window is in, or None where it has none.

    The engine is asked too, if for nothing, where no document has a value: it knows what cannot be collapsed.

    Args:
        body: The request for the window.
        collapse: The caller's own.
        window: The window's groups.
        start: First group of the page, from 0.
        size: Groups of the page.
    """
    before, missing = window.following(start, size)
    if not missing and window.groups != {None}:
        return None
    first = len(window.groups) - window.added
    if window.added and missing:  # they may stand anywhere from here on, so what follows is read from its beginning
        missing += before + window.added
    else:
        first += before
    rest = {key: value for key, value in body.items() if key not in _OF_THE_SEARCH}
    return rest | {"collapse": collapse.body, "from": first, "size": missing, "track_total_hits": False}


def following(
    hits: Sequence[dict[str, Any]], field: str, window: WindowGroups, start: int, size: int
) -> Iterator[tuple[dict[str, Any], np.float32]]:
    """Yield the engine's groups of a page, with scores that go on where the window's end.

    Args:
        hits: The engine's answer to :func:`rest_of_page`.
        field: What is collapsed by.
        window: The window's groups.
        start: First group of the page, from 0.
        size: Groups of the page.
    """
    grouped = zip(hits, groups_of(hits, field), strict=True)
    other = [hit for hit, group in grouped if group not in window.groups]
    if window.added:
        before, missing = window.following(start, size)
        other = other[before : before + missing]
    if other:
        scores = np.array([hit.get("_score") or 0.0 for hit in other], dtype=np.float32) * window.factor
        yield from zip(other, below(scores, window.floor), strict=True)
