"""Features that the cache lacks: read from the engine in parts, decoded, and put into the cache."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import cbor2

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.readers import ReadFeature
from es_ttc.index.mappings.spec import HASH
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.cache import FeatureCache
from es_ttc.serving.features.decoding import (
    ABSENT,
    Fetched,
    ShardsFailed,
    Stored,
    consistent,
    decode_answer,
    decode_sent,
    group_by_layout,
    read_request,
)
from es_ttc.serving.features.encoding import ignore_failure
from es_ttc.serving.features.index_meta import IndexMeta
from es_ttc.serving.features.keys import DocumentKey, SentBlobs, reader_for
from es_ttc.serving.features.read_budget import ReadBudget, unknown_size
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.pool import BoundedPool

_MIN_DOCUMENTS_TO_SHARE = 32  # two reads share the engine's cores, and one is decoded while the other arrives
_AT_ONCE = 2  # parts of one window that are read at the same time
_ONE_HASH = {"script": {"script": f"doc['{HASH}'].size() == 1"}}
"""Excludes documents with several content hashes, by which a search cannot be collapsed."""
_MAX_REMEMBERED = 10_000
_SECONDS = 60.0
"""Time for which documents with more tokens than their index allows are not read."""
_REFUSED_AS_A_WHOLE = (400, 500)
_NO_SCRIPTS = 400

_UNEXPECTED = (cbor2.CBORError, LookupError, TypeError, ValueError, EOFError)

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class WindowFeatures:
    """The features of a window's documents."""

    documents: list[Stored]
    from_memory: int
    faults: Mapping[DocumentKey, Mapping[Feature, SkipReason]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MissingFeatures:
    """The features that a plugin must send."""

    hashes: tuple[str, ...]
    fields: tuple[str, ...]


class SideIndexUnreadable(EngineError):
    """Features in a side index could not be read, for example because the index is being deleted."""


class FeatureReader:
    """Reads features: from the cache by content hash, else from the engine with the caller's credentials."""

    def __init__(
        self,
        engine: EngineClient,
        cache: FeatureCache,
        pool: BoundedPool,
        budget: ReadBudget,
        meta: IndexMeta,
    ) -> None:
        self._cache = cache
        self._engine = engine
        self._pool = pool
        self._meta = meta
        self._budget = budget
        self._reads: set[asyncio.Task[Fetched]] = set()
        self._scripts = True
        self._too_long: ExpiringCache[DocumentKey, None] = ExpiringCache(_MAX_REMEMBERED, _SECONDS)

    async def window(self, keys: Sequence[DocumentKey], features: Iterable[Feature], caller: Caller) -> WindowFeatures:
        """Return features of documents; a document that lacks one is returned without it."""
        cached, lacking = self._cached(keys, frozenset(features))
        fetched: Fetched = {}
        if any(lacking):
            missing = dict.fromkeys(compress(keys, lacking))
            fetched = await self._read(missing, sorted(frozenset().union(*lacking)), caller)
        return _completed(keys, cached, lacking, fetched)

    async def window_of(
        self, keys: Sequence[DocumentKey], features: Iterable[Feature], sent: SentBlobs, caller: Caller
    ) -> WindowFeatures | MissingFeatures:
        """Return features of documents from the cache and from sent blobs, or what must be sent."""
        cached, lacking = self._cached(keys, frozenset(features))
        needed, missing = sorted(frozenset().union(*lacking)), [*dict.fromkeys(compress(keys, lacking))]
        if any(key.hash not in sent for key in missing):
            hashes = dict.fromkeys(key.hash for key in missing)
            return MissingFeatures(tuple(hashes), tuple(FEATURES[feature].name for feature in needed))
        fetched = await self._take(sent, missing, needed, caller)
        return _completed(keys, cached, lacking, fetched)

    def _cached(
        self, keys: Sequence[DocumentKey], features: frozenset[Feature]
    ) -> tuple[list[Stored], list[frozenset[Feature]]]:
        """Return the cached features of documents, and those that each lacks."""
        known, lacking = self._cache.get(keys, features)
        return [one.stored for one in known], lacking

    async def _read(self, keys: Iterable[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        """Read documents into the cache, and return them; those that have vanished meanwhile are left out.

        If the caller is cancelled, parts that have been requested are still read into the cache; the others are not
        requested.
        """
        keys = [*keys]
        fetched: Fetched = {}
        if Feature.TOKENS in features:
            fetched = {key: {Feature.TOKENS: SkipReason.DIMENSIONS} for key in keys if key in self._too_long}
        missing = [key for key in keys if key not in fetched]
        if not missing:
            return fetched
        await self._budget.known()
        search = self._budget.turns.search()
        series = []
        for group in group_by_layout(missing):
            readers = _AT_ONCE if len(group) >= _MIN_DOCUMENTS_TO_SHARE else 1
            most = min(-(-len(group) // readers), reader_for(group).most_documents)
            left = deque(group)
            series += [self._read_series(search, left, most, features, caller, fetched) for _ in range(readers)]
        await _gather_all(series)
        return fetched

    async def _take(
        self, sent: SentBlobs, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller
    ) -> Fetched:
        """Put features that a plugin has sent into the cache, and return them."""
        fetched: Fetched = {}
        for group in group_by_layout(keys):
            fetched.update(await self._decoded(decode_sent, sent, group, features, caller))
        self._put(fetched)
        return fetched

    async def _read_series(
        self,
        search: int,
        left: deque[DocumentKey],
        most: int,
        features: Sequence[Feature],
        caller: Caller,
        fetched: Fetched,
    ) -> None:
        """Read parts of the remaining documents until there are none; each part waits for its turn."""
        turns, sizes = self._budget.turns, self._budget.sizes
        while left:
            kind = left[0].index, tuple(features)
            unknown = unknown_size(left[0].encoder, features, as_text=reader_for(left).as_text)
            size = sizes.of(kind, unknown)
            taken = round(size * min(len(left), most, max(1, turns.part // size)))
            if not sizes.known(kind):
                taken = turns.capacity  # no other read at the same time: the documents may be much larger than expected
            await turns.take(search, len(left) * size, taken)
            size = sizes.of(kind, unknown)  # another read may have measured it
            fits = max(1, int(min(taken, turns.part) / size + 0.01))
            keys = self._still_missing(left, min(most, fits), features, fetched)
            if not keys:
                turns.give_back(taken)
                continue
            read = asyncio.create_task(self._read_part(keys, features, caller))
            self._reads.add(read)
            read.add_done_callback(partial(self._done, taken))
            fetched.update(await asyncio.shield(read))

    def _still_missing(
        self, left: deque[DocumentKey], most: int, features: Sequence[Feature], fetched: Fetched
    ) -> list[DocumentKey]:
        """Remove the documents of the next part from ``left``; those that are cached by now are not read."""
        keys: list[DocumentKey] = []
        asked = frozenset(features)
        while left and len(keys) < most:
            key = left.popleft()
            known = self._cache.peek(key)
            if known.lacking(asked):
                keys.append(key)
            else:
                fetched[key] = {feature: ReadFeature(value, 0) for feature, value in known.stored.items()}
        return keys

    def _done(self, taken: int, read: asyncio.Task[Fetched]) -> None:
        self._reads.discard(read)
        self._budget.turns.give_back(taken)
        ignore_failure(read)

    def _put(self, fetched: Fetched) -> None:
        self._cache.put(
            {
                key: {feature: read for feature, read in stored.items() if isinstance(read, ReadFeature)}
                for key, stored in fetched.items()
            }
        )

    async def _read_part(self, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller) -> Fetched:
        """Read documents of one index, encoder and layout into the cache."""
        if not keys[0].side:
            fetched = await self._read_as(self._engine.as_caller(caller), keys, features)
        else:
            try:
                fetched = await self._read_as(self._engine.as_side_reader(caller), keys, features)
            except EngineUnavailable:
                raise
            except EngineError as error:
                raise SideIndexUnreadable(str(error), upstream_status=error.upstream_status) from error
        self._put(fetched)
        return fetched

    async def _read_as(self, engine: EngineClient, keys: Sequence[DocumentKey], features: Sequence[Feature]) -> Fetched:
        request = partial(read_request, keys, features, await self._engine.upstream.product())
        by_script = request(bare=self._scripts)
        try:
            return await self._read_once(engine, keys, features, by_script)
        except ShardsFailed:  # one document with several hashes prevents collapsing
            body = request(_ONE_HASH, bare=self._scripts)
        try:
            return await self._read_once(engine, keys, features, body)
        except ShardsFailed as error:
            if error.upstream_status != _NO_SCRIPTS or by_script == request():
                raise
        fetched = await self._read_once(engine, keys, features, request())
        self._scripts = False
        log.warning("the engine allows no inline scripts: features are read more slowly", index=keys[0].index)
        return fetched

    async def _read_once(
        self, engine: EngineClient, keys: Sequence[DocumentKey], features: Sequence[Feature], body: dict[str, Any]
    ) -> Fetched:
        index = keys[0].index
        try:
            raw = await engine.search_as_cbor([index], body, failing="features could not be read")
        except EngineError as error:
            if error.upstream_status in _REFUSED_AS_A_WHOLE:
                raise ShardsFailed(str(error), upstream_status=error.upstream_status) from error
            raise
        try:
            fetched = await self._decoded(decode_answer, raw, keys, features, engine.caller)
        except _UNEXPECTED as error:
            raise EngineError(
                f"features could not be read: the engine's answer is not one to such a search ({type(error).__name__})",
                upstream_status=200,
            ) from error
        self._budget.sizes.learn((index, tuple(features)), len(raw), len(fetched))
        return fetched

    async def _decoded(
        self,
        decode: Callable[[S, Sequence[DocumentKey], Sequence[Feature]], Fetched],
        raw: S,
        keys: Sequence[DocumentKey],
        features: Sequence[Feature],
        caller: Caller,
    ) -> Fetched:
        """Decode features on a thread."""
        fetched = await self._pool.run(decode, raw, keys, features)
        return await self._of_allowed_length(fetched, keys[0], caller)

    async def _of_allowed_length(self, fetched: Fetched, example: DocumentKey, caller: Caller) -> Fetched:
        """Return features without token vectors that are more than the index's mapping allows: nobody encoded them."""
        lengths = {
            key: len(read.value)
            for key, stored in fetched.items()
            if isinstance(read := stored.get(Feature.TOKENS), ReadFeature) and read is not ABSENT
        }
        if not lengths:
            return fetched
        allowed = await self._meta.max_tokens(example.index, caller)
        for key, length in lengths.items():
            if length > allowed:
                fetched[key][Feature.TOKENS] = SkipReason.DIMENSIONS
                self._too_long.put(key, None)
        return fetched


def _completed(
    keys: Sequence[DocumentKey], cached: list[Stored], lacking: Sequence[frozenset[Feature]], fetched: Fetched
) -> WindowFeatures:
    """Return cached and read features together."""
    if not fetched:
        return WindowFeatures(cached, len(keys) - sum(map(bool, lacking)))
    faults: dict[DocumentKey, dict[Feature, SkipReason]] = {}
    documents = []
    for key, known in zip(keys, cached, strict=True):
        read = fetched.get(key, {})
        values = {f: one.value for f, one in read.items() if isinstance(one, ReadFeature) and one is not ABSENT}
        if reasons := {feature: one for feature, one in read.items() if isinstance(one, SkipReason)}:
            faults[key] = reasons
        documents.append(consistent({**known, **values}) if values else known)
    return WindowFeatures(documents, len(keys) - sum(map(bool, lacking)), faults)


async def _gather_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time; if one fails, cancel the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
