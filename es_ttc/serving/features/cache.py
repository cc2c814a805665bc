"""The cache of documents' features: in memory of one process, or in memory that a gateway's processes share."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from es_ttc.common.caches import LruCache
from es_ttc.index.mappings.readers import ReadFeature, decoded_bytes, unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.decoding import ABSENT, Stored, consistent
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.vectors.packed import pack_tokens

if TYPE_CHECKING:
    from es_ttc.common.shared_log import Record, SharedLog  # its locks are those of POSIX

Read = Mapping[Feature, ReadFeature]
"""Features of one document; :data:`ABSENT` for one that it lacks."""

_NONE: frozenset[Feature] = frozenset()
_VIEW_BYTES = 1024  # of the objects around a view of shared memory
_PRIVATE_SHARE = 8  # of the cache, that part is for what each process decodes
_KEPT_SHARE = 2  # of a segment, that part is for records that are kept when the oldest segment is emptied


@dataclass(frozen=True, slots=True)
class KnownFeatures:
    """What is known of a document's features."""

    stored: Stored = field(default_factory=dict)
    known: frozenset[Feature] = frozenset()
    nbytes: int = 0

    def lacking(self, features: frozenset[Feature]) -> frozenset[Feature]:
        """Return those of some features that are not known."""
        return _NONE if features <= self.known else features - self.known

    def with_read(self, read: Read) -> "KnownFeatures":
        """Return this and features that were read."""
        having = {feature: one.value for feature, one in read.items() if one.value is not ABSENT.value}
        stored = consistent({**self.stored, **having})
        return KnownFeatures(stored, self.known.union(read), self.nbytes + sum(one.nbytes for one in read.values()))


_NOTHING_KNOWN = KnownFeatures()


Found = tuple[list[KnownFeatures], list[frozenset[Feature]]]
"""For each document of a window what is known of it, not to be changed, and the requested features that are not."""


def _lacking(known: Iterable[KnownFeatures], features: frozenset[Feature]) -> list[frozenset[Feature]]:
    """Return those of some features that are not known of each document; without a call for each that lacks none."""
    return [_NONE if features <= one.known else one.lacking(features) for one in known]


class _CountedCache:
    """Counts the requested features that were known, and those that were not."""

    hits = 0
    misses = 0

    def _count(self, features: frozenset[Feature], lacking: Sequence[frozenset[Feature]]) -> None:
        misses = sum(map(len, lacking)) if any(lacking) else 0
        self.hits += len(features) * len(lacking) - misses
        self.misses += misses


