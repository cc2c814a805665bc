"""The search interface of retrievers in the gateway: nearest documents, numbered, and their features.

Features are read only of documents that a search with the caller's rights has returned.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import numpy as np

from es_ttc.rescorers.base import Feature, Window
from es_ttc.retrievers.base import Documents, KnownDocuments, NearestDocuments, Vectors
from es_ttc.serving.candidates.batches import Answer, Body
from es_ttc.serving.candidates.nearest import KnnOptions, KnnTarget, NearestSearch, SideIndexReplaced
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features.columns import columns
from es_ttc.serving.features.decoding import Stored, consistent, features_from_hit
from es_ttc.serving.features.keys import DocumentId, DocumentKey, RoutedId, marks_of, unreadable
from es_ttc.serving.features.reader import SideIndexUnreadable, WindowFeatures
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.gateway import Gateway
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")


class AmbiguousContent(Exception):
    """Documents cannot be identified by their contents: two are equal, or one may have changed."""


class RetrieverSearch:
    """Searches for a retriever; see :class:`es_ttc.retrievers.base.Search`.

    Documents are identified by their ids, or by their contents if the target's hits have none.

    Attributes:
        ids: By number the index and id of each document found; its content hash in place of the id without ids.
        fields: By number the field names for the ordinals in a document's offsets, if these were read.
        feature_ms: Time of reading features, in ms.
        skipped: Documents whose features are of another encoder or cannot be used, with the reason.
        stale: Documents that were skipped because their vectors are of an earlier text.
    """

    def __init__(
        self, gateway: Gateway, target: KnnTarget, options: KnnOptions, deadline: Deadline, *, details: bool
    ) -> None:
        self.details = details
        self.deadline = deadline
        self.named = target.with_ids
        self.ids: list[tuple[str, str]] = []
        self.fields: dict[int, tuple[str, ...]] = {}
        self.feature_ms = 0.0
        target = target if self.named else replace(target, send=self._send_distinct)
        self._nearest = NearestSearch(gateway, target)
        self.skipped, self.stale = self._nearest.skipped, self._nearest.stale
        self._gateway = gateway
        self._target = target
        self._options = options
        self._keys: list[DocumentKey] = []
        self._hit_features: dict[int, Stored] = {}
        self._numbers: dict[DocumentId, int] = {}
        self._dims = 0

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline.left

    async def nearest(
        self,
        vectors: Float32,
        k: int,
        *,
        among: Vectors = Vectors.POOLED,
        num_candidates: int | None = None,
        exact: bool = False,
        features: frozenset[Feature] = frozenset(),
    ) -> list[NearestDocuments]:
        """Find the documents nearest to each of some vectors; see :class:`es_ttc.retrievers.base.Search`."""
        self._dims = vectors.shape[1]
        least = max(num_candidates or 0, self._options.num_candidates)
        options = replace(self._options, among=among, num_candidates=least, exact=exact, features=features)
        nearest = []
        for documents, complete in await self._nearest.nearest([*vectors[:, np.newaxis]], k, options):
            numbers = [self._number(document.key, document.hit, features) for document in documents]
            cosines = np.array([document.cosine for document in documents], np.float32)
            nearest.append(NearestDocuments(np.array(numbers, np.intp), cosines, complete))
        return nearest

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents that were found; see :class:`es_ttc.retrievers.base.Search`."""
        began = time.perf_counter()
        read = [self._hit_features.get(document, {}) for document in documents.tolist()]
        if not all(needs | wants <= stored.keys() for stored in read):
            read = await self._read_all(documents.tolist(), needs, wants)
        read = [consistent(stored) for stored in read]
        self.feature_ms += (time.perf_counter() - began) * 1000
        places = [place for place, stored in enumerate(read) if needs <= stored.keys()]
        complete = documents[places]
        features = [read[place] for place in places]
        for document, stored in zip(complete.tolist(), features, strict=True):
            if Feature.OFFSETS in stored:
                self.fields[document] = stored[Feature.OFFSETS][1]
        nothing = np.zeros(len(complete), np.float32)
        if not features:
            return KnownDocuments(complete, Window([], nothing, np.empty((0, self._dims), np.float32), tokens=()))
        ids = [self.ids[document][1] for document in complete]
        return KnownDocuments(complete, Window(ids, nothing, **columns(features, needs | wants)))

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Run a function off the event loop."""
        return await self._gateway.scoring.run(function, *args, **kwargs)

    async def _send_distinct(self, bodies: Sequence[Body]) -> Sequence[Answer]:
        """Send searches whose hits must be identified by their contents."""
        answers = await self._target.searches.send(bodies)
        for answer in answers:
            if any(mark is None or mark[2] for mark in marks_of(answer["hits"]["hits"])):
                raise AmbiguousContent
        return answers

    def _number(self, key: DocumentKey, hit: Mapping[str, Any], features: frozenset[Feature]) -> int:
        """Return a document's number; a new document gets the next one."""
        document = DocumentId.of(hit) if self.named else DocumentId(key.index, RoutedId(key.hash, None))
        number = self._numbers.setdefault(document, len(self.ids))
        if number == len(self.ids):
            self.ids.append((document.index, document.routed.id))
            self._keys.append(key)
        if features and not key.side:
            self._hit_features[number] = features_from_hit(key, hit, features)
        return number

    async def _read_all(
        self, documents: Sequence[int], needs: frozenset[Feature], wants: frozenset[Feature]
    ) -> list[Stored]:
        """Return stored features of documents; none for one that has changed, or whose layout is unknown."""
        keys = {document: self._keys[document] for document in documents if unreadable(self._keys[document]) is None}
        read = await self._read([*keys.values()], needs | wants)
        stored = dict(zip(keys, read.documents, strict=True))
        complete = len(keys) == len(documents) and not read.faults
        named = {} if complete else {number: document for document, number in self._numbers.items()}
        for document in documents:
            if document not in keys:
                self.skipped[named[document]] = SkipReason.LAYOUT
            elif faults := read.faults.get(keys[document]):
                fault = next((faults[feature] for feature in sorted(faults) if feature in needs), None)
                if fault is not None:
                    self.skipped[named[document]] = fault
        return [stored.get(document, {}) for document in documents]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        try:
            read = await self._gateway.features.window(keys, features, self._target.caller)
        except SideIndexUnreadable as error:
            raise SideIndexReplaced(f"features in a side index could not be read: {error}") from error
        pairs = zip(keys, read.documents, strict=True)
        if any(key.side and not stored and key not in read.faults for key, stored in pairs):
            raise SideIndexReplaced("features in a side index were replaced while they were read")
        return read
