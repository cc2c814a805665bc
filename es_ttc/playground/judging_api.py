"""`/_ttc/judgements`: what the page needs to judge. Internal to the page: it may change with any version.

Every call to the engine carries the caller's credentials, so the engine's roles decide who may read an index and who
may judge it. The name of a judge is what the caller says.

    POST /_ttc/judgements/{index}/pool             pool what the page's searches found
    GET  /_ttc/judgements/{index}                  queries, judges, agreement
    GET  /_ttc/judgements/{index}/queries/{query}  a query's documents in the order of ?judge=NAME, with its grades
    POST /_ttc/judgements/{index}                  grade documents, or take grades back
    GET  /_ttc/judgements/{index}/standing         how the methods stand, and what tuning would choose
    GET  /_ttc/judgements/{index}/tuned            the file that `es-ttc serve --tuned` takes

The page makes the searches itself, as any client does: they obey the same limits, and their progress shows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_ttc.common.validation import validated
from es_ttc.errors import EngineError, InvalidRequest, MissingFeature, NotAllowed
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.lab.judging.overview import Overview, read_overview
from es_ttc.lab.judging.records import (
    DEFAULT_DEPTH,
    MAX_METHODS,
    MAX_NAME_LENGTH,
    MAX_POOL_DEPTH,
    Judgement,
    LoggedSignals,
    PooledMethod,
    PooledQuery,
    check_judge,
    query_id,
)
from es_ttc.lab.judging.standing import TunedWeights
from es_ttc.lab.judging.store import SIGNALS_INDEX, JudgementStore
from es_ttc.lab.ranking.index_pools import log_for_caller
from es_ttc.serving.admin.endpoint import (
    PREFIX,
    EndpointRunner,
    json_object,
    received,
    with_callers_errors,
)
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller

MAX_QUERIES = 50
MAX_JUDGEMENTS = 500  # queries of one request to pool, and judgements of one request
_KIND = "judgements"
_AT_ONCE = 16
_MAX_BODY_BYTES = 8 * 2**20
_TRUE = ("true", "")
_NO_WEIGHTS = "no weights of blend can be chosen from these pools"

JudgingWork = Callable[["_Call"], Awaitable[dict[str, Any]]]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FoundQuery(_Body):
    """A query and what the methods found."""

    id: str | None = Field(None, description="Its id; None for one made of its text.")
    text: str = Field(description="Its text.")
    runs: tuple[tuple[str, ...], ...] = Field(description="Ids of documents, best first, by method.")


class MethodOfPool(_Body):
    """A method with its parameters."""

    method: str = Field(description="Its name.")
    params: dict[str, Any] = Field(default_factory=dict, description="Its parameters.")


class PoolBody(_Body):
    """What is pooled."""

    queries: tuple[FoundQuery, ...] = Field(min_length=1, max_length=MAX_QUERIES, description="The queries.")
    methods: tuple[MethodOfPool, ...] = Field(min_length=1, max_length=MAX_METHODS, description="The methods.")
    depth: int = Field(DEFAULT_DEPTH, ge=1, le=MAX_POOL_DEPTH, description="Documents of each run that are judged.")


class Grade(_Body):
    """A grade of a document."""

    query: str = Field(description="Id of the query.")
    document: str = Field(description="Id of the document.")
    grade: int | None = Field(description="0 to 3; None to take the grade back.")


class JudgeBody(_Body):
    """Grades of one judge."""

    judge: str = Field(max_length=MAX_NAME_LENGTH, description="Name of the judge.")
    judgements: tuple[Grade, ...] = Field(min_length=1, max_length=MAX_JUDGEMENTS, description="The grades.")


class _Call:
    """One request: its index, and the engine with the caller's credentials."""

    def __init__(self, request: Request, gateway: Gateway) -> None:
        self.request = request
        self.index = str(request.path_params["index"])
        self.engine = gateway.engine.as_caller(Caller(request.headers.raw)).protocol()
        self.store = JudgementStore(self.engine, self.index)

    @property
    def with_llm(self) -> bool:
        """Whether judgements of language models count."""
        return self.request.query_params.get("with_llm", "false") in _TRUE

    async def overview(self, *, signals: bool = False) -> Overview:
        """Read the pools and judgements."""
        return await read_overview(self.store, with_llm=self.with_llm, signals=signals)


