"""The Celery application: two tasks, and the schedule that sends them.

``sweep`` comes every few seconds, from every worker: it looks in the engine which parts of which jobs nobody is at work
on, and sends a ``turn`` for each. So nothing depends on a message that must not be lost: a Redis that comes back empty,
or a worker that was killed, is made good by the next sweep. Messages that come twice do no harm, since a turn needs the
lease of its part.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any

from celery import Celery, signals
from celery.beat import EmbeddedService

from es_ttc.engine.connect import connect
from es_ttc.enrichment.jobs.documents import Documents
from es_ttc.enrichment.jobs.partition_run import TurnEnd, connected_redis, finish, pause, take_turn
from es_ttc.enrichment.jobs.record import Job, JobState
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError
from es_ttc.index.mappings.enrichment import enrichable
from es_ttc.settings import Settings

logger = logging.getLogger(__name__)

SWEEP = "es_ttc.sweep"
TURN = "es_ttc.turn"
_PRIORITIES = 10
_QUEUED_SECONDS = 60
"""After which a message that was sent and never came is sent again."""
_SPARE_SECONDS = 60.0
_LOADING_SECONDS = 1800.0
"""That a worker which has its model in its own process may take to load it, or to download it."""
_SWEEP_SECONDS = 15
"""After which a sweep whose worker has died stands in nobody's way."""
_SWEEP_SHARE = 4.0
"""The pause after a sweep, as a multiple of what it took."""


def make_app(settings: Settings, broker: str, redis: str) -> Celery:
    """Return the application.

    Args:
        settings: The engine, the model's endpoint, the limits.
        broker: Address of Redis, as Celery takes it.
        redis: Address of Redis, as its client takes it.
    """
    app = Celery("es-ttc", broker=broker, set_as_current=False)
    queue = f"es-ttc-{settings.jobs_index}"
    longest = settings.jobs_turn_seconds + 2 * settings.llm_timeout * settings.llm_attempts + _SPARE_SECONDS
    longest += _LOADING_SECONDS if settings.llm_offline is not None else 0.0
    app.conf.update(
        task_default_queue=queue,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_soft_time_limit=longest,
        task_time_limit=longest + _SPARE_SECONDS,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": longest + 2 * _SPARE_SECONDS,
            "priority_steps": list(range(_PRIORITIES)),
            "queue_order_strategy": "priority",
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
        },
        beat_schedule={
            "sweep": {
                "task": SWEEP,
                "schedule": settings.jobs_sweep_seconds,
                "options": {"expires": 2 * settings.jobs_sweep_seconds + 1, "priority": 0, "retry": False},
            }
        },
    )

    def turn(job: str, lane: int, priority: int) -> str:
        """Work on one part of a job for a while."""
        end = asyncio.run(_turn(settings, redis, job, lane))
        if end is TurnEnd.TIME:
            send(job, lane, priority)
        return end

    def sweep() -> int:
        """Send a turn for every part of a job that nobody is at work on."""
        wanted = asyncio.run(_sweep(settings, redis))
        for job, lane, priority in wanted:
            send(job, lane, priority)
        return len(wanted)

    def send(job: str, lane: int, priority: int) -> None:
        app.send_task(TURN, (job, lane, priority), priority=priority_of(priority), retry=False)

    app.task(turn, name=TURN)
    app.task(sweep, name=SWEEP)
    return app


def priority_of(priority: int) -> int:
    """Return Redis's priority of a message, where 0 comes first: sweeps, then jobs of priority 9 to 0."""
    return max(1, min(_PRIORITIES - 1, _PRIORITIES - 1 - priority))


