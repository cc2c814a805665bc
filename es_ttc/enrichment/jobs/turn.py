"""One worker's turn at one partition of a job: it holds the partition's lease, and ends or pauses the job if it must.

A worker may be killed at any moment: the lease then expires, and the next turn at the partition goes on from what the
engine has.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from es_ttc.enrichment.jobs.leases import HeldLease, LeaseLost
from es_ttc.enrichment.jobs.store import JobStore, UnknownJob
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError

logger = logging.getLogger(__name__)


class TurnEnd(StrEnum):
    """The reason why a turn ended."""

    NOT_DUE = "not due"  # the job is not running, waits for another one, or another worker has the lease
    TIME = "time is up"
    NOTHING_LEFT = "nothing left"
    STOPPED = "stopped"  # the job was paused or cancelled
    OUTAGE = "outage"  # the engine or the model's endpoint did not answer, or the worker has another model or encoder


class Turn(NamedTuple):
    """A partition of a job that waits for a worker, as a message to workers; priorities 0 to 9, greater ones first."""

    job: str
    partition: int = 0
    priority: int = 5


class JobWork(Protocol):
    """One kind of work of workers."""

    name: str  # its name in those of the application's tasks
    queue: str
    max_seconds: float
    queued_seconds: int  # time after which a lost message is sent again
    sweep_share: float  # pause after a sweep, as a multiple of its duration

    async def waiting(self, store: JobStore, redis: Any, /) -> Sequence[Turn]:
        """Return the partitions of jobs that need a worker."""

    async def take_turn(self, store: JobStore, redis: Any, turn: Turn, /) -> TurnEnd:
        """Work on one partition of a job for a while."""


class JobStopped(Exception):
    """The job was paused or has ended, or the worker ends."""


async def hold_turn(
    store: JobStore,
    job: str,
    partition: int,
    seconds: float,
    work: Callable[[HeldLease], Awaitable[TurnEnd]],
    is_refusal: Callable[[EngineError], bool],
) -> TurnEnd:
    """Work on one partition of a job with its lease; pause the job for errors that an operator must see to.

    After `seconds` the partition of a killed worker is taken over.
    """
    lease = await store.leases.claim(job, partition, secrets.token_hex(8), seconds)
    if lease is None:
        return TurnEnd.NOT_DUE
    try:
        async with HeldLease(store.leases, job, lease, seconds) as held:
            try:
                return await work(held)
            except EngineError as error:
                with suppress(EngineError):
                    await held.note(str(error))
                raise
    except JobStopped:
        return TurnEnd.STOPPED
    except LeaseLost:  # its new owner continues
        return TurnEnd.NOT_DUE
    except EngineError as error:
        if not isinstance(error, EngineUnavailable) and is_refusal(error):
            await stop_job(store, job, f"the engine refuses: {error}")
        raise
    except EsTtcError as error:  # the index was deleted, or lost its features or its field: an operator must act
        await stop_job(store, job, str(error))
        return TurnEnd.STOPPED


async def stop_job(store: JobStore, name: str, reason: str) -> None:
    """Pause a running job, with the reason; end it if its index was deleted."""
    jobs = store.jobs_like(name)
    try:
        gone = not await store.engine.exists((await jobs.get(name)).index)
        await jobs.change(name, lambda job: job.stopped(reason, gone=gone))
    except UnknownJob:
        logger.warning("the record of job %s was deleted", name)
        return
    # The reason may contain a model's output.
    logger.warning("job %s %s: `es-ttc jobs show %s` says why", name, "ends" if gone else "pauses", name)
