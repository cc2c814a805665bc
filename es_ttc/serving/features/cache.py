"""The cache of documents' features: in memory of one process, or in memory that a gateway's processes share."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from es_ttc.common.caches import LruCache, WatchedCache
from es_ttc.index.mappings.readers import ReadFeature, unpack_feature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.decoding import ABSENT
from es_ttc.vectors.packed import pack_tokens

if TYPE_CHECKING:
    from es_ttc.common.shared_log import Record, SharedLog  # its locks are those of POSIX

CacheKey = tuple[str, str, str, Feature]
"""Index, identity of the encoder, content hash, feature."""

_VIEW_BYTES = 1024  # of the objects around a view of shared memory
_PRIVATE_SHARE = 8  # of the cache, that part is for what each process decodes
_KEPT_SHARE = 2  # of a segment, that part is for records that are kept when the oldest segment is emptied


class FeatureCache(WatchedCache, Protocol):
    """Keeps features of documents. It is used in the event loop only."""

    def refresh(self) -> None:
        """Learn what other processes have put into it."""
        ...

    def get(self, key: CacheKey) -> Any:
        """Return a feature, the value of :data:`ABSENT` for one that the document lacks, or None if it is unknown."""
        ...

    def peek(self, key: CacheKey) -> Any:
        """Return the same without counting it as a use."""
        ...

    def put(self, read: Mapping[CacheKey, ReadFeature]) -> None:
        """Keep features; one that is known is replaced by the same."""
        ...


class PrivateFeatureCache:
    """Keeps the most recently used features of one process.

    Args:
        capacity: Its size, in bytes.
    """

    def __init__(self, capacity: int) -> None:
        self._values: LruCache[CacheKey, Any] = LruCache(capacity)
        self.capacity = capacity
        self.get = self._values.get  # hundreds of calls for each search
        self.peek = self._values.peek

    def __len__(self) -> int:
        return len(self._values)

    @property
    def hits(self) -> int:
        """Number of features that were found."""
        return self._values.hits

    @property
    def misses(self) -> int:
        """Number of features that were not."""
        return self._values.misses

    @property
    def nbytes(self) -> int:
        """Bytes that are used."""
        return self._values.weight

    def refresh(self) -> None:
        """Do nothing: no other process puts anything into it."""

    def put(self, read: Mapping[CacheKey, ReadFeature]) -> None:
        """Keep features, and drop those that were not used for longest beyond the capacity."""
        for key, feature in read.items():
            self._values.put(key, feature.value, feature.nbytes)


class SharedFeatureCache:
    """Keeps features in memory that several processes share: what one has read, all have.

    A feature is kept as its blob, and each process decodes it once, as views of the shared memory. The oldest features
    make room for new ones; those that the process which makes room has used are kept, up to half a segment.

    Args:
        log: The shared memory; this process takes part in it.
        private: Size of what this process decodes outside the shared memory, in bytes.
    """

    def __init__(self, log: "SharedLog", private: int) -> None:
        self._log = log
        self._records: dict[CacheKey, Record] = {}
        self._by_segment: dict[int, list[CacheKey]] = defaultdict(list)
        self._decoded: LruCache[CacheKey, Any] = LruCache(private)
        self._used: set[CacheKey] = set()
        self._oldest = 0
        self.hits = 0
        self.misses = 0

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

    def get(self, key: CacheKey) -> Any:
        """Return a feature, the value of :data:`ABSENT` for one that the document lacks, or None if it is unknown."""
        value = self._decoded.get(key)
        if value is None and (value := self._decode(key)) is None:
            self.misses += 1
            return None
        self.hits += 1
        self._used.add(key)
        return value

    def peek(self, key: CacheKey) -> Any:
        """Return the same without counting it as a use."""
        value = self._decoded.peek(key)
        return self._decode(key) if value is None else value

    def put(self, read: Mapping[CacheKey, ReadFeature]) -> None:
        """Keep features that no process has put into it."""
        new = [(_encoded(key), _blob(key[-1], feature)) for key, feature in read.items() if key not in self._records]
        if new:
            self._learn(self._log.append(new))
            self._keep_used()
            self._forget_old()

    def _learn(self, records: "list[Record]") -> None:
        for record in records:
            key = _decoded_key(record.key)
            self._records[key] = record
            self._by_segment[record.segment].append(key)

    def _keep_used(self) -> None:
        """Append the used records of segments that are to be emptied again."""
        room = self._log.segment_size // _KEPT_SHARE
        kept: list[tuple[bytes, bytes | memoryview]] = []
        for segment in range(self._oldest, self._log.oldest):
            for key in self._by_segment[segment]:
                record = self._records[key]
                if key in self._used and record.segment == segment and len(record.value) <= room:
                    room -= len(record.value)
                    kept.append((record.key, record.value))
                    self._used.discard(key)
        if kept:
            self._learn(self._log.append(kept))

    def _forget_old(self) -> None:
        """Let go of segments that are to be emptied."""
        while self._oldest < self._log.oldest:
            for key in self._by_segment.pop(self._oldest, ()):
                record = self._records.get(key)
                if record is not None and record.segment == self._oldest:
                    del self._records[key]
                    self._used.discard(key)
                self._decoded.drop(key)  # its arrays are views of that segment
            self._log.forget(self._oldest)
            self._oldest += 1

    def _decode(self, key: CacheKey) -> Any:
        record = self._records.get(key)
        if record is None:
            return None
        feature = key[-1]
        if not record.value:
            value, private = ABSENT.value, _VIEW_BYTES
        else:
            value = unpack_feature(feature, record.value)
            private = _private_bytes(feature, len(record.value))
        self._decoded.put(key, value, private)
        return value


def private_share(capacity: int, processes: int) -> int:
    """Return how much of a shared cache's size each process has for what it decodes."""
    return capacity // _PRIVATE_SHARE // processes


def shared_share(capacity: int) -> int:
    """Return how much of a shared cache's size is shared."""
    return capacity - capacity // _PRIVATE_SHARE


def _blob(feature: Feature, read: ReadFeature) -> bytes:
    """Return a feature as a blob that needs no codebook; an empty one for a feature that the document lacks."""
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
        case Feature.POOLED | Feature.REVERSED:
            return _VIEW_BYTES + 4 * blob
        case _:
            return _VIEW_BYTES


def _encoded(key: CacheKey) -> bytes:
    return "\0".join(key).encode()


def _decoded_key(key: bytes) -> CacheKey:
    index, encoder, content, feature = key.decode().split("\0")
    return index, encoder, content, Feature(feature)
