"""The stored features of a window's documents: from memory where the content is known, else in one batched read."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import cbor2

from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.gateway import jsonio
from es_ttc.gateway.codebooks import CodebookStore
from es_ttc.gateway.incoming import RawHeaders
from es_ttc.gateway.logs import log
from es_ttc.gateway.pool import BoundedPool
from es_ttc.gateway.upstream import Caller, Upstream, callers
from es_ttc.lru import LruCache
from es_ttc.mappings.fields import FEATURES
from es_ttc.mappings.readers import BLOB_LAYOUTS, FeatureReader, Hit, Read, layout_of, reader_of
from es_ttc.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.packed import Codebooks, UnknownCodebook
from es_ttc.vectors.residual import Codebook

_WORTH_SHARING = 32  # documents; two reads share the engine's cores, and one is unpacked while the other arrives
_AS_CBOR: RawHeaders = [
    (b"accept", b"application/cbor"),
    (b"accept-encoding", b"identity"),  # compressing vectors costs far more than it saves
    (b"content-type", b"application/json"),
]
_ABSENT = Read(object(), 64)  # kept in place of a feature that the document does not have

_UNEXPECTED = (cbor2.CBORError, LookupError, TypeError, ValueError, EOFError)

Fetched = dict["DocumentKey", dict[Feature, Read]]
Stored = dict[Feature, Any]
CacheKey = tuple[str, str, str, Feature]
SentBlobs = Mapping[str, Mapping[str, bytes]]
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A document's content, as a search has just returned it: documents of equal content have equal features.

    Attributes:
        index: Its concrete index.
        encoder: Identity of the encoder of its features.
        hash: Hash of the content that they were made from, and of how they are stored.
        side: Whether the index is a side index, in place of the document's own.
    """

    index: str
    encoder: str
    hash: str
    side: bool = False


@dataclass(frozen=True, slots=True)
class WindowFeatures:
    """What is known of a window's documents.

    Attributes:
        documents: One mapping a document: the features that it has.
        from_memory: Documents whose features were all in memory.
    """

    documents: list[Stored]
    from_memory: int


@dataclass(frozen=True, slots=True)
class Missing:
    """What has to be sent along.

    Attributes:
        hashes: Content hashes of documents that are not in memory.
        fields: The fields that are wanted of them.
    """

    hashes: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(slots=True)
class _Held:
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


class SideUnreadable(EngineError):
    """Features beside an index could not be read: what is being deleted fails before it is gone."""


