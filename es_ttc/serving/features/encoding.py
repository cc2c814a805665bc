"""The encoders of the gateway, their variants, and the vectors of queries."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role, fix_for, name_in, or_folder
from es_ttc.encoders.queries import encode
from es_ttc.encoders.query_adapters import QueryAdapters
from es_ttc.errors import EncoderBusy, EncoderError, EncoderMismatch, EsTtcError
from es_ttc.rescorers.base import Query
from es_ttc.serving.pool import BoundedPool, slices, work_of
from es_ttc.serving.tracing import span

_QUERIES_BYTES = 32 * 2**20
_TEXTS_AT_ONCE = 16
_TOKENS_AT_ONCE = 2048
_CHARACTERS_A_TOKEN = 4
_LOAD_AGAIN_SECONDS = 30.0
"""Time after a failed load in which an encoder is not loaded again."""
_LOADING = "load"

_MAX_LOADED = 4
_MAX_BURST = 8
"""Maximum number of loads without a pause."""
_SECONDS_A_LOAD = 60.0
"""Time after which one more load is allowed."""
_FAILURE_SECONDS = 60.0
_MAX_FAILURES = 1024
_MAX_WAITING = 4

Make = Callable[[str, EncoderIdentity], Awaitable[Encoder]]
Loader = Callable[[str, Path], Encoder]
VariantLoader = Callable[[EncoderIdentity, str, Path], Encoder]


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """A query's vectors."""

    query: Query
    key: str
    seconds: float


