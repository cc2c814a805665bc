"""The engines' `filter_path`, for responses that the gateway composes: dotted patterns, `*`, `**`, `-` to exclude.

All patterns are matched at once, as one set of states: the time is linear in the size of the response.
"""

from typing import Any

_NOTHING = object()
State = tuple[str, ...]
"""The remaining parts of a pattern."""
PatternStates = frozenset[State]

_ANY_DEPTH = "**"


def with_filter_path(data: Any, filter_path: str, *, keep_empty: bool) -> Any:
    """Return the part of a decoded JSON response that the comma-separated patterns select, as the engines do.

    Those with a leading ``-`` exclude, and are applied last. Empty values that they reach into stay in Elasticsearch
    (`keep_empty`), in OpenSearch they do not.
    """
    patterns = [pattern.strip() for pattern in filter_path.split(",") if pattern.strip()]
    included = frozenset(_parts(pattern) for pattern in patterns if not pattern.startswith("-"))
    excluded = frozenset(_parts(pattern[1:]) for pattern in patterns if pattern.startswith("-"))
    steps = _Steps()
    selected = _include(data, included, steps) if included else data
    if excluded and selected is not _NOTHING:
        selected = _exclude(selected, excluded, steps, keep_empty=keep_empty)
    return {} if selected is _NOTHING else selected


class _Steps(dict[tuple[str, PatternStates], PatternStates]):
    """The remaining patterns below a key; each key is matched once, however often it occurs."""

    def after(self, key: str, states: PatternStates) -> PatternStates:
        """Return the remaining patterns for a key; `**` matches any number of keys."""
        rests = self.get((key, states))
        if rests is None:
            rests = self[key, states] = frozenset(rest for state in states for rest in _after(key, state))
        return rests


def _include(data: Any, states: PatternStates, steps: _Steps) -> Any:
    if _complete(states):
        return data
    if isinstance(data, list):
        kept_items = [kept for kept in (_include(item, states, steps) for item in data) if kept is not _NOTHING]
        return kept_items or _NOTHING
    if isinstance(data, dict) and states:
        pairs = ((key, _include(value, steps.after(key, states), steps)) for key, value in data.items())
        kept_pairs = {key: kept for key, kept in pairs if kept is not _NOTHING}
        return kept_pairs or _NOTHING
    return _NOTHING


def _exclude(data: Any, states: PatternStates, steps: _Steps, *, keep_empty: bool) -> Any:
    if not states:
        return data
    if _complete(states):
        return _NOTHING
    rest: Any
    if isinstance(data, list):
        items = (_exclude(item, states, steps, keep_empty=keep_empty) for item in data)
        rest = [item for item in items if item is not _NOTHING]
    elif isinstance(data, dict):
        below = ((key, value, steps.after(key, states)) for key, value in data.items())
        pairs = ((key, _exclude(value, rests, steps, keep_empty=keep_empty)) for key, value, rests in below)
        rest = {key: value for key, value in pairs if value is not _NOTHING}
    else:
        return data
    return rest if rest or (keep_empty and not data) else _NOTHING


def _complete(states: PatternStates) -> bool:
    return () in states or (_ANY_DEPTH,) in states


def _after(key: str, state: State) -> list[State]:
    if not state:
        return []
    if state[0] == _ANY_DEPTH:
        return [state, *_after(key, state[1:])]
    return [state[1:]] if glob_matches(state[0], key) else []


def glob_matches(pattern: str, name: str) -> bool:
    """Return whether a pattern, in which `*` matches any text, matches a name; in linear time."""
    first, *middle = pattern.split("*")
    if not middle:
        return pattern == name
    last = middle.pop()
    if not name.startswith(first):
        return False
    place = len(first)
    for part in middle:
        start = name.find(part, place)
        if start < 0:
            return False
        place = start + len(part)
    return len(name) - place >= len(last) and name.endswith(last)


def _parts(pattern: str) -> State:
    """Split at the dots that are not escaped; several `**` in a row count as one."""
    parts: list[str] = []
    for part in pattern.replace("\\.", "\0").split("."):
        if part != _ANY_DEPTH or parts[-1:] != [_ANY_DEPTH]:
            parts.append(part.replace("\0", "."))
    return tuple(parts)
