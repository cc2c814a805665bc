"""What earlier searches have read of side indices, so that a search of known documents need not read it again.

A mark tells which write of a document its features were made from. That never changes: whatever the side index contains
by now, a document whose last write is that one still has the text. Two things may change, and searches confirm them:
the source may be another index of the same name, and its alias may name another side index.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.serving.features.keys import DocumentKey, RoutedId
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, CallerKeys

_MAX_MARKS = 30_000  # of some 800 bytes each
_MAX_NEAREST = 30_000  # documents of all searches together
_MAX_ATTACHMENTS = 1000
_SECONDS = 60.0
"""Time after which a caller's right to read a side index is examined again."""


class FeatureMark(NamedTuple):
    """The stored mark of a document's features in a side index.

    Attributes:
        key: The key of the features.
        source: UUID of the index whose document they were made from.
        seq_no: The write that they were made from.
        version: The `_seq_no` of the mark itself.
    """

    key: DocumentKey
    source: str
    seq_no: int
    version: int | None


class Attachment(NamedTuple):
    """A source with its UUID, whether it has one shard only, and the side index that its alias names."""

    source: str
    uuid: str
    one_shard: bool
    side: str


class KnownMarks:
    """Marks that searches have read, and the attachments that callers have read; for the event loop only."""

    def __init__(self) -> None:
        self._keys = CallerKeys()
        self._attachments: ExpiringCache[bytes, Attachment | None] = ExpiringCache(_MAX_ATTACHMENTS, _SECONDS)
        self._marks: LruCache[tuple[str, RoutedId], FeatureMark] = LruCache(_MAX_MARKS)
        self._documents: LruCache[tuple[str, int], RoutedId] = LruCache(_MAX_MARKS)
        self._confirmed: LruCache[Attachment, float] = LruCache(_MAX_ATTACHMENTS)
        self._nearest: LruCache[bytes, Sequence[RoutedId]] = LruCache(_MAX_NEAREST)

    def attachment(self, reader: Caller, source: str) -> Attachment | None:
        """Return what a search with the same credentials has read of an index's attachment."""
        known = self._attachments.get(self._key(reader, source))
        return None if known is None else known.value

    def put_attachment(self, reader: Caller, attachment: Attachment) -> None:
        """Remember an attachment that was read."""
        self._attachments.put(self._key(reader, attachment.source), attachment)

    def forget(self, reader: Caller, attachment: Attachment) -> None:
        """Forget an attachment that has changed."""
        self._attachments.put(self._key(reader, attachment.source), None)

    def marks(self, side: str, documents: Iterable[RoutedId]) -> list[FeatureMark | None]:
        """Return for each document its mark in a side index, None if it is not known."""
        return self._marks.get_all((side, document) for document in documents)

    def put_marks(self, marks: Mapping[RoutedId, FeatureMark]) -> None:
        """Remember marks that were read."""
        for document, mark in marks.items():
            self._marks.put((mark.key.index, document), mark)
            self._documents.put((mark.source, mark.seq_no), document)

    def document(self, source: Attachment, seq_no: int) -> RoutedId | None:
        """Return the document that a write of a source with one shard was of."""
        return self._documents.get((source.uuid, seq_no))

    def put_document(self, source: Attachment, seq_no: int, document: RoutedId) -> None:
        """Remember the document that a write of a source was of."""
        self._documents.put((source.uuid, seq_no), document)

    def is_confirmed(self, attachment: Attachment, since: float) -> bool:
        """Return whether a request after some moment has confirmed an attachment."""
        return (self._confirmed.peek(attachment) or 0.0) >= since

    def confirm(self, attachment: Attachment, at: float) -> None:
        """Note that a request that was sent at some moment has confirmed an attachment."""
        self._confirmed.put(attachment, at)

    def nearest(self, side: str, search: Mapping[str, Any]) -> Sequence[RoutedId]:
        """Return the documents that a search of a side index has last found; none if that is not known."""
        return self._nearest.get(_digest(side, search)) or ()

    def put_nearest(self, side: str, search: Mapping[str, Any], documents: Sequence[RoutedId]) -> None:
        """Remember the documents that a search has found."""
        self._nearest.put(_digest(side, search), documents, 1 + len(documents))

    def _key(self, reader: Caller, source: str) -> bytes:
        return self._keys.of(reader.headers, source.encode(errors="replace"))


def _digest(side: str, search: Mapping[str, Any]) -> bytes:
    return blake2b(jsonio.dumps([side, search])).digest()
