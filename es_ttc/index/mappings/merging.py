"""Merge of an index's segments, after which features take less than half of the space.

Engines keep the JSON of new documents, our vectors in base64 included, for the recovery of replicas. A merge drops it
for documents up to the shard's retention lease, which follows the writes every 30 seconds. A merge before that keeps
all of it, and a second merge of the one segment does nothing.
"""

import asyncio
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.engine.versions import NOT_OFFERED
from es_ttc.errors import EngineError

_MERGE_SECONDS = 6 * 3600.0
_LEASE_POLLS = 75
_POLL_SECONDS = 1.0  # leases are looked at for twice the interval in which engines renew them, and some
_LEASES = "indices.*.shards.*.seq_no.max_seq_no,indices.*.shards.*.retention_leases.leases.retaining_seq_no"


async def merge_segments(engine: Engine, index: str) -> None:
    """Merge each shard to one segment, once the engine can drop what it keeps for recovery."""
    await engine.request("POST", f"/{index}/_flush")  # leases follow what is safe on disk
    for _ in range(_LEASE_POLLS):
        if await _leases_have_followed(engine, index):
            break
        await asyncio.sleep(_POLL_SECONDS)
    params = {"max_num_segments": "1"}
    await engine.request("POST", f"/{index}/_forcemerge", params=params, timeout=_MERGE_SECONDS)
    await engine.refresh(index)  # until then the merged segments' files are held open


async def _leases_have_followed(engine: Engine, index: str) -> bool:
    """Return whether each shard's leases are past its last write, or the engine does not tell this user."""
    params = {"level": "shards", "filter_path": _LEASES}
    try:
        answer = await engine.request("GET", f"/{index}/_stats", params=params)
    except EngineError as error:
        if error.upstream_status in NOT_OFFERED:
            return True
        raise
    indices: dict[str, Any] = (answer or {}).get("indices", {})
    copies = [copy for one in indices.values() for shard in one["shards"].values() for copy in shard]
    return all(
        lease["retaining_seq_no"] > copy["seq_no"]["max_seq_no"]
        for copy in copies
        for lease in copy.get("retention_leases", {}).get("leases", [])
    )
