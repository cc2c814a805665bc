"""The records of jobs in the engine: one repository for each kind of record."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from pydantic import ValidationError

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.indices import JobIndices, VersionConflict
from es_ttc.enrichment.jobs.leases import Leases
from es_ttc.enrichment.jobs.outcomes import Outcomes
from es_ttc.enrichment.jobs.record import AnyJob, EncodingCheckpoint, EncodingJob, Job, JobState, is_encoding
from es_ttc.enrichment.jobs.stored_proposals import StoredProposals
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest

logger = logging.getLogger(__name__)

_MAX_TRIES = 20
_MAX_LISTED = 1_000


class UnknownJob(InvalidRequest):
    """There is no job of this name."""

    status = 404
    type = "resource_not_found_exception"


class JobStore:
    """All records of jobs, by kind."""

    def __init__(self, engine: Engine, index: str) -> None:
        self.engine = engine
        self.indices = JobIndices(engine, index)
        self.enrichment = Jobs(self.indices, Job, "job")
        self.encoding = Jobs(self.indices, EncodingJob, "encoding")
        self.checkpoints = Checkpoints(self.indices)
        self.leases = Leases(self.indices)
        self.outcomes = Outcomes(self.indices)
        self.proposals = StoredProposals(self.indices)

    def jobs_like(self, name: str) -> "Jobs[Job] | Jobs[EncodingJob]":
        """Return the jobs of the kind that has a name."""
        return self.encoding if is_encoding(name) else self.enrichment

    async def turn_of(self, job: Job) -> Job | None:
        """Return the job that must be processed before this one, on the same index; None if there is none."""
        others = await self.enrichment.list([JobState.RUNNING], index=job.index)
        first = min((*others, job), key=lambda each: (-each.priority, each.created, each.id))
        return None if first.id == job.id else first


class Jobs(Generic[AnyJob]):
    """The jobs of one kind."""

    def __init__(self, indices: JobIndices, model: type[AnyJob], kind: str) -> None:
        self._indices = indices
        self._model = model
        self._kind = kind

    async def create(self, job: AnyJob) -> None:
        """Write a new job."""
        await self._indices.put(job.id, self._record(job), op_type="create")

    async def get(self, name: str) -> AnyJob:
        """Return a job."""
        return (await self._read(name))[0]

    async def find(self, name: str) -> AnyJob | None:
        """Return a job; None if there is none."""
        try:
            return await self.get(name)
        except UnknownJob:
            return None

    async def change(self, name: str, change: Callable[[AnyJob], AnyJob | None]) -> AnyJob:
        """Change a job's record, unless `change` returns None; after a conflict it is applied to the newer version."""
        for _ in range(_MAX_TRIES):
            job, version = await self._read(name)
            changed = change(job)
            if changed is None or changed == job:
                return job
            try:
                await self._indices.put(name, self._record(changed), **version)
            except VersionConflict:
                continue
            return changed
        raise EngineUnavailable(f"job [{name}] is changed by others all the time: try again")

    async def update(self, name: str, **fields: Any) -> AnyJob:
        """Set fields of a job's record."""
        return await self.change(name, lambda job: job.model_copy(update=fields))

    async def list(self, status: Sequence[str] = (), *, index: str | None = None) -> "list[AnyJob]":
        """Return jobs, the newest first; a record that is no job is left out, and a warning names it."""
        engine = self._indices.engine
        if not await engine.exists(self._indices.jobs):
            return []
        filters: list[dict[str, Any]] = [{"term": {"kind": self._kind}}]
        filters += [{"terms": {"job.status": list(status)}}] if status else []
        filters += [{"term": {"job.index": index}}] if index else []
        body = {"query": {"bool": {"filter": filters}}, "size": _MAX_LISTED, "sort": [{"job.created": "desc"}]}
        try:
            answer = await engine.search(self._indices.jobs, body)
        except EngineError as error:
            if error.upstream_status == 400:
                await self._indices.check()
            raise
        found = []
        for hit in answer["hits"]["hits"]:
            try:
                found.append(self._job_of(hit))
            except InvalidRequest as error:
                logger.warning("%s", error)
        return found

    async def _read(self, name: str) -> tuple[AnyJob, dict[str, str]]:
        hit = await self._indices.get(name)
        if hit is None or hit["_source"].get("kind") != self._kind:
            raise UnknownJob(f"there is no job [{name}]: see `es-ttc jobs list`")
        version = {"if_seq_no": str(hit["_seq_no"]), "if_primary_term": str(hit["_primary_term"])}
        return self._job_of(hit), version

    def _job_of(self, hit: Mapping[str, Any]) -> AnyJob:
        try:
            return self._model.model_validate(hit["_source"]["job"])
        except (LookupError, ValidationError) as error:
            raise InvalidRequest(
                f"record [{hit['_id']}] of [{self._indices.jobs}] is no job of es-ttc: delete it"
            ) from error

    def _record(self, job: AnyJob) -> dict[str, Any]:
        return {"kind": self._kind, "job": job.model_dump(mode="json")}


class Checkpoints:
    """How far jobs that encode have come."""

    def __init__(self, indices: JobIndices) -> None:
        self._indices = indices

    async def get(self, job: str) -> EncodingCheckpoint:
        """Return the checkpoint of a job; the first one for a job without any."""
        hit = await self._indices.get(f"{job}-progress")
        return EncodingCheckpoint() if hit is None else EncodingCheckpoint.model_validate(hit["_source"]["progress"])

    async def put(self, job: str, checkpoint: EncodingCheckpoint) -> None:
        """Store the checkpoint of a job."""
        document = {"kind": "progress", "of": job, "progress": checkpoint.model_dump(mode="json")}
        await self._indices.put(f"{job}-progress", document, refresh="false")

    async def reset(self, job: str) -> None:
        """Reset the checkpoint of a job; keep its counters."""
        counted = await self.get(job)
        await self.put(job, counted.model_copy(update={"source": "", "holder": "", "shards": {}}))
