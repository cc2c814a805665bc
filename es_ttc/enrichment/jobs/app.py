"""The Celery application: its tasks, and the schedule that sends them.

Every worker runs ``sweep`` every few seconds: it finds the partitions of jobs without a lease in the engine, and sends
a ``turn`` for each. So no message is essential: after a Redis was emptied, or a worker was killed, the next sweep sends
the messages again. Duplicate messages do no harm, because a turn needs the partition's lease.

Jobs that encode have a queue and a program of their own (:mod:`es_ttc.enrichment.jobs.encoding_app`).
"""

import asyncio
import contextlib
import logging
import threading
import time
import warnings
from typing import Any

import stamina
from celery import Celery, signals
from celery.beat import EmbeddedService
from celery.exceptions import SecurityWarning

from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import Documents
from es_ttc.enrichment.jobs.partition_run import TurnEnd, connected_redis, finish, pause, take_turn
from es_ttc.enrichment.jobs.record import Job, JobState
from es_ttc.enrichment.jobs.store import NOTED_SECONDS, JobStore
from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError, InvalidRequest
from es_ttc.index.attach.source import positions
from es_ttc.index.mappings.enrichment import enrichable
from es_ttc.index.mappings.indices import index_behind
from es_ttc.settings import Settings

logger = logging.getLogger(__name__)

SWEEP = "es_ttc.sweep"
TURN = "es_ttc.turn"
_PRIORITIES = 10
_QUEUED_SECONDS = 60
"""Time after which a lost message is sent again."""
_IDLE_SECONDS = 3600
_SPARE_SECONDS = 60.0
_ENGINE_SECONDS = 60.0
"""Time in which an engine that starts together with its workers must answer."""
_LOADING_SECONDS = 1800.0
"""Maximum time in which a worker with its own model may load or download it."""
_SWEEP_SECONDS = 15
"""Time after which the sweep of a dead worker does not block others."""
_SWEEP_SHARE = 4.0
"""Pause after a sweep, as a multiple of its duration."""


def make_app(settings: Settings, broker: str, redis: str) -> Celery:
    """Return the application."""
    app = Celery("es-ttc", broker=broker, set_as_current=False)
    longest = settings.jobs_turn_seconds + 2 * settings.llm_timeout * settings.llm_attempts + _SPARE_SECONDS
    longest += _LOADING_SECONDS if settings.llm_offline is not None else 0.0
    configure(app, settings, f"es-ttc-{settings.jobs_index}", SWEEP, longest=longest)
    app.conf.update(task_soft_time_limit=longest, task_time_limit=longest + _SPARE_SECONDS)

    def turn(job: str, partition: int, priority: int) -> str:
        """Work on one partition of a job for a while."""
        end = asyncio.run(_turn(settings, redis, job, partition))
        if end is TurnEnd.TIME:
            send(job, partition, priority)
        return end

    def sweep() -> int:
        """Send a turn for every partition of a job without a lease."""
        waiting = asyncio.run(_sweep(settings, redis))
        for job, partition, priority in waiting:
            send(job, partition, priority)
        return len(waiting)

    def send(job: str, partition: int, priority: int) -> None:
        app.send_task(TURN, (job, partition, priority), priority=priority_of(priority), retry=False)

    app.task(turn, name=TURN)
    app.task(sweep, name=SWEEP)
    return app


def configure(app: Celery, settings: Settings, queue: str, sweep: str, *, longest: float) -> None:
    """Configure an application with one queue and one scheduled task."""
    app.conf.update(
        task_default_queue=queue,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
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
                "task": sweep,
                "schedule": settings.jobs_sweep_seconds,
                "options": {"expires": 2 * settings.jobs_sweep_seconds + 1, "priority": 0, "retry": False},
            }
        },
    )


def priority_of(priority: int) -> int:
    """Return Redis's priority of a message, where 0 is the first: sweeps, then jobs of priority 9 to 0."""
    return max(1, min(_PRIORITIES - 1, _PRIORITIES - 1 - priority))


