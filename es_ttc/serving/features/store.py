"""The stored features of a window's documents: from memory where the content is known, else read, few at a time."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import cbor2

from es_ttc.common.caches import LruCache
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.readers import BLOB_LAYOUTS, FeatureReader, Hit, ReadFeature, layout_of, reader_of
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.columns import Stored
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.features.read_budget import Kind, ReadBudget, dims_of, unknown_size
from es_ttc.serving.features.skip_reasons import SkipReason, fault_in
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log
from es_ttc.serving.pool import BoundedPool
from es_ttc.vectors.packed import NO_CODEBOOKS, Codebooks, UnknownCodebook
from es_ttc.vectors.residual import Codebook

_WORTH_SHARING = 32  # documents; two reads share the engine's cores, and one is unpacked while the other arrives
_AT_ONCE = 2  # parts of one window that are read at the same time
_ONE_HASH = {"script": {"script": f"doc['{HASH}'].size() == 1"}}
"""Leaves out documents with several content hashes, which no search can be collapsed by."""
_REFUSED_AS_A_WHOLE = (400, 500)
_MOST_CODEBOOKS = 4  # of one read; an index has one
_ABSENT = ReadFeature(object(), 64)  # kept in place of a feature that the document does not have

_UNEXPECTED = (cbor2.CBORError, LookupError, TypeError, ValueError, EOFError)

Fetched = dict["DocumentKey", dict[Feature, ReadFeature | SkipReason]]
CacheKey = tuple[str, str, str, Feature]
SentBlobs = Mapping[str, Mapping[str, bytes]]
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class WindowFeatures:
    """What is known of a window's documents.

    Attributes:
        documents: One mapping a document: the features that it has.
        from_memory: Documents whose features were all in memory.
        faults: What is wrong with features of documents, where something is.
    """

    documents: list[Stored]
    from_memory: int
    faults: Mapping[DocumentKey, Mapping[Feature, SkipReason]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MissingFeatures:
    """What has to be sent along.

    Attributes:
        hashes: Content hashes of documents that are not in memory.
        fields: The fields that are wanted of them.
    """

    hashes: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(slots=True)
class _CachedWindow:
    """What is in memory of a window.

    Attributes:
        known: One mapping a document.
        missing: Documents that lack a wanted feature, each once.
        lacking: The features that are lacking anywhere.
        complete: How many documents lack none.
    """

    known: list[Stored]
    missing: dict[DocumentKey, None]
    lacking: set[Feature]
    complete: int


class SideIndexUnreadable(EngineError):
    """Features beside an index could not be read: what is being deleted fails before it is gone."""


class _ReadRefused(EngineError):
    """The engine did not do a search, or not on all shards."""


class CodebookReader(Protocol):
    """The codebooks that residuals are read with."""

    async def codebook(self, index: str, identifier: str, caller: Caller) -> Codebook:
        """Return a codebook of an index."""
        ...


class FeatureStore:
    """Reads features in the caller's name, and keeps them by content hash.

    Args:
        upstream: The engine.
        capacity: Bytes kept.
        pool: Where blobs are decoded.
        side_door: In whose name a side index is read for a caller.
        budget: Bounds what is read at a time.
        codebooks: What residuals are read with.
    """

    def __init__(
        self,
        upstream: Upstream,
        capacity: int,
        pool: BoundedPool,
        side_door: Callable[[Caller], Caller],
        budget: ReadBudget,
        codebooks: CodebookReader,
    ) -> None:
        self.cache: LruCache[CacheKey, Any] = LruCache(capacity)
        self._engine = EngineRequests(upstream)
        self._pool = pool
        self._codebooks = codebooks
        self._side_door = side_door
        self._budget = budget
        self._reads: set[asyncio.Task[Fetched]] = set()

    async def window(self, keys: Sequence[DocumentKey], wanted: Iterable[Feature], caller: Caller) -> WindowFeatures:
        """Return the wanted features of documents, as far as the documents have them.

        Parts that have not been asked for when nobody waits any more are dropped; those that have fill the memory, so
        the next request finds them there.

        Args:
            keys: The documents; one whose content has changed since has no features.
            wanted: Stored features.
            caller: In whose name documents are read.

        Raises:
            EngineError: The engine refused the read; SideUnreadable where it was of features beside an index.
            EngineUnavailable: It does not answer.
        """
        held = self._held(keys, tuple(wanted))
        if not held.missing:
            return _completed(held, keys, {})
        await self._budget.known()
        search, features = self._budget.turns.search(), sorted(held.lacking)
        fetched: Fetched = {}
        await gather_all(
            self._read_in_parts(search, alike, features, caller, fetched)
            for alike in group_by_layout(list(held.missing))
        )
        return _completed(held, keys, fetched)

    async def window_of(
        self, keys: Sequence[DocumentKey], wanted: Iterable[Feature], sent: SentBlobs, caller: Caller
    ) -> WindowFeatures | MissingFeatures:
        """Return the same for documents whose reader sends along what is not in memory, or say what that is.

        Args:
            keys: The documents.
            wanted: Stored features.
            sent: By content hash the blobs that the document has, by field; a document without any has no features.
            caller: In whose name a codebook is read.

        Raises:
            EngineError: Their layout is not one of blobs, or their codebook could not be read.
            EngineUnavailable: The engine does not answer.
        """
        held = self._held(keys, tuple(wanted))
        if any(key.hash not in sent for key in held.missing):
            hashes = dict.fromkeys(key.hash for key in held.missing)
            return MissingFeatures(tuple(hashes), tuple(FEATURES[feature].name for feature in sorted(held.lacking)))
        fetched: Fetched = {}
        for alike in group_by_layout(list(held.missing)):
            fetched.update(await self._decoded(_decode_sent, sent, alike, sorted(held.lacking), caller))
        self._keep(fetched)
        return _completed(held, keys, fetched)

    def _held(self, keys: Sequence[DocumentKey], wanted: Sequence[Feature]) -> _CachedWindow:
        """Return what is in memory of some documents."""
        held = _CachedWindow([], {}, set(), 0)
        get, absent = self.cache.get, _ABSENT.value
        for key in keys:  # hundreds a search
            known: Stored = {}
            lacks = False
            for feature in wanted:
                value = get((key.index, key.encoder, key.hash, feature))
                if value is None:
                    lacks = True
                    held.lacking.add(feature)
                elif value is not absent:
                    known[feature] = value
            if lacks:
                held.missing[key] = None
            else:
                held.complete += 1
            held.known.append(known)
        return held

    async def _read_in_parts(
        self, search: int, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller, fetched: Fetched
    ) -> None:
        """Read documents of one index, encoder and layout; what would be one read of many is two of equal size."""
        readers = _AT_ONCE if len(keys) >= _WORTH_SHARING else 1
        most = min(-(-len(keys) // readers), _reader(keys).most_documents)
        left = deque(keys)
        await gather_all(self._read_some(search, left, most, features, caller, fetched) for _ in range(readers))

    async def _read_some(
        self,
        search: int,
        left: deque[DocumentKey],
        most: int,
        features: Sequence[Feature],
        caller: Caller,
        fetched: Fetched,
    ) -> None:
        """Read parts of what is left until nothing is."""
        turns, sizes = self._budget.turns, self._budget.sizes
        while left:
            kind = left[0].index, tuple(features)
            unknown = unknown_size(left[0].encoder, features, as_text=_reader(left).as_text)
            size = sizes.of(kind, unknown)
            taken = round(size * min(len(left), most, max(1, turns.part // size)))
            if not sizes.known(kind):
                taken = turns.capacity  # alone: it may weigh far more than is thought
            await turns.take(search, len(left) * size, taken)
            size = sizes.of(kind, unknown)  # it may be known better by now
            fits = max(1, int(min(taken, turns.part) / size + 0.01))
            keys = self._not_read_meanwhile(left, min(most, fits), features, fetched)
            if not keys:
                turns.give_back(taken)
                continue
            read = asyncio.create_task(self._read_and_keep(kind, keys, features, caller))
            self._reads.add(read)
            read.add_done_callback(partial(self._done, taken))
            fetched.update(await asyncio.shield(read))

    def _not_read_meanwhile(
        self, left: deque[DocumentKey], most: int, features: Sequence[Feature], fetched: Fetched
    ) -> list[DocumentKey]:
        """Take out the documents of the next part; those that another search has just read are only fetched."""
        keys: list[DocumentKey] = []
        while left and len(keys) < most:
            key = left.popleft()
            known = {feature: self.cache.peek(_cache_key(key, feature)) for feature in features}
            if any(value is None for value in known.values()):
                keys.append(key)
            else:
                fetched[key] = {feature: ReadFeature(value, 0) for feature, value in known.items()}
        return keys

    def _done(self, taken: int, read: asyncio.Task[Fetched]) -> None:
        self._reads.discard(read)
        self._budget.turns.give_back(taken)
        if not read.cancelled():
            read.exception()  # whoever still waits has it; nobody else is to be told

    async def _read_and_keep(
        self, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller
    ) -> Fetched:
        fetched = await self._read(kind, keys, features, caller)
        self._keep(fetched)
        return fetched

    def _keep(self, fetched: Fetched) -> None:
        for key, stored in fetched.items():
            for feature, read in stored.items():
                if isinstance(read, ReadFeature):
                    self.cache.put(_cache_key(key, feature), read.value, read.nbytes)

    async def _read(
        self, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller
    ) -> Fetched:
        if not keys[0].side:
            return await self._read_through(caller, kind, keys, features)
        try:
            return await self._read_through(self._side_door(caller), kind, keys, features)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise SideIndexUnreadable(str(error), upstream_status=error.upstream_status) from error

    async def _read_through(
        self, door: Caller, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature]
    ) -> Fetched:
        body = read_request(keys, features)
        try:
            return await self._read_with(door, kind, keys, features, body)
        except _ReadRefused:  # one document with several hashes is enough: no answer with it can be collapsed
            body["query"]["bool"]["filter"].append(_ONE_HASH)
            return await self._read_with(door, kind, keys, features, body)

    async def _read_with(
        self, door: Caller, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature], body: dict[str, Any]
    ) -> Fetched:
        engine = self._engine.as_caller(door)
        try:
            raw = await engine.search_as_cbor([keys[0].index], body, failing="features could not be read")
        except EngineError as error:
            if error.upstream_status in _REFUSED_AS_A_WHOLE:
                raise _ReadRefused(str(error), upstream_status=error.upstream_status) from error
            raise
        try:
            fetched = await self._decoded(_decode, raw, keys, features, door)
        except _UNEXPECTED as error:
            raise EngineError(
                f"features could not be read: the engine's answer is not one to such a search ({type(error).__name__})",
                upstream_status=200,
            ) from error
        self._budget.sizes.learn(kind, len(raw), len(fetched))
        return fetched

    async def _decoded(
        self,
        decode: Callable[[S, Sequence[DocumentKey], Sequence[Feature], Codebooks], "DecodedFeatures"],
        raw: S,
        keys: Sequence[DocumentKey],
        features: Sequence[Feature],
        caller: Caller,
    ) -> Fetched:
        """Unpack features on a thread, with the codebooks that they name, as far as those can be had."""
        codebooks: dict[str, Codebook] = {}
        decoded = await self._pool.run(decode, raw, keys, features, codebooks)
        if not decoded.codebooks:
            return decoded.fetched
        for identifier in sorted(decoded.codebooks)[:_MOST_CODEBOOKS]:
            try:
                codebooks[identifier] = await self._codebooks.codebook(keys[0].index, identifier, caller)
            except EngineUnavailable:
                raise
            except EngineError as error:
                log.warning("codebook cannot be read", index=keys[0].index, error=str(error))
        if codebooks:
            decoded = await self._pool.run(decode, raw, keys, features, codebooks)
        return decoded.fetched


def features_from_hit(key: DocumentKey, hit: Hit, features: Iterable[Feature]) -> Stored:
    """Return those features that have come with a document's hit; one that has not, or is damaged, is left out.

    Args:
        key: The document.
        hit: A hit of it, whose search asked for stored fields.
        features: Those that were asked for; no token vectors.
    """
    reader, dims = _reader([key]), dims_of(key.encoder)
    stored: Stored = {}
    for feature in features:
        with suppress(ValueError, LookupError):
            found = _feature_of(reader, hit, feature, NO_CODEBOOKS, dims)
            if isinstance(found, ReadFeature) and found is not _ABSENT:
                stored[feature] = found.value
    return stored


def group_by_layout(keys: Sequence[DocumentKey]) -> Iterator[Sequence[DocumentKey]]:
    """Yield the documents of one index, encoder and layout at a time."""
    alike: dict[tuple[str, str, str], list[DocumentKey]] = defaultdict(list)
    for key in keys:
        alike[key.index, key.encoder, layout_of(key.hash)].append(key)
    yield from alike.values()


async def gather_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do several things at the same time; where one fails the others are not gone on with.

    Raises:
        Exception: What the first one to fail has raised.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def read_request(keys: Sequence[DocumentKey], features: Sequence[Feature]) -> dict[str, Any]:
    """Return the search that reads stored features by content, for documents of one index.

    A search and no `_mget`: a window's hits have no ids yet, and it took no longer.
    """
    return {
        "query": {
            "bool": {
                "filter": [
                    {"terms": {HASH: [key.hash for key in keys]}},
                    {"term": {ENCODER: keys[0].encoder}},
                    {"term": {"_index": keys[0].index}},
                ]
            }
        },
        "collapse": {"field": HASH},
        "size": len(keys),
        "track_total_hits": False,
        **_reader(keys).request(features),
    }


def _reader(keys: Sequence[DocumentKey]) -> FeatureReader:
    """Return the reader of documents of one layout."""
    try:
        return reader_of(layout_of(keys[0].hash))
    except ValueError as error:
        raise EngineError(f"features of index [{keys[0].index}] cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class DecodedFeatures:
    """What was unpacked.

    Attributes:
        fetched: By document what it has, or what is wrong with it.
        codebooks: Identifiers of codebooks that were not at hand.
    """

    fetched: Fetched
    codebooks: frozenset[str]


def _decode(
    raw: bytes, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks
) -> DecodedFeatures:
    """Unpack the answer; a content that is gone since the first pass is left out."""
    answer = cbor2.loads(raw)
    if answer["_shards"]["failed"]:
        raise _ReadRefused("features could not be read: some of the index's shards failed")
    expected = {key.hash: key for key in keys}
    hits = ((expected[hit["fields"][HASH][0]], hit) for hit in answer["hits"]["hits"])
    return _features_of(hits, _reader(keys), features, codebooks)


def _decode_sent(
    sent: SentBlobs, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks
) -> DecodedFeatures:
    """Unpack blobs that came beside the hashes."""
    require_sendable(keys[0])
    hits = ((key, {"_id": key.hash, "fields": {name: [b] for name, b in sent[key.hash].items()}}) for key in keys)
    return _features_of(hits, _reader(keys), features, codebooks)


def require_sendable(key: DocumentKey) -> None:
    """Refuse documents of a layout whose features cannot be sent along.

    Raises:
        EngineError: Theirs cannot.
    """
    layout = layout_of(key.hash)
    if layout not in BLOB_LAYOUTS:
        raise EngineError(
            f"token vectors of layout [{layout}] cannot be sent along, only those of [{', '.join(BLOB_LAYOUTS)}]: "
            "search this index through the gateway, or store its tokens as [packed]"
        )


def is_readable(key: DocumentKey) -> bool:
    """Whether this release knows the layout of a document's features."""
    try:
        require_readable(key)
    except EngineError:
        return False
    return True