class PrivateFeatureCache(_CountedCache):
    """Keeps the features of the most recently used documents of one process, up to ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self._documents: LruCache[DocumentKey, KnownFeatures] = LruCache(capacity)
        self.capacity = capacity

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def nbytes(self) -> int:
        """Bytes that are used."""
        return self._documents.weight

    def refresh(self) -> None:
        """Do nothing: no other process puts anything into it."""

    def get(self, documents: Sequence[DocumentKey], features: frozenset[Feature]) -> Found:
        """Return what is known of documents, with as many of some features as possible."""
        known = [one or _NOTHING_KNOWN for one in self._documents.get_all(documents)]
        lacking = _lacking(known, features)
        self._count(features, lacking)
        return known, lacking

    def peek(self, document: DocumentKey, features: frozenset[Feature]) -> KnownFeatures:
        """Return what is known of one document, without counting it as a use."""
        del features
        return self._documents.peek(document) or _NOTHING_KNOWN

    def put(self, read: Mapping[DocumentKey, Read]) -> None:
        """Keep features, and drop those of documents that were not used for longest beyond the capacity."""
        for document, features in read.items():
            known = self._documents.peek(document) or _NOTHING_KNOWN
            new = {feature: features[feature] for feature in known.lacking(frozenset(features))}
            if new:
                with_new = known.with_read(new)
                self._documents.put(document, with_new, with_new.nbytes)


class SharedFeatureCache(_CountedCache):
    """Keeps features in memory that several processes share: what one has read, all have.

    A feature is kept as its blob, and each process decodes it once, as views of the shared memory. The oldest features
    make room for new ones; those of documents that the process which makes room has used are kept, up to half a
    segment. This process takes part in ``log``, and decodes up to ``private`` bytes outside the shared memory.
    """

    def __init__(self, log: "SharedLog", private: int) -> None:
        self._log = log
        self._records: dict[DocumentKey, dict[Feature, Record]] = {}
        self._by_segment: dict[int, list[tuple[DocumentKey, Feature]]] = defaultdict(list)
        self._decoded: LruCache[DocumentKey, KnownFeatures] = LruCache(private)
        self._used: set[DocumentKey] = set()
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def capacity(self) -> int:
        """Its size, in bytes."""
        return self._log.capacity

    @property
    def nbytes(self) -> int:
        """Bytes that are used."""
        return self._log.nbytes

    def refresh(self) -> None:
        """Learn what other processes have put into it."""
        if self._log.has_news():
            self._learn(self._log.news())
        self._forget_old()

    def get(self, documents: Sequence[DocumentKey], features: frozenset[Feature]) -> Found:
        """Return what is known of documents, with as many of some features as possible."""
        known = [one or _NOTHING_KNOWN for one in self._decoded.get_all(documents)]
        lacking = _lacking(known, features)
        for place in [place for place, lacks in enumerate(lacking) if lacks]:
            known[place] = self._with_decoded(documents[place], known[place], lacking[place])
            lacking[place] = known[place].lacking(features)
        self._used.update(document for document, one in zip(documents, known, strict=True) if one is not _NOTHING_KNOWN)
        self._count(features, lacking)
        return known, lacking

    def peek(self, document: DocumentKey, features: frozenset[Feature]) -> KnownFeatures:
        """Return what is known of one document, without counting it as a use."""
        known = self._decoded.peek(document) or _NOTHING_KNOWN
        return self._with_decoded(document, known, known.lacking(features))

    def put(self, read: Mapping[DocumentKey, Read]) -> None:
        """Keep features that no process has put into it."""
        new = [
            (_encoded(document, feature), _blob(feature, one))
            for document, features in read.items()
            for feature, one in features.items()
            if feature not in self._records.get(document, ())
        ]
        if new:
            self._learn(self._log.append(new))
            self._keep_used()
            self._forget_old()

    def _learn(self, records: "list[Record]") -> None:
        for record in records:
            key = _decoded_key(record.key)
            if key is None:  # the others are as good as without it
                continue
            document, feature = key
            self._records.setdefault(document, {})[feature] = record
            self._by_segment[record.segment].append((document, feature))

    def _keep_used(self) -> None:
        """Append the records of used documents in segments that are to be emptied again."""
        room = self._log.segment_size // _KEPT_SHARE
        kept: list[tuple[bytes, bytes | memoryview]] = []
        of_kept = set()
        for segment in range(self._oldest, self._log.oldest):
            for document, feature in self._by_segment[segment]:
                record = self._records[document][feature]
                if document in self._used and record.segment == segment and len(record.value) <= room:
                    room -= len(record.value)
                    kept.append((record.key, record.value))
                    of_kept.add(document)
        self._used -= of_kept
        if kept:
            self._learn(self._log.append(kept))

    def _forget_old(self) -> None:
        """Let go of segments that are to be emptied."""
        while self._oldest < self._log.oldest:
            for document, feature in self._by_segment.pop(self._oldest, ()):
                records = self._records.get(document, {})
                if feature in records and records[feature].segment == self._oldest:
                    del records[feature]
                    if not records:
                        del self._records[document]
                        self._used.discard(document)
                self._decoded.drop(document)  # its arrays are views of that segment
            self._log.forget(self._oldest)
            self._oldest += 1

    def _with_decoded(self, document: DocumentKey, known: KnownFeatures, lacking: frozenset[Feature]) -> KnownFeatures:
        """Return what is known of a document with those of the lacking features that the shared memory has."""
        records = self._records.get(document, {})
        read = {feature: _read(feature, records[feature]) for feature in lacking if feature in records}
        if read:
            known = known.with_read(read)
            self._decoded.put(document, known, known.nbytes)
        return known


FeatureCache = PrivateFeatureCache | SharedFeatureCache
"""Keeps features of documents. It is used in the event loop only."""


def private_share(capacity: int, processes: int) -> int:
    """Return how much of a shared cache's size each process has for what it decodes."""
    return capacity // _PRIVATE_SHARE // processes


def shared_share(capacity: int) -> int:
    """Return how much of a shared cache's size is shared."""
    return capacity - capacity // _PRIVATE_SHARE


def _blob(feature: Feature, read: ReadFeature) -> bytes:
    """Return a feature as a blob; an empty one for a feature that the document lacks."""
    if read.value is ABSENT.value:
        return b""
    if read.blob is not None:
        return read.blob
    assert feature is Feature.TOKENS, feature  # noqa: S101 - all others are read from blobs
    return pack_tokens(read.value)


def _private_bytes(feature: Feature, blob: int) -> int:
    """Return the bytes of a decoded feature outside the shared memory."""
    match feature:
        case Feature.CHUNKS:
            return blob
        case Feature.OFFSETS:
            return _VIEW_BYTES + decoded_bytes(feature, blob)
        case Feature.POOLED | Feature.REVERSED:
            return _VIEW_BYTES + 4 * blob
        case _:
            return _VIEW_BYTES


def _read(feature: Feature, record: "Record") -> ReadFeature:
    """Return the feature in a record, with its size outside the shared memory."""
    if not record.value:
        return ReadFeature(ABSENT.value, _VIEW_BYTES)
    return ReadFeature(unpack_feature(feature, record.value), _private_bytes(feature, len(record.value)))


def _encoded(document: DocumentKey, feature: Feature) -> bytes:
    """Return the key of a record; JSON, because documents' own marks may contain any character."""
    return orjson.dumps([*document, feature])


def _decoded_key(key: bytes) -> tuple[DocumentKey, Feature] | None:
    """Return what a record is about; None if its key is not one of this release's."""
    try:
        *marks, side, feature = orjson.loads(key)
        index, encoder, content = map(str, marks)
        return DocumentKey(index, encoder, content, side=bool(side)), Feature(feature)
    except (ValueError, TypeError):
        return None
