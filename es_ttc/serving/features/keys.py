"""Identification of documents: the key of a document's features, and marks of hits without ids."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EngineError
from es_ttc.index.mappings.readers import SENDABLE_LAYOUTS, FeatureReader, layout_of, reader_of
from es_ttc.index.mappings.spec import HASH

SEQ_NO = "_seq_no"
Mark = tuple[str, str, int]
"""Index, content hash, and the number of the document among the hits with that content, from 0."""
SentBlobs = Mapping[str, Mapping[str, bytes]]
"""Blobs of documents by content hash and field, as they are stored."""

_FIELDS = itemgetter("fields")
_DIMS_IN_IDENTITY = re.compile(r"@[^/]*/([0-9]{1,5})x[0-9]")


def marks_of(hits: Sequence[Mapping[str, Any]]) -> list[Mark | None]:
    """Return for each hit of one response a mark that no other one has; None for one without a content hash."""
    seen: dict[tuple[str, str], int] = {}
    marks: list[Mark | None] = []
    for hit in hits:
        content = content_of(hit)
        if content is None:
            marks.append(None)
            continue
        place = hit["_index"], content
        before = seen.get(place, 0)
        marks.append((*place, before))
        seen[place] = before + 1
    return marks


def content_of(hit: Mapping[str, Any]) -> str | None:
    """Return a hit's content hash, the first of several, or None."""
    content: Sequence[str | None] = (hit.get("fields") or {}).get(HASH) or (None,)
    return content[0]


def single_values(hits: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """Return a doc value field's value of every hit; None unless every hit has exactly one.

    It makes no call for each hit: a window has up to 10,000.
    """
    try:
        return [value for (value,) in map(itemgetter(name), map(_FIELDS, hits))]
    except (KeyError, TypeError, ValueError):
        return None


def content_numbers(hits: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
    """Return a number for each hit, ``(n,)``: the same one for hits with the same content hash, in this process."""
    contents = single_values(hits, HASH)
    return np.fromiter(map(hash, map(content_of, hits) if contents is None else contents), np.int64)


def with_contents(
    hits: Sequence[dict[str, Any]], numbers: NDArray[np.int64], of: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the hits that have the content hash of one of some others, in order.

    Args:
        hits: The hits of a window, up to 10,000: only those whose number fits are looked at.
        numbers: ``(n,)`` their :func:`content_numbers`.
        of: The others.
    """
    contents = {content for hit in of if (content := content_of(hit)) is not None}
    alike = np.flatnonzero(np.isin(numbers, [hash(content) for content in contents]))
    return [hits[place] for place in alike.tolist() if content_of(hits[place]) in contents]


def identity_mark(hit: Mapping[str, Any], *, named: bool) -> tuple[str, str | None]:
    """Return a mark that identifies a hit's document in several responses.

    Args:
        hit: The hit.
        named: Whether the mark is its index and id, or its index and content hash (None without one).
    """
    if named:
        return hit["_index"], str(hit.get("_id"))
    return hit["_index"], content_of(hit)


class DocumentKey(NamedTuple):
    """The content of a document that a search has just returned. Documents of equal content have equal features.

    It is a tuple because a search makes hundreds of them.
    """

    index: str  # type: ignore[assignment]  # in place of tuple.index, which nothing uses
    encoder: str
    hash: str
    side: bool = False

    @property
    def dims(self) -> int | None:
        """The dimensions of the encoder's vectors; None if its identity does not contain them."""
        return dims_of(self.encoder)


def document_keys(indices: Iterable[str], encoders: Iterable[str], hashes: Iterable[str]) -> list[DocumentKey | None]:
    """Return the keys of documents whose features are their own; faster than the constructor, for whole windows."""
    parts = zip(indices, encoders, hashes, repeat(False), strict=False)
    return [*map(tuple.__new__, repeat(DocumentKey), parts)]


def is_mark(content: str, encoder: str) -> bool:
    """Return whether a content hash and an encoder's name are free of control characters, as es-ttc writes them."""
    return content.isprintable() and encoder.isprintable()


def dims_of(encoder: str) -> int | None:
    """Return the dimensions in an encoder's identity, or None."""
    found = _DIMS_IN_IDENTITY.search(encoder)
    return int(found[1]) if found else None


def reader_for(keys: Sequence[DocumentKey]) -> FeatureReader:
    """Return the reader for documents of one layout.

    Raises:
        EngineError: This release does not know the layout.
    """
    try:
        return reader_of(layout_of(keys[0].hash))
    except ValueError as error:
        raise EngineError(f"features of index [{keys[0].index}] cannot be read: {error}") from error


def unreadable(key: DocumentKey) -> EngineError | None:
    """Return the error for a document whose layout this release does not know, else None."""
    try:
        reader_for([key])
    except EngineError as error:
        return error
    return None


def unsendable(key: DocumentKey) -> EngineError | None:
    """Return the error for a document whose features a plugin cannot send, else None."""
    layout = layout_of(key.hash)
    if layout in SENDABLE_LAYOUTS:
        return None
    return EngineError(
        f"token vectors of layout [{layout}] cannot be sent along, only those of [{', '.join(SENDABLE_LAYOUTS)}]: "
        "search this index through the gateway, or store its tokens as [packed]"
    )
