"""Features in the documents of an existing index: attach, and the fill's target.

The setting of `_source` does not change, so the features are part of it, and a partial update keeps them. Each document
therefore stores the `_version` that it had with its features: any later write has another version, so the gateway never
uses stale features. A final ingest pipeline marks written documents as pending.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from es_ttc.common.exact_numbers import exact_numbers_in
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.attach.fill import FillResult, Report, fill
from es_ttc.index.attach.source import Checkpoint, DocumentVersion
from es_ttc.index.attach.source_checks import require_readable, require_updatable
from es_ttc.index.attach.target import (
    FeatureVersion,
    FeatureWrite,
    WriteKind,
    WriteResult,
    update_lines,
)
from es_ttc.index.ingest.bulk import BulkLines, write
from es_ttc.index.ingest.by_id import hits_by_id, whole_source
from es_ttc.index.mappings.attached import PENDING, VERSION, inside_properties
from es_ttc.index.mappings.index import inner_hits_settings
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.ingest_pipeline import FINAL_PIPELINE, NO_PIPELINE
from es_ttc.index.mappings.spec import ENCODER, HASH, ROOT, STATE, IndexSpec
from es_ttc.index.mappings.write_options import KEY, WriteOptions

_PREFIX = "ttc-stamp-"
_MARKS = (VERSION, HASH, ENCODER, STATE)
STAMP = "stamp"
_NOT_FEATURES = frozenset({"version", STAMP, KEY.partition(".")[2]})
_SOURCES_AT_ONCE = 50
_SETTLING_SECONDS = 0.5  # longer than the time between the last check of a mapping and its update
_MAX_NUMBER_LENGTH = 60

# A client that reads a document, changes it and writes it back sends the features too: they stay if the text is the
# same, which `ttc.stamp` shows, and are dropped if it is not.
_STAMP = """
def at(Map map, String path) {
  if (map.containsKey(path)) { return map.get(path); }
  int dot = path.indexOf('.');
  if (dot < 0) { return null; }
  def inner = map.get(path.substring(0, dot));
  return inner instanceof Map ? at(inner, path.substring(dot + 1)) : null;
}
String text = '';
for (String field : params.fields) { text += field + '=' + at(ctx, field) + ';'; }
String stamp = text.sha256();
"""
# A write with the key of the index is one of es-ttc: its features are kept. Any other key is dropped.
_KEEP_OWN = """
def sent = ctx.ttc instanceof Map ? ctx.ttc.remove('key') : null;
ctx.keySet().removeIf(name -> name.startsWith('ttc.'));
if (params.key.equals(sent)) { ctx.ttc.stamp = stamp; return; }
"""
_KEEP_SAME = """
if (ctx.ttc instanceof Map && stamp.equals(ctx.ttc.stamp) && ctx.ttc.hash != null) { return; }
ctx.ttc = ['state': params.state, 'stamp': stamp];
"""


async def attach_inside(
    engine: Engine,
    source: Index,
    spec: IndexSpec,
    encoder: Encoder,
    *,
    report: Report | None = None,
) -> FillResult:
    """Add features to the documents of an index, or update them."""
    inside = source.meta.get("inside")
    if source.meta and inside is None:
        raise InvalidRequest(
            f"index [{source.index}] was made by es-ttc and has features already: `es-ttc fill {source.index}` adds "
            "those that are lacking"
        )
    if inside is None and ROOT in source.mapping.get("properties", {}):
        raise InvalidRequest(f"index [{source.index}] has fields of its own below [{ROOT}]: attach without --in-index")
    if inside is not None and source.spec != spec:
        raise InvalidRequest(
            f"the documents of [{source.index}] carry features of another encoder or other fields: take them out with "
            f"`es-ttc detach {source.index}` first, or attach without --in-index, which changes over while it serves"
        )
    require_updatable(source)
    await require_readable(engine, source, spec.text_fields)
    pipeline = pipeline_name(source.index)
    former = inside["former_pipeline"] if inside else source.settings.get(FINAL_PIPELINE, NO_PIPELINE)
    if former.startswith(_PREFIX):
        # Its own, set by an attach that was stopped before it wrote the mapping, and set again after the mapping; or
        # that of an earlier index, which an index template has carried over, and which ends with that index.
        former = NO_PIPELINE
    if inside is None:
        mapping: dict[str, Any] = {"properties": inside_properties(spec, await engine.capabilities(), source.settings)}
        ours = {**spec.as_meta(), "inside": {"former_pipeline": former, "source": source.uuid, "checkpoint": {}}}
        mapping["_meta"] = {**source.mapping.get("_meta", {}), ROOT: ours}
        await _take(engine, source, mapping)
    await engine.request("PUT", f"/_ingest/pipeline/{pipeline}", body=stamping_pipeline(spec, former, _key(source)))
    further = {f"index.{name}": value for name, value in inner_hits_settings(spec).items()}
    await engine.request("PUT", f"/{source.index}/_settings", body={FINAL_PIPELINE: pipeline, **further})
    return await fill(engine, source, InIndexTarget(engine, source, spec), encoder, report=report)


async def _take(engine: Engine, source: Index, mapping: Mapping[str, Any]) -> None:
    """Write the mapping; refuse if another attach with other options does so at the same time.

    Engines have no conditional update of a mapping: the last one wins, so the mapping is read again after a while.
    """
    if ROOT in await _meta_of(engine, source):
        raise _other_attach(source)
    await engine.request("PUT", f"/{source.index}/_mapping", body=mapping)
    await asyncio.sleep(_SETTLING_SECONDS)
    if (await _meta_of(engine, source)).get(ROOT) != mapping["_meta"][ROOT]:
        raise _other_attach(source)


async def _meta_of(engine: Engine, source: Index) -> Mapping[str, Any]:
    meta: Mapping[str, Any] = (await engine.mapping(source.index))[source.index].get("_meta", {})
    return meta


def _other_attach(source: Index) -> InvalidRequest:
    return InvalidRequest(
        f"another attach of [{source.index}] began at the same time, and goes on: wait for its end; for other options "
        f"take its features out then, with `es-ttc detach {source.index}`"
    )


def pipeline_name(index: str) -> str:
    """Return the name of an index's stamping pipeline."""
    return f"{_PREFIX}{index}"