def run_worker(settings: Settings, broker: str, redis: str, *, processes: int) -> int:
    """Process jobs until stopped; return the exit status."""
    asyncio.run(prepare(settings))
    app = make_app(settings, broker, redis)
    return run_until_stopped(app, settings, concurrency=processes, pool="prefork", optimization="fair")


def run_until_stopped(app: Celery, settings: Settings, **options: Any) -> int:
    """Run a worker of an application with its schedule until it is stopped; return the exit status."""
    # In memory: the default scheduler stores a shelf, which is a pickle, in the working folder.
    beat = EmbeddedService(
        app, max_interval=settings.jobs_sweep_seconds, scheduler_cls="celery.beat:Scheduler", thread=True
    )

    begun = threading.Event()
    stopped: list[str] = []

    def begin(**_: Any) -> None:
        begun.set()
        beat.start()

    def stop(how: str, **_: Any) -> None:
        stopped.append(how)

    # Celery warns of superusers because of pickles, which are not accepted, and names an option that is not ours.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signals.worker_ready.connect(begin, weak=False)
    signals.worker_shutting_down.connect(stop, weak=False)
    worker = app.Worker(
        loglevel=logging.getLogger().getEffectiveLevel(), without_mingle=True, without_gossip=True, quiet=True,
        **options,
    )  # fmt: skip
    try:
        worker.start()
    finally:
        signals.worker_ready.disconnect(begin)
        signals.worker_shutting_down.disconnect(stop)
        if begun.is_set():  # stopping waits for the end of a thread, which without a Redis never began
            beat.stop()
    # Celery ends with 1 after Ctrl-C, also where all work under way was finished.
    return 0 if stopped == ["Warm"] else int(worker.exitcode or 0)


async def prepare(settings: Settings) -> None:
    """Check the indices of the job records; wait for an engine that starts or is started again.

    Raises:
        InvalidRequest: One has another mapping.
        EngineUnavailable: It could not be reached for a minute.
    """
    attempts = stamina.retry_context(
        on=EngineUnavailable, attempts=None, timeout=_ENGINE_SECONDS, wait_initial=1.0, wait_max=5.0
    )
    async for attempt in attempts:
        with attempt:
            try:
                await _check_indices(settings)
            except EngineUnavailable as error:
                if attempt.num == 1:
                    logger.warning("%s; trying again for %.0f s", error, _ENGINE_SECONDS)
                raise


async def _check_indices(settings: Settings) -> None:
    engine = await connect(settings)
    try:
        await JobStore(engine, settings.jobs_index).check()
    finally:
        await engine.close()


async def _turn(settings: Settings, url: str, job: str, partition: int) -> TurnEnd:
    async with connected_redis(url) as redis:
        with contextlib.suppress(Exception):  # if Redis is unavailable, a waiting message is sent twice at worst
            await redis.delete(_queued(job, partition))
        engine = await connect(settings)
        try:
            end = await take_turn(engine, settings, redis, job, partition)
            if end is TurnEnd.NOTHING_LEFT:
                await finish(engine, settings, job)
        except EngineError as error:
            logger.warning("a turn at job %s, part %s ended early: %s", job, partition, error)
            return TurnEnd.OUTAGE
        finally:
            await engine.close()
    logger.info("a turn at job %s, part %s: %s", job, partition, end)
    return end


async def _sweep(settings: Settings, url: str) -> list[tuple[str, int, int]]:
    """Return the partitions of jobs that wait for a worker, with their priorities.

    All workers of a Redis share one sweep at a time, with a pause after each that grows with its duration: sweeps
    precede turns, and if the engine is slow they must not block the work.
    """
    swept = f"ttc:swept:{settings.jobs_index}"
    async with connected_redis(url) as redis:
        if not await redis.set(swept, 1, nx=True, ex=_SWEEP_SECONDS):
            return []
        begun = time.monotonic()
        try:
            waiting = await _all_waiting(settings, redis)
            return [each for each in waiting if await redis.set(_queued(*each[:2]), 1, nx=True, ex=_QUEUED_SECONDS)]
        finally:
            pause = settings.jobs_sweep_seconds / 2 + _SWEEP_SHARE * (time.monotonic() - begun)
            await redis.set(swept, 1, px=max(1, round(1000 * pause)))


