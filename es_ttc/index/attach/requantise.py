"""Move an index's token vectors to a coarser codec, without encoding, while it serves.

Each document is read, its vectors are rounded to the new codec, and it is written again in one action that fails if
another write came first. Blobs say how they are stored, so searches read documents of both codecs meanwhile. Documents
that are done are passed over, so a run that was stopped resumes.

Features in a side index move into a new side index, as an attach with another codec does
(:mod:`es_ttc.index.attach.map_vectors`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import FeatureLocation
from es_ttc.index.ingest.bulk import BulkLines, write
from es_ttc.index.ingest.by_id import hits_by_id
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import DocumentFeatures, feature_fields, span_features, token_features
from es_ttc.index.ingest.rewrite import document_reader
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.ingest_pipeline import replace_spec
from es_ttc.index.mappings.readers import Hit, reader_of
from es_ttc.index.mappings.spec import ROOT, STATE, IndexSpec
from es_ttc.index.mappings.write_options import WriteOptions
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.codecs import STORED_CODECS, StoredCodec
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import TokenVectors

_AT_ONCE = 50  # documents whose features are in memory at a time
_MAX_PASSES = 5
_TAKEN_OVER = frozenset({"tokens", "norms", "spans", "hash"})  # fields that depend on the codec


@dataclass(slots=True)
class Requantised:
    """Counts of a run."""

    index: str
    codec: StoredCodec
    total: int = 0
    seen: int = 0
    written: int = 0
    unchanged: int = 0


def require_coarser(spec: IndexSpec, codec: StoredCodec, index: str) -> None:
    """Check that token vectors can be moved to a codec."""
    if spec.tokens != "packed":
        raise InvalidRequest(f"index [{index}] keeps its tokens as [{spec.tokens}], which has no codec to be changed")
    if STORED_CODECS.index(codec) < STORED_CODECS.index(spec.codec):
        raise InvalidRequest(
            f"index [{index}] has token vectors of codec [{spec.codec}], which is coarser than [{codec}]: what was "
            "rounded away does not come back; make the index anew"
        )


async def requantise_documents(
    engine: Engine,
    held: FeatureLocation,
    codec: StoredCodec,
    report: Callable[[Requantised], None] = lambda _: None,
) -> Requantised:
    """Move the token vectors in an index's own documents to a coarser codec, which the mapping names first."""
    index = held.index
    require_coarser(held.spec, codec, index)
    spec = replace(held.spec, codec=codec)
    if codec != held.spec.codec:
        meta = (await engine.mapping(index))[index]["_meta"]
        await engine.put_meta(index, {**meta, ROOT: {**meta[ROOT], "codec": codec}})
        await replace_spec(engine, index, spec)
    run = _Run(engine, held, spec, report)
    for _ in range(_MAX_PASSES):
        if await run.once():
            break
    return run.counts


class _Run:
    def __init__(
        self, engine: Engine, held: FeatureLocation, spec: IndexSpec, report: Callable[[Requantised], None]
    ) -> None:
        self._engine = engine
        self._index = held.index
        self._spec = spec
        self._report = report
        self._reader = reader_of(spec.layout)
        options = WriteOptions.of(held.source.mapping)
        key = "" if options is None else options.key
        self._documents = document_reader(engine, held.index, spec, key, attached="inside" in held.source.meta)
        self.counts = Requantised(held.index, spec.codec)

    async def once(self) -> bool:
        """Go through all documents; return whether none met another writer."""
        await self._engine.refresh(self._index)
        ready = {"term": {STATE: READY}}
        written, self.counts = self.counts.written, Requantised(self._index, self._spec.codec)
        self.counts.written = written
        self.counts.total = await self._engine.count(self._index, ready)
        conflicts = 0
        ids: list[str] = []
        async for hit in self._engine.scan(self._index, ready, source=False, batch=_AT_ONCE):
            ids.append(hit["_id"])
            if len(ids) == _AT_ONCE:
                conflicts += await self._part(ids)
                ids = []
        if ids:
            conflicts += await self._part(ids)
        return not conflicts

    async def _part(self, ids: Sequence[str]) -> int:
        """Write some documents; return how many met another writer."""
        request = self._reader.request([Feature.TOKENS, Feature.OFFSETS])
        hits = await hits_by_id(self._engine, self._index, ids, {**request, "seq_no_primary_term": True})
        added = await asyncio.to_thread(_changes, hits, self._spec)
        actions, conflicts = [], 0
        for document in await self._documents.read([hit["_id"] for hit in hits if _key(hit) in added]):
            seq_no, fields = added.get((document.id, document.routing), (-1, {}))
            if seq_no != document.seq_no:
                conflicts += 1
                continue
            text, spans = compose(document.source, self._spec.text_fields)
            fields = {**fields, "hash": content_hash(text, spans, self._spec)}
            actions.append(BulkLines(document.id, document.lines(fields)))
        outcomes = await write(self._engine, self._index, actions) if actions else []
        refused = [outcome.error for outcome in outcomes if outcome.error is not None and outcome.status != 409]
        if refused:
            raise InvalidRequest(f"a document of [{self._index}] cannot be written again: {refused[0]}")
        written = sum(outcome.ok for outcome in outcomes)
        self.counts.written += written
        self.counts.unchanged += len(hits) - len(added)
        self.counts.seen += len(ids)
        self._report(self.counts)
        return conflicts + len(outcomes) - written


def _key(hit: Hit) -> tuple[str, str | None]:
    return hit["_id"], hit.get("_routing")


def _changes(hits: Sequence[Hit], spec: IndexSpec) -> dict[tuple[str, str | None], tuple[int, Mapping[str, Any]]]:
    """Return by document the version that was read, and the fields to write, for those of a finer codec."""
    reader = reader_of(spec.layout)
    changes: dict[tuple[str, str | None], tuple[int, Mapping[str, Any]]] = {}
    for hit in hits:
        tokens, offsets = reader.read(hit, Feature.TOKENS), reader.read(hit, Feature.OFFSETS)
        if tokens is None or offsets is None or not _is_finer(tokens.value, spec.codec):
            continue
        features = token_features(dequantise(tokens.value), offsets.value[0], spec, tokens.value.read)
        spans = span_features(dequantise(features.vectors), features.offsets, spec.spans) if spec.spans else None
        made = DocumentFeatures("", None, features, truncated=False, spans=spans)
        fields = {name: value for name, value in feature_fields(made, spec).items() if name in _TAKEN_OVER}
        changes[_key(hit)] = hit["_seq_no"], fields
    return changes


def _is_finer(tokens: TokenVectors, codec: StoredCodec) -> bool:
    return tokens.codec not in STORED_CODECS or STORED_CODECS.index(tokens.codec) < STORED_CODECS.index(codec)
