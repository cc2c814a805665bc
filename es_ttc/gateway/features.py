"""The stored features of a window's documents: from memory where the content is known, else in one batched read."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cbor2

from es_ttc.errors import EngineError
from es_ttc.gateway import jsonio
from es_ttc.gateway.cache import LruCache
from es_ttc.gateway.codebooks import CodebookStore
from es_ttc.gateway.incoming import RawHeaders
from es_ttc.gateway.logs import log
from es_ttc.gateway.pool import BoundedPool
from es_ttc.gateway.upstream import Caller, Upstream, callers
from es_ttc.mappings.readers import FeatureReader, Read, layout_of, reader_of
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
            EngineError: The engine refused the read.
            EngineUnavailable: It does not answer.
        """
        wanted = tuple(wanted)
        known: list[Stored] = []
        missing: dict[DocumentKey, None] = {}
        from_memory = 0
        absent_from: set[Feature] = set()
        for key in keys:
            cached = {feature: self.cache.get(_cache_key(key, feature)) for feature in wanted}
            unknown = [feature for feature, value in cached.items() if value is None]
            if unknown:
                missing[key] = None
                absent_from.update(unknown)
            else:
                from_memory += 1
            known.append({feature: value for feature, value in cached.items() if value is not None})
        if missing:
            read = asyncio.create_task(self._read_and_keep(list(missing), sorted(absent_from), caller))
            self._reads.add(read)
            read.add_done_callback(self._done)
            fetched = await asyncio.shield(read)
            for key, stored in zip(keys, known, strict=True):
                stored.update({feature: read.value for feature, read in fetched.get(key, {}).items()})
        for stored in known:
            for feature in [feature for feature, value in stored.items() if value is _ABSENT.value]:
                del stored[feature]
        return WindowFeatures(known, from_memory)

    def _done(self, read: asyncio.Task[Fetched]) -> None:
        self._reads.discard(read)
        if not read.cancelled():
            read.exception()  # whoever still waits has it; nobody else is to be told

    async def _read_and_keep(self, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        parts = [self._read(batch, features, caller) for batch in batches(keys)]
        fetched: Fetched = {}
        for part in await asyncio.gather(*parts):
            fetched.update(part)
        for key, stored in fetched.items():
            for feature, read in stored.items():
                self.cache.put(_cache_key(key, feature), read.value, read.nbytes)
        return fetched

    async def _read(self, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        door = self._side_door(caller) if keys[0].side else caller
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
        codebooks: dict[str, Codebook] = {}
        while True:
            try:
                return await self._pool.run(_decode, raw, keys, features, codebooks)
            except UnknownCodebook as unknown:
                identifier = unknown.identifier
            except _UNEXPECTED as error:
                raise EngineError(
                    "features could not be read: the engine's answer is not one to such a search "
                    f"({type(error).__name__})",
                    upstream_status=status,
                ) from error
            codebooks[identifier] = await self._codebooks.codebook(keys[0].index, identifier, door)


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
    reader = _reader(keys)
    decoded: Fetched = {}
    for hit in answer["hits"]["hits"]:
        key = expected[hit["fields"][HASH][0]]
        try:
            decoded[key] = {feature: reader.read(hit, feature, codebooks) or _ABSENT for feature in features}
        except ValueError as error:
            log.warning("damaged features", index=key.index, id=hit["_id"], error=str(error))
    return decoded


def _cache_key(key: DocumentKey, feature: Feature) -> CacheKey:
    return key.index, key.encoder, key.hash, feature
