"""Variants of the configured encoders: the same model with the dimensions, length or adapter of an index.

The encoder names in documents decide which variants are loaded, and any document may contain any name. So one variant
is loaded at a time, the rate of loads and the number of loaded variants are limited, and failures are cached.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import EncoderBusy, EsTtcError

_MAX_LOADED = 4
_MAX_BURST = 8
"""Maximum number of loads without a pause."""
_SECONDS_A_LOAD = 60.0
"""Time after which one more load is allowed."""
_FAILURE_SECONDS = 60.0
_MAX_FAILURES = 1024
_MAX_WAITING = 4

Make = Callable[[str, EncoderIdentity], Awaitable[Encoder]]


class EncoderVariants:
    """Loads and caches variants.

    Args:
        make: Loads a variant of a configured encoder, off the event loop.
        clock: A monotonic clock, in seconds.
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

        Raises:
            EncoderBusy: Others are being loaded, or too many have been loaded recently.
            EsTtcError: It cannot be loaded, or could not be loaded recently.
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
        if not task.cancelled():
            task.exception()
