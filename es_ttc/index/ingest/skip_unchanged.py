"""Find documents that are in the index already, unchanged: they need neither encoding nor writing."""

from collections.abc import Sequence

from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.prepare import Prepared
from es_ttc.index.mappings.spec import DOCUMENT, ENCODER, IndexSpec

_REMEMBERED = 20_000


class UnchangedFilter:
    """Compares documents with those in the index.

    A search does not return writes after the last refresh. So that a second document of the same id is compared with
    the first one and not with the one before the run, the ids of such writes are remembered; a refresh now and then
    bounds their number.
    """

    def __init__(self, engine: Engine, index: str, spec: IndexSpec) -> None:
        self._engine = engine
        self._index = index
        self._encoder = spec.encoder.key
        self._recent: dict[str, int] = {}
        self._active = True

    async def start(self) -> None:
        """Refresh the index; an empty index is not queried again."""
        await self._engine.refresh(self._index)
        self._active = await self._engine.count(self._index) > 0

    async def changed(self, documents: Sequence[Prepared], settled: int) -> list[Prepared]:
        """Return the documents that must be written, in order."""
        if not self._active or not documents:
            return list(documents)
        if len(self._recent) > _REMEMBERED:
            await self._engine.refresh(self._index)
            self._recent = {name: sequence for name, sequence in self._recent.items() if sequence >= settled}
        stored = await self._stored([each.id for each in documents])
        changed = []
        for document in documents:
            if document.id in self._recent or stored.get(document.id) != (document.digest, self._encoder):
                changed.append(document)
                self._recent[document.id] = document.sequence
        return changed

    async def _stored(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return document hash and encoder of those ids that have features in the index."""
        names = sorted(set(ids))
        body = {
            "query": {"ids": {"values": names}},
            "size": len(names),
            "_source": False,
            "docvalue_fields": [DOCUMENT, ENCODER],
            "track_total_hits": False,
        }
        answer = await self._engine.search(self._index, body)
        found = {}
        for hit in answer["hits"]["hits"]:
            fields = hit.get("fields", {})
            if DOCUMENT in fields and ENCODER in fields:
                found[hit["_id"]] = (fields[DOCUMENT][0], fields[ENCODER][0])
        return found
