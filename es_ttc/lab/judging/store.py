"""Pools and judgements in the engine: one hidden index for all searched indices, and one for the pools' signals.

The id of a judgement is made of index, query, document and judge: judging again replaces the earlier grade, and two
judges never collide. Nothing is locked, because no two writers share a record. Signals are scores of documents, also
of those that a judge may not read: they have an index of their own, which judges need no right to read.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict

from es_ttc.engine.protocol import Engine, create_if_missing, none_if_missing
from es_ttc.errors import EngineError, InvalidRequest, NotAllowed, UnknownIndex
from es_ttc.index.ingest.bulk import ActionLines, record_lines, write_records
from es_ttc.lab.judging.records import (
    GRADES,
    Judgement,
    JudgementSource,
    LoggedSignals,
    PooledMethod,
    PooledQuery,
    check_id,
    judgement_id,
    pool_id,
)

JUDGEMENTS_INDEX = "ttc-judgements"
SIGNALS_INDEX = "ttc-signals"
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
_MAX_HITS = 10_000  # of the engines by default; an alias has several documents of an id
_PAGE_OF_SIGNALS = 200  # the signals of a pool have some 10 kB


T = TypeVar("T")
_NO_RECORD = (AttributeError, InvalidRequest, LookupError, TypeError, ValueError)
"""What reading a record raises that has other fields or values than those that are written here."""


class UnknownQuery(InvalidRequest):
    """There is no pool for a query."""

    status = 404
    type = "resource_not_found_exception"


class JudgementStore:
    """Reads and writes the pools and judgements of one searched index."""

    def __init__(self, engine: Engine, index: str) -> None:
        self._engine = engine
        self.index = index
        self.unreadable: set[str] = set()  # ids of records that are no records of this project, and are left out

    async def require_index(self) -> None:
        """Raise an error if the searched index does not exist."""
        if not await self._engine.exists(self.index):
            raise UnknownIndex(f"there is no index [{self.index}]: name one that exists")

    async def put_pools(self, queries: Sequence[PooledQuery]) -> None:
        """Write pooled queries without their signals; an earlier pool is replaced, its judgements and signals stay."""
        await create_if_missing(self._engine, JUDGEMENTS_INDEX, _MAPPING)
        for some in _parts(queries, _WRITTEN_TOGETHER):
            before = await self._sources([pool_id(self.index, one.id) for one in some], "pool.text")
            for one, stored in zip(some, before, strict=True):
                text = _text_of(stored)
                if text is not None and text.strip() != one.text.strip():
                    raise InvalidRequest(
                        f"query [{one.id}] is pooled already, with the text [{text[:80]}]: give the query another id"
                    )
            await write_records(self._engine, JUDGEMENTS_INDEX, [self._pool_record(one) for one in some])
        await self._engine.refresh(JUDGEMENTS_INDEX)

    async def put_signals(self, queries: Sequence[PooledQuery]) -> None:
        """Write the signals of pooled queries that have them; those of earlier pools are replaced."""
        actions = [
            self._record("signals", pool_id(self.index, query.id), query.id, signals=query.signals.as_dict())
            for query in queries
            if query.signals is not None
        ]
        if not actions:
            return
        await create_if_missing(self._engine, SIGNALS_INDEX, _MAPPING)
        for some in _parts(actions, _WRITTEN_TOGETHER):
            await write_records(self._engine, SIGNALS_INDEX, some)
        await self._engine.refresh(SIGNALS_INDEX)

    async def pools(self) -> list[PooledQuery]:
        """Return all pooled queries in the order of their ids, without signals."""
        return sorted(await self._read("pool", _PAGE, _pooled), key=lambda query: query.id)

    async def signals(self) -> dict[str, LoggedSignals]:
        """Return the signals of pooled queries, by query."""
        found = await self._read("signals", _PAGE_OF_SIGNALS, _logged, SIGNALS_INDEX)
        return {query: signals for query, signals in found if signals is not None}

    async def pool(self, query: str) -> PooledQuery:
        """Return one pooled query, without signals."""
        name = pool_id(self.index, query)
        [found] = await self._sources([name], "")
        if found is None:
            raise UnknownQuery(f"index [{self.index}] has no pool for a query [{query}]: make one first")
        try:
            return _pooled(found)
        except _NO_RECORD as error:
            raise InvalidRequest(
                f"the pool of query [{query}] in [{JUDGEMENTS_INDEX}] is no record of es-ttc: make it again, or delete "
                f"[{name}]"
            ) from error

    async def require_queries(self, queries: Iterable[str]) -> None:
        """Raise an error for a query without a pool."""
        asked = sorted(set(queries))
        found = await self._sources([pool_id(self.index, query) for query in asked], "kind")
        for query, stored in zip(asked, found, strict=True):
            if stored is None:
                raise UnknownQuery(f"index [{self.index}] has no pool for a query [{query}]: make one first")

    async def put(self, judgements: Sequence[Judgement], taken_back: Sequence[tuple[str, str, str]] = ()) -> None:
        """Write judgements, and delete those taken back."""
        await create_if_missing(self._engine, JUDGEMENTS_INDEX, _MAPPING)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        actions = [self._judgement_record(judgement, at) for judgement in judgements]
        for query, document, judge in taken_back:
            name = judgement_id(self.index, query, document, judge)
            actions.append(ActionLines(name, (orjson.dumps({"delete": {"_id": name}}),)))
        for some in _parts(actions, _PAGE):
            await write_records(self._engine, JUDGEMENTS_INDEX, some)
        await self._engine.refresh(JUDGEMENTS_INDEX)

    async def put_grades(self, qrels: Mapping[str, Mapping[str, int]], judge: str) -> int:
        """Write grades by query and document as imported ones of a judge, and return their number."""
        judgements = [
            Judgement(query, document, judge, grade, JudgementSource.IMPORT)
            for query, documents in qrels.items()
            for document, grade in documents.items()
        ]
        await self.put(judgements)
        return len(judgements)

    async def judgements(self) -> list[Judgement]:
        """Return all judgements, by query, document and judge."""
        found = await self._read("judgement", _PAGE, _judgement)
        return sorted(found, key=lambda one: (one.query, one.document, one.judge))

    async def grades(self, query: str, documents: Sequence[str], judge: str) -> list[int | None]:
        """Return a judge's grades of some documents as they are now; None for those that the judge has not graded."""
        names = [judgement_id(self.index, query, document, judge) for document in documents]
        grades = [(source or {}).get("grade") for source in await self._sources(names, "grade")]
        return [grade if grade in GRADES else None for grade in grades]

    async def documents(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the sources of documents of the searched index, without features; those that are gone are left out."""
        if not ids:
            return {}
        body = {"query": {"ids": {"values": list(ids)}}, "size": len(ids), "_source": {"excludes": ["ttc"]}}
        answer = await self._engine.search(self.index, body)
        return {str(hit["_id"]): hit.get("_source") or {} for hit in answer["hits"]["hits"]}

    async def unknown(self, documents: Collection[str]) -> set[str]:
        """Return the ids of documents that the searched index does not have."""
        found: set[str] = set()
        for some in _parts(sorted(documents), _PAGE):
            body = {"query": {"ids": {"values": some}}, "size": _MAX_HITS, "_source": False}
            answer = await self._engine.search(self.index, body)
            found |= {str(hit["_id"]) for hit in answer["hits"]["hits"]}
        return {*documents} - found

    async def _sources(self, names: Sequence[str], part: str) -> list[dict[str, Any] | None]:
        """Return the stored sources of some records, or parts of them; None for those that do not exist."""
        if not names:
            return []
        docs = [{"_id": name, "_source": [part] if part else True} for name in names]
        answer = await none_if_missing(self._engine.request("POST", f"/{JUDGEMENTS_INDEX}/_mget", body={"docs": docs}))
        return [None] * len(names) if answer is None else [_source_of(doc) for doc in answer["docs"]]

    async def _read(
        self, kind: str, size: int, read: Callable[[dict[str, Any]], T], index: str = JUDGEMENTS_INDEX
    ) -> list[T]:
        """Return all records of a kind but those that another program or a person has written wrongly."""
        found = []
        async for hit in self._hits(kind, size, index):
            try:
                found.append(read(hit["_source"]))
            except _NO_RECORD:
                self.unreadable.add(hit["_id"])
        return found

    async def _hits(self, kind: str, size: int, index: str) -> AsyncIterator[dict[str, Any]]:
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
                yield hit
            if len(hits) < size:
                return
            body["search_after"] = hits[-1]["sort"]

    def _record(self, kind: str, name: str, query: str, **more: Any) -> ActionLines:
        return record_lines(name, {"kind": kind, "key": name, "index": self.index, "query": query, **more})

    def _pool_record(self, query: PooledQuery) -> ActionLines:
        methods = [{"method": method.method, "params": method.params} for method in query.methods]
        pool = {"text": query.text, "depth": query.depth, "methods": methods, "runs": query.runs}
        return self._record("pool", pool_id(self.index, query.id), query.id, pool=pool)

    def _judgement_record(self, one: Judgement, at: str) -> ActionLines:
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
    reason = f"[{JUDGEMENTS_INDEX}] cannot be read: {error.get('reason')}"
    raise NotAllowed(reason) if error.get("type") == NotAllowed.type else EngineError(reason)


class _StoredMethod(BaseModel):
    model_config = ConfigDict(strict=True)

    method: str
    params: dict[str, Any]


class _StoredPool(BaseModel):
    model_config = ConfigDict(strict=True)

    text: str
    depth: int
    methods: list[_StoredMethod]
    runs: list[list[str]]


def _pooled(source: Mapping[str, Any]) -> PooledQuery:
    pool = _StoredPool.model_validate(source["pool"])
    methods = tuple(PooledMethod(method.method, method.params) for method in pool.methods)
    return PooledQuery(source["query"], pool.text, methods, tuple(map(tuple, pool.runs)), pool.depth)


def _judgement(source: Mapping[str, Any]) -> Judgement:
    return Judgement(
        source["query"], source["document"], source["judge"], source["grade"], JudgementSource(source["source"])
    )


def _logged(source: Mapping[str, Any]) -> tuple[str, LoggedSignals | None]:
    check_id("query", source["query"])
    return source["query"], LoggedSignals.from_dict(source["signals"])


def _text_of(stored: Mapping[str, Any] | None) -> str | None:
    """Return the text of a stored pool; None if there is none, or no text in it."""
    pool = (stored or {}).get("pool")
    text = pool.get("text") if isinstance(pool, Mapping) else None
    return text if isinstance(text, str) else None


def _parts(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
