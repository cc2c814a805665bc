"""Read documents of one index by their ids: all of them, or raise an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.exchange import require_all_shards
from es_ttc.engine.protocol import Capabilities, Engine
from es_ttc.engine.versions import VECTORS_OUTSIDE_SOURCE

_MAX_HITS = 10_000


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document that was read to be written again, unless another write occurs meanwhile."""

    id: str
    routing: str | None
    seq_no: int
    term: int
    source: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str | None]:
        """The document's key in its index."""
        return self.id, self.routing

    @property
    def target(self) -> dict[str, Any]:
        """Its id and expected version for the action of a bulk."""
        target: dict[str, Any] = {"_id": self.id, "if_seq_no": self.seq_no, "if_primary_term": self.term}
        if self.routing is not None:
            target["routing"] = self.routing
        return target


def whole_source(capabilities: Capabilities) -> bool | dict[str, bool]:
    """Return the part of a search body that requests `_source` exactly as it is stored.

    Elasticsearch excludes vectors from it since 9.2; to do so, it parses and writes all of it, with numbers as doubles.
    """
    return {"exclude_vectors": False} if capabilities.has(VECTORS_OUTSIDE_SOURCE) else True


async def hits_by_id(engine: Engine, index: str, ids: Sequence[str], parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hits of some ids, as of the last refresh, without deleted documents; huge numbers as ExactNumber."""
    if not ids:
        return []
    body = {
        "query": {"ids": {"values": list(ids)}},
        "size": min(_MAX_HITS, 2 * len(ids) + 10),
        "track_total_hits": False,
        **parts,
    }
    answer = await engine.exact_search(index, body)
    require_all_shards(answer, index)
    found: list[dict[str, Any]] = answer["hits"]["hits"]
    return found
