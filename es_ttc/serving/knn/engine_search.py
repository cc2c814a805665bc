"""The search interface of retrievers in the gateway: the engine's own kNN, with the caller's credentials.

Every search contains the caller's filter and is sent to the caller's target, so that an alias's filter and rights hold.
Features are read only of documents that such a search has returned.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from es_ttc.engine.versions import Product, oldest_versions
from es_ttc.errors import EngineError
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.queries import MOST_CANDIDATES
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature, Window
from es_ttc.retrievers.base import Documents, KnownDocuments, NearestDocuments, Vectors
from es_ttc.serving.features.attached import changed_inside, own_key
from es_ttc.serving.features.decoding import Stored, consistent, features_from_hit
from es_ttc.serving.features.keys import DocumentKey, marks_of, unreadable
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.features.store import WindowFeatures, columns
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.knn.bodies import Body, search_body
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.msearch import SearchClient
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")

Hit = Mapping[str, Any]
Identity = tuple[str, str, str | None]
"""A document's index, id and routing; if documents are identified by content, its index and content hash."""

_WITHOUT_IDS: Body = {"stored_fields": "_none_"}
_GREATEST_COSINE = 1.2
"""Maximum cosine in an engine's answer: engines round, most of all with quantised vectors."""
_FURTHER = 4
"""Factor of the number of requested neighbours if too many of the first ones may not be returned."""


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The values that all searches of a request share.

    Attributes:
        product: The engine's product.
        caller: The request context with which documents are read.
        encoder: Identity of the encoder of the searched vectors.
        shared: Parts of the caller's body that the filter may depend on (a point in time, runtime fields).
        end: `time.perf_counter` at the deadline.
    """

    product: Product
    caller: Caller
    encoder: str
    shared: Mapping[str, Any]
    end: float


class AmbiguousContent(Exception):
    """Documents cannot be identified by their contents: two are equal, or one may have changed."""


@dataclass(frozen=True, slots=True)
class KnnOptions:
    """Options of a kNN search; see :meth:`es_ttc.retrievers.base.Search.nearest`."""

    among: Vectors
    num_candidates: int | None
    exact: bool
    features: frozenset[Feature]


class EngineSearch:
    """Finds documents by the engine's kNN; see :class:`es_ttc.retrievers.base.Search`.

    Attributes:
        named: As in the arguments.
        details: As in the arguments.
        ids: By number the index and id of each document found; its content hash in place of the id if `named` is false.
        fields: By number the field names for the ordinals in a document's offsets, if these were read.
        feature_ms: Time of reading features, in ms.
        skipped: Documents whose features are of another encoder or cannot be used, with the reason.
    """

    def __init__(
        self,
        clause: KnnClause,
        context: SearchContext,
        client: SearchClient,
        gateway: Gateway,
        *,
        named: bool = True,
        details: bool = True,
    ) -> None:
        self.named = named
        self.details = details
        self.ids: list[tuple[str, str]] = []
        self.fields: dict[int, tuple[str, ...]] = {}
        self.feature_ms = 0.0
        self.skipped: dict[Identity, SkipReason] = {}
        self._stale: set[Identity] = set()
        self._clause = clause
        self._context = context
        self._client = client
        self._gateway = gateway
        self._keys: list[DocumentKey] = []
        self._hit_features: dict[int, Stored] = {}
        self._numbers: dict[Identity, int] = {}
        self._dims = 0

    @property
    def stale(self) -> int:
        """The number of documents that were skipped because their vectors are of an earlier text."""
        return len(self._stale)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return max(0.0, self._context.end - time.perf_counter())

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
        options = KnnOptions(among, num_candidates, exact, features)
        k = min(k, MOST_CANDIDATES)
        return list(await asyncio.gather(*(self._nearest(vector, k, options) for vector in vectors)))

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents that were found; see :class:`es_ttc.retrievers.base.Search`."""
        began = time.perf_counter()
        found = [self._hit_features.get(document, {}) for document in documents.tolist()]
        if not all(needs | wants <= stored.keys() for stored in found):
            found = await self._read_all(documents.tolist(), needs, wants)
        found = [consistent(stored) for stored in found]
        self.feature_ms += (time.perf_counter() - began) * 1000
        places = [place for place, stored in enumerate(found) if needs <= stored.keys()]
        known = documents[places]
        stored = [found[place] for place in places]
        for document, features in zip(known.tolist(), stored, strict=True):
            if Feature.OFFSETS in features:
                self.fields[document] = features[Feature.OFFSETS][1]
        nothing = np.zeros(len(known), np.float32)
        if not stored:
            return KnownDocuments(known, Window([], nothing, np.empty((0, self._dims), np.float32), tokens=()))
        window = Window([self.ids[one][1] for one in known], nothing, **columns(stored, needs | wants))
        return KnownDocuments(known, window)

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Run a function off the event loop."""
        return await self._gateway.scoring.run(function, *args, **kwargs)

    async def _nearest(self, vector: Float32, k: int, options: KnnOptions) -> NearestDocuments:
        """Return the k documents nearest to one vector."""
        return await until_k(partial(self._own, vector, options), k, first=k)

    async def _own(self, vector: Float32, options: KnnOptions, count: int) -> tuple[NearestDocuments, bool]:
        """Search the vectors in the documents themselves; see :func:`until_k`."""
        body = self._body(vector, count, options, self._clause.filters)
        stored = [FEATURES[feature].name for feature in sorted(options.features)]
        [answer] = await self._client.search(
            [
                {
                    **self._context.shared,
                    **body,
                    "_source": False,
                    "docvalue_fields": [HASH, ENCODER, VERSION],
                    "version": True,
                    **({"stored_fields": stored} if stored else {} if self.named else _WITHOUT_IDS),
                }
            ]
        )
        if not self.named:
            _require_distinct(answer["hits"]["hits"])
        hits = []
        numbers = []
        for hit in await self._current(answer["hits"]["hits"]):
            number = self._number(hit)
            if number is not None:
                hits.append(hit)
                numbers.append(number)
        if options.features:
            for number, hit in zip(numbers, hits, strict=True):
                self._hit_features[number] = features_from_hit(self._keys[number], hit, options.features)
        return neighbours(numbers, [hit["_score"] for hit in hits]), len(answer["hits"]["hits"]) < count

    async def _current(self, hits: Sequence[Hit]) -> Sequence[Hit]:
        """Return hits without documents whose own features are of an earlier text."""
        changed = [hit for hit in hits if changed_inside(hit)]
        if not changed:
            return hits
        located = await self._gateway.attached.locate(changed, self._context.caller)
        gone = {identity(hit) for hit, key in zip(changed, located.keys, strict=True) if key is None}
        self._stale |= gone
        return [hit for hit in hits if identity(hit) not in gone]

    async def _read_all(
        self, documents: Sequence[int], needs: frozenset[Feature], wants: frozenset[Feature]
    ) -> list[Stored]:
        """Return stored features of documents; none for one that has changed, or whose layout is unknown."""
        keys = {document: self._keys[document] for document in documents if unreadable(self._keys[document]) is None}
        read = await self._read(list(keys.values()), needs | wants)
        stored = dict(zip(keys, read.documents, strict=True))
        identities = {number: identity for identity, number in self._numbers.items()} if read.faults else {}
        for document in documents:
            if document not in keys:
                self.skipped[(*self.ids[document], None)] = SkipReason.LAYOUT
            elif faults := read.faults.get(keys[document]):
                fault = next((faults[feature] for feature in sorted(faults) if feature in needs), None)
                if fault is not None:
                    self.skipped[identities[document]] = fault
        return [stored.get(document, {}) for document in documents]

    async def _read(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> WindowFeatures:
        return await self._gateway.features.window(keys, features, self._context.caller)

    def _body(self, vector: Float32, count: int, options: KnnOptions, filters: Sequence[Any]) -> Body:
        requested = max(options.num_candidates or 0, self._clause.num_candidates or 0)
        candidates = min(MOST_CANDIDATES, max(count, requested)) if requested else None
        return search_body(
            self._context.product, vector, count, filters, options=self._clause.of_each_search(self._context.product),
            among=options.among, num_candidates=candidates, exact=options.exact,
        )  # fmt: skip

    def _number(self, hit: Hit) -> int | None:
        """Return the number of a document with its own features; None if they are of another encoder."""
        key = own_key(hit)
        if key is None or key.encoder != self._context.encoder:
            fields = hit.get("fields", {})
            shown = str(hit.get("_id", fields.get(HASH, [""])[0]))
            self.skipped[str(hit["_index"]), shown, hit.get("_routing")] = (
                SkipReason.MARKS if key is None else SkipReason.ENCODER
            )
            return None
        return self._numbered(identity(hit) if self.named else (key.index, key.hash, None), key)

    def _numbered(self, document: Identity, key: DocumentKey) -> int:
        """Return a document's number; a new document gets the next one."""
        number = self._numbers.setdefault(document, len(self.ids))
        if number == len(self.ids):
            self.ids.append(document[:2])
            self._keys.append(key)
        return number


