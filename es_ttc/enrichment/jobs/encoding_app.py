"""The Celery application of jobs that encode: a queue of its own, and threads that share one encoder.

Every followed index has a turn in a thread, so a backlog of one index delays no other, and no index waits for a
language model. The program is a separate one: `es-ttc worker` runs it beside the processes that enrich.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from types import TracebackType

from celery import Celery, signals

from es_ttc.engine.connect import connect
from es_ttc.enrichment.jobs.app import configure, note_worker, prepare, run_until_stopped
from es_ttc.enrichment.jobs.child_process import stop, tied
from es_ttc.enrichment.jobs.encoding_run import LoadedEncoders, take_encoding_turn
from es_ttc.enrichment.jobs.encoding_service import start_next
from es_ttc.enrichment.jobs.partition_run import TurnEnd, connected_redis
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.errors import EngineError, EsTtcError
from es_ttc.settings import Settings

logger = logging.getLogger(__name__)

ENCODE = "es_ttc.encode"
SWEEP = "es_ttc.sweep_encoding"
_MOST_TURNS = 64
"""Indices that one worker follows at the same time."""
_QUEUED_SECONDS = 10
"""Time after which a lost message is sent again."""
_LONGEST_TURN_SECONDS = 3600.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_RESTART_SECONDS = 2.0


def make_encoding_app(settings: Settings, broker: str, redis: str, ending: threading.Event) -> Celery:
    """Return the application."""
    app = Celery("es-ttc-encode", broker=broker, set_as_current=False)
    configure(app, settings, f"es-ttc-{settings.jobs_index}-encode", SWEEP, longest=_LONGEST_TURN_SECONDS)
    encoders = LoadedEncoders(settings)

    def encode(job: str) -> str:
        """Encode what is written to the index of a job for a while."""
        end = asyncio.run(_turn(settings, redis, encoders, job, ending))
        if end is TurnEnd.TIME and not ending.is_set():
            send(job)
        return end

    def sweep() -> int:
        """Send a turn for every job that encodes without a lease."""
        waiting = asyncio.run(_sweep(settings, redis))
        for job in waiting:
            send(job)
        return len(waiting)

    def send(job: str) -> None:
        app.send_task(ENCODE, (job,), priority=1, retry=False)

    app.task(encode, name=ENCODE)
    app.task(sweep, name=SWEEP)
    return app


def run_encoding_worker(settings: Settings, broker: str, redis: str) -> int:
    """Encode what is written to followed indices until stopped; return the exit status."""
    asyncio.run(prepare(settings))
    ending = threading.Event()

    def end(**_: object) -> None:
        ending.set()

    signals.worker_shutting_down.connect(end, weak=False)
    try:
        app = make_encoding_app(settings, broker, redis, ending)
        return run_until_stopped(app, settings, concurrency=_MOST_TURNS, pool="threads")
    finally:
        signals.worker_shutting_down.disconnect(end)


class EncodingProcess:
    """`es-ttc worker --only encode` in a process of its own during the block; if it dies, it is started again."""

    def __init__(self, settings: Settings, redis: str, *, verbose: bool) -> None:
        command = [sys.executable, "-m", "es_ttc", "worker", "--only", "encode", *(("--verbose",) if verbose else ())]
        self._command = tied(command)
        told = {"ES_TTC_ENGINE": settings.engine, "ES_TTC_ENCODER": settings.encoder, "ES_TTC_REDIS": redis}
        self._environment = {**os.environ, **told}
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread(target=self._keep_alive, name="encoding", daemon=True)

    def __enter__(self) -> "EncodingProcess":
        """Start it."""
        self._start()
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop it."""
        self._ending.set()
        self._watch.join(_STOP_SECONDS)
        if self._process is not None:
            stop(self._process, _STOP_SECONDS)

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=self._environment)  # noqa: S603

    def _keep_alive(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            if self._process is None or self._process.poll() is None:
                continue
            logger.warning("the process that encodes has died and is started again")
            if not self._ending.wait(_RESTART_SECONDS):
                self._start()


async def _turn(settings: Settings, url: str, encoders: LoadedEncoders, job: str, ending: threading.Event) -> TurnEnd:
    async with connected_redis(url) as redis:
        with contextlib.suppress(Exception):  # if Redis is unavailable, a waiting message is sent twice at worst
            await redis.delete(_queued(job))
    try:
        engine = await connect(settings)
    except EsTtcError as error:
        logger.warning("no turn at job %s: %s", job, error)
        return TurnEnd.OUTAGE
    begun = time.monotonic()
    try:
        end = await take_encoding_turn(engine, settings, encoders, job, ending.is_set)
    except EngineError as error:
        logger.warning("a turn at job %s ended early: %s", job, error)
        return TurnEnd.OUTAGE
    finally:
        await engine.close()
    logger.info("a turn at job %s: %s after %.1f s", job, end, time.monotonic() - begun)
    return end


async def _sweep(settings: Settings, url: str) -> list[str]:
    """Return the jobs that encode and wait for a worker."""
    async with connected_redis(url) as redis:
        pause = max(1, round(500 * settings.jobs_sweep_seconds))
        if not await redis.set(f"ttc:swept:{settings.jobs_index}-encode", 1, nx=True, px=pause):
            return []  # another worker of this Redis has just looked
    try:
        engine = await connect(settings)
    except EsTtcError as error:
        logger.warning("no sweep: %s", error)
        return []
    try:
        store = JobStore(engine, settings.jobs_index)
        async with connected_redis(url) as redis:
            await note_worker(store, redis)
        running = await start_next(store, await store.encodings(status=[JobState.RUNNING]))
        free = await store.free_encodings(running)
    except EsTtcError as error:
        logger.warning("a sweep ended early: %s", error)
        return []
    finally:
        await engine.close()
    async with connected_redis(url) as redis:
        return [job.id for job in free if await redis.set(_queued(job.id), 1, nx=True, ex=_QUEUED_SECONDS)]


def _queued(job: str) -> str:
    return f"ttc:queued:{job}"