def run_worker(settings: Settings, broker: str, redis: str, *, processes: int) -> int:
    """Work until told to stop; the exit status.

    Args:
        settings: The engine, the model's endpoint, the limits.
        broker: Address of Redis, as Celery takes it.
        redis: Address of Redis, as its client takes it.
        processes: Turns at the same time.
    """
    asyncio.run(_prepare(settings))
    app = make_app(settings, broker, redis)
    # In memory: the default scheduler keeps a shelf, which is pickle, in the working folder.
    beat = EmbeddedService(
        app, max_interval=settings.jobs_sweep_seconds, scheduler_cls="celery.beat:Scheduler", thread=True
    )

    def begin(**_: Any) -> None:
        beat.start()

    signals.worker_ready.connect(begin, weak=False)
    worker = app.Worker(
        concurrency=processes, pool="prefork", loglevel=logging.getLogger().getEffectiveLevel(), without_mingle=True,
        without_gossip=True, quiet=True, optimization="fair",
    )  # fmt: skip
    try:
        worker.start()
    finally:
        signals.worker_ready.disconnect(begin)
        beat.stop()
    return int(worker.exitcode or 0)


async def _prepare(settings: Settings) -> None:
    engine = await connect(settings)
    try:
        await JobStore(engine, settings.jobs_index).prepare()
    finally:
        await engine.close()


async def _turn(settings: Settings, url: str, job: str, lane: int) -> TurnEnd:
    async with connected_redis(url) as redis:
        with contextlib.suppress(Exception):  # where Redis is away, a message that waits is sent twice at worst
            await redis.delete(_queued(job, lane))
        engine = await connect(settings)
        try:
            end = await take_turn(engine, settings, redis, job, lane)
            if end is TurnEnd.NOTHING_LEFT:
                await finish(engine, settings, job)
        except EngineError as error:
            logger.warning("a turn at job %s, part %s ended early: %s", job, lane, error)
            return TurnEnd.OUTAGE
        finally:
            await engine.close()
    logger.info("a turn at job %s, part %s: %s", job, lane, end)
    return end


async def _sweep(settings: Settings, url: str) -> list[tuple[str, int, int]]:
    """Return the parts of jobs that wait for a worker, and their priorities.

    One sweep at a time for all workers of a Redis, and a pause after each that grows with what it took: sweeps come
    before turns, and where the engine is slow they must not keep workers from their work.
    """
    swept = f"ttc:swept:{settings.jobs_index}"
    async with connected_redis(url) as redis:
        if not await redis.set(swept, 1, nx=True, ex=_SWEEP_SECONDS):
            return []
        begun = time.monotonic()
        try:
            wanted = await _all_waiting(settings)
            return [each for each in wanted if await redis.set(_queued(*each[:2]), 1, nx=True, ex=_QUEUED_SECONDS)]
        finally:
            pause = settings.jobs_sweep_seconds / 2 + _SWEEP_SHARE * (time.monotonic() - begun)
            await redis.set(swept, 1, px=max(1, round(1000 * pause)))


async def _all_waiting(settings: Settings) -> list[tuple[str, int, int]]:
    try:
        engine = await connect(settings)
    except EsTtcError as error:
        logger.warning("no sweep: %s", error)
        return []
    wanted: list[tuple[str, int, int]] = []
    try:
        store = JobStore(engine, settings.jobs_index)
        for job in await store.listed(status=[JobState.RUNNING], most=1000):
            try:
                wanted += [(job.id, lane, job.priority) for lane in await _waiting(store, settings, job)]
            except EngineUnavailable:
                raise
            except EsTtcError as error:  # its index has gone, or lost its field
                await pause(store, job.id, str(error))
    except EsTtcError as error:
        logger.warning("a sweep ended early: %s", error)
    finally:
        await engine.close()
    return wanted


async def _waiting(store: JobStore, settings: Settings, job: Job) -> list[int]:
    """Return the parts of a job that a worker should come to; end the job where nothing is left."""
    if await store.turn_of(job) is not None:
        return []
    documents = Documents(store.engine, await enrichable(store.engine, job.index))
    if not (await store.progress(job, documents.pending)).pending:
        await finish(store.engine, settings, job.id)
        return []
    return await store.free_lanes(job)


def _queued(job: str, lane: int) -> str:
    return f"ttc:queued:{job}:{lane}"
