"""Which documents an index has: unchanged ones before a write, missing ones at the end of an ingest."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Self

import numpy as np
import orjson

from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.prepare import Prepared
from es_ttc.index.mappings.spec import DOCUMENT, ENCODER, IndexSpec

_REMEMBERED = 20_000


class UnchangedFilter:
    """Compares documents with those in the index; remembers ids since the last refresh, which no search returns yet."""

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


_IN_MEMORY = 4 * 2**20
_PAGE = 1000
_MAX_EXAMPLES = 5


class WrittenIds:
    """The ids of documents that should be in the index; beyond a few MiB they are stored in a temporary file."""

    def __init__(self) -> None:
        self._hashes = array("Q")  # 8 bytes an id: millions fit in memory
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, identifier: str) -> None:
        """Add an id."""
        line = orjson.dumps(identifier) + b"\n"
        self._hashes.append(int.from_bytes(blake2b(line, digest_size=8).digest()))
        self._file.write(line)

    @property
    def repeated(self) -> int:
        """Number of ids that were added before."""
        return len(self._hashes) - len(np.unique(self._hashes))

    def pages(self) -> Iterator[list[str]]:
        """Yield them in pages without duplicates in a page."""
        self._file.seek(0)
        while lines := list(islice(self._file, _PAGE)):
            yield sorted({orjson.loads(line) for line in lines})


async def missing_from(engine: Engine, index: str, ids: WrittenIds) -> tuple[int, list[str]]:
    """Return the number of documents that are not in the index as of the last refresh, and a few of their ids."""
    missing: set[str] = set()
    for page in ids.pages():
        query = {"ids": {"values": page}}
        if await engine.count(index, query) < len(page):
            hits = await engine.hits(index, {"query": query, "size": len(page), "_source": False})
            missing |= set(page) - {hit["_id"] for hit in hits}
    return len(missing), sorted(missing)[:_MAX_EXAMPLES]
