"""The documents of a job: find those to enrich, read their texts, write their enrichment."""

import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.record import Job
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.bulk import ActionLines, write
from es_ttc.index.ingest.by_id import hits_by_id
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.rewrite import DocumentRewriter
from es_ttc.index.mappings.enrichment import EnrichmentTarget, enrichable
from es_ttc.index.mappings.spec import ENRICHED, ENRICHED_BY

JobDocumentKey = tuple[str, str | None]  # a document's id and its routing

_PAGE = 500
_WHOLE_AT_ONCE = 32  # number of documents read with all their features at a time: some 10 MB if token vectors are long
_MAX_ATTEMPTS = 3  # number of times that a document which other clients change is read again before it is deferred


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The text of a document for the model."""

    key: JobDocumentKey
    text: str
    fields: tuple[str, ...]
    hash: str


class JobDocuments:
    """The documents of one index, for jobs."""

    def __init__(self, engine: Engine, target: EnrichmentTarget) -> None:
        self._engine = engine
        self.target = target
        self._reader = DocumentRewriter(engine, target.index, target.spec, target.key)

    @classmethod
    async def of(cls, engine: Engine, index: str) -> Self:
        """Return the documents of an index, which must have the field of enrichment."""
        return cls(engine, await enrichable(engine, index))

    async def pending(self, job: Job) -> int:
        """Count the documents that are not enriched, without loading any."""
        return await self._engine.count(self.target.index, to_enrich(job))

    async def written_by(self, job: str) -> int:
        """Count the documents with a job's enrichment."""
        return await self._engine.count(self.target.index, {"term": {ENRICHED_BY: job}})

    def keys_written_by(self, job: str) -> AsyncGenerator[JobDocumentKey]:
        """Yield the keys of documents with a job's enrichment."""
        return self._matching({"term": {ENRICHED_BY: job}})

    async def keys(self, job: Job, partition: int | None) -> AsyncGenerator[JobDocumentKey]:
        """Yield the keys of documents to enrich, as of the last refresh, of one partition or of all."""
        async with aclosing(self._matching(to_enrich(job))) as keys:
            async for key in keys:
                if partition is None or partition_of(key, job.lanes) == partition:
                    yield key

    async def refresh(self) -> None:
        """Make all writes visible to search."""
        await self._engine.refresh(self.target.index)

    async def texts(self, keys: Sequence[JobDocumentKey]) -> list[DocumentText]:
        """Read the texts of documents; deleted documents are left out."""
        fields = self.target.spec.text_fields
        requested = set(keys)
        hits = await hits_by_id(self._engine, self.target.index, [name for name, _ in keys], {"_source": list(fields)})
        found = [text_of((hit["_id"], hit.get("_routing")), hit.get("_source") or {}, fields) for hit in hits]
        return [text for text in found if text.key in requested]

    async def write(
        self, job: Job, phrases: Sequence[tuple[DocumentText, Sequence[str]]]
    ) -> tuple[set[JobDocumentKey], dict[JobDocumentKey, str]]:
        """Write phrases into documents whose text has not changed since; return these, and why others are rejected.

        Each document is written as a whole, or updated if features were attached to it, in one action with the expected
        version. If the version has changed meanwhile, the document is read again; if its text has changed too, it is
        skipped, because it needs a new enrichment.
        """
        done: set[JobDocumentKey] = set()
        refused: dict[JobDocumentKey, str] = {}
        for start in range(0, len(phrases), _WHOLE_AT_ONCE):
            await self._write(job, phrases[start : start + _WHOLE_AT_ONCE], done, refused)
        return done, refused

    async def _write(
        self,
        job: Job,
        phrases: Sequence[tuple[DocumentText, Sequence[str]]],
        done: set[JobDocumentKey],
        refused: dict[JobDocumentKey, str],
    ) -> None:
        waiting = {text.key: (text, kept) for text, kept in phrases}
        for _ in range(_MAX_ATTEMPTS):
            current = [
                whole for whole in await self._reader.read([name for name, _ in waiting]) if whole.key in waiting
            ]
            actions: list[ActionLines] = []
            keys: list[JobDocumentKey] = []
            for whole in current:
                text, kept = waiting[whole.key]
                now = text_of(whole.key, whole.source, self.target.spec.text_fields)
                if now.hash != text.hash:
                    continue
                marks = {"enriched": job.plan.key, "enriched_by": job.id, "enriched_text": text.hash}
                try:
                    actions.append(ActionLines(whole.id, whole.lines({"enrichment": kept, **marks})))
                    keys.append(whole.key)
                except TypeError as error:
                    refused[whole.key] = f"its source cannot be written again: {error}"
            conflicts = {}
            for key, item in zip(keys, await self._send(actions), strict=True):
                if item.status == 409:
                    conflicts[key] = waiting[key]
                elif item.error is not None:
                    refused[key] = item.error
                else:
                    done.add(key)
            waiting = conflicts
            if not waiting:
                return
            await self.refresh()

    async def _matching(self, query: Mapping[str, Any]) -> AsyncGenerator[JobDocumentKey]:
        hits: Any = self._engine.scan(self.target.index, query, source=False, batch=_PAGE)
        async with aclosing(hits):
            async for hit in hits:
                yield hit["_id"], hit.get("_routing")

    async def _send(self, actions: Sequence[ActionLines]) -> Sequence[Any]:
        return await write(self._engine, self.target.index, actions) if actions else ()


def to_enrich(job: Job) -> dict[str, Any]:
    """Return the query for the documents that a job has still to enrich.

    A write of a document by another client drops all fields below ``ttc``, so a changed document matches again. In an
    attached index a partial update keeps these fields, and the fill drops the enrichment if the text has changed.
    """
    done: dict[str, Any] = {"term": {ENRICHED: job.plan.key}} if job.redo else {"exists": {"field": ENRICHED}}
    if job.plan.refreshed and not job.redo:  # what the job itself wrote before its last refresh is filtered again
        earlier = {"filter": [{"term": {ENRICHED_BY: job.id}}], "must_not": [{"term": {ENRICHED: job.plan.key}}]}
        done = {"bool": {"filter": [done], "must_not": [{"bool": earlier}]}}
    return {"bool": {"filter": [job.query] if job.query else [], "must_not": [done]}}


def partition_of(key: JobDocumentKey, lanes: int) -> int:
    """Return the partition of a document in a job: the same in every process."""
    return zlib.crc32(f"{key[0]}\0{key[1] or ''}".encode("utf-8", "surrogatepass")) % lanes


def text_of(key: JobDocumentKey, source: Mapping[str, Any], fields: Sequence[str]) -> DocumentText:
    """Return the text of a document for the model."""
    try:
        text, spans = compose(source, fields)
    except InvalidRequest:
        return DocumentText(key, "", (), "")
    if not text.strip():
        return DocumentText(key, "", (), "")
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return DocumentText(key, text, tuple(text[span.start : span.end] for span in spans), digest)


async def document_pages(
    keys: AsyncGenerator[JobDocumentKey], size: int = _PAGE
) -> AsyncGenerator[list[JobDocumentKey]]:
    """Yield keys some at a time."""
    page: list[JobDocumentKey] = []
    async with aclosing(keys):
        async for key in keys:
            page.append(key)
            if len(page) == size:
                yield page
                page = []
    if page:
        yield page
