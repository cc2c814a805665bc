"""The documents of a job: which are still to be enriched, what a model reads of them, and how they are written."""

import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.record import Job
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.bulk import write
from es_ttc.index.ingest.by_id import hits_by_id
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.rewrite import DocumentRewriter, FullDocument
from es_ttc.index.ingest.update import DocumentUpdater, PartialDocument
from es_ttc.index.mappings.enrichment import EnrichmentTarget
from es_ttc.index.mappings.spec import ENRICHED, ENRICHED_BY

Key = tuple[str, str | None]
"""A document's id and its routing."""

_PAGE = 500
_WHOLE_AT_ONCE = 32
"""Documents read with all their features at a time: some 10 MB where token vectors are long."""
_ROUNDS = 3
"""Times that a document which others change is read again before it is left for later."""


@dataclass(frozen=True, slots=True)
class DocumentText:
    """What a model reads of a document.

    Attributes:
        key: Its id and routing.
        text: Its text fields, joined.
        fields: The texts of the fields.
        hash: Of the text; empty where the document has no text that can be read.
    """

    key: Key
    text: str
    fields: tuple[str, ...]
    hash: str


@dataclass(frozen=True, slots=True)
class Enrichment:
    """What is written into one document.

    Attributes:
        text: What the model read of it.
        phrases: What it gets.
    """

    text: DocumentText
    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Action:
    id: str
    lines: Sequence[bytes]


class Documents:
    """The documents of one index, as jobs see them.

    Args:
        engine: The engine.
        target: The index.
    """

    def __init__(self, engine: Engine, target: EnrichmentTarget) -> None:
        self._engine = engine
        self.target = target
        self._reader: DocumentRewriter | DocumentUpdater = (
            DocumentUpdater(engine, target.index, target.spec.text_fields)
            if target.attached
            else DocumentRewriter(engine, target.index, target.spec)
        )

    async def pending(self, job: Job) -> int:
        """Count the documents that are not enriched, without loading any."""
        return await self._engine.count(self.target.index, to_enrich(job))

    async def written_by(self, job: str) -> int:
        """Count the documents that carry a job's enrichment."""
        return await self._engine.count(self.target.index, {"term": {ENRICHED_BY: job}})

    async def keys_written_by(self, job: str) -> AsyncGenerator[Key]:
        """Yield them."""
        async with aclosing(self._matching({"term": {ENRICHED_BY: job}})) as keys:
            async for key in keys:
                yield key

    async def keys(self, job: Job, lane: int | None) -> AsyncGenerator[Key]:
        """Yield what is to be enriched, as the last refresh shows it.

        Args:
            job: The job.
            lane: Of its parts; None for all of them.
        """
        async with aclosing(self._matching(to_enrich(job))) as keys:
            async for key in keys:
                if lane is None or partition_of(key, job.lanes) == lane:
                    yield key

    async def refresh(self) -> None:
        """Show everything written so far."""
        await self._engine.refresh(self.target.index)

    async def texts(self, keys: Sequence[Key]) -> list[DocumentText]:
        """Read what a model reads; documents that are gone are left out."""
        fields = self.target.spec.text_fields
        wanted = set(keys)
        hits = await hits_by_id(self._engine, self.target.index, [name for name, _ in keys], {"_source": list(fields)})
        found = [text_of((hit["_id"], hit.get("_routing")), hit.get("_source") or {}, fields) for hit in hits]
        return [text for text in found if text.key in wanted]

    async def write(self, job: Job, enrichments: Sequence[Enrichment]) -> tuple[set[Key], dict[Key, str]]:
        """Write enrichment into documents that have still the text that the model read.

        Each is replaced as a whole, or updated where features were attached to it, in one action that names the version
        that was read. Where the version has changed
        under way the document is read again; where its text has changed too it is left: it is another document now.

        Returns:
            The documents written, and the reasons why the engine refuses others.
        """
        done: set[Key] = set()
        refused: dict[Key, str] = {}
        for start in range(0, len(enrichments), _WHOLE_AT_ONCE):
            await self._write(job, enrichments[start : start + _WHOLE_AT_ONCE], done, refused)
        return done, refused

    async def _write(
        self, job: Job, enrichments: Sequence[Enrichment], done: set[Key], refused: dict[Key, str]
    ) -> None:
        waiting = {each.text.key: each for each in enrichments}
        for _ in range(_ROUNDS):
            current = [
                whole for whole in await self._reader.read([name for name, _ in waiting]) if whole.key in waiting
            ]
            actions: list[_Action] = []
            keys: list[Key] = []
            for whole in current:
                each = waiting[whole.key]
                now = text_of(whole.key, whole.source, self.target.spec.text_fields)
                if now.hash != each.text.hash:
                    continue
                try:
                    actions.append(_Action(whole.id, _lines(whole, job, each)))
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

    async def _matching(self, query: Mapping[str, Any]) -> AsyncGenerator[Key]:
        hits: Any = self._engine.scan(self.target.index, query, source=False, batch=_PAGE)
        async with aclosing(hits):
            async for hit in hits:
                yield hit["_id"], hit.get("_routing")

    async def _send(self, actions: Sequence[_Action]) -> Sequence[Any]:
        return await write(self._engine, self.target.index, actions) if actions else ()


def to_enrich(job: Job) -> dict[str, Any]:
    """Return the query for documents that a job has still to enrich.

    Someone else's write of a document drops all that is ours, so a document that has changed is among them by itself.
    In an attached index a partial update carries all of ours along, and the fill drops it where the text is another.
    """
    done = {"term": {ENRICHED: job.plan.key}} if job.redo else {"exists": {"field": ENRICHED}}
    return {"bool": {"filter": [job.query] if job.query else [], "must_not": [done]}}


def partition_of(key: Key, lanes: int) -> int:
    """Return the part of a job that a document belongs to: the same in every process."""
    return zlib.crc32(f"{key[0]}\0{key[1] or ''}".encode("utf-8", "surrogatepass")) % lanes


def text_of(key: Key, source: Mapping[str, Any], fields: Sequence[str]) -> DocumentText:
    """Return what a model reads of a document."""
    try:
        text, spans = compose(source, fields)
    except InvalidRequest:
        return DocumentText(key, "", (), "")
    if not text.strip():
        return DocumentText(key, "", (), "")
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return DocumentText(key, text, tuple(text[span.start : span.end] for span in spans), digest)


def _lines(whole: FullDocument | PartialDocument, job: Job, each: Enrichment) -> tuple[bytes, bytes]:
    marks = {"enriched": job.plan.key, "enriched_by": job.id, "enriched_text": each.text.hash}
    return whole.lines({"enrichment": each.phrases, **marks})
