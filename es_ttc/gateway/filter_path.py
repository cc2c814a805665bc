"""The engines' `filter_path`, for answers that we put together: dotted patterns, `*`, `**`, `-` to exclude."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

_NOTHING = object()
Pattern = tuple[str, ...]


def filtered(data: Any, filter_path: str, *, keep_empty: bool) -> Any:
    """Return what the patterns leave of a decoded JSON answer, as the engines' own filtering does.

    Args:
        data: The whole answer.
        filter_path: Comma-separated patterns; those with a leading ``-`` exclude, and are applied last.
        keep_empty: Whether what was empty before stays where an excluding pattern reaches into it: it does in
            Elasticsearch, and does not in OpenSearch.
    """
    patterns = [pattern.strip() for pattern in filter_path.split(",") if pattern.strip()]
    included = [_split(pattern) for pattern in patterns if not pattern.startswith("-")]
    excluded = [_split(pattern[1:]) for pattern in patterns if pattern.startswith("-")]
    kept = _include(data, included) if included else data
    kept = _exclude(kept, excluded, keep_empty=keep_empty) if excluded and kept is not _NOTHING else kept
    return {} if kept is _NOTHING else kept


def _include(data: Any, patterns: Sequence[Pattern]) -> Any:
    if any(not pattern or pattern == ("**",) for pattern in patterns):
        return data
    if isinstance(data, list):
        kept_items = [kept for kept in (_include(item, patterns) for item in data) if kept is not _NOTHING]
        return kept_items or _NOTHING
    if isinstance(data, dict):
        pairs = ((key, _include(value, _after(key, patterns))) for key, value in data.items())
        kept_pairs = {key: kept for key, kept in pairs if kept is not _NOTHING}
        return kept_pairs or _NOTHING
    return _NOTHING


def _exclude(data: Any, patterns: Sequence[Pattern], *, keep_empty: bool) -> Any:
    if not patterns:
        return data
    if any(not pattern or pattern == ("**",) for pattern in patterns):
        return _NOTHING
    if isinstance(data, list):
        items = (_exclude(item, patterns, keep_empty=keep_empty) for item in data)
        kept_items = [kept for kept in items if kept is not _NOTHING]
        return kept_items if kept_items or (keep_empty and not data) else _NOTHING
    if isinstance(data, dict):
        pairs = ((key, _exclude(value, _after(key, patterns), keep_empty=keep_empty)) for key, value in data.items())
        kept_pairs = {key: kept for key, kept in pairs if kept is not _NOTHING}
        return kept_pairs if kept_pairs or (keep_empty and not data) else _NOTHING
    return data


def _after(key: str, patterns: Sequence[Pattern]) -> list[Pattern]:
    """Return what remains of each pattern that matches a key; `**` matches any number of keys."""
    rest: list[Pattern] = []
    for pattern in patterns:
        if not pattern:
            continue
        if pattern[0] == "**":
            rest.append(pattern)
            rest += _after(key, [pattern[1:]])
        elif fnmatchcase(key, pattern[0]):
            rest.append(pattern[1:])
    return rest


def _split(pattern: str) -> Pattern:
    """Split at the dots that are not escaped."""
    parts = pattern.replace("\\.", "\0").split(".")
    return tuple(part.replace("\0", ".").replace("[", "[[]") for part in parts)
