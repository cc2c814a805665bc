"""Records of jobs in the engine: the jobs, the leases of their partitions, and the outcome of each document.

There are three hidden indices. ``ttc-jobs``: jobs, and leases of their partitions. ``ttc-jobs-outcomes``: one document
for each document of a job, with an id derived from both, so duplicates count once. ``ttc-jobs-proposals``: a model's
proposals for a text, by the text's hash, so that nothing is paid twice. Every change of a record contains the version
that it is based on.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.encoding_record import EncodingJob, EncodingRecord
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, JobProgress, JobState, now
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.index.ingest.bulk import write

R = TypeVar("R", Job, EncodingJob)

_KINDS: Mapping[type[Job] | type[EncodingJob], str] = {Job: "job", EncodingJob: "encoding"}
_TRIES = 20
_RATE_SECONDS = 60
_SAMPLES = 3
_LONGEST_REASON = 500
_PAGE = 1_000
_MOST_LISTED = 1_000
_WORKERS = "workers"
NOTED_SECONDS = 30
"""Interval at which workers note that they look for work."""
MAX_UNSEEN_SECONDS = 120
"""Time after which workers count as absent; their clocks and the command's may differ by less."""

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
_KEYWORD = {"type": "keyword"}
_DATE = {"type": "date"}
_STORED = {"type": "keyword", "index": False, "doc_values": False, "store": False}
_OF_JOBS: dict[str, Any] = {
    "kind": _KEYWORD,
    "job": {
        "dynamic": False,
        "properties": {"index": _KEYWORD, "status": _KEYWORD, "created": _DATE, "id": _KEYWORD},
    },
    "of": _KEYWORD,
    "owner": _KEYWORD,
    "expires": _DATE,
    "trouble": {**_KEYWORD, "ignore_above": 2000},
}
_OF_OUTCOMES: dict[str, Any] = {
    **dict.fromkeys(("job", "document", "outcome", "kind"), _KEYWORD),
    **{name: {"type": "integer"} for name in ("read", "written", "attempts", "phrases", "dropped")},
    "routing": _STORED,
    "reason": _STORED,
    "reused": {"type": "boolean"},
    "at": _DATE,
    "due": _DATE,
}
_OF_PROPOSALS: dict[str, Any] = {"asked": _KEYWORD, "index": _KEYWORD, "job": _KEYWORD, "at": _DATE}
_HIDDEN = {"index": {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}}


class UnknownJob(InvalidRequest):
    """There is no job of this name."""

    status = 404
    type = "resource_not_found_exception"


class VersionConflict(Exception):
    """The record was changed by another writer."""


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """The outcome of one document."""

    document: str
    routing: str | None
    outcome: DocumentOutcome
    kind: str = ""
    reason: str = ""
    read: int = 0
    written: int = 0
    attempts: int = 0
    reused: bool = False
    phrases: int = 0
    dropped: int = 0
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one partition of a job."""

    id: str
    owner: str
    seq_no: int
    term: int


@dataclass(frozen=True, slots=True)
class StoredProposal:
    """A model's proposals for a text."""

    phrases: tuple[str, ...]
    read: int
    written: int
    job: str
    document: str

    def paid_for(self, job: str, document: str) -> bool:
        """Return whether a job has paid them for a document."""
        return (self.job, self.document) == (job, document)


@dataclass(frozen=True, slots=True)
class _Action:
    id: str
    lines: Sequence[bytes]