class FeatureStore:
    """Reads features in the caller's name, and keeps them by content hash.

    Args:
        upstream: The engine.
        capacity: Bytes kept.
        pool: Where blobs are decoded.
        side_door: In whose name a side index is read for a caller.
    """

    def __init__(
        self, upstream: Upstream, capacity: int, pool: BoundedPool, side_door: Callable[[Caller], Caller]
    ) -> None:
        self.cache: LruCache[CacheKey, Any] = LruCache(capacity)
        self._upstream = upstream
        self._pool = pool
        self._codebooks = CodebookStore(upstream, pool)
        self._side_door = side_door
        self._reads: set[asyncio.Task[Fetched]] = set()

    async def window(self, keys: Sequence[DocumentKey], wanted: Iterable[Feature], caller: Caller) -> WindowFeatures:
        """Return the wanted features of documents, as far as the documents have them.

        A read that is waited for no longer goes on and fills the memory, so the next request finds it there.

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
        read = asyncio.create_task(self._read_and_keep(list(held.missing), sorted(held.lacking), caller))
        self._reads.add(read)
        read.add_done_callback(self._done)
        return _completed(held, keys, await asyncio.shield(read))

    async def window_of(
        self, keys: Sequence[DocumentKey], wanted: Iterable[Feature], sent: SentBlobs, caller: Caller
    ) -> WindowFeatures | Missing:
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
            return Missing(tuple(hashes), tuple(FEATURES[feature].name for feature in sorted(held.lacking)))
        fetched: Fetched = {}
        for batch in batches(list(held.missing)):
            fetched.update(await self._decoded(_decode_sent, sent, batch, sorted(held.lacking), caller))
        self._keep(fetched)
        return _completed(held, keys, fetched)

    def _held(self, keys: Sequence[DocumentKey], wanted: Sequence[Feature]) -> _Held:
        """Return what is in memory of some documents."""
        held = _Held([], {}, set(), 0)
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

    def _done(self, read: asyncio.Task[Fetched]) -> None:
        self._reads.discard(read)
        if not read.cancelled():
            read.exception()  # whoever still waits has it; nobody else is to be told

    async def _read_and_keep(self, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        parts = [self._read(batch, features, caller) for batch in batches(keys)]
        fetched: Fetched = {}
        for part in await asyncio.gather(*parts):
            fetched.update(part)
        self._keep(fetched)
        return fetched

    def _keep(self, fetched: Fetched) -> None:
        for key, stored in fetched.items():
            for feature, read in stored.items():
                self.cache.put(_cache_key(key, feature), read.value, read.nbytes)

    async def _read(self, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        if not keys[0].side:
            return await self._read_through(caller, keys, features)
        try:
            return await self._read_through(self._side_door(caller), keys, features)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise SideUnreadable(str(error), upstream_status=error.upstream_status) from error

    async def _read_through(self, door: Caller, keys: Sequence[DocumentKey], features: Sequence[Feature]) -> Fetched:
        path, query_string = door.path([keys[0].index], "_search"), door.query_string()
        body = read_request(keys, features)
        if door.pit is not None:
            path, query_string = b"/_search", b""
            body["pit"] = door.pit
        async with self._upstream.send(
            "POST", path, query_string, [*callers(door.headers), *_AS_CBOR], jsonio.dumps(body), ours=True
        ) as response:
            raw = await response.read()
            status = response.status
        if status != 200:
            raise EngineError(f"features could not be read: the engine answered {status}", upstream_status=status)
        try:
            return await self._decoded(_decode, raw, keys, features, door)
        except _UNEXPECTED as error:
            raise EngineError(
                f"features could not be read: the engine's answer is not one to such a search ({type(error).__name__})",
                upstream_status=status,
            ) from error

    async def _decoded(
        self,
        decode: Callable[[S, Sequence[DocumentKey], Sequence[Feature], Codebooks], Fetched],
        raw: S,
        keys: Sequence[DocumentKey],
        features: Sequence[Feature],
        caller: Caller,
    ) -> Fetched:
        """Unpack features on a thread, with the codebooks that they name."""
        codebooks: dict[str, Codebook] = {}
        while True:
            try:
                return await self._pool.run(decode, raw, keys, features, codebooks)
            except UnknownCodebook as unknown:
                identifier = unknown.identifier
            codebooks[identifier] = await self._codebooks.codebook(keys[0].index, identifier, caller)


def brought(key: DocumentKey, hit: Hit, features: Iterable[Feature]) -> Stored:
    """Return those features that have come with a document's hit; one that has not, or is damaged, is left out.

    Args:
        key: The document.
        hit: A hit of it, whose search asked for stored fields.
        features: Those that were asked for; no token vectors.
    """
    reader = _reader([key])
    stored: Stored = {}
    for feature in features:
        with suppress(ValueError):
            found = reader.read(hit, feature)
            if found is not None:
                stored[feature] = found.value
    return stored


def batches(keys: Sequence[DocumentKey]) -> Iterator[Sequence[DocumentKey]]:
    """Yield the documents of one index, encoder and layout at a time, no more at once than an engine's heap bears.

    What would be one read of many documents is two of equal size.
    """
    together: dict[tuple[str, str, str], list[DocumentKey]] = defaultdict(list)
    for key in keys:
        together[key.index, key.encoder, layout_of(key.hash)].append(key)
    for alike in together.values():
        half = -(-len(alike) // 2) if len(alike) >= _WORTH_SHARING else len(alike)
        size = min(half, _reader(alike).most_documents)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


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


def _decode(raw: bytes, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks) -> Fetched:
    """Unpack the answer; a content that is gone since the first pass is left out, and so is a damaged one."""
    answer = cbor2.loads(raw)
    if answer["_shards"]["failed"]:
        raise EngineError("features could not be read: some of the index's shards failed")
    expected = {key.hash: key for key in keys}
    hits = ((expected[hit["fields"][HASH][0]], hit) for hit in answer["hits"]["hits"])
    return _features_of(hits, _reader(keys), features, codebooks)


def _decode_sent(
    sent: SentBlobs, keys: Sequence[DocumentKey], features: Sequence[Feature], codebooks: Codebooks
) -> Fetched:
    """Unpack blobs that came beside the hashes."""
    layout = layout_of(keys[0].hash)
    if layout not in BLOB_LAYOUTS:
        raise EngineError(
            f"token vectors of layout [{layout}] cannot be sent along, only those of [{', '.join(BLOB_LAYOUTS)}]: "
            "search this index through the gateway, or store its tokens as [packed]"
        )
    hits = ((key, {"_id": key.hash, "fields": {name: [b] for name, b in sent[key.hash].items()}}) for key in keys)
    return _features_of(hits, _reader(keys), features, codebooks)


def _features_of(
    hits: Iterable[tuple[DocumentKey, Hit]],
    reader: FeatureReader,
    features: Sequence[Feature],
    codebooks: Codebooks,
) -> Fetched:
    decoded: Fetched = {}
    for key, hit in hits:
        try:
            decoded[key] = {feature: reader.read(hit, feature, codebooks) or _ABSENT for feature in features}
        except ValueError as error:
            log.warning("damaged features", index=key.index, id=hit["_id"], error=str(error))
    return decoded


def _completed(held: _Held, keys: Sequence[DocumentKey], fetched: Fetched) -> WindowFeatures:
    """Return what was in memory with what was read, as far as the documents have it."""
    for key, stored in zip(keys, held.known, strict=True) if fetched else ():
        for feature, read in fetched.get(key, {}).items():
            if read.value is not _ABSENT.value:
                stored[feature] = read.value
    return WindowFeatures(held.known, held.complete)


def _cache_key(key: DocumentKey, feature: Feature) -> CacheKey:
    return key.index, key.encoder, key.hash, feature
