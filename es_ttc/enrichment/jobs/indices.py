"""The three hidden indices with the records of jobs, and the reads and writes of single records.

``ttc-jobs``: jobs, checkpoints of encoding, and leases of partitions. ``ttc-jobs-outcomes``: one document for each
document of a job, with an id derived from both, so duplicates count once. ``ttc-jobs-proposals``: a model's proposals
for a text, by the text's hash, so that nothing is paid twice. Every change of a record contains the version that it is
based on.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from es_ttc.engine.protocol import Engine, create_if_missing, none_if_missing
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.ingest.bulk import record_lines, write_records

_KEYWORD = {"type": "keyword"}
_DATE = {"type": "date"}
_STORED = {"type": "keyword", "index": False, "doc_values": False, "store": False}
_OF_JOBS: dict[str, Any] = {
    "kind": _KEYWORD,
    "job": {
        "dynamic": False,
        "properties": {"index": _KEYWORD, "status": _KEYWORD, "created": _DATE, "id": _KEYWORD},
    },
    "of": _KEYWORD,
    "owner": _KEYWORD,
    "expires": _DATE,
    "trouble": {**_KEYWORD, "ignore_above": 2000},
}
_OF_OUTCOMES: dict[str, Any] = {
    **dict.fromkeys(("job", "document", "outcome", "kind"), _KEYWORD),
    **{name: {"type": "integer"} for name in ("read", "written", "attempts", "phrases", "dropped")},
    "routing": _STORED,
    "reason": _STORED,
    "reused": {"type": "boolean"},
    "at": _DATE,
    "due": _DATE,
}
_OF_PROPOSALS: dict[str, Any] = {"asked": _KEYWORD, "index": _KEYWORD, "job": _KEYWORD, "at": _DATE}
_HIDDEN = {"index": {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}}


class VersionConflict(Exception):
    """The record was changed by another writer."""


class JobIndices:
    """The indices with the records of jobs; the names of the others begin with that of the jobs'."""

    def __init__(self, engine: Engine, jobs: str) -> None:
        self.engine = engine
        self.jobs = jobs
        self.outcomes = f"{jobs}-outcomes"
        self.proposals = f"{jobs}-proposals"

    @property
    def _fields(self) -> dict[str, dict[str, Any]]:
        return {self.jobs: _OF_JOBS, self.outcomes: _OF_OUTCOMES, self.proposals: _OF_PROPOSALS}

    async def prepare(self) -> None:
        """Create the indices that do not exist; for commands alone, because a deleted index must not come back."""
        for name, properties in self._fields.items():
            if await self._is_foreign(name):
                await self._delete_empty(name)
            body = {"settings": _HIDDEN, "mappings": {"dynamic": False, "properties": properties}}
            await create_if_missing(self.engine, name, body)

    async def check(self) -> None:
        """Check that the indices which exist have their mappings."""
        for name in self._fields:
            if await self._is_foreign(name):
                raise _foreign(name)

    async def get(self, name: str) -> dict[str, Any] | None:
        """Return the hit of one record in the index of jobs."""
        return await none_if_missing(self.engine.request("GET", f"/{self.jobs}/_doc/{quote(name, safe='')}"))

    async def put(self, name: str, document: Mapping[str, Any], **params: str) -> None:
        """Write one record into the index of jobs."""
        await self._write_one("PUT", "_doc", name, document, {"refresh": "true", **params}, conflicts=(409,))

    async def update(self, name: str, body: Mapping[str, Any], **params: str) -> Any:
        """Update one record in the index of jobs by a script."""
        return await self._write_one("POST", "_update", name, body, params, conflicts=(404, 409))

    async def get_many(self, index: str, names: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return the sources of some records; None for those that do not exist."""
        if not names:
            return []
        docs = [{"_id": name} for name in names]
        answer = await self.engine.request("POST", f"/{index}/_mget", body={"docs": docs})
        return [hit["_source"] if hit.get("found") else None for hit in answer["docs"]]

    async def put_many(self, index: str, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Write records by their ids, and replace earlier ones."""
        if not records:
            return
        if not await self.engine.exists(index):
            raise _deleted(index)
        await write_records(self.engine, index, [record_lines(name, source) for name, source in records.items()])

    async def _write_one(
        self,
        method: str,
        endpoint: str,
        name: str,
        body: Mapping[str, Any],
        params: Mapping[str, str],
        *,
        conflicts: Collection[int],
    ) -> Any:
        """Return the answer to a write of one record; undo one that made a deleted index again."""
        path = f"/{self.jobs}/{endpoint}/{quote(name, safe='')}"
        try:
            answer = await self.engine.request(method, path, params=params, body=body)
        except EngineError as error:
            if error.upstream_status in (*conflicts, 400):
                await self._require_own()
            if error.upstream_status in conflicts:
                raise VersionConflict(name) from error
            raise
        if answer.get("_seq_no") == 0:
            await self._require_own()
        return answer

    async def _require_own(self) -> None:
        """Undo a write that has made the deleted index of jobs again."""
        if not await self._is_foreign(self.jobs):
            return
        with suppress(EngineError, InvalidRequest):  # the account may lack the right to delete it
            await self._delete_empty(self.jobs)
        raise _deleted(self.jobs)

    async def _is_foreign(self, name: str) -> bool:
        """Return whether an index exists with another mapping than ours."""
        mappings = await none_if_missing(self.engine.mapping(name)) or {}
        return any(str(mapping.get("dynamic")).lower() != "false" for mapping in mappings.values())

    async def _delete_empty(self, name: str) -> None:
        """Delete an index with another mapping, if no job, outcome or proposal is lost with it."""
        await self.engine.refresh(name)
        held = {"exists": {"field": "job"}}  # leases and checkpoints hold none, and are made again
        if await self.engine.count(name, held):
            raise _foreign(name)
        await self.engine.delete_index(name)


def _deleted(name: str) -> EngineError:
    return EngineError(f"the index [{name}] with the records of jobs was deleted: run the command that made the job")


def _foreign(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"the index [{name}] has not the mapping of es-ttc's records of jobs: it was deleted and made again by a "
        "write, or is someone else's; delete it, or name another one with ES_TTC_JOBS_INDEX, and run the command that "
        "makes the job"
    )
