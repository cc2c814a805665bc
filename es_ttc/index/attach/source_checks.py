"""Checks of a source index: it must return the texts that were sent.

Features are made from `_source`. A text field that is excluded from it would be skipped without an error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.source import require_source
from es_ttc.index.ingest.compose import value_at
from es_ttc.index.mappings.indices import Index

_SAMPLE = 10


async def require_readable(engine: Engine, source: Index, text_fields: Sequence[str]) -> None:
    """Raise an error if `_source` lacks the text of a field, by the mapping and by a few documents."""
    require_source(source)
    source_setting = source.mapping.get("_source", {})
    for name in text_fields:
        pattern = _excluded_by(name, source_setting)
        if pattern is not None:
            raise _unreadable(source, name, f"its mapping has _source.{pattern}")
        path = _alias_path(source.mapping, name)
        if path is not None:
            raise InvalidRequest(
                f"[{name}] of index [{source.index}] is an alias, which _source does not have: name the field [{path}]"
            )
        why = await _why_unreadable(engine, source, name)
        if why is not None:
            raise _unreadable(source, name, why)


def _excluded_by(name: str, source_setting: Mapping[str, Any]) -> str | None:
    """Return the part of a mapping's `_source` that excludes a field; None if it is included."""
    paths = list(_prefixes(name))
    for pattern in source_setting.get("excludes", ()):
        if any(_matches(pattern, path) for path in paths):
            return f"excludes [{pattern}]"
    includes = source_setting.get("includes", ())
    if includes and not any(_matches(pattern, path) for pattern in includes for path in paths):
        return f"includes [{', '.join(includes)}] without it"
    return None


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _matches(pattern: str, path: str) -> bool:
    """Return whether an engine's pattern matches: a star stands for any characters, dots included."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path, re.DOTALL) is not None


def _alias_path(mapping: Mapping[str, Any], name: str) -> str | None:
    for part in name.split("."):
        mapping = mapping.get("properties", {}).get(part, {})
    return str(mapping["path"]) if mapping.get("type") == "alias" else None


async def _why_unreadable(engine: Engine, source: Index, name: str) -> str | None:
    """Return why the text of a field cannot be read, by a sample of documents that have it in the index."""
    hits = await engine.hits(source.index, {"query": {"exists": {"field": name}}, "size": _SAMPLE, "_source": [name]})
    values = [value_at(hit.get("_source") or {}, name) for hit in hits]
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    if any(isinstance(part, Mapping) for part in parts):
        return "it is an object there, as a range is, and semantic_text in indices from before Elasticsearch 8.18"
    if hits and all(part is None for part in parts):
        return "documents are found by it and do not have it there, as after a copy_to"
    return None


def _unreadable(source: Index, name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the text of [{name}] is not in the _source of index [{source.index}] ({why}), so features would be made "
        f"without it: name other fields with --text-fields, or reindex into an index that keeps [{name}] in _source"
    )
