"""The source index: its settings, and the documents that have changed since a checkpoint."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.index.mappings.indices import NUMBER_TYPES, Index

Checkpoint = Mapping[int, int]  # by shard the `_seq_no` up to which writes are settled; -1 or none before the first

MAX_PAGE_DOCUMENTS = 500
_MAX_CHARACTERS = 4 * 2**20
_FIRST_PAGE = 50


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One write of one document."""

    id: str
    routing: str | None
    seq_no: int
    term: int
    fields: Mapping[str, Sequence[Any]]

    @property
    def key(self) -> tuple[str, str | None]:
        """The document's key in its index."""
        return self.id, self.routing

    @classmethod
    def of(cls, hit: Mapping[str, Any]) -> "DocumentVersion":
        """Return the version in a hit."""
        return cls(hit["_id"], hit.get("_routing"), hit["_seq_no"], hit["_primary_term"], hit.get("fields", {}))


def require_source(source: Index) -> None:
    """Raise an error for an index that keeps no documents."""
    if not source.keeps_source:
        raise InvalidRequest(f"index [{source.index}] keeps no _source, so there is no text to make features from")


def require_text_fields(source: Index, text_fields: Sequence[str]) -> None:
    """Raise an error if a source keeps no documents, or a text field is not in its mapping, or a number there."""
    require_source(source)
    types, texts = source.leaf_fields, source.text_fields
    for name in text_fields:
        if name not in types:
            near = get_close_matches(name, texts, n=1) or get_close_matches(name, types, n=1)
            fix = f"did you mean [{near[0]}]?" if near else f"its text fields are [{', '.join(texts) or 'none'}]"
            raise InvalidRequest(f"index [{source.index}] has no field [{name}] (--text-fields): {fix}")
        if types[name] in NUMBER_TYPES:
            raise InvalidRequest(
                f"[{name}] of index [{source.index}] is a number ({types[name]}), which has no text to encode "
                f"(--text-fields): its text fields are [{', '.join(texts) or 'none'}]"
            )


async def settled_writes(engine: Engine, source: Index) -> dict[int, int]:
    """Refresh, and return :func:`positions`."""
    found = await positions(engine, source)
    await engine.refresh(source.index)
    return found


async def positions(engine: Engine, source: Index) -> dict[int, int]:
    """Return for each shard the greatest `_seq_no` up to which every write is in every copy."""
    path = "indices.*.shards.*.seq_no.global_checkpoint,indices.*.shards.*.routing.primary"
    params = {"level": "shards", "filter_path": path}
    try:
        answer = await engine.request("GET", f"/{source.index}/_stats", params=params)
    except EngineError as error:
        if error.upstream_status not in (403, 410):
            raise
        raise EngineError(
            f"{error}; es-ttc reads there which writes are complete: the user needs the index privilege [monitor] "
            "(Elasticsearch) or [indices:monitor/stats] (OpenSearch), and Elasticsearch Serverless does not offer it",
            upstream_status=error.upstream_status,
        ) from error
    copies: Mapping[str, Sequence[Any]] = answer.get("indices", {}).get(source.index, {}).get("shards", {})
    found = {
        int(shard): int(copy["seq_no"]["global_checkpoint"])
        for shard, each in copies.items()
        for copy in each
        if copy["routing"]["primary"]
    }
    if len(found) < source.shards:
        raise EngineUnavailable(
            f"{source.shards - len(found)} of {source.shards} shards of index [{source.index}] have no active primary: "
            "try again when the engine has recovered"
        )
    return found


async def count_between(engine: Engine, source: Index, after: Checkpoint, upto: Checkpoint) -> int:
    """Return how many documents were last written between two checkpoints."""
    total = 0
    for shard in range(source.shards):
        if after.get(shard, -1) < upto[shard]:
            body = {"query": {"range": {"_seq_no": {"gt": after.get(shard, -1), "lte": upto[shard]}}}}
            params = {"preference": f"_shards:{shard}"}
            total += (await engine.request("POST", f"/{source.index}/_count", params=params, body=body))["count"]
    return total


async def versions_between(
    engine: Engine, index: str, shard: int, after: int, upto: int, fields: Sequence[str] = ()
) -> AsyncIterator[list[DocumentVersion]]:
    """Yield pages of the documents last written to a shard between two seq_nos, in the order of writing."""
    body = {"size": MAX_PAGE_DOCUMENTS, "_source": False, "docvalue_fields": list(fields)}
    async for hits in engine.pages(index, body, after=after, upto=upto, preference=f"_shards:{shard}"):
        yield [DocumentVersion.of(hit) for hit in hits]


class SourceTextReader:
    """Reads the text fields of documents, in batches that fit into memory."""

    def __init__(self, engine: Engine, index: str, text_fields: Sequence[str]) -> None:
        self._engine = engine
        self._index = index
        self._fields = list(text_fields)
        self._at_once = _FIRST_PAGE

    async def read(
        self, versions: Sequence[DocumentVersion]
    ) -> AsyncIterator[list[tuple[DocumentVersion, dict[str, Any]]]]:
        """Yield documents with their texts, without those that have changed or been deleted since they were found."""
        waiting = list(versions)
        while waiting:
            part, waiting = waiting[: self._at_once], waiting[self._at_once :]
            items = [{"_id": each.id, "_source": self._fields, **routing_of(each.routing)} for each in part]
            answer = await self._engine.request("POST", f"/{self._index}/_mget", body={"docs": items})
            documents = []
            for version, found in zip(part, answer["docs"], strict=True):
                if "error" in found:
                    raise EngineError(f"document [{version.id}] of [{self._index}] cannot be read: {found['error']}")
                if found["found"] and (found["_seq_no"], found["_primary_term"]) == (version.seq_no, version.term):
                    documents.append((version, found.get("_source") or {}))
            self._adapt(documents)
            yield documents

    def _adapt(self, documents: Sequence[tuple[DocumentVersion, Mapping[str, Any]]]) -> None:
        """Increase the batch size if texts are short, decrease it if they are long."""
        if documents:
            longest = max(sum(map(_length, document.values())) for _, document in documents)
            self._at_once = max(1, min(MAX_PAGE_DOCUMENTS, 2 * self._at_once, _MAX_CHARACTERS // max(longest, 1)))


def routing_of(routing: str | None) -> dict[str, str]:
    """Return the routing of a document for a request, if it has one."""
    return {} if routing is None else {"routing": routing}


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list) else 8