async def _all_waiting(settings: Settings, redis: Any) -> list[tuple[str, int, int]]:
    try:
        engine = await connect(settings)
    except EsTtcError as error:
        logger.warning("no sweep: %s", error)
        return []
    waiting: list[tuple[str, int, int]] = []
    try:
        store = JobStore(engine, settings.jobs_index)
        await note_worker(store, redis)
        for job in await store.listed(status=[JobState.RUNNING], most=1000):
            try:
                partitions = await _waiting(store, settings, redis, job)
                waiting += [(job.id, partition, job.priority) for partition in partitions]
            except EngineUnavailable:
                raise
            except EsTtcError as error:  # its index was deleted, or lost its field
                await pause(store, job.id, str(error))
    except EsTtcError as error:
        logger.warning("a sweep ended early: %s", error)
    finally:
        await engine.close()
    return waiting


async def note_worker(store: JobStore, redis: Any) -> None:
    """Note in the records of jobs that there is a worker, once in a while for all workers of a Redis."""
    if not await redis.set(f"ttc:seen:{store.jobs}", 1, nx=True, ex=NOTED_SECONDS):
        return
    if await store.engine.exists(store.jobs):
        await store.note_worker()


async def _waiting(store: JobStore, settings: Settings, redis: Any, job: Job) -> list[int]:
    """Return the partitions of a job that need a worker; end the job if nothing is left to do."""
    if job.continuous:
        return await waiting_of_continuous(store, redis, job)
    if await store.turn_of(job) is not None:
        return []
    documents = Documents(store.engine, await enrichable(store.engine, job.index))
    if not (await store.progress(job, documents.pending)).pending:
        await finish(store.engine, settings, job.id)
        return []
    return await store.free_lanes(job)


async def waiting_of_continuous(store: JobStore, redis: Any, job: Job) -> list[int]:
    """Return the partitions of a continuous job that need a worker.

    While the index's sequence numbers stand where nothing was pending, the index is not searched.
    """
    reached = f"{await _position(store.engine, job.index)} {job.plan.key} {job.retried}"
    seen = await redis.get(_idle(job))
    if seen is not None and seen.decode() == reached:
        return []
    if await store.turn_of(job) is not None:
        return []
    documents = Documents(store.engine, await enrichable(store.engine, job.index))
    await documents.refresh()
    if (await store.progress(job, documents.pending)).pending:
        return await store.free_lanes(job)
    total = 0 if job.refresh is None else await store.engine.count(job.index)
    if total and (job.filtered == 0 or job.refresh_due(total)):
        await store.change(job.id, lambda record: _refreshed(record, total))
    else:
        await redis.set(_idle(job), reached, ex=_IDLE_SECONDS)
    return []


def _refreshed(job: Job, documents: int) -> Job:
    """Return a job whose stored proposals are filtered again; the first time only the number of documents is noted."""
    if job.filtered == 0:
        return job.model_copy(update={"filtered": documents})
    plan = job.plan.model_copy(update={"refreshed": job.plan.refreshed + 1})
    return job.model_copy(update={"filtered": documents, "plan": Plan.model_validate(plan.model_dump())})


async def _position(engine: Engine, index: str) -> str:
    source = await index_behind(engine, index)
    if source is None:
        raise InvalidRequest(f"there is no index [{index}] in {engine.name}")
    return f"{source.uuid} {sorted((await positions(engine, source)).items())}"


def _idle(job: Job) -> str:
    return f"ttc:idle:{job.id}"


def _queued(job: str, partition: int) -> str:
    return f"ttc:queued:{job}:{partition}"