def stamping_pipeline(spec: IndexSpec, former: str, key: str = "") -> dict[str, Any]:
    """Return the pipeline that marks documents written without the key, after the index's former final pipeline."""
    keyed = {"key": key} if key else {}
    script = {
        "lang": "painless",
        "source": _STAMP + (_KEEP_OWN if key else "") + _KEEP_SAME,
        "params": {"fields": list(spec.text_fields), "state": PENDING, **keyed},
        "ignore_failure": True,  # a document without a stamp is still found by the fill; a rejected one would be lost
    }
    before = [] if former == NO_PIPELINE else [{"pipeline": {"name": former}}]
    return {
        "description": "es-ttc: marks documents whose features are to be made",
        "processors": [*before, {"script": script}],
    }


def stamp_of(texts: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """Return the stamp that the pipeline gives to text fields; None where Java may write a value in another way."""
    try:
        text = "".join(f"{name}={_java(_at(texts, name))};" for name in fields)
        return sha256(text.encode()).hexdigest()
    except ValueError:
        return None


def _at(value: Mapping[str, Any], path: str) -> Any:
    if path in value:
        return value[path]
    head, dot, rest = path.partition(".")
    inner = value.get(head)
    return _at(inner, rest) if dot and isinstance(inner, Mapping) else None


def _java(value: Any) -> str:
    """Return a JSON value as Java concatenates it to a string."""
    match value:
        case str():
            return value
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case list():
            return f"[{', '.join(map(_java, value))}]"
        case _:
            raise ValueError(value)


def _key(source: Index) -> str:
    options = WriteOptions.of(source.mapping)
    return "" if options is None else options.key


class InIndexTarget:
    """An index's own documents as the target of a fill; also for an index that es-ttc created."""

    doc_value_fields: Sequence[str] = _MARKS

    def __init__(self, engine: Engine, source: Index, spec: IndexSpec) -> None:
        self.spec = spec
        self._engine = engine
        self._source = source
        self._attached = "inside" in source.meta or not source.meta
        self._fields: frozenset[str] = frozenset()

    async def load(self) -> Checkpoint:
        """Return the checkpoint of an earlier fill."""
        inside = (await _meta_of(self._engine, self._source)).get(ROOT, {}).get("inside", {})
        if inside.get("source") != self._source.uuid:
            return {}
        return {int(shard): seq_no for shard, seq_no in inside["checkpoint"].items()}

    async def save(self, reached: Checkpoint) -> None:
        """Save the checkpoint; in an index that es-ttc created, each document contains its own state."""
        meta = await _meta_of(self._engine, self._source)
        if ROOT not in meta:
            raise EngineError(f"index [{self._source.index}] was detached while it was filled")
        ours = self.spec.as_meta()
        if {name: meta[ROOT].get(name) for name in ours} != ours:
            raise EngineError(f"index [{self._source.index}] was attached with other options while it was filled")
        if self._attached:
            inside = meta[ROOT]["inside"] | {
                "source": self._source.uuid,
                "checkpoint": {str(shard): at for shard, at in reached.items()},
            }
            await self._engine.put_meta(self._source.index, {**meta, ROOT: {**meta[ROOT], "inside": inside}})

    async def refresh(self) -> None:
        """Do nothing: marks are read with the documents themselves."""

    async def marks(self, versions: Sequence[DocumentVersion]) -> list[FeatureVersion | None]:
        """Return the marks in the documents."""
        return [self._mark(version) for version in versions]

    async def write(self, items: Sequence[FeatureWrite]) -> WriteResult:
        """Write features into documents that have not changed since they were read; other fields stay."""
        written = WriteResult(left=await self._changed_by_update(items))
        if not self._fields:
            mapping = (await self._engine.mapping(self._source.index))[self._source.index]
            self._fields = frozenset(mapping["properties"][ROOT]["properties"])
        sent = [position for position in range(len(items)) if position not in written.left]
        actions = [BulkLines(items[position].version.id, self._lines(items[position])) for position in sent]
        outcomes = await write(self._engine, self._source.index, actions) if actions else []
        for position, outcome in zip(sent, outcomes, strict=True):
            if outcome.status in (404, 409):
                written.moved.add(position)
            elif outcome.error is not None:
                written.refused[position] = outcome.error
        return written

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
                        "engine would change by an update: attach without --in-index"
                    )
        return found

    async def remove_orphans(self) -> int:
        """Do nothing: features are deleted with their documents."""
        return 0

    def _mark(self, version: DocumentVersion) -> FeatureVersion:
        fields = version.fields
        state = fields.get(STATE, [None])[0]
        marked = fields.get(VERSION, [None])[0]
        return FeatureVersion(
            state=state,
            hash=fields.get(HASH, [None])[0],
            encoder=fields.get(ENCODER, [None])[0],
            current=marked == version.version if self._attached else state is not None,
            outdated=False,
            own=(version.seq_no, version.term),
        )

    def _lines(self, item: FeatureWrite) -> Sequence[bytes]:
        fields: dict[str, object] = {"version": item.version.version + 1} if self._attached else {}
        if item.kind is not WriteKind.RENEWAL:
            # An update merges objects: fields that are not written again must be emptied.
            fields |= {name: item.fields.get(name) for name in self._fields - _NOT_FEATURES}
        if item.kind is not WriteKind.FAILURE and STAMP in self._fields:
            stamp = stamp_of(item.texts, self.spec.text_fields)
            fields |= {} if stamp is None else {STAMP: stamp}
        return update_lines(item.version, {"doc": {ROOT: fields}, "detect_noop": False})
