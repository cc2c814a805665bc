"""The pipeline: a search is decoded, changed by the stages, answered by the engine and completed by the stages."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from es_ttc.errors import EsTtcError
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.proxy import PassThrough
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.signing import require_changeable
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.pool import Offload
from es_ttc.serving.search.accepted_callers import AcceptedCallers
from es_ttc.serving.search.engine import EngineRefusal, EngineSearches, FirstPass, ItemRefusal
from es_ttc.serving.search.request import Api, RequestReader, SearchItem, SearchRequest
from es_ttc.serving.search.response import (
    Outcome,
    is_refusal,
    item_error,
    rendered,
    respond,
    respond_refused,
    with_mark,
)
from es_ttc.serving.search.stage import Answered, Stage
from es_ttc.serving.search.templates import Templates
from es_ttc.serving.tracing import span

_COMPLETED_AT_ONCE = 8  # searches of one `_msearch`
_LONG = 2**20  # assumed size of a response that is filtered


class SearchPipeline:
    """Answers `_search`, `_msearch` and the templates of both.

    Args:
        upstream: The engine.
        engine: Sends its searches.
        pass_through: Forwards requests without a section.
        reader: Decodes requests.
        templates: Renders templates.
        stages: The stages, in order; their completions run in the reverse order.
        accepted: The callers and targets that the engine has answered recently.
        offload: Filters long responses.
    """

    def __init__(
        self,
        upstream: Upstream,
        engine: EngineSearches,
        pass_through: PassThrough,
        reader: RequestReader,
        templates: Templates,
        stages: Sequence[Stage],
        accepted: AcceptedCallers,
        offload: Offload,
    ) -> None:
        self._upstream = upstream
        self._engine = engine
        self._pass_through = pass_through
        self._reader = reader
        self._templates = templates
        self._stages = stages
        self._accepted = accepted
        self._offload = offload

    async def answer(self, incoming: RawRequest, api: Api, send: Send, *, is_template: bool) -> Outcome:
        """Answer one request; a request without a `ttc` section is passed through unchanged."""
        request = await self._reader.read(incoming, api, time.perf_counter(), is_template=is_template)
        if request is None:
            return await self._passed_through(incoming, send)
        try:
            return await self._answer(request, send)
        except EngineRefusal as refusal:
            answer = refusal.answer
            await respond(incoming, send, answer.status, answer.headers, answer.body)
            return Outcome(api.kind, answer.status)

    async def _passed_through(self, incoming: RawRequest, send: Send) -> Outcome:
        status = await self._pass_through.forward(incoming, send, body=incoming.whole_body)
        return Outcome("passthrough", status)

    async def _answer(self, request: SearchRequest, send: Send) -> Outcome:
        version = await self._upstream.version(request.incoming.headers)
        unsupported = None if version is None else version.refusal("the engine")
        if request.is_template:
            await self._templates.render(request)
        for stage in self._stages:
            await stage.before(request)
            error = None if request.is_multi else request.items[0].error
            if error is not None and is_refusal(error):
                return Outcome(request.api.kind, await respond_refused(request.incoming, send, error))
            if error is not None:
                raise unsupported or error
        if not any(item.is_ours for item in request.items):
            return await self._passed_through(request.incoming, send)
        if unsupported is not None:
            raise unsupported
        require_changeable(request.incoming.headers, self._upstream.signer)
        request.require_json()
        for item in request.items if request.is_template else ():
            item.path = request.path if item.is_ours else item.path
        refusal: EngineRefusal | None = None
        with span("first_pass"):
            try:
                first = await self._engine.first_pass(request)
            except EngineRefusal as refused:
                if request.is_multi or not request.items[0].has_plain_answer or not refused.of_the_body:
                    raise
                first, refusal = FirstPass(refused.answer.headers, {0: ({}, refused.answer.ms)}), refused
        response = await (self._multi(request, first) if request.is_multi else self._single(request, first, refusal))
        completions = [completion for item in request.items for completion in item.completions]
        applied = all(completion.applied for completion in completions)
        reported = any(completion.reported for completion in completions)
        headers: RawHeaders = with_mark(first.headers, applied=applied) if reported else first.headers
        await respond(request.incoming, send, 200, headers, await self._rendered(request, response))
        return Outcome(request.api.kind, 200, applied)

    async def _single(self, request: SearchRequest, first: FirstPass, refusal: EngineRefusal | None) -> dict[str, Any]:
        return await self._completed(request, request.items[0], *first.responses[0], refusal)

    async def _multi(self, request: SearchRequest, first: FirstPass) -> dict[str, Any]:
        room = asyncio.Semaphore(_COMPLETED_AT_ONCE)

        async def one(position: int, item: SearchItem) -> Any:
            if item.error is not None:
                return item_error(item.error)
            response, ms = first.responses[position]
            refusal = None if "hits" in response else ItemRefusal(response)
            if not item.completions or (refusal and not (item.has_plain_answer and refusal.of_the_body)):
                return response
            async with room:
                try:
                    return await self._completed(request, item, response, ms, refusal)
                except EsTtcError as error:
                    return error.body()
                except ItemRefusal as refusal:
                    return refusal.response

        responses = await asyncio.gather(*(one(position, item) for position, item in enumerate(request.items)))
        took = max(first.took, round((time.perf_counter() - request.started) * 1000))
        return {"took": took, "responses": responses}

    async def _completed(
        self,
        request: SearchRequest,
        item: SearchItem,
        response: dict[str, Any],
        ms: float,
        refusal: EngineRefusal | ItemRefusal | None,
    ) -> dict[str, Any]:
        """Return a response completed by the stages, the last stage first."""
        if refusal is None and response["hits"]["hits"]:
            self._accepted.add(request.incoming.headers, request.target(item))
        answered = Answered(request, item, response, ms, self._engine, refusal)
        for completion in reversed(item.completions):
            await completion.complete(answered)
        return answered.response

    async def _rendered(self, request: SearchRequest, response: dict[str, Any]) -> bytes:
        filter_path, pretty = request.params.filter_path, request.params.pretty
        if not filter_path:
            return rendered(response, "", pretty=pretty, keep_empty=False)
        keep_empty = await self._upstream.product() == "elasticsearch"
        return await self._offload.run(_LONG, rendered, response, filter_path, pretty=pretty, keep_empty=keep_empty)
