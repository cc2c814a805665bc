"""Records of jobs in the engine: who they are, who works on which part, and what became of each document.

Three hidden indices. ``ttc-jobs``: jobs, and leases of their parts. ``ttc-jobs-outcomes``: one document for each
document of a job, under an id that follows from both, so whatever is done twice counts once. ``ttc-jobs-proposals``:
what a model proposed for a text, by the text's hash, so nothing is paid twice. Every change of a record names the
version that it was made from.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import orjson

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, JobProgress, JobState, now
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.index.ingest.bulk import write

_TRIES = 20
_RATE_SECONDS = 60
_SAMPLES = 3
_LONGEST_REASON = 500
_PAGE = 1_000
_MOST_LISTED = 1_000

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
_HIDDEN = {"index": {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}}


class UnknownJob(InvalidRequest):
    """There is no job of this name."""

    status = 404
    type = "resource_not_found_exception"


class VersionConflict(Exception):
    """Someone else has changed what was to be changed."""


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """What became of one document.

    Attributes:
        document: Its id.
        routing: Its routing.
        outcome: What became of it.
        kind: Kind of failure, or why it was skipped; empty for one that is done.
        reason: One sentence.
        read: Tokens of questions about it, over all attempts.
        written: Tokens of answers.
        attempts: Attempts that failed.
        reused: Whether nothing was paid for it.
        phrases: Phrases written.
        dropped: Proposals left out, by reason.
        due: When it is to be tried again, where it is deferred.
    """

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
    """The right to work on one part of a job.

    Attributes:
        id: Of its record.
        owner: Who has it.
        seq_no: Of the record.
        term: Of the record.
    """

    id: str
    owner: str
    seq_no: int
    term: int


@dataclass(frozen=True, slots=True)
class StoredProposal:
    """What a model proposed for a text.

    Attributes:
        phrases: As it wrote them.
        read: Tokens of the question.
        written: Tokens of the answer.
        job: The job that paid.
        document: For which of its documents; others of the same text have it for nothing.
    """

    phrases: tuple[str, ...]
    read: int
    written: int
    job: str
    document: str

    def paid_for(self, job: str, document: str) -> bool:
        """Whether a job has paid this for a document."""
        return (self.job, self.document) == (job, document)


@dataclass(frozen=True, slots=True)
class _Action:
    id: str
    lines: Sequence[bytes]


class JobStore:
    """Reads and writes records of jobs.

    Args:
        engine: The engine.
        index: Name of the index of jobs, and prefix of the other two.
    """

    def __init__(self, engine: Engine, index: str) -> None:
        self.engine = engine
        self.jobs = index
        self.outcomes = f"{index}-outcomes"
        self.proposals = f"{index}-proposals"

    async def prepare(self) -> None:
        """Make the indices that are not there yet."""
        for name, properties in (
            (
                self.jobs,
                {
                    "kind": _KEYWORD,
                    "job": {
                        "dynamic": False,
                        "properties": {"index": _KEYWORD, "status": _KEYWORD, "created": _DATE, "id": _KEYWORD},
                    },
                    "of": _KEYWORD,
                    "owner": _KEYWORD,
                    "expires": _DATE,
                    "trouble": {**_KEYWORD, "ignore_above": 2000},
                },
            ),
            (
                self.outcomes,
                {
                    **dict.fromkeys(("job", "document", "outcome", "kind"), _KEYWORD),
                    **{name: {"type": "integer"} for name in ("read", "written", "attempts", "phrases", "dropped")},
                    "routing": _STORED,
                    "reason": _STORED,
                    "reused": {"type": "boolean"},
                    "at": _DATE,
                    "due": _DATE,
                },
            ),
            (self.proposals, {"asked": _KEYWORD, "index": _KEYWORD, "job": _KEYWORD, "at": _DATE}),
        ):
            if await self.engine.exists(name):
                continue
            body = {"settings": _HIDDEN, "mappings": {"dynamic": False, "properties": properties}}
            try:
                await self.engine.create_index(name, body)
            except EngineError as error:
                if error.upstream_status != 400 or not await self.engine.exists(name):  # else another made it just now
                    raise

    # Jobs

    async def create(self, job: Job) -> None:
        """Write a new job."""
        await self._put(job.id, {"kind": "job", "job": job.model_dump(mode="json")}, op_type="create")

    async def get(self, name: str) -> Job:
        """Return a job as it stands.

        Raises:
            UnknownJob: There is none of this name.
        """
        return (await self._read(name))[0]

    async def change(self, name: str, change: Callable[[Job], Job | None]) -> Job:
        """Change a job's record; where someone else changes it at the same time, what he wrote is changed.

        Args:
            name: The job.
            change: Returns the record as it should be, or None to leave it as it is.

        Raises:
            UnknownJob: There is none of this name.
        """
        for _ in range(_TRIES):
            job, seq_no, term = await self._read(name)
            changed = change(job)
            if changed is None or changed == job:
                return job
            params = {"if_seq_no": str(seq_no), "if_primary_term": str(term)}
            try:
                await self._put(name, {"kind": "job", "job": changed.model_dump(mode="json")}, **params)
            except VersionConflict:
                continue
            return changed
        raise EngineUnavailable(f"job [{name}] is changed by others all the time: try again")

    async def listed(self, *, status: Sequence[str] = (), index: str | None = None, most: int = 100) -> list[Job]:
        """Return jobs, the newest first."""
        if not await self.engine.exists(self.jobs):
            return []
        filters: list[dict[str, Any]] = [{"term": {"kind": "job"}}]
        filters += [{"terms": {"job.status": list(status)}}] if status else []
        filters += [{"term": {"job.index": index}}] if index else []
        body = {
            "query": {"bool": {"filter": filters}},
            "size": min(most, _MOST_LISTED),
            "sort": [{"job.created": "desc"}],
        }
        answer = await self.engine.search(self.jobs, body)
        return [Job.model_validate(hit["_source"]["job"]) for hit in answer["hits"]["hits"]]

    async def turn_of(self, job: Job) -> Job | None:
        """Return the job that a job waits for: two on one index take turns; None where it waits for none."""
        others = await self.listed(status=[JobState.RUNNING], index=job.index, most=_MOST_LISTED)
        first = min((*others, job), key=_order)
        return None if first.id == job.id else first

    # Parts of jobs

    async def claim(self, job: str, lane: int, owner: str, seconds: float) -> Lease | None:
        """Take one part of a job, or return None where someone else is at work on it.

        Whether a lease is over is decided by the engine's clock alone: workers' own may differ by hours.
        """
        name = f"{job}-lane-{lane}"
        try:
            answer = await self._write_lease(name, self._lease(job, owner, seconds, unless_held=True))
        except VersionConflict:
            return None
        if answer["result"] == "noop":
            return None
        return Lease(name, owner, answer["_seq_no"], answer["_primary_term"])

    async def renew(self, lease: Lease, job: str, seconds: float, trouble: str = "") -> Lease:
        """Show a sign of life; 0 seconds give the part back.

        Raises:
            Conflict: The part has been taken by someone else.
        """
        params = {"if_seq_no": str(lease.seq_no), "if_primary_term": str(lease.term)}
        answer = await self._write_lease(lease.id, self._lease(job, lease.owner, seconds, trouble), **params)
        return Lease(lease.id, lease.owner, answer["_seq_no"], answer["_primary_term"])

    async def free_lanes(self, job: Job) -> list[int]:
        """Return the parts of a job that nobody is at work on."""
        names = [f"{job.id}-lane-{lane}" for lane in range(job.lanes)]
        held = {"bool": {"filter": [{"ids": {"values": names}}, {"range": {"expires": {"gt": "now"}}}]}}
        await self.engine.refresh(self.jobs)
        answer = await self.engine.search(self.jobs, {"query": held, "size": len(names), "_source": False})
        taken = {hit["_id"] for hit in answer["hits"]["hits"]}
        return [lane for lane, name in enumerate(names) if name not in taken]

    # Documents

    async def results(self, job: str, documents: Sequence[tuple[str, str | None]]) -> list[dict[str, Any] | None]:
        """Return what the job has noted of some documents, as it stands; None for those not yet met."""
        if not documents:
            return []
        docs = [{"_id": outcome_id(job, *document)} for document in documents]
        answer = await self.engine.request("POST", f"/{self.outcomes}/_mget", body={"docs": docs})
        return [found["_source"] if found.get("found") else None for found in answer["docs"]]

    async def note(self, job: str, results: Iterable[DocumentResult]) -> None:
        """Write what became of documents, in place of what was written of them before."""
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
        """Remove the notes of documents that failed, and return their number: they are to be enriched once more."""
        await self.engine.refresh(self.outcomes)
        query = {"bool": {"filter": [{"term": {"job": job}}, {"terms": {"outcome": ["failed", "deferred"]}}]}}
        body = {"query": query}
        answer = await self.engine.request(
            "POST", f"/{self.outcomes}/_delete_by_query", params={"refresh": "true", "conflicts": "proceed"}, body=body
        )
        return int(answer["deleted"])

    async def kept(self, asked: str, texts: Sequence[str]) -> list[StoredProposal | None]:
        """Return what a model has proposed before.

        Args:
            asked: Key of what it was asked.
            texts: Hashes of texts.
        """
        if not texts:
            return []
        docs = [{"_id": f"{asked}-{text}"} for text in texts]
        answer = await self.engine.request("POST", f"/{self.proposals}/_mget", body={"docs": docs})
        return [_kept(found["_source"]) if found.get("found") else None for found in answer["docs"]]

    async def keep(self, asked: str, index: str, text: str, kept: StoredProposal) -> None:
        """Keep what a model has proposed, before anything else is done with it."""
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
        """Return the tokens and the money that a job has spent, as the last refresh shows them."""
        answer = await self._counted(job.id)
        read, written = (int(answer[name]["value"]) for name in ("read", "written"))
        return read + written, job.price.of(read, written)

    async def failing(self, job: Job) -> dict[str, Any] | None:
        """Return the last failure where document after document fails, and none succeeds between them."""
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
        """Count how a job goes.

        Args:
            job: The job.
            pending: Counts documents that are not enriched by the job's plan.
        """
        found = await self._counted(job.id)
        by_outcome = {bucket["key"]: bucket["doc_count"] for bucket in found["outcomes"]["buckets"]}
        done, failed = by_outcome.get(DocumentOutcome.DONE, 0), by_outcome.get(DocumentOutcome.FAILED, 0)
        skipped = by_outcome.get(DocumentOutcome.SKIPPED, 0)
        open_ = 0 if job.status.over else max(0, await pending(job) - failed - skipped)
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
            trouble="" if job.status is not JobState.RUNNING else await self._trouble(job.id),
        )

    async def _trouble(self, job: str) -> str:
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

    async def _read(self, name: str) -> tuple[Job, int, int]:
        found = await self._get(name)
        if found is None or found["_source"].get("kind") != "job":
            raise UnknownJob(f"there is no job [{name}]: see `es-ttc jobs list`")
        return Job.model_validate(found["_source"]["job"]), found["_seq_no"], found["_primary_term"]

    async def _get(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self.engine.request("GET", f"/{self.jobs}/_doc/{quote(name, safe='')}")
        except EngineError as error:
            if error.upstream_status == 404:
                return None
            raise
        return found

    async def _put(self, name: str, document: Mapping[str, Any], **params: str) -> Any:
        params.setdefault("refresh", "true")
        try:
            return await self.engine.request(
                "PUT", f"/{self.jobs}/_doc/{quote(name, safe='')}", params=params, body=document
            )
        except EngineError as error:
            if error.upstream_status == 409:
                raise VersionConflict(name) from error
            raise

    def _lease(
        self, job: str, owner: str, seconds: float, trouble: str = "", *, unless_held: bool = False
    ) -> dict[str, Any]:
        """Return the body of an update that writes a lease, which ends some seconds from the engine's own time."""
        fields = {"kind": "lease", "of": job, "owner": owner, "trouble": trouble or None}
        params = {"fields": fields, "millis": int(seconds * 1000), "unless_held": unless_held}
        script = {"lang": "painless", "source": _WRITE_LEASE, "params": params}
        return {"script": script, "scripted_upsert": True, "upsert": {}} if unless_held else {"script": script}

    async def _write_lease(self, name: str, body: Mapping[str, Any], **params: str) -> Any:
        try:
            return await self.engine.request(
                "POST", f"/{self.jobs}/_update/{quote(name, safe='')}", params=params, body=body
            )
        except EngineError as error:
            if error.upstream_status in (404, 409):
                raise VersionConflict(name) from error
            raise

    async def _write(self, index: str, actions: Sequence[_Action]) -> None:
        if not actions:
            return
        for item in await write(self.engine, index, actions):
            if item.error is not None:
                raise EngineError(f"the record [{item.id}] in [{index}] cannot be written: {item.error}")


def outcome_id(job: str, document: str, routing: str | None) -> str:
    """Return the id of the note about one document of a job: the same whoever writes it, and how often."""
    parts = orjson.dumps([job, document, routing])
    return sha256(parts).hexdigest()[:32]


def _order(job: Job) -> tuple[int, datetime, str]:
    return -job.priority, job.created, job.id


def _kept(source: Mapping[str, Any]) -> StoredProposal:
    return StoredProposal(
        tuple(source["phrases"]), source["read"], source["written"], source["job"], source["document"]
    )


def _error(bucket: Mapping[str, Any]) -> dict[str, Any]:
    samples = [hit["_source"] for hit in bucket["samples"]["hits"]["hits"]]
    return {"kind": bucket["key"], "documents": bucket["doc_count"], "samples": samples}
