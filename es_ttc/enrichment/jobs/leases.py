"""Leases: the right of one worker to work on one partition of a job, until it expires."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from es_ttc.common.durations import duration
from es_ttc.enrichment.jobs.indices import JobIndices, VersionConflict
from es_ttc.enrichment.jobs.record import now
from es_ttc.errors import EngineError

logger = logging.getLogger(__name__)

NOTED_SECONDS = 30  # interval at which workers note that they look for work
_MAX_UNSEEN_SECONDS = 120  # time after which workers count as absent; their clocks and the command's may differ by less
_WORKERS = "workers"
_WRITE_LEASE = """
def until = ctx._source.expires;
if (until instanceof String) { until = ZonedDateTime.parse(until).toInstant().toEpochMilli(); }
if (params.unless_held && until != null && until > ctx._now) {
  ctx.op = 'none';
} else {
  ctx._source.putAll(params.fields);
  ctx._source.expires = ctx._now + params.millis;
}
"""


class LeaseLost(Exception):
    """Another worker has the lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one partition of a job."""

    id: str
    owner: str
    seq_no: int
    term: int


class Leases:
    """The leases of partitions, which expire by the engine's clock alone: workers' clocks may differ by hours."""

    def __init__(self, indices: JobIndices) -> None:
        self._indices = indices

    async def claim(self, job: str, partition: int, owner: str, seconds: float) -> Lease | None:
        """Acquire the lease of one partition of a job; return None if another worker holds it."""
        name = _lease_id(job, partition)
        script = _script(job, owner, seconds, unless_held=True)
        try:
            answer = await self._indices.update(name, {"script": script, "scripted_upsert": True, "upsert": {}})
        except VersionConflict:
            return None
        if answer["result"] == "noop":
            return None
        return Lease(name, owner, answer["_seq_no"], answer["_primary_term"])

    async def renew(self, lease: Lease, job: str, seconds: float, trouble: str = "") -> Lease:
        """Renew a lease; 0 seconds release it."""
        params = {"if_seq_no": str(lease.seq_no), "if_primary_term": str(lease.term)}
        answer = await self._indices.update(lease.id, {"script": _script(job, lease.owner, seconds, trouble)}, **params)
        return Lease(lease.id, lease.owner, answer["_seq_no"], answer["_primary_term"])

    async def free(self, partitions: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the partitions, each a job's id and a number, without a lease."""
        if not partitions:
            return []
        names = [_lease_id(*partition) for partition in partitions]
        leased = {"bool": {"filter": [{"ids": {"values": names}}, {"range": {"expires": {"gt": "now"}}}]}}
        body = {"query": leased, "size": len(names), "_source": False}
        taken = {hit["_id"] for hit in await self._search(body)}
        return [partition for partition, name in zip(partitions, names, strict=True) if name not in taken]

    async def trouble(self, job: str) -> str:
        """Return why a recent worker of this job is blocked; empty if none is."""
        alive = {"range": {"expires": {"gt": "now-60s"}}}
        blocked = {"bool": {"filter": [{"term": {"of": job}}, {"exists": {"field": "trouble"}}, alive]}}
        hits = await self._search({"query": blocked, "size": 1})
        return str(hits[0]["_source"]["trouble"]) if hits else ""

    async def note_worker(self) -> None:
        """Note that a worker looks for work now."""
        if await self._indices.engine.exists(self._indices.jobs):
            await self._indices.put(_WORKERS, {"kind": "workers", "seen": now()}, refresh="false")

    async def unattended(self) -> str:
        """Return why running jobs wait, if no worker has looked for work lately; empty if one has."""
        if not await self._indices.engine.exists(self._indices.jobs):
            return ""
        record = await self._indices.get(_WORKERS)
        if record is None:
            return "no worker has been seen: `es-ttc worker` does the work"
        seconds = (now() - datetime.fromisoformat(record["_source"]["seen"])).total_seconds()
        if seconds < _MAX_UNSEEN_SECONDS:
            return ""
        return f"no worker has been seen for {duration(seconds)}: `es-ttc worker` does the work"

    async def _search(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        await self._indices.engine.refresh(self._indices.jobs)
        hits: list[dict[str, Any]] = (await self._indices.engine.search(self._indices.jobs, body))["hits"]["hits"]
        return hits


def _lease_id(job: str, partition: int) -> str:
    return f"{job}-lane-{partition}"


def _script(job: str, owner: str, seconds: float, trouble: str = "", *, unless_held: bool = False) -> dict[str, Any]:
    """Return the script that writes a lease; it expires some seconds after the engine's present time."""
    fields = {"kind": "lease", "of": job, "owner": owner, "trouble": trouble or None}
    params = {"fields": fields, "millis": int(seconds * 1000), "unless_held": unless_held}
    return {"lang": "painless", "source": _WRITE_LEASE, "params": params}


class HeldLease:
    """An acquired lease, as a context around the work, which is cancelled by :class:`LeaseLost` if it is lost."""

    def __init__(self, leases: Leases, job: str, lease: Lease, seconds: float) -> None:
        self._leases = leases
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
        """Store why the work waits, for `es-ttc jobs show`; empty if it does not wait any more."""
        self._trouble = trouble
        await self._renew(self._seconds)

    async def _renew(self, seconds: float) -> None:
        async with self._renewing:
            self._lease = await self._leases.renew(self._lease, self._job, seconds, self._trouble)

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
