"""Identification of documents: the key of a document's features, and what identifies hits without ids."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Self

from es_ttc.encoders.base import TOKENS_FROM
from es_ttc.errors import EngineError
from es_ttc.index.mappings.readers import SENDABLE_LAYOUTS, LayoutReader, layout_of, reader_of
from es_ttc.index.mappings.spec import ENCODER, HASH

SEQ_NO_FIELD = "_seq_no"
IDENTIFYING_FIELDS = (HASH, ENCODER, SEQ_NO_FIELD)
"""Doc values by which a hit tells which document it is, and which features are its own."""
HitMark = tuple[str, str, int]
"""Index, content hash, and the number of the document among the hits with that content, from 0."""
ContentId = tuple[str, int | None, str | None]
"""Index, sequence number, and content hash; the id if the document has no hash."""
SentBlobs = Mapping[str, Mapping[str, bytes]]
"""Blobs of documents by content hash and field, as they are stored."""

_FIELDS = itemgetter("fields")
_NO_FIELDS: Mapping[str, Any] = {}
_NO_VALUE = (None,)
_DIMS_IN_IDENTITY = re.compile(r"@[^/]*/([0-9]{1,5})x[0-9]")


def marks_of(hits: Sequence[Mapping[str, Any]]) -> list[HitMark | None]:
    """Return for each hit of one response a mark that no other one has; None for one without a content hash."""
    seen: dict[tuple[str, str], int] = {}
    marks: list[HitMark | None] = []
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
    content = ((hit.get("fields") or {}).get(HASH) or _NO_VALUE)[0]
    return content if isinstance(content, str) else None


def single_values(hits: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """Return a doc value field's value of every hit; None unless every hit has exactly one.

    It makes no call for each hit: a window has up to 10,000.
    """
    try:
        return [value for (value,) in map(itemgetter(name), map(_FIELDS, hits))]
    except (KeyError, TypeError, ValueError):
        return None


def content_ids(hits: Sequence[Mapping[str, Any]]) -> list[ContentId]:
    """Return what identifies each hit's document in the answers to several searches.

    Only documents of equal content that have the same sequence number, each in a shard of its own, share one.
    """
    return [
        (
            hit["_index"],
            (hit.get("fields") or _NO_FIELDS).get(SEQ_NO_FIELD, _NO_VALUE)[0],
            content_of(hit) or hit.get("_id"),
        )
        for hit in hits
    ]


class RoutedId(NamedTuple):
    """A document's id within one index."""

    id: str
    routing: str | None

    @classmethod
    def of(cls, hit: Mapping[str, Any]) -> Self:
        """Return the id of a hit's document."""
        return cls(str(hit.get("_id", "")), hit.get("_routing"))

    def as_hit(self) -> dict[str, str]:
        """Return the parts of a hit that tell the id."""
        return {"_id": self.id} if self.routing is None else {"_id": self.id, "_routing": self.routing}


class DocumentId(NamedTuple):
    """Which document a hit is of: its index and its id there."""

    index: str  # type: ignore[assignment]  # in place of tuple.index, which nothing uses
    routed: RoutedId

    @classmethod
    def of(cls, hit: Mapping[str, Any]) -> Self:
        """Return the id of a hit's document."""
        return cls(str(hit["_index"]), RoutedId.of(hit))


def are_identified(hits: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all hits have a content hash or an id, by which another search finds their documents."""
    return all(content_of(hit) or "_id" in hit for hit in hits)


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
        """The dimensions of the encoder's pooled vectors; None if its identity does not contain them."""
        return dims_of(self.encoder)[0]

    @property
    def token_dims(self) -> int | None:
        """The dimensions of its token vectors."""
        return dims_of(self.encoder)[1]


def document_keys(indices: Iterable[str], encoders: Iterable[str], hashes: Iterable[str]) -> list[DocumentKey | None]:
    """Return the keys of documents whose features are their own; faster than the constructor, for whole windows."""
    parts = zip(indices, encoders, hashes, repeat(False), strict=False)
    return [*map(tuple.__new__, repeat(DocumentKey), parts)]


def is_mark(content: object, encoder: object) -> bool:
    """Return whether a content hash and an encoder's name are texts as es-ttc writes them: no control characters."""
    return isinstance(content, str) and isinstance(encoder, str) and content.isprintable() and encoder.isprintable()


@lru_cache(maxsize=64)
def dims_of(encoder: str) -> tuple[int | None, int | None]:
    """Return the dimensions of pooled and of token vectors in an encoder's identity; None where it has none."""
    pooled, _, tokens = encoder.partition(TOKENS_FROM)
    found = [_DIMS_IN_IDENTITY.search(one) for one in (pooled, tokens or pooled)]
    first, second = (int(one[1]) if one else None for one in found)
    return first, second


def reader_for(keys: Sequence[DocumentKey]) -> LayoutReader:
    """Return the reader for documents of one layout."""
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
