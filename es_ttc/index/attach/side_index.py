"""Features in a side index: attach, and the fill's target. The source index is not changed.

The process may be killed at any step: the side index is created under a name of its own and filled. Then the alias is
switched to it in one step, and the previous side index is deleted. Attaching again resumes.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine, delete_if_there, none_if_missing
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.index.attach.fill import FillResult, ReportFill, fill
from es_ttc.index.attach.map_vectors import carry_over, heads_between
from es_ttc.index.attach.source import MAX_PAGE_DOCUMENTS, Checkpoint, DocumentVersion, routing_of
from es_ttc.index.attach.source_checks import require_readable
from es_ttc.index.attach.target import (
    FeatureVersion,
    FeatureWrite,
    StoredFeatures,
    WriteKind,
    WriteResult,
    bulk_line,
    routed,
)
from es_ttc.index.ingest.bulk import ActionLines, write
from es_ttc.index.mappings.attached import (
    CHECKPOINT,
    CHECKPOINT_ID,
    ID,
    ON_DEMAND,
    ROUTING,
    SEQ_NO,
    SOURCE,
    TERM,
    is_side_of,
    new_side_name,
    side_alias,
    side_body,
    side_pattern,
    source_of,
)
from es_ttc.index.mappings.indices import Index, put_own_meta, sides_of
from es_ttc.index.mappings.queries import MAX_KNN_CANDIDATES
from es_ttc.index.mappings.spec import CALIBRATION, ENCODER, HASH, ROOT, STATE, IndexSpec
from es_ttc.index.mappings.write_options import WRITES

_MARKS = (ID, ROUTING, SOURCE, SEQ_NO, TERM, HASH, ENCODER, STATE)
_HIDDEN_TOO = {"expand_wildcards": "all", "ignore_unavailable": "true"}
_CHECKPOINT_ROUTING = {"routing": CHECKPOINT}
_CARRIED_OPTIONS = (CALIBRATION, WRITES, ON_DEMAND)
"""Keys of `_meta.ttc` that are no part of the spec; a calibration belongs to its encoder: with another it is unused."""
_NOT_CHECKPOINT = {"bool": {"must_not": [{"term": {STATE: CHECKPOINT}}]}}


async def attach_beside(
    engine: Engine,
    source: Index,
    spec: IndexSpec,
    encoder: Encoder,
    *,
    like: Index | None = None,
    report: ReportFill | None = None,
) -> FillResult:
    """Create a side index with the features of an index, or update the present one.

    With another spec a new side index is filled while the present one serves, then the alias is switched. Features that
    can be mapped (a new encoder trained over the present one, a coarser codec) are not encoded again; nor are those of
    the same id and text in the side index of another index, `like`.
    """
    await require_readable(engine, source, spec.text_fields)
    sides = await _Sides.of(engine, source, spec)
    serving, before = sides.serving, sides.serving_name
    side = sides.fitting or await _create(engine, source, spec, serving)
    target = SideIndexTarget(engine, source, side, spec)
    carried = 0
    try:
        origin = like if serving is None else serving
        if origin is not None and side != before:
            former = SideIndexTarget(engine, source, origin.index, origin.spec)
            carried = await _carried(engine, source, former, target, encoder, report)
        filled = await fill(engine, source, target, encoder, report=report)
    except Exception:
        with suppress(EngineUnavailable):
            await target.require_present()  # the failure may only be a consequence of its deletion
        raise
    filled.carried, filled.unchanged = carried, max(0, filled.unchanged - carried)
    if side != before:
        await _switch(engine, source.index, before, side)
    for other in sides.every:
        if other.index != side:
            await delete_if_there(engine, other.index)
    return filled


async def attach_on_demand(engine: Engine, source: Index, spec: IndexSpec) -> str:
    """Create a side index that serves while it is empty, and return its name; gateways encode what searches find.

    If the features of an index have the same spec, gateways encode those that are missing.
    """
    await require_readable(engine, source, spec.text_fields)
    sides = await _Sides.of(engine, source, spec)
    if sides.serving is not None and sides.fitting != sides.serving_name:
        raise InvalidRequest(
            f"index [{source.index}] has features with other options, and an empty side index would replace them: "
            f"leave out --on-demand, or run `es-ttc detach {source.index}` first"
        )
    side = sides.fitting or await _create(engine, source, spec, None)
    await put_own_meta(engine, side, ON_DEMAND, True)
    if sides.serving is None:
        await _switch(engine, source.index, None, side)
    return side


@dataclass(frozen=True, slots=True)
class _Sides:
    """The side indices of a source: the one in use, and the name of one whose features are of a spec."""

    every: Sequence[Index]
    serving: Index | None
    fitting: str | None

    @classmethod
    async def of(cls, engine: Engine, source: Index, spec: IndexSpec) -> Self:
        every = await sides_of(engine, source.index)
        alias = side_alias(source.index)
        serving = next((side for side in every if alias in side.aliases), None)
        requested = spec.as_meta() | {"source": source.index}
        fitting = [
            side.index
            for side in every
            if {key: value for key, value in side.meta.items() if key not in _CARRIED_OPTIONS} == requested
        ]
        fitting.sort(key=lambda name: serving is None or name != serving.index)
        return cls(every, serving, next(iter(fitting), None))

    @property
    def serving_name(self) -> str | None:
        """The name of the one in use."""
        return None if self.serving is None else self.serving.index


async def _create(engine: Engine, source: Index, spec: IndexSpec, former: Index | None) -> str:
    """Create a side index with the options of a former one, and return its name."""
    side = new_side_name(source.index)
    routing_required = bool(source.mapping.get("_routing", {}).get("required"))
    capabilities = await engine.capabilities()
    body = side_body(spec, capabilities, source.index, source.settings, routing_required=routing_required)
    options = {} if former is None else former.meta
    body["mappings"]["_meta"][ROOT] |= {key: options[key] for key in _CARRIED_OPTIONS if options.get(key)}
    await engine.create_index(side, body)
    return side


async def _carried(
    engine: Engine,
    source: Index,
    before: "SideIndexTarget",
    after: "SideIndexTarget",
    encoder: Encoder,
    report: ReportFill | None,
) -> int:
    """Map the features of a side index if they can be; return their number."""
    heads = heads_between(before.spec, after.spec, encoder)
    if heads is None:
        return 0
    total = await engine.count(source.index)

    def report_carried(carried: int) -> None:
        if report is not None:
            report(FillResult(source.index, total=max(total, carried), seen=carried, carried=carried))

    return await carry_over(engine, source, before, after, heads, encoder, report_carried)


async def attached_sources(engine: Engine) -> list[str]:
    """Return the names of all indices that have a side index, unfinished ones included."""
    params = {**_HIDDEN_TOO, "allow_no_indices": "true"}
    found = await engine.request("GET", f"/{side_pattern('*')}/_mapping", params=params)
    sources = ((name, entry["mappings"], source_of(entry["mappings"])) for name, entry in found.items())
    return sorted({source for name, mapping, source in sources if source and is_side_of(name, mapping, source)})


async def _switch(engine: Engine, source: str, before: str | None, side: str) -> None:
    """Switch the alias from one side index to another in one step, if it still points to the first."""
    alias = side_alias(source)
    added = {"index": side, "alias": alias, "is_hidden": True, "is_write_index": True}
    actions: list[Mapping[str, Any]] = [{"add": added}]
    if before is not None:
        actions.append({"remove": {"index": before, "alias": alias, "must_exist": True}})
    try:
        await engine.request("POST", "/_aliases", body={"actions": actions})
    except EngineUnavailable:
        raise
    except EngineError as error:
        serving = [index.index for index in await Index.named(engine, alias)]
        if serving == [side]:  # an attach with the same options has switched it first
            return
        if serving == [before] or not (serving or before):
            raise
        await delete_if_there(engine, side)
        raise InvalidRequest(
            f"another attach of [{source}] with other options finished first, and its features serve: those of this "
            "one are removed; run it again to replace the others"
        ) from error


class SideIndexTarget:
    """A side index as the target of a fill."""

    doc_value_fields: Sequence[str] = ()

    def __init__(self, engine: Engine, source: Index, side: str, spec: IndexSpec) -> None:
        self.spec = spec
        self.side = side
        self._engine = engine
        self._source = source

    async def load(self) -> Checkpoint:
        """Return the checkpoint of an earlier fill of the same source; none if the source was created again."""
        path = f"/{self.side}/_doc/{CHECKPOINT_ID}"
        found = await none_if_missing(self._engine.request("GET", path, params=_CHECKPOINT_ROUTING))
        saved = {} if found is None else found["_source"]["checkpoint"]
        if saved.get("source") != self._source.uuid:
            return {}
        return {int(shard): seq_no for shard, seq_no in saved["shards"].items()}

    async def save(self, reached: Checkpoint) -> None:
        """Save the checkpoint; detect a side index that was deleted meanwhile."""
        await self.require_present()
        body = {
            "checkpoint": {"source": self._source.uuid, "shards": {str(shard): at for shard, at in reached.items()}},
            ROOT: {"state": CHECKPOINT},
        }
        await self._engine.request("PUT", f"/{self.side}/_doc/{CHECKPOINT_ID}", params=_CHECKPOINT_ROUTING, body=body)

    async def require_present(self) -> None:
        """Raise an error if the side index was deleted; remove one that a write of this fill has made again since."""
        mapping = (await none_if_missing(self._engine.mapping(self.side)) or {}).get(self.side)
        if mapping is None or source_of(mapping) != self._source.index:
            if mapping is not None:
                await delete_if_there(self._engine, self.side)
            raise EngineError(
                f"side index [{self.side}] of [{self._source.index}] was deleted while it was filled: was it detached, "
                "or attached with other options at the same time?"
            )

    async def refresh(self) -> None:
        """Refresh the side index, so that marks include everything written."""
        await self._engine.refresh(self.side)

    async def marks(self, versions: Sequence[DocumentVersion]) -> list[FeatureVersion | None]:
        """Return the marks of documents in the side index."""
        found = await self.found(versions, {"stored_fields": "_none_"})
        return [None if one is None else one.mark for one in found]

    async def found(
        self, versions: Sequence[DocumentVersion], request: Mapping[str, Any]
    ) -> list[StoredFeatures | None]:
        """Return documents in the side index, with their features."""
        if not versions:
            return []
        body = {
            "query": {"ids": {"values": sorted({each.id for each in versions})}},
            "size": MAX_KNN_CANDIDATES,  # documents may share an id and differ in routing
            **request,
            "docvalue_fields": [*_MARKS, *request.get("docvalue_fields", ())],
            "seq_no_primary_term": True,
        }
        hits = {_key(hit): hit for hit in await self._engine.hits(self.side, body)}
        return [self._found(version, hits.get(version.key)) for version in versions]

    async def write(self, items: Sequence[FeatureWrite]) -> WriteResult:
        """Write features with the expected version of the side index's document.

        A renewal writes nothing: features are outside `_source`, and the gateway compares the hash of the text instead.
        """
        written = WriteResult()
        sent = [position for position, item in enumerate(items) if item.kind is not WriteKind.RENEWAL]
        actions = [ActionLines(items[position].version.id, self._lines(items[position])) for position in sent]
        if not actions:
            return written
        outcomes = await write(self._engine, self.side, actions)
        for position, outcome in zip(sent, outcomes, strict=True):
            if outcome.status == 409:
                written.conflicts.add(position)
            elif outcome.error is not None:
                written.refused[position] = outcome.error
        return written

    async def remove_orphans(self) -> int:
        """Remove the features of deleted documents; they are searched only if the counts differ."""
        await self.refresh()
        await self._engine.refresh(self._source.index)
        ours = await self._engine.count(self.side, _NOT_CHECKPOINT)
        if ours == await self._engine.count(self._source.index):
            return 0
        removed = 0
        async for page in self._pages():
            requested = [{"_id": _key(hit)[0], "_source": False, **routing_of(_key(hit)[1])} for hit in page]
            answer = await self._engine.request("POST", f"/{self._source.index}/_mget", body={"docs": requested})
            gone = [hit for hit, doc in zip(page, answer["docs"], strict=True) if doc.get("found") is False]
            actions = [ActionLines(_key(hit)[0], (bulk_line({"delete": _expected(hit)}),)) for hit in gone]
            if actions:
                outcomes = await write(self._engine, self.side, actions)
                removed += sum(outcome.ok for outcome in outcomes)
        return removed

    async def _pages(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the ids of all documents of the side index, without reading stored fields."""
        for shard in range(self._source.shards):
            body = {"size": MAX_PAGE_DOCUMENTS, "stored_fields": "_none_", "docvalue_fields": [ID, ROUTING]}
            async for page in self._engine.pages(self.side, body, _NOT_CHECKPOINT, preference=f"_shards:{shard}"):
                yield page

    def _found(self, version: DocumentVersion, hit: Mapping[str, Any] | None) -> StoredFeatures | None:
        if hit is None:
            return None
        fields = hit["fields"]
        same_source = fields[SOURCE][0] == self._source.uuid
        seq_no, term = fields[SEQ_NO][0], fields[TERM][0]
        mark = FeatureVersion(
            state=fields[STATE][0],
            hash=fields.get(HASH, [None])[0],
            encoder=fields.get(ENCODER, [None])[0],
            current=same_source and (seq_no, term) == (version.seq_no, version.term),
            outdated=same_source and seq_no > version.seq_no,
            own=(hit["_seq_no"], hit["_primary_term"]),
        )
        return StoredFeatures(mark, hit)

    def _lines(self, item: FeatureWrite) -> Sequence[bytes]:
        version = item.version
        marks = {
            "id": version.id,
            "source": self._source.uuid,
            "seq_no": version.seq_no,
            "term": version.term,
            **routing_of(version.routing),
        }
        if item.mark is None or item.mark.own is None:
            action: Mapping[str, object] = {"create": routed(version)}
        else:
            seq_no, term = item.mark.own
            action = {"index": {**routed(version), "if_seq_no": seq_no, "if_primary_term": term}}
        return bulk_line(action), bulk_line({ROOT: {**item.fields, **marks}})


def _key(hit: Mapping[str, Any]) -> tuple[str, str | None]:
    fields = hit.get("fields", {})
    return fields.get(ID, [""])[0], fields.get(ROUTING, [None])[0]


def _expected(hit: Mapping[str, Any]) -> dict[str, Any]:
    identifier, routing = _key(hit)
    expected = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"_id": identifier, **routing_of(routing), **expected}