class Encoders:
    """The encoders that the gateway may load. Each is loaded at its first use, off the event loop."""

    def __init__(
        self,
        names: Sequence[str],
        cache_dir: Path,
        load: Loader,
        load_variant: VariantLoader,
        pool: BoundedPool,
        adapters: QueryAdapters | None = None,
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.adapters = adapters or QueryAdapters({})
        self._cache_dir = cache_dir
        self._load = load
        self._load_variant = load_variant
        self._pool = pool
        self._loading: dict[str, asyncio.Task[Encoder]] = {}
        self._load_again: dict[str, float] = {}
        self._variants = EncoderVariants(self._made)
        self._queries: LruCache[tuple[str, tuple[str, ...], bool], Query] = LruCache(_QUERIES_BYTES)
        self._encoding: set[asyncio.Task[EncodedQuery]] = set()

    @property
    def ready(self) -> bool:
        """Whether the first encoder is loaded."""
        task = self._loading.get(self.names[0])
        return task is not None and task.done() and not _failed(task)

    def loaded_keys(self) -> list[str]:
        """Return the identities of those configured encoders that are loaded, in their order."""
        tasks = (self._loading.get(name) for name in self.names)
        return [task.result().identity.key for task in tasks if task is not None and task.done() and not _failed(task)]

    def has(self, key: str) -> bool:
        """Return whether the encoder with an identity is loaded."""
        return key in self.loaded_keys() or self._variants.has(key)

    async def first(self) -> Encoder:
        """Return the default encoder; see :meth:`named`."""
        return await self.named(self.names[0])

    async def named(self, name: str) -> Encoder:
        """Return the configured encoder of a name."""
        task = self._loading.get(name)
        if task is None or (_failed(task) and time.monotonic() >= self._load_again.get(name, 0.0)):
            with work_of(_LOADING):
                task = asyncio.create_task(self._pool.run(self._load, name, self._cache_dir))
            task.add_done_callback(lambda _: self._load_again.__setitem__(name, time.monotonic() + _LOAD_AGAIN_SECONDS))
            self._loading[name] = task
        return await asyncio.shield(task)

    async def serving(self, key: str, index: str) -> Encoder:
        """Return the encoder with an identity: a configured one, or a variant of one."""
        ours = []
        for name in self.names:
            encoder = await self.named(name)
            if encoder.identity.key == key:
                return encoder
            variant = encoder.identity.variant(key)
            if variant is not None:
                made = await self._variants.of(name, variant)
                if made is not None:
                    return made
            ours.append(encoder.identity.key)
        raise EncoderMismatch(
            f"index [{index}] was encoded by [{key}] and this gateway has [{', '.join(ours)}]: "
            + fix_for(key, ours, f"start it with `es-ttc serve --encoder {name_in(key)}`{or_folder(key)}")
        )

    async def encode(self, encoder: Encoder, texts: tuple[str, ...], *, tokens: bool) -> EncodedQuery:
        """Return the vectors of a query's texts. If the caller is cancelled, encoding continues for the cache."""
        key = encoder.identity.key
        known = self._queries.get((key, texts, True)) or (None if tokens else self._queries.get((key, texts, False)))
        if known is not None:
            return EncodedQuery(known, key, 0.0)
        task = asyncio.create_task(self._encode(encoder, texts, tokens))
        self._encoding.add(task)
        task.add_done_callback(self._encoding.discard)
        task.add_done_callback(ignore_failure)
        return await asyncio.shield(task)

    def begin(self, texts: tuple[str, ...], target: str, *, tokens: bool) -> asyncio.Task[EncodedQuery]:
        """Start to encode a query with the default encoder, before the encoder of the target's documents is known."""

        async def encoded() -> EncodedQuery:
            return await self.encode(self.adapters.over(await self.first(), target), texts, tokens=tokens)

        task = asyncio.create_task(encoded())
        task.add_done_callback(ignore_failure)
        return task

    async def finish(
        self,
        encoder: Encoder,
        texts: tuple[str, ...],
        target: str,
        begun: asyncio.Task[EncodedQuery] | None,
        *,
        tokens: bool,
    ) -> EncodedQuery:
        """Return the vectors of a query's texts for an encoder's documents: from :meth:`begin` if it is the default."""
        if begun is not None and encoder is await self.first():
            return await asyncio.shield(begun)
        return await self.encode(self.adapters.over(encoder, target), texts, tokens=tokens)

    async def encode_texts(
        self, encoder: Encoder, texts: Sequence[str], *, role: Role, tokens: bool, max_tokens: int
    ) -> list[Encodings]:
        """Return the vectors of texts, encoded in short batches so that queries of searches are encoded in between.

        If the caller is cancelled, further batches are not started. It raises what :meth:`encode` raises.
        """
        sizes = [min(1 + len(text) // _CHARACTERS_A_TOKEN, max_tokens) for text in texts]
        return [
            await self._pool.run(encoder.encode, texts[some], role=role, tokens=tokens, max_tokens=max_tokens)
            for some in slices(sizes, most=_TEXTS_AT_ONCE, weight=_TOKENS_AT_ONCE)
        ]

    async def _encode(self, encoder: Encoder, texts: tuple[str, ...], tokens: bool) -> EncodedQuery:
        started = time.perf_counter()
        with span("encode"):
            [query] = await self._pool.run(encode, [texts], encoder, tokens=tokens)
        if not np.isfinite(query.vectors).all():
            raise EncoderError(f"encoder [{encoder.identity.key}] gave a query a vector that is not finite")
        key = encoder.identity.key
        arrays = [
            array
            for part in (query, *query.parts)
            for array in (part.vectors, part.tokens, part.word_means, part.token_spans)
            if array is not None
        ]
        weight = sum(array.nbytes for array in arrays) + sum(map(len, texts))
        self._queries.put((key, texts, tokens), query, weight)
        return EncodedQuery(query, key, time.perf_counter() - started)

    async def _made(self, name: str, identity: EncoderIdentity) -> Encoder:
        with work_of(_LOADING):
            return await self._pool.run(self._load_variant, identity, name, self._cache_dir)


class EncoderVariants:
    """Loads variants of the configured encoders: the same model with the dimensions, length or adapter of an index.

    The encoder names in documents decide which variants are loaded, and any document may contain any name. So one
    variant is loaded at a time, the rate of loads and the number of loaded variants are limited, failures are cached.
    """

    def __init__(self, make: Make, clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._cache: LruCache[str, Encoder] = LruCache(_MAX_LOADED)
        self._failures: ExpiringCache[str, EsTtcError | None] = ExpiringCache(_MAX_FAILURES, _FAILURE_SECONDS, clock)
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._loads = float(_MAX_BURST)
        self._counted = clock()
        self._loading: set[asyncio.Task[Encoder]] = set()

    def has(self, key: str) -> bool:
        """Return whether a variant is loaded."""
        return self._cache.peek(key) is not None

    async def of(self, name: str, identity: EncoderIdentity) -> Encoder | None:
        """Return the variant of a configured encoder; None if the model has no such variant.

        If the caller is cancelled, a running load continues for the next caller.
        """
        known = self._known(identity.key)
        if known is not False:
            return known
        if self._waiting >= _MAX_WAITING:
            raise EncoderBusy(f"other encoders are being loaded, [{identity.key}] was not: try again")
        self._waiting += 1
        try:
            await self._one_at_a_time.acquire()
        finally:
            self._waiting -= 1
        try:
            known = self._known(identity.key)
            if known is not False:
                self._one_at_a_time.release()
                return known
            self._count(identity.key)
        except BaseException:
            self._one_at_a_time.release()
            raise
        task = asyncio.create_task(self._loaded(name, identity))
        self._loading.add(task)
        task.add_done_callback(self._done)
        made = await asyncio.shield(task)
        return made if made.identity.key == identity.key else None

    def _known(self, key: str) -> Encoder | Literal[False] | None:
        """Return a loaded variant, None for one that is known not to exist, False if nothing is known."""
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        failure = self._failures.get(key)
        if failure is None:
            return False
        if failure.value is not None:
            raise failure.value
        return None

    def _count(self, key: str) -> None:
        """Count a load."""
        now = self._clock()
        self._loads = min(_MAX_BURST, self._loads + (now - self._counted) / _SECONDS_A_LOAD)
        self._counted = now
        if self._loads < 1:
            raise EncoderBusy(
                f"too many encoders were loaded lately to load [{key}] too: name the encoders that your indices have "
                "with `es-ttc serve --encoder`, or the setting `encoders`"
            )
        self._loads -= 1

    async def _loaded(self, name: str, identity: EncoderIdentity) -> Encoder:
        try:
            made = await self._make(name, identity)
        except Exception as error:
            failed = error if isinstance(error, EsTtcError) else EncoderBusy(
                f"encoder [{identity.key}] could not be loaded: {type(error).__name__}: {error}"
            )  # fmt: skip
            self._failures.put(identity.key, failed)
            raise failed from error
        if made.identity.key == identity.key:
            self._cache.put(identity.key, made)
        else:  # the model does not ship that adapter
            self._failures.put(identity.key, None)
        return made

    def _done(self, task: asyncio.Task[Encoder]) -> None:
        self._one_at_a_time.release()
        self._loading.discard(task)
        ignore_failure(task)


def ignore_failure(task: asyncio.Task[Any]) -> None:
    """Mark a task's exception as retrieved, so that asyncio does not log it; a task that awaits it gets it too."""
    if not task.cancelled():
        task.exception()


def _failed(task: asyncio.Task[Encoder]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
