"""The documents of an index that es-ttc created, as the target of a fill.

The fields below ``ttc`` are outside `_source`, so any other write of a document drops them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from es_ttc.common.exact_numbers import exact_numbers_in
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError
from es_ttc.index.attach.source import Checkpoint, DocumentVersion
from es_ttc.index.attach.target import FeatureVersion, FeatureWrite, WriteKind, WriteResult, update_lines
from es_ttc.index.ingest.bulk import ActionLines, write
from es_ttc.index.ingest.by_id import hits_by_id, whole_source
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import ENCODER, HASH, ROOT, STATE, IndexSpec
from es_ttc.index.mappings.write_options import WRITE_KEY

_MARKS = (STATE, HASH, ENCODER)
_SOURCES_AT_ONCE = 50
_MAX_NUMBER_LENGTH = 60


class OwnIndexTarget:
    """The documents of an index that es-ttc created; each contains its own state, so there is no checkpoint."""

    doc_value_fields: Sequence[str] = _MARKS

    def __init__(self, engine: Engine, source: Index, spec: IndexSpec) -> None:
        self.spec = spec
        self._engine = engine
        self._source = source
        self._fields: frozenset[str] = frozenset()

    async def load(self) -> Checkpoint:
        """Return no checkpoint."""
        return {}

    async def save(self, reached: Checkpoint) -> None:  # noqa: ARG002 - of the protocol
        """Save nothing; check that the index is still the one that is filled."""
        meta = (await self._mapping()).get("_meta", {}).get(ROOT, {})
        ours = self.spec.as_meta()
        if {name: meta.get(name) for name in ours} != ours:
            raise EngineError(f"index [{self._source.index}] was made anew while it was filled")

    async def refresh(self) -> None:
        """Do nothing: marks are read with the documents themselves."""

    async def marks(self, versions: Sequence[DocumentVersion]) -> list[FeatureVersion | None]:
        """Return the marks in the documents."""
        return [_mark(version) for version in versions]

    async def write(self, items: Sequence[FeatureWrite]) -> WriteResult:
        """Write features into documents that have not changed since they were read; other fields stay."""
        written = WriteResult(left=await self._changed_by_update(items))
        if not self._fields:
            self._fields = frozenset((await self._mapping())["properties"][ROOT]["properties"]) - {
                WRITE_KEY.partition(".")[2]
            }
        sent = [position for position in range(len(items)) if position not in written.left]
        actions = [ActionLines(items[position].version.id, self._lines(items[position])) for position in sent]
        outcomes = await write(self._engine, self._source.index, actions) if actions else []
        for position, outcome in zip(sent, outcomes, strict=True):
            if outcome.status in (404, 409):
                written.moved.add(position)
            elif outcome.error is not None:
                written.refused[position] = outcome.error
        return written

    async def _mapping(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = (await self._engine.mapping(self._source.index))[self._source.index]
        return found

    async def _changed_by_update(self, items: Sequence[FeatureWrite]) -> dict[int, str]:
        """Return the documents that the engine would change by any update, with the reasons.

        An update writes numbers of `_source` as doubles; documents with our fields have been through that already.
        """
        fresh = {
            item.version.key: position
            for position, item in enumerate(items)
            if item.mark is None or item.mark.state is None
        }
        found: dict[int, str] = {}
        if not fresh:
            return found
        whole = whole_source(await self._engine.capabilities())
        ids = sorted({identifier for identifier, _ in fresh})
        for start in range(0, len(ids), _SOURCES_AT_ONCE):
            part = ids[start : start + _SOURCES_AT_ONCE]
            for hit in await hits_by_id(self._engine, self._source.index, part, {"_source": whole}):
                numbers = exact_numbers_in(hit.get("_source") or {})
                position = fresh.get((hit["_id"], hit.get("_routing")))
                if numbers and position is not None:
                    field, number = numbers[0]
                    found[position] = (
                        f"document [{hit['_id']}] holds [{number.text[:_MAX_NUMBER_LENGTH]}] in [{field}], which the "
                        "engine would change by an update: write it with `es-ttc ingest`"
                    )
        return found

    async def remove_orphans(self) -> int:
        """Do nothing: features are deleted with their documents."""
        return 0

    def _lines(self, item: FeatureWrite) -> Sequence[bytes]:
        # An update merges objects: fields that are not written again must be emptied.
        fields = {} if item.kind is WriteKind.RENEWAL else {name: item.fields.get(name) for name in self._fields}
        return update_lines(item.version, {"doc": {ROOT: fields}, "detect_noop": False})


def _mark(version: DocumentVersion) -> FeatureVersion:
    state, text, encoder = (version.fields.get(name, [None])[0] for name in _MARKS)
    return FeatureVersion(state, text, encoder, state is not None, outdated=False, own=(version.seq_no, version.term))
