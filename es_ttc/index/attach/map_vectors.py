"""Compute a side index's features from those of the one that serves, without encoding again.

Either the encoder is trained over the present one: a few layers over its vectors (:mod:`es_ttc.encoders.trained`). Or
the encoder is the same, and token vectors are stored as before, in a coarser codec, or of fewer tokens. Features are
read, mapped and written into the new side index. The other side index may belong to another index with the same ids.
Only features of a document's present text are mapped; missing or stale ones are left to the fill after it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from es_ttc.encoders.base import Encoder, Role
from es_ttc.encoders.heads import Head
from es_ttc.encoders.trained import TrainedEncoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.source import DocumentVersion, SourceTextReader, settled_writes, versions_between
from es_ttc.index.attach.target import FeatureVersion, FeatureWrite, StoredFeatures, Target, WriteKind, WriteResult
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import (
    Composed,
    DocumentFeatures,
    feature_fields,
    span_features,
    stored_without_skipped,
    token_features,
)
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.readers import LayoutReader, reader_of
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import DocumentChunks
from es_ttc.vectors.codecs import SKIP_TOKENS, STORED_CODECS
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import TokenVectors

_AT_ONCE = 100  # number of documents whose features are in memory at a time


def require_coarser(spec: IndexSpec, after: IndexSpec, index: str) -> None:
    """Check that an index's token vectors can be stored in another way without encoding again."""
    if spec.tokens != "packed":
        raise InvalidRequest(f"index [{index}] keeps its tokens as [{spec.tokens}], which has no codec to be changed")
    if STORED_CODECS.index(after.codec) < STORED_CODECS.index(spec.codec):
        raise InvalidRequest(
            f"index [{index}] has token vectors of codec [{spec.codec}], which is coarser than [{after.codec}]: encode "
            f"its documents again with `es-ttc attach {index} --codec {after.codec}`"
        )
    if SKIP_TOKENS.index(after.skip_tokens) < SKIP_TOKENS.index(spec.skip_tokens):
        raise InvalidRequest(
            f"index [{index}] has no vectors for [{spec.skip_tokens}], and [skip_tokens: {after.skip_tokens}] needs "
            f"some: encode its documents again with `es-ttc attach {index} --skip-tokens {after.skip_tokens}`"
        )


class ReadableTarget(Target, Protocol):
    """A target whose features can be read."""

    async def found(
        self, versions: Sequence[DocumentVersion], request: Mapping[str, Any]
    ) -> list[StoredFeatures | None]:
        """Return the stored features of documents, as requested by a part of a search body."""


def heads_between(before: IndexSpec, after: IndexSpec, encoder: Encoder) -> Mapping[Role, Head] | None:
    """Return the heads by which features are mapped; None if they cannot be.

    The storage must be the same; or the encoder, with the same storage, a coarser codec or fewer tokens. Nested tokens
    are not mapped.
    """
    if (before == after and _is_mapped(before)) or _only_coarser(before, after):
        return {"document": Head(), "query": Head()}
    trained = (
        isinstance(encoder, TrainedEncoder)
        and encoder.bases["document"].identity.key == before.encoder.key
        and replace(after, encoder=before.encoder) == before
        and _is_mapped(before)
        and (not before.reversed or encoder.bases["query"].identity.key == before.encoder.key)
    )
    return encoder.heads if trained and isinstance(encoder, TrainedEncoder) else None


def _is_mapped(spec: IndexSpec) -> bool:
    """Return whether vectors stored in this way can be read, mapped and stored again."""
    return spec.tokens == "packed" or (spec.tokens == "none" and not spec.spans)


def _only_coarser(before: IndexSpec, after: IndexSpec) -> bool:
    return (
        before.tokens == "packed"
        and before != after
        and STORED_CODECS.index(before.codec) <= STORED_CODECS.index(after.codec)
        and SKIP_TOKENS.index(before.skip_tokens) <= SKIP_TOKENS.index(after.skip_tokens)
        and replace(before, codec=after.codec, skip_tokens=after.skip_tokens) == after
    )


async def carry_over(
    engine: Engine,
    source: Index,
    before: ReadableTarget,
    after: Target,
    heads: Mapping[Role, Head],
    encoder: Encoder,
    report: Callable[[int], None] = lambda _: None,
) -> int:
    """Map the features of a side index into another one, and return the number of documents."""
    settled = await settled_writes(engine, source)
    await before.refresh()
    await after.refresh()
    reader = reader_of(before.spec.layout)
    request = reader.request(_features(before.spec))
    mapping = _Mapping(reader, heads, before.spec, after.spec, encoder)
    texts = SourceTextReader(engine, source.index, after.spec.text_fields)
    carried = 0
    for shard in sorted(settled):
        async for page in versions_between(engine, source.index, shard, -1, settled[shard]):
            present = await after.marks(page)
            missing = [version for version, mark in zip(page, present, strict=True) if mark is None]
            for start in range(0, len(missing), _AT_ONCE):
                part = missing[start : start + _AT_ONCE]
                found = await before.found(part, request)
                changed = before.spec.storage != after.spec.storage
                if changed or any(stored is not None and not stored.mark.current for stored in found):
                    composed = await _composed(part, texts, after.spec.text_fields)
                else:
                    composed = [None] * len(part)
                items = await asyncio.to_thread(mapping.writes, part, found, composed)
                written = await after.write(items) if items else WriteResult()
                carried += len(items) - len(written.conflicts) - len(written.refused)
                report(carried)
    return carried