class JobStore:
    """Reads and writes records of jobs."""

    def __init__(self, engine: Engine, index: str) -> None:
        self.engine = engine
        self.jobs = index
        self.outcomes = f"{index}-outcomes"
        self.proposals = f"{index}-proposals"

    @property
    def _indices(self) -> dict[str, dict[str, Any]]:
        """The indices and their fields."""
        return {self.jobs: _OF_JOBS, self.outcomes: _OF_OUTCOMES, self.proposals: _OF_PROPOSALS}

    async def prepare(self) -> None:
        """Create the indices that do not exist; for commands alone, because a deleted index must not come back.

        Raises:
            InvalidRequest: One exists with another mapping, and holds records.
        """
        for name, properties in self._indices.items():
            if await self._is_foreign(name):
                await self._delete_empty(name)
            if await self.engine.exists(name):
                continue
            body = {"settings": _HIDDEN, "mappings": {"dynamic": False, "properties": properties}}
            try:
                await self.engine.create_index(name, body)
            except EngineError as error:
                if error.upstream_status != 400 or not await self.engine.exists(
                    name
                ):  # else another process has just created it
                    raise

    async def check(self) -> None:
        """Check that the indices which exist have their mappings.

        Raises:
            InvalidRequest: One has another mapping: it was deleted, and a write has made it again.
        """
        for name in self._indices:
            if await self._is_foreign(name):
                raise _foreign(name)

    async def _is_foreign(self, name: str) -> bool:
        """Return whether an index exists with another mapping than ours."""
        try:
            mappings = (await self.engine.mapping(name)).values()
        except EngineError as error:
            if error.upstream_status == 404:
                return False
            raise
        return any(str(mapping.get("dynamic")).lower() != "false" for mapping in mappings)

    async def _delete_empty(self, name: str) -> None:
        """Delete an index with another mapping, if no job, outcome or proposal is lost with it."""
        await self.engine.refresh(name)
        held = {"exists": {"field": "job"}}  # leases and checkpoints hold none, and are made again
        if await self.engine.count(name, held):
            raise _foreign(name)
        await self.engine.delete_index(name)

    async def _require_own(self) -> None:
        """Undo a write that has made the deleted index of jobs again."""
        if not await self._is_foreign(self.jobs):
            return
        with suppress(EngineError, InvalidRequest):  # the account may lack the right to delete it
            await self._delete_empty(self.jobs)
        raise _deleted(self.jobs)

    # Jobs

    async def create(self, job: Job | EncodingJob) -> None:
        """Write a new job.

        Raises:
            VersionConflict: There is one of this id.
        """
        await self._put_record(job.id, _record(job), op_type="create")

    async def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            UnknownJob: There is none of this name.
        """
        return (await self._read(Job, name))[0]

    async def change(self, name: str, change: Callable[[Job], Job | None]) -> Job:
        """Change a job's record; after a conflict, the change is applied to the newer version.

        Args:
            name: The job.
            change: Returns the changed record, or None to leave it unchanged.

        Raises:
            UnknownJob: There is none of this name.
        """
        return await self._change(Job, name, change)

    async def _change(self, kind: type[R], name: str, change: Callable[[R], R | None]) -> R:
        for _ in range(_TRIES):
            job, seq_no, term = await self._read(kind, name)
            changed = change(job)
            if changed is None or changed == job:
                return job
            params = {"if_seq_no": str(seq_no), "if_primary_term": str(term)}
            try:
                await self._put_record(name, _record(changed), **params)
            except VersionConflict:
                continue
            return changed
        raise EngineUnavailable(f"job [{name}] is changed by others all the time: try again")

    async def encoding(self, name: str) -> EncodingJob:
        """Return a job that encodes.

        Raises:
            UnknownJob: There is none of this name.
        """
        return (await self._read(EncodingJob, name))[0]

    async def change_encoding(self, name: str, change: Callable[[EncodingJob], EncodingJob | None]) -> EncodingJob:
        """Change the record of a job that encodes; see :meth:`change`."""
        return await self._change(EncodingJob, name, change)

    async def is_gone(self, index: str) -> bool:
        """Return whether the index of a job was deleted."""
        return not await self.engine.exists(index)

    async def encodings(self, *, status: Sequence[str] = ()) -> list[EncodingJob]:
        """Return the jobs that encode, the newest first."""
        return [
            EncodingJob.model_validate(each) for each in await self._listed(EncodingJob, status, None, _MOST_LISTED)
        ]

    async def encoded(self, name: str) -> EncodingRecord:
        """Return how far a job that encodes has come."""
        found = await self._get(_progress_id(name))
        return EncodingRecord() if found is None else EncodingRecord.model_validate(found["_source"]["progress"])

    async def save_encoded(self, name: str, record: EncodingRecord) -> None:
        """Store how far a job that encodes has come."""
        document = {"kind": "progress", "of": name, "progress": record.model_dump(mode="json")}
        await self._put_record(_progress_id(name), document, refresh="false")

    async def forget_encoded(self, name: str) -> None:
        """Forget how far a job that encodes has come, but for its counts: it begins again."""
        counts = await self.encoded(name)
        await self.save_encoded(name, counts.model_copy(update={"source": "", "holder": "", "shards": {}}))

    async def listed(self, *, status: Sequence[str] = (), index: str | None = None, most: int = 100) -> list[Job]:
        """Return jobs that enrich, the newest first."""
        return [Job.model_validate(each) for each in await self._listed(Job, status, index, most)]

    async def _listed(
        self, kind: type[Job] | type[EncodingJob], status: Sequence[str], index: str | None, most: int
    ) -> list[dict[str, Any]]:
        if not await self.engine.exists(self.jobs):
            return []
        filters: list[dict[str, Any]] = [{"term": {"kind": _KINDS[kind]}}]
        filters += [{"terms": {"job.status": list(status)}}] if status else []
        filters += [{"term": {"job.index": index}}] if index else []
        body = {
            "query": {"bool": {"filter": filters}},
            "size": min(most, _MOST_LISTED),
            "sort": [{"job.created": "desc"}],
        }
        try:
            answer = await self.engine.search(self.jobs, body)
        except EngineError as error:
            if error.upstream_status == 400:
                await self.check()
            raise
        return [hit["_source"]["job"] for hit in answer["hits"]["hits"]]

    async def note_worker(self) -> None:
        """Note that a worker looks for work now."""
        await self._put_record(_WORKERS, {"kind": "workers", "seen": now()}, refresh="false")

    async def unattended(self) -> str:
        """Return why running jobs wait, if no worker has looked for work lately; empty if one has."""
        if not await self.engine.exists(self.jobs):
            return ""
        record = await self._get(_WORKERS)
        if record is None:
            return "no worker has been seen: `es-ttc worker` does the work"
        seconds = (now() - datetime.fromisoformat(record["_source"]["seen"])).total_seconds()
        if seconds < MAX_UNSEEN_SECONDS:
            return ""
        return f"no worker has been seen for {duration(seconds)}: `es-ttc worker` does the work"

    async def turn_of(self, job: Job) -> Job | None:
        """Return the job that must be processed before this one, on the same index; None if there is none."""
        others = await self.listed(status=[JobState.RUNNING], index=job.index, most=_MOST_LISTED)
        first = min((*others, job), key=_order)
        return None if first.id == job.id else first

    # Partitions of jobs

    async def claim(self, job: str, partition: int, owner: str, seconds: float) -> Lease | None:
        """Acquire the lease of one partition of a job; return None if another worker holds it.

        Only the engine's clock decides whether a lease has expired, because workers' clocks may differ by hours.
        """
        name = f"{job}-lane-{partition}"
        try:
            answer = await self._write_lease(name, self._lease(job, owner, seconds, unless_held=True))
        except VersionConflict:
            return None
        if answer["result"] == "noop":
            return None
        return Lease(name, owner, answer["_seq_no"], answer["_primary_term"])

    async def renew(self, lease: Lease, job: str, seconds: float, trouble: str = "") -> Lease:
        """Renew a lease; 0 seconds release it.

        Raises:
            VersionConflict: The part has been taken by someone else.
        """
        params = {"if_seq_no": str(lease.seq_no), "if_primary_term": str(lease.term)}
        answer = await self._write_lease(lease.id, self._lease(job, lease.owner, seconds, trouble), **params)
        return Lease(lease.id, lease.owner, answer["_seq_no"], answer["_primary_term"])

    async def free_lanes(self, job: Job) -> list[int]:
        """Return the partitions of a job without a lease."""
        return await self._free([f"{job.id}-lane-{partition}" for partition in range(job.lanes)])

    async def free_encodings(self, jobs: Sequence[EncodingJob]) -> list[EncodingJob]:
        """Return the jobs that encode, among some, without a lease."""
        return [jobs[position] for position in await self._free([f"{job.id}-lane-0" for job in jobs])] if jobs else []

    async def _free(self, names: Sequence[str]) -> list[int]:
        """Return the positions of those names that have no lease."""
        leased = {"bool": {"filter": [{"ids": {"values": names}}, {"range": {"expires": {"gt": "now"}}}]}}
        await self.engine.refresh(self.jobs)
        answer = await self.engine.search(self.jobs, {"query": leased, "size": len(names), "_source": False})
        taken = {hit["_id"] for hit in answer["hits"]["hits"]}
        return [position for position, name in enumerate(names) if name not in taken]

    # Documents

    async def results(self, job: str, documents: Sequence[tuple[str, str | None]]) -> list[dict[str, Any] | None]:
        """Return the stored outcomes of some documents; None for those without one."""
        if not documents:
            return []
        docs = [{"_id": outcome_id(job, *document)} for document in documents]
        answer = await self.engine.request("POST", f"/{self.outcomes}/_mget", body={"docs": docs})
        return [found["_source"] if found.get("found") else None for found in answer["docs"]]

    async def note(self, job: str, results: Iterable[DocumentResult]) -> None:
        """Store the outcomes of documents, and replace earlier ones."""
        actions = []
        for result in results:
            source = {
                "job": job,
                "document": result.document,
                "routing": result.routing,
                "outcome": result.outcome,
                "kind": result.kind,
                "reason": result.reason[:_LONGEST_REASON],
                "read": result.read,
                "written": result.written,
                "attempts": result.attempts,
                "reused": result.reused,
                "phrases": result.phrases,
                "dropped": result.dropped,
                "at": now(),
                "due": result.due,
            }
            name = outcome_id(job, result.document, result.routing)
            actions.append(_Action(name, (orjson.dumps({"index": {"_id": name}}), orjson.dumps(source))))
        await self._write(self.outcomes, actions)

    async def forget_failures(self, job: str) -> int:
        """Delete the outcomes of failed documents, and return their number: they will be processed again."""
        await self.engine.refresh(self.outcomes)
        query = {"bool": {"filter": [{"term": {"job": job}}, {"terms": {"outcome": ["failed", "deferred"]}}]}}
        body = {"query": query}
        answer = await self.engine.request(
            "POST", f"/{self.outcomes}/_delete_by_query", params={"refresh": "true", "conflicts": "proceed"}, body=body
        )
        return int(answer["deleted"])

    async def kept(self, asked: str, texts: Sequence[str]) -> list[StoredProposal | None]:
        """Return stored proposals of a model."""
        if not texts:
            return []
        docs = [{"_id": f"{asked}-{text}"} for text in texts]
        answer = await self.engine.request("POST", f"/{self.proposals}/_mget", body={"docs": docs})
        return [_stored_proposal(found["_source"]) if found.get("found") else None for found in answer["docs"]]

    async def keep(self, asked: str, index: str, text: str, kept: StoredProposal) -> None:
        """Store a model's proposals, before anything else is done with them."""
        source = {
            "asked": asked,
            "index": index,
            "job": kept.job,
            "document": kept.document,
            "phrases": kept.phrases,
            "read": kept.read,
            "written": kept.written,
            "at": now(),
        }
        name = f"{asked}-{text}"
        await self._write(
            self.proposals, [_Action(name, (orjson.dumps({"index": {"_id": name}}), orjson.dumps(source)))]
        )

    # Counting

    async def spent(self, job: Job) -> tuple[int, float]:
        """Return the tokens and the cost of a job, as of the last refresh."""
        answer = await self._counted(job.id)
        read, written = (int(answer[name]["value"]) for name in ("read", "written"))
        return read + written, job.price.of(read, written)

    async def failing(self, job: Job) -> dict[str, Any] | None:
        """Return the last failure if document after document fails without a success in between."""
        since = max(time for time in (job.created, job.started, job.retried) if time is not None)
        outcomes = [DocumentOutcome.DONE, DocumentOutcome.FAILED, DocumentOutcome.DEFERRED]
        filters = [{"term": {"job": job.id}}, {"terms": {"outcome": outcomes}}, {"range": {"at": {"gte": since}}}]
        await self.engine.refresh(self.outcomes)
        body = {
            "query": {"bool": {"filter": filters}},
            "sort": [{"at": "desc"}],
            "size": min(job.most_failures, 10_000),
            "_source": ["outcome", "kind", "reason"],
        }
        found = [hit["_source"] for hit in (await self.engine.search(self.outcomes, body))["hits"]["hits"]]
        if len(found) < job.most_failures or any(each["outcome"] == DocumentOutcome.DONE for each in found):
            return None
        last: dict[str, Any] = found[0]
        return last

    async def progress(self, job: Job, pending: Callable[[Job], Awaitable[int]]) -> JobProgress:
        """Count a job's progress."""
        found = await self._counted(job.id)
        by_outcome = {bucket["key"]: bucket["doc_count"] for bucket in found["outcomes"]["buckets"]}
        done, failed = by_outcome.get(DocumentOutcome.DONE, 0), by_outcome.get(DocumentOutcome.FAILED, 0)
        skipped = by_outcome.get(DocumentOutcome.SKIPPED, 0)
        open_ = 0 if job.status.over else max(0, await pending(job) - failed - skipped)
        if not job.status.over:  # a document that is to be enriched again has an outcome too
            documents = await self.engine.count(job.index, job.query or None)
            done = max(0, min(done, documents - failed - skipped - open_))
        rate = found["recent"]["doc_count"] / _RATE_SECONDS
        if job.started is not None:
            rate *= _RATE_SECONDS / max(1.0, min(_RATE_SECONDS, (now() - job.started).total_seconds()))
        read, written = int(found["read"]["value"]), int(found["written"]["value"])
        return JobProgress(
            total=max(job.total, done + failed + skipped + open_)
            if job.continuous or job.status is JobState.CANCELLED
            else done + failed + skipped + open_,
            done=done,
            failed=failed,
            skipped=skipped,
            deferred=by_outcome.get(DocumentOutcome.DEFERRED, 0),
            pending=open_,
            reused=found["reused"]["doc_count"],
            read=read,
            written=written,
            cost=job.price.of(read, written),
            rate=rate,
            remaining=open_ / rate if rate else None,
            phrases=int(found["phrases"]["value"]),
            errors=[_error(bucket) for bucket in found["errors"]["kinds"]["buckets"]],
            trouble="" if job.status is not JobState.RUNNING else await self.trouble(job.id),
        )

    async def trouble(self, job: str) -> str:
        """Return why a worker waits that had a lease of a job lately; empty if none does."""
        await self.engine.refresh(self.jobs)
        alive = {"range": {"expires": {"gt": "now-60s"}}}
        body = {
            "query": {"bool": {"filter": [{"term": {"of": job}}, {"exists": {"field": "trouble"}}, alive]}},
            "size": 1,
        }
        hits = (await self.engine.search(self.jobs, body))["hits"]["hits"]
        return str(hits[0]["_source"]["trouble"]) if hits else ""

    async def _counted(self, job: str) -> Mapping[str, Any]:
        await self.engine.refresh(self.outcomes)
        failures = {"terms": {"outcome": [DocumentOutcome.FAILED, DocumentOutcome.DEFERRED]}}
        samples = {"top_hits": {"size": _SAMPLES, "_source": ["document", "reason", "outcome"]}}
        body = {
            "size": 0,
            "query": {"bool": {"filter": [{"term": {"job": job}}]}},
            "aggs": {
                "outcomes": {"terms": {"field": "outcome", "size": 10}},
                "reused": {"filter": {"term": {"reused": True}}},
                "recent": {
                    "filter": {
                        "bool": {
                            "filter": [
                                {"range": {"at": {"gte": f"now-{_RATE_SECONDS}s"}}},
                                {"term": {"outcome": DocumentOutcome.DONE}},
                            ]
                        }
                    }
                },
                **{name: {"sum": {"field": name}} for name in ("read", "written", "phrases")},
                "errors": {
                    "filter": failures,
                    "aggs": {"kinds": {"terms": {"field": "kind", "size": 20}, "aggs": {"samples": samples}}},
                },
            },
        }
        answer = await self.engine.search(self.outcomes, body)
        counted: Mapping[str, Any] = answer["aggregations"]
        return counted

    # Single records

    async def _read(self, kind: type[R], name: str) -> tuple[R, int, int]:
        found = await self._get(name)
        if found is None or found["_source"].get("kind") != _KINDS[kind]:
            raise UnknownJob(f"there is no job [{name}]: see `es-ttc jobs list`")
        return kind.model_validate(found["_source"]["job"]), found["_seq_no"], found["_primary_term"]

    async def _get(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self.engine.request("GET", f"/{self.jobs}/_doc/{quote(name, safe='')}")
        except EngineError as error:
            if error.upstream_status == 404:
                return None
            raise
        return found

    async def _put_record(self, name: str, document: Mapping[str, Any], **params: str) -> Any:
        params.setdefault("refresh", "true")
        path = f"/{self.jobs}/_doc/{quote(name, safe='')}"
        return await self._written("PUT", path, name, document, params, conflicts=(409,))

    def _lease(
        self, job: str, owner: str, seconds: float, trouble: str = "", *, unless_held: bool = False
    ) -> dict[str, Any]:
        """Return the body of an update that writes a lease; it expires some seconds after the engine's present time."""
        fields = {"kind": "lease", "of": job, "owner": owner, "trouble": trouble or None}
        params = {"fields": fields, "millis": int(seconds * 1000), "unless_held": unless_held}
        script = {"lang": "painless", "source": _WRITE_LEASE, "params": params}
        return {"script": script, "scripted_upsert": True, "upsert": {}} if unless_held else {"script": script}

    async def _write_lease(self, name: str, body: Mapping[str, Any], **params: str) -> Any:
        path = f"/{self.jobs}/_update/{quote(name, safe='')}"
        return await self._written("POST", path, name, body, params, conflicts=(404, 409))

    async def _written(
        self,
        method: str,
        path: str,
        name: str,
        body: Mapping[str, Any],
        params: Mapping[str, str],
        *,
        conflicts: Sequence[int],
    ) -> Any:
        """Return the answer to a write of one record.

        An engine makes a deleted index again with the first write to it.
        """
        try:
            answer = await self.engine.request(method, path, params=params, body=body)
        except EngineError as error:
            if error.upstream_status in (*conflicts, 400):
                await self._require_own()
            if error.upstream_status in conflicts:
                raise VersionConflict(name) from error
            raise
        if answer.get("_seq_no") == 0:
            await self._require_own()
        return answer

    async def _write(self, index: str, actions: Sequence[_Action]) -> None:
        if not actions:
            return
        if not await self.engine.exists(index):
            raise _deleted(index)
        for item in await write(self.engine, index, actions):
            if item.error is not None:
                raise EngineError(f"the record [{item.id}] in [{index}] cannot be written: {item.error}")


def _deleted(name: str) -> EngineError:
    return EngineError(f"the index [{name}] with the records of jobs was deleted: run the command that made the job")


def _foreign(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"the index [{name}] has not the mapping of es-ttc's records of jobs: it was deleted and made again by a "
        "write, or is someone else's; delete it, or name another one with ES_TTC_JOBS_INDEX, and run the command that "
        "makes the job"
    )


def stopped(job: R, reason: str, *, gone: bool) -> R | None:
    """Return the record of a running job that is paused, or ended if its index is gone; None for another one."""
    if job.status is not JobState.RUNNING:
        return None
    if gone:
        return job.model_copy(update={"status": JobState.CANCELLED, "reason": "its index was deleted", "ended": now()})
    return job.model_copy(update={"status": JobState.PAUSED, "reason": reason})


def _record(job: Job | EncodingJob) -> dict[str, Any]:
    return {"kind": _KINDS[type(job)], "job": job.model_dump(mode="json")}


def _progress_id(job: str) -> str:
    return f"{job}-progress"


def outcome_id(job: str, document: str, routing: str | None) -> str:
    """Return the id of the outcome of one document of a job, the same in every process."""
    parts = orjson.dumps([job, document, routing])
    return sha256(parts).hexdigest()[:32]


def duration(seconds: float) -> str:
    """Return a time in words, by its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min" if minutes >= 10 else f"{minutes} min {rest:02} s"


def _order(job: Job) -> tuple[int, datetime, str]:
    return -job.priority, job.created, job.id


def _stored_proposal(source: Mapping[str, Any]) -> StoredProposal:
    return StoredProposal(
        tuple(source["phrases"]), source["read"], source["written"], source["job"], source["document"]
    )


def _error(bucket: Mapping[str, Any]) -> dict[str, Any]:
    samples = [hit["_source"] for hit in bucket["samples"]["hits"]["hits"]]
    return {"kind": bucket["key"], "documents": bucket["doc_count"], "samples": samples}
