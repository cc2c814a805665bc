"""Counts of an index: documents by state, documents without features, bytes on disk."""

from dataclasses import dataclass

from es_ttc.engine.protocol import Engine
from es_ttc.engine.versions import NOT_OFFERED
from es_ttc.errors import EngineError
from es_ttc.index.mappings.spec import ENCODER, STATE, IndexSpec


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """Counts of one index, as of the last refresh; bytes on disk are None if the engine does not tell this user."""

    documents: int
    states: dict[str, int]
    lacking: int
    other_encoder: int
    bytes: int | None


async def contents(engine: Engine, index: str, spec: IndexSpec) -> IndexCounts:
    """Count the documents of an index."""
    exists = {"exists": {"field": ENCODER}}
    body = {
        "size": 0,
        "track_total_hits": True,
        "aggs": {
            "states": {"terms": {"field": STATE, "size": 20}},
            "lacking": {"missing": {"field": STATE}},
            "others": {"filter": {"bool": {"filter": [exists], "must_not": [{"term": {ENCODER: spec.encoder.key}}]}}},
        },
    }
    answer = await engine.search(index, body)
    found = answer["aggregations"]
    return IndexCounts(
        documents=answer["hits"]["total"]["value"],
        states={bucket["key"]: bucket["doc_count"] for bucket in found["states"]["buckets"]},
        lacking=found["lacking"]["doc_count"],
        other_encoder=found["others"]["doc_count"],
        bytes=await stored_bytes(engine, index),
    )


async def stored_bytes(engine: Engine, index: str) -> int | None:
    """Return the size of an index's primary segments on disk; None if the engine does not tell this user."""
    sizes = "indices.*.shards.*.routing.primary,indices.*.shards.*.segments.*.size_in_bytes"
    try:
        answer = await engine.request("GET", f"/{index}/_segments", params={"filter_path": sizes})
    except EngineError as error:
        if error.upstream_status not in NOT_OFFERED:
            raise
        return None
    copies = [
        copy
        for each in (answer or {}).get("indices", {}).values()
        for shard in each.get("shards", {}).values()
        for copy in shard
    ]
    return sum(
        int(segment["size_in_bytes"])
        for copy in copies
        if copy["routing"]["primary"]
        for segment in copy.get("segments", {}).values()
    )