class JudgingApi:
    """Answers the page's requests about judgements."""

    def __init__(self, gateway: Gateway) -> None:
        self._settings = gateway.settings
        self._gateway = gateway
        self._requests = EndpointRunner(_KIND, gateway.metrics, _AT_ONCE)
        self._choosing = asyncio.Semaphore(1)

    def routes(self) -> list[Route]:
        """Return the routes."""
        base = f"{PREFIX}judgements/{{index}}"
        return [
            Route(f"{base}/pool", self._endpoint(self._pool), methods=["POST"]),
            Route(f"{base}/standing", self._endpoint(self._standing)),
            Route(f"{base}/tuned", self._endpoint(self._tuned)),
            Route(f"{base}/queries/{{query:path}}", self._endpoint(self._query)),
            Route(base, self._endpoint(self._overview), methods=["GET"]),
            Route(base, self._endpoint(self._judge), methods=["POST"]),
        ]

    def _endpoint(self, work: JudgingWork) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            async def answer() -> dict[str, Any]:
                return await work(_Call(request, self._gateway))

            return await self._requests.json(request, with_callers_errors(answer()))

        return endpoint

    async def _overview(self, call: _Call) -> dict[str, Any]:
        return (await call.overview()).as_dict()

    async def _pool(self, call: _Call) -> dict[str, Any]:
        body = validated(
            PoolBody, await json_object(received(call.request), _MAX_BODY_BYTES, self._gateway.offload), "pool"
        )
        await call.store.require_index()
        queries = _pooled(body)
        signals, note = await self._signals(call, queries)
        await call.store.put_pools(queries)
        try:
            await call.store.put_signals([replace(one, signals=signals.get(one.id)) for one in queries])
        except EngineError as error:
            if error.upstream_status != NotAllowed.status:
                raise
            note = f"{_NO_WEIGHTS}: you may not write index [{SIGNALS_INDEX}]"
        return {
            "queries": [{"id": one.id, "text": one.text, "pooled": len(one.documents)} for one in queries],
            "note": note,
        }

    async def _signals(self, call: _Call, queries: Sequence[PooledQuery]) -> tuple[dict[str, LoggedSignals], str]:
        """Return blend's signals by query; without them the reason why weights of blend cannot be chosen."""
        texts = {one.id: one.text for one in queries}
        try:
            spec = (await Indices.behind(call.engine, call.index)).shared_spec()
            encoder = await self._gateway.encoders.serving(spec.encoder.key, call.index)
            pools = await log_for_caller(self._gateway, call.request.headers.raw, call.index, spec, encoder, texts)
        except (MissingFeature, InvalidRequest) as error:
            return {}, f"{_NO_WEIGHTS}: {error}"
        return {pool.query: LoggedSignals.of(pool, pools) for pool in pools.pools}, ""

    async def _query(self, call: _Call) -> dict[str, Any]:
        judge = call.request.query_params.get("judge", "")
        check_judge(judge)
        await call.store.require_index()
        query = await call.store.pool(str(call.request.path_params["query"]))
        documents = query.shuffled(judge)
        grades = await call.store.grades(query.id, documents, judge)
        sources = await call.store.documents(documents)
        return {
            "id": query.id,
            "text": query.text,
            "documents": [
                {"id": document, "grade": grade, "source": sources.get(document)}
                for document, grade in zip(documents, grades, strict=True)
            ],
            "unjudged": sum(grade is None for grade in grades),
        }

    async def _judge(self, call: _Call) -> dict[str, Any]:
        body = validated(
            JudgeBody, await json_object(received(call.request), _MAX_BODY_BYTES, self._gateway.offload), _KIND
        )
        check_judge(body.judge)
        await call.store.require_index()
        await call.store.require_queries(one.query for one in body.judgements)
        judgements = [
            Judgement(one.query, one.document, body.judge, one.grade)
            for one in body.judgements
            if one.grade is not None
        ]
        taken_back = [(one.query, one.document, body.judge) for one in body.judgements if one.grade is None]
        await call.store.put(judgements, taken_back)
        return {"judged": len(judgements), "taken_back": len(taken_back)}

    async def _standing(self, call: _Call) -> dict[str, Any]:
        overview = await call.overview(signals=True)
        standing, tuned = await self._computed(overview)
        return {
            **standing,
            "unreadable": overview.unreadable,
            "tuned": tuned.as_dict() if isinstance(tuned, TunedWeights) else None,
            "why": "" if isinstance(tuned, TunedWeights) else tuned,
        }

    async def _tuned(self, call: _Call) -> dict[str, Any]:
        _, tuned = await self._computed(await call.overview(signals=True))
        if not isinstance(tuned, TunedWeights):
            raise InvalidRequest(f"no weights of blend are chosen: {tuned}")
        return tuned.summary

    async def _computed(self, overview: Overview) -> tuple[dict[str, Any], TunedWeights | str]:
        """Compute in a thread, one request at a time: the choice of weights takes a second for hundreds of queries."""
        async with self._choosing:
            return await asyncio.to_thread(lambda: (overview.standing().as_dict(), overview.tuned()))


def _pooled(body: PoolBody) -> list[PooledQuery]:
    methods = tuple(PooledMethod(one.method, one.params) for one in body.methods)
    queries = []
    for place, one in enumerate(body.queries):
        if len(one.runs) != len(methods):
            raise InvalidRequest(f"[pool.queries] {place} has {len(one.runs)} runs: give one a method, {len(methods)}")
        queries.append(PooledQuery(one.id or query_id(one.text), one.text, methods, one.runs, body.depth))
    return queries