Find = Callable[[int], Awaitable[tuple[NearestDocuments, bool]]]


async def until_k(find: Find, k: int, *, first: int) -> NearestDocuments:
    """Return k neighbours that may be returned to the caller; request more until there are k, at most 10,000."""
    count = min(first, MOST_CANDIDATES)
    while True:
        found, exhausted = await find(count)
        complete = len(found.documents) >= k or exhausted
        if complete or count >= MOST_CANDIDATES:
            return NearestDocuments(found.documents[:k], found.cosines[:k], complete)
        count = min(_FURTHER * count, MOST_CANDIDATES)


def neighbours(numbers: Sequence[int], scores: Sequence[float]) -> NearestDocuments:
    """Return documents with the cosines that correspond to an engine's scores.

    Args:
        numbers: The documents.
        scores: Their scores, (1 + cosine) / 2: OpenSearch before 2.19 returns 1 + cosine for exact searches.

    Raises:
        EngineError: A score corresponds to no cosine.
    """
    cosines = np.array([2 * score - 1 for score in scores], np.float32)
    if len(cosines) and cosines.max() > _GREATEST_COSINE:
        raise EngineError(
            f"the engine gave a vector the score {(cosines.max() + 1) / 2:.3f}, and (1 + cosine) / 2 is at most 1: its "
            f"scores cannot be used; {oldest_versions()} or newer is needed"
        )
    return NearestDocuments(np.array(numbers, np.intp), np.clip(cosines, -1, 1))


def _require_distinct(hits: Sequence[Hit]) -> None:
    """Raise an error if documents cannot be identified by their contents."""
    marks = marks_of(hits)
    if any(mark is None or mark[2] for mark in marks) or any(map(changed_inside, hits)):
        raise AmbiguousContent


def identity(hit: Hit) -> Identity:
    """Return the identity of a hit's document."""
    return str(hit["_index"]), str(hit["_id"]), hit.get("_routing")