def require_readable(key: DocumentKey) -> None:
    """Refuse documents of a layout that this release does not know.

    Raises:
        EngineError: It does not know theirs.
    """
    _reader([key])


def _features_of(
    hits: Iterable[tuple[DocumentKey, Hit]],
    reader: FeatureReader,
    features: Sequence[Feature],
    codebooks: Codebooks,
) -> DecodedFeatures:
    fetched: Fetched = {}
    unknown: set[str] = set()
    for key, hit in hits:
        dims = dims_of(key.encoder)
        fetched[key] = stored = {}
        for feature in features:
            try:
                stored[feature] = _feature_of(reader, hit, feature, codebooks, dims)
            except UnknownCodebook as error:
                unknown.add(error.identifier)
                stored[feature] = SkipReason.CODEBOOK
            except ValueError as error:
                log.warning("damaged features", index=key.index, id=hit["_id"], error=str(error))
                stored[feature] = SkipReason.DAMAGED
    return DecodedFeatures(fetched, frozenset(unknown))


def _feature_of(
    reader: FeatureReader, hit: Hit, feature: Feature, codebooks: Codebooks, dims: int | None
) -> ReadFeature | SkipReason:
    read = reader.read(hit, feature, codebooks)
    if read is None:
        return _ABSENT
    return fault_in(feature, read.value, dims) or read


def _completed(held: _CachedWindow, keys: Sequence[DocumentKey], fetched: Fetched) -> WindowFeatures:
    """Return what was in memory with what was read, as far as the documents have it."""
    faults: dict[DocumentKey, dict[Feature, SkipReason]] = {}
    for key, stored in zip(keys, held.known, strict=True) if fetched else ():
        for feature, read in fetched.get(key, {}).items():
            if isinstance(read, SkipReason):
                faults.setdefault(key, {})[feature] = read
            elif read.value is not _ABSENT.value:
                stored[feature] = read.value
    return WindowFeatures(held.known, held.complete, faults)


def _cache_key(key: DocumentKey, feature: Feature) -> CacheKey:
    return key.index, key.encoder, key.hash, feature
