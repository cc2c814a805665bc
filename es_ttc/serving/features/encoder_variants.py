"""Encoders that indices ask for: the configured models cut to other dimensions or lengths, or adapted.

What an index says makes a model load, and any document may say anything. So one is loaded at a time, not too many in a
while, few are kept, and those that could not be made are remembered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import EncoderBusy, EsTtcError

_KEPT = 4
_LOADS = 8
"""Loads that may follow one another at once."""
_SECONDS_A_LOAD = 60.0
"""In which a further one is allowed."""
_FAILURE_SECONDS = 60.0
_FAILURES = 1024
_WAITING = 4

Make = Callable[[str, EncoderIdentity], Awaitable[Encoder]]


class EncoderVariants:
    """Makes variants and keeps them.

    Args:
        make: Makes one from the name of a configured encoder, off the event loop.
        clock: Seconds that only grow.
    """

    def __init__(self, make: Make, clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._kept: LruCache[str, Encoder] = LruCache(_KEPT)
        self._failures: ExpiringCache[str, EsTtcError | None] = ExpiringCache(_FAILURES, _FAILURE_SECONDS, clock)
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._loads = float(_LOADS)
        self._counted = clock()
        self._loading: set[asyncio.Task[Encoder]] = set()

    def has(self, key: str) -> bool:
        """Whether a variant is kept."""
        return self._kept.peek(key) is not None

    async def of(self, name: str, identity: EncoderIdentity) -> Encoder | None:
        """Return the variant of a configured encoder; None where the encoder does not become it.

        A load that has begun goes on when the caller leaves, for the next one.

        Args:
            name: The configured encoder's.
            identity: The variant's.

        Raises:
            EncoderBusy: Others are being loaded, or too many have been.
            EsTtcError: It could not be loaded a moment ago, or cannot now.
        """
        known = self._known(identity.key)
        if known is not False:
            return known
        if self._waiting >= _WAITING:
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
        """Return a variant that is kept, None for one that is known not to be, False where nothing is known.

        Raises:
            EsTtcError: It could not be loaded a moment ago.
        """
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        failure = self._failures.get(key)
        if failure is None:
            return False
        if failure.value is not None:
            raise failure.value
        return None

    def _count(self, key: str) -> None:
        """Count a load.

        Raises:
            EncoderBusy: There have been too many.
        """
        now = self._clock()
        self._loads = min(_LOADS, self._loads + (now - self._counted) / _SECONDS_A_LOAD)
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
            self._kept.put(identity.key, made)
        else:  # the model does not ship that adapter
            self._failures.put(identity.key, None)
        return made

    def _done(self, task: asyncio.Task[Encoder]) -> None:
        self._one_at_a_time.release()
        self._loading.discard(task)
        if not task.cancelled():
            task.exception()
