"""The Celery applications of workers: for each kind of work a queue, a task that takes a turn, and scheduled sweeps.

Every worker runs a sweep every few seconds: it finds the partitions of jobs without a lease in the engine, and sends a
turn for each. So no message is essential: after a Redis was emptied, or a worker was killed, the next sweep sends the
messages again. Duplicate messages do no harm, because a turn needs the partition's lease.

Encoding has a process of its own, whose threads share one encoder: a language model never delays vectors.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import stamina
from celery import Celery, signals
from celery.beat import EmbeddedService
from celery.exceptions import SecurityWarning

from es_ttc.engine.connect import connected
from es_ttc.enrichment.jobs.encoding_turn import EncodingWork
from es_ttc.enrichment.jobs.enrichment_work import EnrichmentWork
from es_ttc.enrichment.jobs.leases import NOTED_SECONDS
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.supervised import SupervisedProgram
from es_ttc.enrichment.jobs.turn import JobWork, Turn, TurnEnd
from es_ttc.errors import EngineUnavailable, EsTtcError
from es_ttc.settings import Settings

logger = logging.getLogger(__name__)

_PRIORITIES = 10
_MAX_FOLLOWED = 64  # indices that one worker follows at the same time
_SPARE_SECONDS = 60.0
_ENGINE_SECONDS = 60.0  # time in which an engine that starts together with its workers must answer
_INTERVAL_SECONDS = 2.0  # interval at which jobs are searched for free partitions
_SWEEP_SECONDS = 15  # time after which the sweep of a dead worker does not block others


def run_enrichment_worker(settings: Settings, broker: str, redis: str, *, processes: int) -> int:
    """Process the jobs that enrich until stopped; return the exit status."""
    asyncio.run(prepare_jobs(settings))
    work = EnrichmentWork(settings)
    app = make_app(settings, broker, redis, work)
    app.conf.update(task_soft_time_limit=work.max_seconds, task_time_limit=work.max_seconds + _SPARE_SECONDS)
    return run_until_stopped(app, concurrency=processes, pool="prefork", optimization="fair")


def run_encoding_worker(settings: Settings, broker: str, redis: str) -> int:
    """Encode what is written to followed indices until stopped; return the exit status."""
    asyncio.run(prepare_jobs(settings))
    work = EncodingWork(settings)
    app = make_app(settings, broker, redis, work)
    return run_until_stopped(app, work.ending, concurrency=_MAX_FOLLOWED, pool="threads")


def encoding_process(settings: Settings, redis: str, *, debug: bool) -> SupervisedProgram:
    """Return `es-ttc worker --only encode` as a process of its own."""
    command = [sys.executable, "-m", "es_ttc", *(("--debug",) if debug else ()), "worker", "--only", "encode"]
    values = {"ES_TTC_ENGINE": settings.engine, "ES_TTC_ENCODER": settings.chosen_encoder, "ES_TTC_REDIS": redis}
    chosen = {name: value for name, value in values.items() if value is not None}
    return SupervisedProgram(command, "the process that encodes", {**os.environ, **chosen})


def make_app(settings: Settings, broker: str, redis: str, work: JobWork) -> Celery:
    """Return the application of one kind of work."""
    app = Celery(work.queue, broker=broker, set_as_current=False)
    turn_task, sweep_task = f"es_ttc.{work.name}", f"es_ttc.sweep_{work.name}"
    configure(app, work.queue, sweep_task, longest=work.max_seconds)

    def take_turn(*message: Any) -> str:
        """Work on one partition of a job for a while."""
        turn = Turn(*message)
        end = asyncio.run(_take_turn(settings, redis, work, turn))
        if end is TurnEnd.TIME:
            send(turn)
        return end

    def sweep() -> int:
        """Send a turn for every partition of a job without a lease."""
        waiting = asyncio.run(_sweep(settings, redis, work))
        for turn in waiting:
            send(turn)
        return len(waiting)

    def send(turn: Turn) -> None:
        app.send_task(turn_task, tuple(turn), priority=_redis_priority(turn.priority), retry=False)

    app.task(take_turn, name=turn_task)
    app.task(sweep, name=sweep_task)
    return app


def configure(app: Celery, queue: str, sweep: str, *, longest: float) -> None:
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
                "schedule": _INTERVAL_SECONDS,
                "options": {"expires": 2 * _INTERVAL_SECONDS + 1, "priority": 0, "retry": False},
            }
        },
    )


def run_until_stopped(app: Celery, ending: threading.Event | None = None, **options: Any) -> int:
    """Run a worker of an application with its schedule until it is stopped; return the exit status."""
    # In memory: the default scheduler stores a shelf, which is a pickle, in the working folder.
    beat = EmbeddedService(app, max_interval=_INTERVAL_SECONDS, scheduler_cls="celery.beat:Scheduler", thread=True)
    begun = threading.Event()
    stopped: list[str] = []

    def begin(**_: Any) -> None:
        begun.set()
        beat.start()

    def stop(how: str, **_: Any) -> None:
        stopped.append(how)
        if ending is not None:
            ending.set()

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


async def prepare_jobs(settings: Settings) -> None:
    """Check the indices of the job records; wait for an engine that starts or is started again."""
    attempts = stamina.retry_context(
        on=EngineUnavailable, attempts=None, timeout=_ENGINE_SECONDS, wait_initial=1.0, wait_max=5.0
    )
    async for attempt in attempts:
        with attempt:
            try:
                async with _connected_store(settings) as store:
                    await store.indices.check()
            except EngineUnavailable as error:
                if attempt.num == 1:
                    logger.warning("%s; trying again for %.0f s", error, _ENGINE_SECONDS)
                raise


async def _take_turn(settings: Settings, url: str, work: JobWork, turn: Turn) -> TurnEnd:
    begun = time.monotonic()
    async with connected_redis(url) as redis:
        with contextlib.suppress(Exception):  # if Redis is unavailable, a waiting message is sent twice at worst
            await redis.delete(_queued(turn))
        try:
            async with _connected_store(settings) as store:
                end = await work.take_turn(store, redis, turn)
        except EsTtcError as error:
            logger.warning("a turn at job %s, partition %s ended early: %s", turn.job, turn.partition, error)
            return TurnEnd.OUTAGE
    seconds = time.monotonic() - begun
    logger.info("a turn at job %s, partition %s: %s after %.1f s", turn.job, turn.partition, end, seconds)
    return end


async def _sweep(settings: Settings, url: str, work: JobWork) -> list[Turn]:
    """Return the partitions that wait for a worker; all workers of a Redis share one sweep, with a pause after each."""
    swept = f"ttc:swept:{work.queue}"
    async with connected_redis(url) as redis:
        if not await redis.set(swept, 1, nx=True, ex=_SWEEP_SECONDS):
            return []
        begun = time.monotonic()
        try:
            async with _connected_store(settings) as store:
                if await redis.set(f"ttc:seen:{settings.jobs_index}", 1, nx=True, ex=NOTED_SECONDS):
                    await store.leases.note_worker()
                waiting = await work.waiting(store, redis)
            return [turn for turn in waiting if await redis.set(_queued(turn), 1, nx=True, ex=work.queued_seconds)]
        except EsTtcError as error:
            logger.warning("a sweep ended early: %s", error)
            return []
        finally:
            pause = _INTERVAL_SECONDS / 2 + work.sweep_share * (time.monotonic() - begun)
            await redis.set(swept, 1, px=max(1, round(1000 * pause)))


@contextlib.asynccontextmanager
async def _connected_store(settings: Settings) -> AsyncIterator[JobStore]:
    async with connected(settings) as engine:
        yield JobStore(engine, settings.jobs_index)


@contextlib.asynccontextmanager
async def connected_redis(url: str) -> AsyncIterator[Any]:
    """Yield an async client of Redis."""
    from redis.asyncio import Redis

    client = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
    try:
        yield client
    finally:
        await client.aclose()


def _redis_priority(priority: int) -> int:
    """Return Redis's priority of a message, where 0 is the first: sweeps, then jobs of priority 9 to 0."""
    return max(1, min(_PRIORITIES - 1, _PRIORITIES - 1 - priority))


def _queued(turn: Turn) -> str:
    return f"ttc:queued:{turn.job}:{turn.partition}"
