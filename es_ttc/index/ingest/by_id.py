"""Documents of one index by their ids, all of them or an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import Capabilities, Engine
from es_ttc.errors import EngineUnavailable

_MOST_HITS = 10_000


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document that was read in order to be written again, unless another write comes in between.

    Attributes:
        id: Its id.
        routing: Its routing, None where its id routes it.
        seq_no: The `_seq_no` that was read.
        term: The `_primary_term` that was read.
        source: The user's own fields, as far as they were read.
    """

    id: str
    routing: str | None
    seq_no: int
    term: int
    source: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str | None]:
        """What identifies the document in its index."""
        return self.id, self.routing

    @property
    def target(self) -> dict[str, Any]:
        """What a bulk's action names it by: the version that was read, and no other."""
        target: dict[str, Any] = {"_id": self.id, "if_seq_no": self.seq_no, "if_primary_term": self.term}
        if self.routing is not None:
            target["routing"] = self.routing
        return target


def whole_source(capabilities: Capabilities) -> bool | dict[str, bool]:
    """Return what asks a search for `_source` exactly as it is stored.

    Elasticsearch leaves vectors out of it since 9.2, for which it reads and writes all of it, numbers as doubles.
    """
    filtered = capabilities.product == "elasticsearch" and capabilities.version >= (9, 2)
    return {"exclude_vectors": False} if filtered else True


async def hits_by_id(engine: Engine, index: str, ids: Sequence[str], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hits of some ids, as the last refresh shows them; those that are gone are left out.

    Numbers that no float or integer of 64 bits holds are :class:`es_ttc.common.exact_numbers.ExactNumber`.

    Args:
        engine: The engine.
        index: The index.
        ids: The ids; one may be there twice, apart by its routing.
        asked: What is wanted of each hit, as parts of a search body.

    Raises:
        EngineUnavailable: A part of the index gave no answer.
    """
    if not ids:
        return []
    body = {
        "query": {"ids": {"values": list(ids)}},
        "size": min(_MOST_HITS, 2 * len(ids) + 10),
        "track_total_hits": False,
        **asked,
    }
    answer = await engine.exact_search(index, body)
    if answer.get("timed_out") or answer["_shards"]["failed"]:
        raise EngineUnavailable(f"index [{index}] answered from a part of its shards only: try again")
    found: list[dict[str, Any]] = answer["hits"]["hits"]
    return found
