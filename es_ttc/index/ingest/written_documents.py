"""The check at the end of an ingest: whether every written document is in the index."""

from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Self

import numpy as np
import orjson

from es_ttc.engine.exchange import require_all_shards
from es_ttc.engine.protocol import Engine

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
        if await _count(engine, index, query) < len(page):
            body = {"query": query, "size": len(page), "_source": False, "track_total_hits": False}
            answer = await engine.search(index, body)
            require_all_shards(answer, index)
            missing |= set(page) - {hit["_id"] for hit in answer["hits"]["hits"]}
    return len(missing), sorted(missing)[:_MAX_EXAMPLES]


async def _count(engine: Engine, index: str, query: Mapping[str, object]) -> int:
    answer = await engine.search(index, {"query": query, "size": 0, "track_total_hits": True})
    require_all_shards(answer, index)
    return int(answer["hits"]["total"]["value"])
