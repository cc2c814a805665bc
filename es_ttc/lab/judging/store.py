"""Pools and judgements in the engine: one hidden index for all searched indices, and one for the pools' signals.

The id of a judgement is made of index, query, document and judge: judging again replaces the earlier grade, and two
judges never collide. Nothing is locked, because no two writers share a record. Signals are scores of documents, also
of those that a judge may not read: they have an index of their own, which judges need no right to read.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from es_ttc.engine.protocol import Engine, create_if_missing, none_if_missing
from es_ttc.errors import EngineError, InvalidRequest, NotAllowed, UnknownIndex
from es_ttc.index.ingest.bulk import BulkLines, record_lines, write_records
from es_ttc.lab.judging.records import (
    Judgement,
    LoggedSignals,
    PooledMethod,
    PooledQuery,
    Source,
    judgement_id,
    pool_id,
)

INDEX = "ttc-judgements"
SIGNALS = "ttc-signals"
_KEYWORD = {"type": "keyword"}
_MAPPING: Mapping[str, Any] = {
    "settings": {"index": {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}},
    "mappings": {
        "dynamic": False,
        "properties": {
            **dict.fromkeys(("kind", "key", "index", "query", "document", "judge", "source"), _KEYWORD),
            "grade": {"type": "byte"},
            "at": {"type": "date"},
            "pool": {"type": "object", "enabled": False},
        },
    },
}
_WRITTEN_TOGETHER = 200
_PAGE = 1_000
_PAGE_OF_SIGNALS = 200  # the signals of a pool have some 10 kB


T = TypeVar("T")


class UnknownQuery(InvalidRequest):
    """There is no pool for a query."""

    status = 404
    type = "resource_not_found_exception"


class JudgementStore:
    """Reads and writes the pools and judgements of one searched index."""

    def __init__(self, engine: Engine, index: str) -> None:
        self._engine = engine
        self.index = index

    async def require_index(self) -> None:
        """Raise an error if the searched index does not exist."""
        if not await self._engine.exists(self.index):
            raise UnknownIndex(f"there is no index [{self.index}]: name one that exists")

    async def put_pools(self, queries: Sequence[PooledQuery]) -> None:
        """Write pooled queries without their signals; an earlier pool is replaced, its judgements and signals stay."""
        await create_if_missing(self._engine, INDEX, _MAPPING)
        for some in _parts(queries, _WRITTEN_TOGETHER):
            before = await self._sources([pool_id(self.index, one.id) for one in some], "pool.text")
            for one, stored in zip(some, before, strict=True):
                if stored is not None and stored["pool"]["text"].strip() != one.text.strip():
                    raise InvalidRequest(
                        f"query [{one.id}] is pooled already, with the text [{stored['pool']['text'][:80]}]: give the "
                        "query another id"
                    )
            await write_records(self._engine, INDEX, [self._pool_record(one) for one in some])
        await self._engine.refresh(INDEX)

    async def put_signals(self, queries: Sequence[PooledQuery]) -> None:
        """Write the signals of pooled queries that have them; those of earlier pools are replaced."""
        actions = [
            self._record("signals", pool_id(self.index, one.id), one.id, signals=one.signals.as_dict())
            for one in queries
            if one.signals is not None
        ]
        if not actions:
            return
        await create_if_missing(self._engine, SIGNALS, _MAPPING)
        for some in _parts(actions, _WRITTEN_TOGETHER):
            await write_records(self._engine, SIGNALS, some)
        await self._engine.refresh(SIGNALS)

    async def pools(self) -> list[PooledQuery]:
        """Return all pooled queries in the order of their ids, without signals."""
        return sorted([_pooled(source) async for source in self._all("pool", _PAGE)], key=lambda query: query.id)

    async def signals(self) -> dict[str, LoggedSignals]:
        """Return the signals of pooled queries, by query."""
        found = {
            source["query"]: LoggedSignals.from_dict(source["signals"])
            async for source in self._all("signals", _PAGE_OF_SIGNALS, SIGNALS)
        }
        return {query: signals for query, signals in found.items() if signals is not None}

    async def pool(self, query: str) -> PooledQuery:
        """Return one pooled query, without signals."""
        [found] = await self._sources([pool_id(self.index, query)], "")
        if found is None:
            raise UnknownQuery(f"index [{self.index}] has no pool for a query [{query}]: make one first")
        return _pooled(found)

    async def require_queries(self, queries: Iterable[str]) -> None:
        """Raise an error for a query without a pool."""
        asked = sorted(set(queries))
        found = await self._sources([pool_id(self.index, query) for query in asked], "kind")
        for query, stored in zip(asked, found, strict=True):
            if stored is None:
                raise UnknownQuery(f"index [{self.index}] has no pool for a query [{query}]: make one first")

    async def put(self, judgements: Sequence[Judgement], taken_back: Sequence[tuple[str, str, str]] = ()) -> None:
        """Write judgements, and delete those taken back."""
        await create_if_missing(self._engine, INDEX, _MAPPING)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        actions = [self._judgement_record(one, at) for one in judgements]
        for query, document, judge in taken_back:
            name = judgement_id(self.index, query, document, judge)
            actions.append(BulkLines(name, (orjson.dumps({"delete": {"_id": name}}),)))
        for some in _parts(actions, _PAGE):
            await write_records(self._engine, INDEX, some)
        await self._engine.refresh(INDEX)

    async def put_grades(self, qrels: Mapping[str, Mapping[str, int]], judge: str) -> int:
        """Write grades by query and document as imported ones of a judge, and return their number."""
        judgements = [
            Judgement(query, document, judge, grade, Source.IMPORT)
            for query, documents in qrels.items()
            for document, grade in documents.items()
        ]
        await self.put(judgements)
        return len(judgements)

    async def judgements(self) -> list[Judgement]:
        """Return all judgements, by query, document and judge."""
        found = [
            Judgement(one["query"], one["document"], one["judge"], one["grade"], Source(one["source"]))
            async for one in self._all("judgement", _PAGE)
        ]
        return sorted(found, key=lambda one: (one.query, one.document, one.judge))

    async def grades(self, query: str, documents: Sequence[str], judge: str) -> list[int | None]:
        """Return a judge's grades of some documents as they are now; None for those that the judge has not graded."""
        names = [judgement_id(self.index, query, document, judge) for document in documents]
        return [None if one is None else int(one["grade"]) for one in await self._sources(names, "grade")]

    async def documents(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the sources of documents of the searched index, without features; those that are gone are left out."""
        if not ids:
            return {}
        body = {"query": {"ids": {"values": list(ids)}}, "size": len(ids), "_source": {"excludes": ["ttc"]}}
        answer = await self._engine.search(self.index, body)
        return {str(hit["_id"]): hit.get("_source") or {} for hit in answer["hits"]["hits"]}

    async def _sources(self, names: Sequence[str], part: str) -> list[dict[str, Any] | None]:
        """Return the stored sources of some records, or parts of them; None for those that do not exist."""
        if not names:
            return []
        docs = [{"_id": name, "_source": [part] if part else True} for name in names]
        answer = await none_if_missing(self._engine.request("POST", f"/{INDEX}/_mget", body={"docs": docs}))
        return [None] * len(names) if answer is None else [_source_of(one) for one in answer["docs"]]

    async def _all(self, kind: str, size: int, index: str = INDEX) -> AsyncIterator[dict[str, Any]]:
        body: dict[str, Any] = {
            "query": {"bool": {"filter": [{"term": {"kind": kind}}, {"term": {"index": self.index}}]}},
            "size": size,
            "sort": [{"key": "asc"}],
            "track_total_hits": False,
        }
        while True:
            answer = await none_if_missing(self._engine.search(index, body))
            hits = [] if answer is None else answer["hits"]["hits"]
            for hit in hits:
                yield hit["_source"]
            if len(hits) < size:
                return
            body["search_after"] = hits[-1]["sort"]

    def _record(self, kind: str, name: str, query: str, **more: Any) -> BulkLines:
        return record_lines(name, {"kind": kind, "key": name, "index": self.index, "query": query, **more})

    def _pool_record(self, query: PooledQuery) -> BulkLines:
        methods = [{"method": one.method, "params": one.params} for one in query.methods]
        pool = {"text": query.text, "depth": query.depth, "methods": methods, "runs": query.runs}
        return self._record("pool", pool_id(self.index, query.id), query.id, pool=pool)

    def _judgement_record(self, one: Judgement, at: str) -> BulkLines:
        name = judgement_id(self.index, one.query, one.document, one.judge)
        grade = {"document": one.document, "judge": one.judge, "source": one.source, "grade": one.grade, "at": at}
        return self._record("judgement", name, one.query, **grade)


def _source_of(one: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the source in one answer of `_mget`, which is successful as a whole whatever happens to its documents."""
    error = one.get("error")
    if error is None:
        return (one.get("_source") or {}) if one.get("found") else None
    if error.get("type") == UnknownIndex.type:
        return None
    reason = f"[{INDEX}] cannot be read: {error.get('reason')}"
    raise NotAllowed(reason) if error.get("type") == NotAllowed.type else EngineError(reason)


def _pooled(source: Mapping[str, Any]) -> PooledQuery:
    pool = source["pool"]
    return PooledQuery(
        source["query"],
        pool["text"],
        tuple(PooledMethod(one["method"], one["params"]) for one in pool["methods"]),
        tuple(tuple(run) for run in pool["runs"]),
        pool["depth"],
    )


def _parts(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
