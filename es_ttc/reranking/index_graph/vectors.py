"""The documents whose neighbours are computed: ids, content hashes and vectors, from where features are stored."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices
from es_ttc.index.attach.source import Checkpoint
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.queries import nearest_body
from es_ttc.index.mappings.readers import LayoutReader, reader_of
from es_ttc.index.mappings.spec import HASH, ROOT, STATE, VECTOR
from es_ttc.reranking.index_graph.store import AT_ONCE
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.tokens import Float32

_IS_READY = {"term": {STATE: READY}}
_SEARCHES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class VectorDocument:
    """One document with a vector."""

    id: str
    hash: str | None
    vector: Float32 | None


class VectorSource:
    """The index that holds the features of the documents."""

    def __init__(self, engine: Engine, held: FeatureLocation) -> None:
        self.held = held
        self.index = held.holder
        self.source = held.source.index
        self.encoder = held.spec.encoder.key
        self._engine = engine
        self._reader: LayoutReader = reader_of(held.spec.layout)

    @classmethod
    async def of(cls, engine: Engine, name: str) -> "VectorSource":
        """Return the vectors of the index of this name."""
        return cls(engine, (await Indices.behind(engine, name)).only())

    async def count(self) -> int:
        """Return the number of documents that have a vector."""
        return await self._engine.count(self.held.index, _IS_READY)

    async def read(
        self, after: Checkpoint, upto: Checkpoint, *, vectors: bool = True
    ) -> AsyncIterator[list[VectorDocument]]:
        """Yield the documents last written between two checkpoints, shard by shard, in the order of writing."""
        for shard in sorted(upto):
            body = self._search_body(min(AT_ONCE, self._reader.most_documents), vectors=vectors)
            async for hits in self._engine.pages(
                self.held.index, body, after=after.get(shard, -1), upto=upto[shard], preference=f"_shards:{shard}"
            ):
                yield [self._document(hit) for hit in hits]

    async def existing(self, ids: Collection[str]) -> set[str]:
        """Return those of some ids that have a document with a vector."""
        found: set[str] = set()
        requested = sorted(ids)
        for start in range(0, len(requested), AT_ONCE):
            part = requested[start : start + AT_ONCE]
            query = {"bool": {"filter": [{"ids": {"values": part}}, _IS_READY]}}
            body = {"query": query, "size": len(part), "_source": False}
            found.update(hit["_id"] for hit in await self._engine.hits(self.held.index, body))
        return found

    async def documents(self, ids: Collection[str]) -> list[VectorDocument]:
        """Return documents with their vectors, in the order of their ids, without deleted ones."""
        found: list[VectorDocument] = []
        requested = sorted(ids)
        size = min(AT_ONCE, self._reader.most_documents)
        for start in range(0, len(requested), size):
            part = requested[start : start + size]
            body = {"query": {"ids": {"values": part}}, **self._search_body(len(part), vectors=True)}
            found += [self._document(hit) for hit in await self._engine.hits(self.held.index, body)]
        return sorted(found, key=lambda one: one.id)

    async def nearest(self, documents: Sequence[tuple[str, Float32]], k: int) -> list[list[str]]:
        """Return the ids of the documents nearest to each of some documents, without itself, by the engine's kNN."""
        if not self.searchable:
            raise InvalidRequest(
                f"index [{self.held.index}] has no field [{VECTOR}] that the engine could search: leave --builder out"
            )
        product = (await self._engine.capabilities()).product
        room = asyncio.Semaphore(_SEARCHES_AT_ONCE)

        async def search(identifier: str, vector: Float32) -> list[str]:
            body = {**nearest_body(vector, k + 1, product), "size": k + 1, "_source": False}
            async with room:
                hits = await self._engine.hits(self.held.index, body)
            return [hit["_id"] for hit in hits if hit["_id"] != identifier][:k]

        return list(await asyncio.gather(*(search(identifier, vector) for identifier, vector in documents)))

    @property
    def searchable(self) -> bool:
        """Whether the engine can search the vectors."""
        ours = self.index.mapping.get("properties", {}).get(ROOT, {}).get("properties", {})
        return VECTOR.partition(".")[2] in ours

    def _search_body(self, size: int, *, vectors: bool) -> dict[str, Any]:
        body: dict[str, Any] = self._reader.request([Feature.POOLED]) if vectors else {"_source": False}
        values = [*body.get("docvalue_fields", ()), HASH, STATE]
        return {**body, "docvalue_fields": values, "size": size}

    def _document(self, hit: Mapping[str, Any]) -> VectorDocument:
        fields = hit.get("fields", {})
        ready = fields.get(STATE, [None])[0] == READY
        read = self._reader.read(hit, Feature.POOLED) if ready else None
        vector = None if read is None else np.asarray(read.value, np.float32)
        return VectorDocument(hit["_id"], fields[HASH][0] if ready else None, vector)
