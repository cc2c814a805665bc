"""Remove the features of an index: everything that an engine can remove, and a list of the rest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import Engine, delete_if_there, none_if_missing
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.attach.in_index import pipeline_name
from es_ttc.index.attach.source import MAX_DOCUMENTS, DocumentVersion, sources_of
from es_ttc.index.attach.target import update_lines
from es_ttc.index.ingest.bulk import BulkLines, write
from es_ttc.index.mappings.indices import Index, sides_of
from es_ttc.index.mappings.ingest_pipeline import FINAL_PIPELINE, NO_PIPELINE, set_final_pipeline
from es_ttc.index.mappings.spec import ROOT, STATE

_REMOVE = {"script": {"lang": "painless", "source": f"ctx._source.remove('{ROOT}')"}}
_WITH_FEATURES = {"exists": {"field": STATE}}
_PASSES = 100  # number of passes over documents that other clients changed meanwhile


@dataclass(frozen=True, slots=True)
class AttachedObjects:
    """The objects that es-ttc has created in or for one index."""

    index: str
    sides: tuple[str, ...]
    inside: bool
    documents: int

    @property
    def any(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.sides) or self.inside

    @property
    def staying(self) -> tuple[str, ...]:
        """The parts that no engine can remove, one sentence each."""
        if not self.inside:
            return ()
        return (
            f"the mapping of [{self.index}] keeps the empty fields below [{ROOT}]: only reindexing removes a field",
            "each document that had features has been written twice more, so its `_version` and `_seq_no` are greater",
        )


async def traces_of(engine: Engine, name: str) -> list[AttachedObjects]:
    """Return the objects to remove for each index behind a name."""
    try:
        sources = await sources_of(engine, name)
    except InvalidRequest:
        sides = await _sides(engine, name)
        if not sides:
            raise
        return [AttachedObjects(name, sides, inside=False, documents=0)]
    return [await _traces(engine, source) for source in sources]


async def detach(engine: Engine, traces: AttachedObjects, *, report: Callable[[int, int], None] | None = None) -> None:
    """Remove all objects; it may be stopped at any time and run again."""
    if traces.inside:
        [source] = await sources_of(engine, traces.index)
        await _restore_pipeline(engine, source)
        await _empty_documents(engine, source, traces.documents, report)
        meta = {key: value for key, value in source.mapping.get("_meta", {}).items() if key != ROOT}
        await engine.put_meta(source.index, meta)
    for side in traces.sides:
        await delete_if_there(engine, side)  # the answer to an earlier run's request may have been lost


async def _traces(engine: Engine, source: Index) -> AttachedObjects:
    inside = "inside" in source.meta
    if source.meta and not inside:
        raise InvalidRequest(
            f"index [{source.index}] was made by es-ttc, features and all: `es-ttc index delete` deletes it"
        )
    documents = await engine.count(source.index, _WITH_FEATURES) if inside else 0
    return AttachedObjects(source.index, await _sides(engine, source.index), inside, documents)


async def _sides(engine: Engine, source: str) -> tuple[str, ...]:
    return tuple(side.index for side in await sides_of(engine, source))


async def _restore_pipeline(engine: Engine, source: Index) -> None:
    """Remove the setting before the pipeline that it names: otherwise a write would fail."""
    name = pipeline_name(source.index)
    if source.settings.get(FINAL_PIPELINE) == name:
        former = source.meta["inside"]["former_pipeline"]
        await set_final_pipeline(engine, source.index, None if former == NO_PIPELINE else former)
    await none_if_missing(engine.request("DELETE", f"/_ingest/pipeline/{name}"))


async def _empty_documents(
    engine: Engine, source: Index, total: int, report: Callable[[int, int], None] | None
) -> None:
    """Remove the features from the documents; a document that changes meanwhile is read again."""
    body: dict[str, Any] = {
        "query": _WITH_FEATURES,
        "size": MAX_DOCUMENTS,
        "_source": False,
        "seq_no_primary_term": True,
        "version": True,
    }
    done = fruitless = 0
    while fruitless < _PASSES:
        await engine.refresh(source.index)
        found = [DocumentVersion.of(hit) for hit in await engine.hits(source.index, body)]
        if not found:
            return
        sent = [BulkLines(version.id, update_lines(version, _REMOVE)) for version in found]
        outcomes = await write(engine, source.index, sent)
        refused = next((item for item in outcomes if item.error and item.status not in (404, 409)), None)
        if refused is not None:
            raise EngineError(f"document [{refused.id}] of [{source.index}] keeps its features: {refused.error}")
        relieved = sum(outcome.ok for outcome in outcomes)
        fruitless = 0 if relieved else fruitless + 1
        done += relieved
        if report:
            report(done, max(total, done))
    raise EngineError(
        f"documents of [{source.index}] are written too often to be relieved of their features: try again"
    )
