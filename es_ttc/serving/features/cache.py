"""The cache of documents' features."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from es_ttc.common.caches import LruCache
from es_ttc.index.mappings.readers import ReadFeature
from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.decoding import ABSENT, Stored, consistent
from es_ttc.serving.features.keys import DocumentKey

Read = Mapping[Feature, ReadFeature]
"""Features of one document; :data:`ABSENT` for one that it lacks."""

_NONE: frozenset[Feature] = frozenset()


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
        having = {feature: one.value for feature, one in read.items() if one is not ABSENT}
        stored = consistent({**self.stored, **having})
        return KnownFeatures(stored, self.known.union(read), self.nbytes + sum(one.nbytes for one in read.values()))


_NOTHING_KNOWN = KnownFeatures()


Found = tuple[list[KnownFeatures], list[frozenset[Feature]]]
"""For each document of a window what is known of it, not to be changed, and the requested features that are not."""


def _lacking(known: Iterable[KnownFeatures], features: frozenset[Feature]) -> list[frozenset[Feature]]:
    """Return those of some features that are not known of each document; without a call for each that lacks none."""
    return [_NONE if features <= one.known else one.lacking(features) for one in known]


class FeatureCache:
    """Keeps the features of the most recently used documents, up to ``capacity`` bytes; for the event loop only.

    Attributes:
        hits: Number of requested features that were known.
        misses: Number of requested features that were not.
    """

    def __init__(self, capacity: int) -> None:
        self._documents: LruCache[DocumentKey, KnownFeatures] = LruCache(capacity)
        self.capacity = capacity
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def nbytes(self) -> int:
        """Bytes that are used."""
        return self._documents.weight

    def get(self, documents: Sequence[DocumentKey], features: frozenset[Feature]) -> Found:
        """Return what is known of documents, with as many of some features as possible."""
        known = [one or _NOTHING_KNOWN for one in self._documents.get_all(documents)]
        lacking = _lacking(known, features)
        misses = sum(map(len, lacking)) if any(lacking) else 0
        self.hits += len(features) * len(lacking) - misses
        self.misses += misses
        return known, lacking

    def peek(self, document: DocumentKey) -> KnownFeatures:
        """Return what is known of one document, without counting it as a use."""
        return self._documents.peek(document) or _NOTHING_KNOWN

    def put(self, read: Mapping[DocumentKey, Read]) -> None:
        """Keep features, and drop those of documents that were not used for longest beyond the capacity."""
        for document, features in read.items():
            known = self._documents.peek(document) or _NOTHING_KNOWN
            new = {feature: features[feature] for feature in known.lacking(frozenset(features))}
            if new:
                with_new = known.with_read(new)
                self._documents.put(document, with_new, with_new.nbytes)