async def _composed(
    versions: Sequence[DocumentVersion], texts: SourceTextReader, text_fields: Sequence[str]
) -> list[Composed | None]:
    """Return each document's text; None where it cannot be read."""
    read: dict[tuple[str, str | None], Composed] = {}
    async for part in texts.read(versions):
        for version, document in part:
            with suppress(InvalidRequest):  # the fill marks it with the reason
                read[version.key] = compose(document, text_fields)
    return [read.get(version.key) for version in versions]


def _features(spec: IndexSpec) -> list[Feature]:
    tokens = [Feature.TOKENS, Feature.OFFSETS] if spec.tokens == "packed" else []
    chunks, as_queries = [Feature.CHUNKS] if spec.chunks else [], [Feature.REVERSED] if spec.reversed else []
    return [Feature.POOLED, *tokens, *chunks, *as_queries]


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Maps stored features of one spec to those of another."""

    reader: LayoutReader
    heads: Mapping[Role, Head]
    before: IndexSpec
    after: IndexSpec
    encoder: Encoder

    def writes(
        self,
        versions: Sequence[DocumentVersion],
        found: Sequence[StoredFeatures | None],
        composed: Sequence[Composed | None],
    ) -> list[FeatureWrite]:
        """Return the writes for documents whose features are of their present text."""
        items = []
        for version, stored, text in zip(versions, found, composed, strict=True):
            if stored is None or not self._is_right(stored.mark, text):
                continue
            if text is None and self.before.storage != self.after.storage:
                continue
            features = self._mapped(stored, text)
            if features is not None:
                fields = feature_fields(features, self.after)
                items.append(FeatureWrite(version, None, WriteKind.FEATURES, fields))
        return items

    def _is_right(self, mark: FeatureVersion, text: Composed | None) -> bool:
        """Return whether features can be used, and are of a document's present text."""
        usable = mark.state in (READY, EMPTY) and mark.encoder == self.before.encoder.key and bool(mark.hash)
        return usable and (mark.current or (text is not None and content_hash(*text, self.before) == mark.hash))

    def _mapped(self, stored: StoredFeatures, composed: Composed | None) -> DocumentFeatures | None:
        """Return a document's mapped features; None if one is missing."""
        head, hit, spec = self.heads["document"], stored.hit, self.after
        text_hash = (stored.mark.hash or "") if composed is None else content_hash(*composed, spec)
        pooled = self.reader.read(hit, Feature.POOLED)
        if pooled is None:
            empty = DocumentFeatures(text_hash, None, None, truncated=False)
            return empty if stored.mark.state == EMPTY else None
        features = DocumentFeatures(text_hash, head.alone(pooled.value[None])[0], None, truncated=False)
        if spec.chunks:
            chunks = self.reader.read(hit, Feature.CHUNKS)
            if chunks is None:
                return None
            features = replace(features, chunks=_chunks(chunks.value, head))
        if spec.reversed:
            as_query = self.reader.read(hit, Feature.REVERSED)
            if as_query is None:
                return None
            features = replace(features, reversed=self.heads["query"].alone(as_query.value[None])[0])
        if spec.tokens == "none":
            return features
        vectors, offsets = self.reader.read(hit, Feature.TOKENS), self.reader.read(hit, Feature.OFFSETS)
        if vectors is None or offsets is None:
            return None
        rows, located, share = head(dequantise(vectors.value)), offsets.value[0], 1.0
        if composed is not None and spec.skip_tokens != self.before.skip_tokens:
            rows, located, share = stored_without_skipped(rows, located, composed, spec, self.encoder)
        tokens = token_features(rows, located, spec, share * vectors.value.read)
        spans = span_features(dequantise(tokens.vectors), located, spec.spans) if spec.spans else None
        return replace(features, tokens=tokens, spans=spans)


def _chunks(chunks: DocumentChunks, head: Head) -> DocumentChunks:
    if not head.layers:
        return chunks

    def mapped(vectors: TokenVectors) -> TokenVectors:
        return quantise(head(dequantise(vectors)), vectors.codec)

    vectors = {name: mapped(rows) for name, rows in chunks.vectors.items()}
    return replace(chunks, vectors=vectors, topic=mapped(chunks.topic))
