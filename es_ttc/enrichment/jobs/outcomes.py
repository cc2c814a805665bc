"""The outcome of each document of a job that enriches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson

from es_ttc.enrichment.jobs.indices import JobIndices
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, now

RATE_SECONDS = 60
_SAMPLES = 3
_MAX_REASON = 500
_FAILURES = [DocumentOutcome.FAILED, DocumentOutcome.DEFERRED]


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


class Outcomes:
    """The outcomes of documents, by job."""

    def __init__(self, indices: JobIndices) -> None:
        self._indices = indices

    async def get(self, job: str, documents: Sequence[tuple[str, str | None]]) -> list[dict[str, Any] | None]:
        """Return the stored outcomes of some documents; None for those without one."""
        names = [_outcome_id(job, *document) for document in documents]
        return await self._indices.get_many(self._indices.outcomes, names)

    async def put(self, job: str, results: Iterable[DocumentResult]) -> None:
        """Store the outcomes of documents, and replace earlier ones."""
        records = {
            _outcome_id(job, result.document, result.routing): {
                "job": job, **asdict(result), "reason": result.reason[:_MAX_REASON], "at": now()
            }
            for result in results
        }  # fmt: skip
        await self._indices.put_many(self._indices.outcomes, records)

    async def forget_failures(self, job: str) -> int:
        """Delete the outcomes of failed documents, and return their number: they will be processed again."""
        await self._indices.engine.refresh(self._indices.outcomes)
        query = {"bool": {"filter": [{"term": {"job": job}}, {"terms": {"outcome": _FAILURES}}]}}
        params = {"refresh": "true", "conflicts": "proceed"}
        path = f"/{self._indices.outcomes}/_delete_by_query"
        answer = await self._indices.engine.request("POST", path, params=params, body={"query": query})
        return int(answer["deleted"])

    async def spent(self, job: Job) -> tuple[int, float]:
        """Return the tokens and the cost of a job."""
        sums = await self.counts(job.id)
        read, written = (int(sums[name]["value"]) for name in ("read", "written"))
        return read + written, job.price.of(read, written)

    async def failing(self, job: Job) -> dict[str, Any] | None:
        """Return the last failure if document after document fails without a success in between."""
        since = max(time for time in (job.created, job.started, job.retried) if time is not None)
        outcomes = [DocumentOutcome.DONE, *_FAILURES]
        filters = [{"term": {"job": job.id}}, {"terms": {"outcome": outcomes}}, {"range": {"at": {"gte": since}}}]
        body = {
            "query": {"bool": {"filter": filters}},
            "sort": [{"at": "desc"}],
            "size": job.most_failures,
            "_source": ["outcome", "kind", "reason"],
        }
        latest = [hit["_source"] for hit in (await self._search(body))["hits"]["hits"]]
        if len(latest) < job.most_failures or any(each["outcome"] == DocumentOutcome.DONE for each in latest):
            return None
        last: dict[str, Any] = latest[0]
        return last

    async def counts(self, job: str) -> Mapping[str, Any]:
        """Return the engine's aggregations over the outcomes of a job."""
        recent = [{"range": {"at": {"gte": f"now-{RATE_SECONDS}s"}}}, {"term": {"outcome": DocumentOutcome.DONE}}]
        samples = {"top_hits": {"size": _SAMPLES, "_source": ["document", "reason", "outcome"]}}
        body = {
            "size": 0,
            "query": {"bool": {"filter": [{"term": {"job": job}}]}},
            "aggs": {
                "outcomes": {"terms": {"field": "outcome", "size": 10}},
                "reused": {"filter": {"term": {"reused": True}}},
                "recent": {"filter": {"bool": {"filter": recent}}},
                **{name: {"sum": {"field": name}} for name in ("read", "written", "phrases")},
                "errors": {
                    "filter": {"terms": {"outcome": _FAILURES}},
                    "aggs": {"kinds": {"terms": {"field": "kind", "size": 20}, "aggs": {"samples": samples}}},
                },
            },
        }
        counted: Mapping[str, Any] = (await self._search(body))["aggregations"]
        return counted

    async def _search(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._indices.engine.refresh(self._indices.outcomes)
        return await self._indices.engine.search(self._indices.outcomes, body)


def _outcome_id(job: str, document: str, routing: str | None) -> str:
    """Return the id of the outcome of one document of a job, the same in every process."""
    return sha256(orjson.dumps([job, document, routing])).hexdigest()[:32]
