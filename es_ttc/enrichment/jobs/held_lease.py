"""A lease that is renewed while its owner works, and released afterwards."""

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Any

from es_ttc.enrichment.jobs.store import JobStore, Lease, VersionConflict
from es_ttc.errors import EngineError

logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another worker has the lease."""


class HeldLease:
    """A lease that was acquired. Use as an async context manager around the work.

    If the lease is lost, the work is cancelled, and :class:`LeaseLost` is raised.
    """

    def __init__(self, store: JobStore, job: str, lease: Lease, seconds: float) -> None:
        self._store = store
        self._job = job
        self._lease = lease
        self._seconds = seconds
        self._trouble = ""
        self._renewing = asyncio.Lock()
        self._over = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "HeldLease":
        """Begin to renew it."""
        self._beating = asyncio.create_task(self._beat(asyncio.current_task()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Release it."""
        ended = self._beating is not None and self._beating.done()
        lost = isinstance(error, VersionConflict) or (isinstance(error, asyncio.CancelledError) and ended)
        self._over.set()  # wait for a running renewal: its version is needed to release the lease
        if self._beating is not None:
            await asyncio.gather(self._beating, return_exceptions=True)
        try:
            await self._renew(0)
        except (VersionConflict, EngineError):
            logger.debug("the lease %s runs out by itself", self._lease.id)
        if lost:
            raise LeaseLost(self._lease.id) from error

    async def note(self, trouble: str) -> None:
        """Store why the work waits, for `es-ttc jobs show`; empty if it does not wait any more.

        Raises:
            VersionConflict: The lease was lost.
        """
        self._trouble = trouble
        await self._renew(self._seconds)

    async def _renew(self, seconds: float) -> None:
        async with self._renewing:
            self._lease = await self._store.renew(self._lease, self._job, seconds, self._trouble)

    async def _beat(self, work: "asyncio.Task[Any] | None") -> None:
        """Renew the lease; end the work if it is lost."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds / 3):
                    await self._over.wait()
                return
            try:
                await self._renew(self._seconds)
            except VersionConflict:
                if work is not None:
                    work.cancel()
                return
            except EngineError as error:
                logger.warning("a lease could not be renewed, once more in a while: %s", error)
