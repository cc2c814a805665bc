"""Metrics of jobs: the gateway looks at their records now and then, because workers have no port to be scraped."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.encoding_record import is_encoding
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.serving.callers_engine import CallersEngine
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics
from es_ttc.settings import GatewaySettings

_LOOK_SECONDS = 20.0


class JobKind(StrEnum):
    """What a job does, as a label."""

    ENCODE = "encode"
    ENRICH = "enrich"


Look = Callable[[], Awaitable[Mapping[JobKind, int]]]
"""Returns the pending documents of running jobs, by kind."""


class JobMetrics:
    """Counts the pending documents of running jobs at an interval, and how long there have been any.

    A look that fails (no rights, no answer in time) changes no count, and `es_ttc_jobs_seen` is 0 until one succeeds.
    """

    def __init__(self, look: Look, metrics: Metrics, now: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._metrics = metrics
        self._now = now
        self._since: dict[JobKind, float] = {}
        self._failure = ""

    async def run(self, seconds: float) -> None:
        """Look every some seconds, first after as many."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def look(self) -> None:
        """Look once."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                pending = await self._look()
        except Exception as error:  # noqa: BLE001 - also a record that a newer release has written
            self._metrics.jobs_seen.set(0)
            reason = str(error) or f"no answer within {_LOOK_SECONDS:g} s"
            if reason != self._failure:  # said once, not at every look
                log.warning("jobs not counted", reason=reason)
            self._failure = reason
            return
        self._failure = ""
        self._metrics.jobs_seen.set(1)
        now = self._now()
        for kind in JobKind:
            waiting = pending.get(kind, 0)
            if waiting:
                self._since.setdefault(kind, now)
            else:
                self._since.pop(kind, None)
            self._metrics.pending_documents.labels(kind).set(waiting)
            self._metrics.backlog_seconds.labels(kind).set(now - self._since.get(kind, now))


def counted_by(upstream: Upstream, settings: GatewaySettings) -> Look:
    """Return a function that counts with the gateway's own credentials, which may need to read the jobs' records."""
    requests = EngineRequests(upstream)

    async def look() -> Mapping[JobKind, int]:
        engine = CallersEngine(requests.as_caller(Caller(upstream.service_headers())), settings)
        found = await commands.listed(engine, settings, [JobState.RUNNING])
        pending = dict.fromkeys(JobKind, 0)
        for each in found:
            kind = JobKind.ENCODE if is_encoding(each.job.id) else JobKind.ENRICH
            pending[kind] += each.progress.pending
        return pending

    return look
