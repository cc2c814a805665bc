"""The stored features of a window's documents: from the cache by content hash, else read from the engine in parts."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, Protocol, TypeVar

import cbor2

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.readers import ReadFeature
from es_ttc.index.mappings.spec import HASH
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.cache import FeatureCache
from es_ttc.serving.features.columns import Stored
from es_ttc.serving.features.decoding import (
    ABSENT,
    DecodedFeatures,
    Fetched,
    ShardsFailed,
    decode_answer,
    decode_sent,
    group_by_layout,
    read_request,
)
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.features.keys import DocumentKey, SentBlobs, reader_for
from es_ttc.serving.features.read_budget import Kind, ReadBudget, unknown_size
from es_ttc.serving.features.skip_reasons import SkipReason, consistent
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log
from es_ttc.serving.pool import BoundedPool
from es_ttc.vectors.packed import Codebooks
from es_ttc.vectors.residual import Codebook

_MIN_DOCUMENTS_TO_SHARE = 32  # two reads share the engine's cores, and one is decoded while the other arrives
_AT_ONCE = 2  # parts of one window that are read at the same time
_ONE_HASH = {"script": {"script": f"doc['{HASH}'].size() == 1"}}
"""Excludes documents with several content hashes, by which a search cannot be collapsed."""
_MAX_REMEMBERED = 10_000
_SECONDS = 60.0
"""Time for which the number of tokens that an index allows is used, and documents with more of them are not read."""
_REFUSED_AS_A_WHOLE = (400, 500)
_NO_SCRIPTS = 400
_MAX_CODEBOOKS = 4  # of one read; an index has one

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


@dataclass(frozen=True, slots=True)
class _CachedWindow:
    """The cached features of a window."""

    known: list[Stored]
    missing: list[DocumentKey]
    lacking: frozenset[Feature]
    complete: int


class SideIndexUnreadable(EngineError):
    """Features in a side index could not be read, for example because the index is being deleted."""


class CodebookReader(Protocol):
    """Returns the codebooks that residuals refer to."""

    async def codebook(self, index: str, identifier: str, caller: Caller) -> Codebook:
        """Return a codebook of an index."""
        ...


class FeatureStore:
    """Reads features with the caller's credentials, and caches them by content hash."""

    def __init__(
        self,
        upstream: Upstream,
        cache: FeatureCache,
        pool: BoundedPool,
        side_caller: Callable[[Caller], Caller],
        budget: ReadBudget,
        codebooks: CodebookReader,
    ) -> None:
        self._cache = cache
        self._upstream = upstream
        self._engine = EngineRequests(upstream)
        self._pool = pool
        self._codebooks = codebooks
        self._side_caller = side_caller
        self._budget = budget
        self._reads: set[asyncio.Task[Fetched]] = set()
        self._scripts = True
        self._allowed: ExpiringCache[str, float] = ExpiringCache(_MAX_REMEMBERED, _SECONDS)
        self._too_long: ExpiringCache[DocumentKey, None] = ExpiringCache(_MAX_REMEMBERED, _SECONDS)

    async def window(self, keys: Sequence[DocumentKey], features: Iterable[Feature], caller: Caller) -> WindowFeatures:
        """Return features of documents; a document that lacks one is returned without it.

        If the caller is cancelled, parts that have been requested are still read into the cache; the others are not
        requested.

        Raises:
            SideIndexUnreadable: The engine refused a read of a side index.
            EngineError: The engine refused another read.
            EngineUnavailable: The engine does not answer.
        """
        cached = self._cached(keys, frozenset(features))
        if not cached.missing:
            return _completed(cached, keys, {})
        fetched: Fetched = {}
        if Feature.TOKENS in cached.lacking:
            fetched |= {key: {Feature.TOKENS: SkipReason.DIMENSIONS} for key in cached.missing if key in self._too_long}
        missing = [key for key in cached.missing if key not in fetched]
        if not missing:
            return _completed(cached, keys, fetched)
        await self._budget.known()
        search, lacking = self._budget.turns.search(), sorted(cached.lacking)
        await gather_all(
            self._read_in_parts(search, group, lacking, caller, fetched) for group in group_by_layout(missing)
        )
        return _completed(cached, keys, fetched)

    async def window_of(
        self, keys: Sequence[DocumentKey], features: Iterable[Feature], sent: SentBlobs, caller: Caller
    ) -> WindowFeatures | MissingFeatures:
        """Return features of documents from the cache and from sent blobs, or what must be sent.

        Raises:
            EngineError: The layout is not one of blobs, or a codebook could not be read.
            EngineUnavailable: The engine does not answer.
        """
        cached = self._cached(keys, frozenset(features))
        lacking = sorted(cached.lacking)
        if any(key.hash not in sent for key in cached.missing):
            hashes = dict.fromkeys(key.hash for key in cached.missing)
            return MissingFeatures(tuple(hashes), tuple(FEATURES[feature].name for feature in lacking))
        fetched: Fetched = {}
        for group in group_by_layout(cached.missing):
            fetched.update(await self._decoded(decode_sent, sent, group, lacking, caller))
        self._put(fetched)
        return _completed(cached, keys, fetched)

    def _cached(self, keys: Sequence[DocumentKey], features: frozenset[Feature]) -> _CachedWindow:
        """Return the cached features of documents."""
        self._cache.refresh()
        known, lacking = self._cache.get(keys, features)
        stored = [one.stored for one in known]
        if not any(lacking):
            return _CachedWindow(stored, [], frozenset(), len(keys))
        missing = dict.fromkeys(compress(keys, lacking))
        complete = len(keys) - sum(map(bool, lacking))
        return _CachedWindow(stored, [*missing], frozenset().union(*lacking), complete)

    async def _read_in_parts(
        self, search: int, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller, fetched: Fetched
    ) -> None:
        """Read documents of one index, encoder and layout; many documents in two parallel series of parts."""
        readers = _AT_ONCE if len(keys) >= _MIN_DOCUMENTS_TO_SHARE else 1
        most = min(-(-len(keys) // readers), reader_for(keys).most_documents)
        left = deque(keys)
        await gather_all(self._read_series(search, left, most, features, caller, fetched) for _ in range(readers))

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
            read = asyncio.create_task(self._read_and_put(kind, keys, features, caller))
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
            known = self._cache.peek(key, asked)
            if known.lacking(asked):
                keys.append(key)
            else:
                fetched[key] = {feature: ReadFeature(value, 0) for feature, value in known.stored.items()}
        return keys

    def _done(self, taken: int, read: asyncio.Task[Fetched]) -> None:
        self._reads.discard(read)
        self._budget.turns.give_back(taken)
        if not read.cancelled():
            read.exception()  # marks it as retrieved; a task that awaits it gets it too

    async def _read_and_put(
        self, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller
    ) -> Fetched:
        fetched = await self._read(kind, keys, features, caller)
        self._put(fetched)
        return fetched

    def _put(self, fetched: Fetched) -> None:
        self._cache.put(
            {
                key: {feature: read for feature, read in stored.items() if isinstance(read, ReadFeature)}
                for key, stored in fetched.items()
            }
        )

    async def _read(
        self, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature], caller: Caller
    ) -> Fetched:
        if not keys[0].side:
            return await self._read_as(caller, kind, keys, features)
        try:
            return await self._read_as(self._side_caller(caller), kind, keys, features)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise SideIndexUnreadable(str(error), upstream_status=error.upstream_status) from error

    async def _read_as(
        self, caller: Caller, kind: Kind, keys: Sequence[DocumentKey], features: Sequence[Feature]
    ) -> Fetched:
        request = partial(read_request, keys, features, await self._upstream.product())
        by_script = request(bare=self._scripts)
        try:
            return await self._read_once(caller, kind, keys, features, by_script)
        except ShardsFailed:  # one document with several hashes prevents collapsing
            body = request(_ONE_HASH, bare=self._scripts)
        try:
            return await self._read_once(caller, kind, keys, features, body)
        except ShardsFailed as error:
            if error.upstream_status != _NO_SCRIPTS or by_script == request():
                raise
        fetched = await self._read_once(caller, kind, keys, features, request())
        self._scripts = False
        log.warning("the engine allows no inline scripts: features are read more slowly", index=keys[0].index)
        return fetched

    async def _read_once(
        self,
        caller: Caller,
        kind: Kind,
        keys: Sequence[DocumentKey],
        features: Sequence[Feature],
        body: dict[str, Any],
    ) -> Fetched:
        engine = self._engine.as_caller(caller)
        try:
            raw = await engine.search_as_cbor([keys[0].index], body, failing="features could not be read")
        except EngineError as error:
            if error.upstream_status in _REFUSED_AS_A_WHOLE:
                raise ShardsFailed(str(error), upstream_status=error.upstream_status) from error
            raise
        try:
            fetched = await self._decoded(decode_answer, raw, keys, features, caller)
        except _UNEXPECTED as error:
            raise EngineError(
                f"features could not be read: the engine's answer is not one to such a search ({type(error).__name__})",
                upstream_status=200,
            ) from error
        self._budget.sizes.learn(kind, len(raw), len(fetched))
        return fetched

    async def _decoded(
        self,
        decode: Callable[[S, Sequence[DocumentKey], Sequence[Feature], Codebooks], DecodedFeatures],
        raw: S,
        keys: Sequence[DocumentKey],
        features: Sequence[Feature],
        caller: Caller,
    ) -> Fetched:
        """Decode features on a thread; a second time with the codebooks that were missing, if they can be read."""
        codebooks: dict[str, Codebook] = {}
        decoded = await self._pool.run(decode, raw, keys, features, codebooks)
        if not decoded.codebooks:
            return await self._of_allowed_length(decoded.fetched, keys[0], caller)
        for identifier in sorted(decoded.codebooks)[:_MAX_CODEBOOKS]:
            try:
                codebooks[identifier] = await self._codebooks.codebook(keys[0].index, identifier, caller)
            except EngineUnavailable:
                raise
            except EngineError as error:
                log.warning("codebook cannot be read", index=keys[0].index, error=str(error))
        if codebooks:
            decoded = await self._pool.run(decode, raw, keys, features, codebooks)
        return await self._of_allowed_length(decoded.fetched, keys[0], caller)

    async def _of_allowed_length(self, fetched: Fetched, example: DocumentKey, caller: Caller) -> Fetched:
        """Return features without token vectors that are more than the index's mapping allows: nobody encoded them."""
        lengths = {
            key: len(read.value)
            for key, stored in fetched.items()
            if isinstance(read := stored.get(Feature.TOKENS), ReadFeature) and read.value is not ABSENT.value
        }
        if not lengths:
            return fetched
        allowed = await self._max_tokens(example.index, caller)
        for key, length in lengths.items():
            if length > allowed:
                fetched[key][Feature.TOKENS] = SkipReason.DIMENSIONS
                self._too_long.put(key, None)
        return fetched

    async def _max_tokens(self, index: str, caller: Caller) -> float:
        """Return the greatest number of token vectors of a document of an index; infinite if it cannot be known."""
        known = self._allowed.get(index)
        if known is not None:
            return known.value
        allowed = math.inf
        try:
            async for found in meta_of(self._upstream, index, "max_tokens", caller):
                if found and isinstance(found[0], int):
                    allowed = found[0]
                    break
        except (EngineError, LookupError, TypeError):  # someone else's metadata
            pass
        self._allowed.put(index, allowed)
        return allowed


@dataclass(frozen=True, slots=True)
class FeatureServices:
    """The services that scoring, retrieval and the search for candidates share."""

    upstream: Upstream
    store: FeatureStore
    attached: AttachedFeatureLocator
    encoders: Encoders
    pool: BoundedPool


async def gather_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time; if one fails, cancel the others.

    Raises:
        Exception: The first failure.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _completed(cached: _CachedWindow, keys: Sequence[DocumentKey], fetched: Fetched) -> WindowFeatures:
    """Return cached and read features together."""
    if not fetched:
        return WindowFeatures(cached.known, cached.complete)
    faults: dict[DocumentKey, dict[Feature, SkipReason]] = {}
    documents = []
    for key, known in zip(keys, cached.known, strict=True):
        read = fetched.get(key, {})
        values = {f: one.value for f, one in read.items() if isinstance(one, ReadFeature) and one is not ABSENT}
        if reasons := {feature: one for feature, one in read.items() if isinstance(one, SkipReason)}:
            faults[key] = reasons
        documents.append(consistent({**known, **values}) if values else known)
    return WindowFeatures(documents, cached.complete, faults)
