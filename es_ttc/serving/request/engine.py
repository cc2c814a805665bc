"""Requests to the engine for a search request, with the caller's headers."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders, end_to_end, forwarded
from es_ttc.serving.http.media_types import PRODUCT_HEADER, MediaTypes, asks_vendor_type
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.request.request import SearchItem, SearchRequest

_FRAMING = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_OF_THE_BODY = (400, 500)
_JSON = b"application/json"
_NDJSON = b"application/x-ndjson"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The engine's answer to one request."""

    status: int
    headers: RawHeaders
    body: bytes
    ms: float


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The engine's responses to the searches of a request."""

    headers: RawHeaders
    responses: Mapping[int, tuple[dict[str, Any], float]]
    took: int = 0
    size: int = 0


class EngineRefusal(Exception):
    """The engine refused a request, or a proxy before it answered; the caller gets that answer."""

    def __init__(self, answer: EngineAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer

    @property
    def of_the_body(self) -> bool:
        """Whether another body may be accepted: it is no matter of rights, of a missing index, or of a busy engine."""
        return self.answer.status in _OF_THE_BODY

    @property
    def reason(self) -> str:
        """The engine's reason."""
        try:
            return reason_of(jsonio.loads(self.answer.body))
        except ValueError:
            return f"it answered {self.answer.status}"


class ItemRefusal(Exception):
    """The engine refused one search of an `_msearch`."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(response)
        self.response = response

    @property
    def of_the_body(self) -> bool:
        """Whether another body may be accepted; see :attr:`EngineRefusal.of_the_body`."""
        return self.response.get("status") in _OF_THE_BODY

    @property
    def reason(self) -> str:
        """The engine's reason."""
        return reason_of(self.response)


def reason_of(answer: Any) -> str:
    """Return the reason in an error of the engine, that of its first cause if there is one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return str(error)
    causes = error.get("root_cause") or [error]
    return str(causes[0].get("reason") or error.get("reason"))


class EngineSearches:
    """Sends requests to the engine with the headers of a request's caller."""

    def __init__(self, upstream: Upstream, media_types: MediaTypes) -> None:
        self._upstream = upstream
        self._media_types = media_types

    async def first_pass(self, request: SearchRequest) -> FirstPass:
        """Return the engine's responses to all searches that have no error.

        Raises:
            EngineRefusal: The engine refused the request.
        """
        if not request.is_multi:
            [item] = request.items
            answer = await self._accepted(request.incoming, item.path, item.params, _json(item), _JSON)
            return FirstPass(answer.headers, {0: (await _response(answer), answer.ms)}, size=len(answer.body))
        positions: dict[bytes, list[int]] = {}
        for position, item in enumerate(request.items):
            if item.error is None:
                positions.setdefault(item.path, []).append(position)
        parts = [self._part(request, path, some) for path, some in positions.items()]
        first = FirstPass(_own_headers(request.incoming), {})
        for part in await asyncio.gather(*parts):
            responses = {**first.responses, **part.responses}
            first = FirstPass(part.headers, responses, max(first.took, part.took), first.size + part.size)
        return first

    async def again(
        self, request: SearchRequest, item: SearchItem, body: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        """Return the engine's response to another body of a search, and its time in milliseconds.

        Raises:
            EngineRefusal: The engine refused it, for a `_search`, or the answer is none of an engine.
            ItemRefusal: The engine refused it, for a search of an `_msearch`.
            EngineError: The engine refused the whole `_msearch`.
        """
        if not request.is_multi:
            answer = await self._accepted(request.incoming, item.path, item.params, _dumps(body), _JSON)
            return await _response(answer), answer.ms
        lines = b"%b\n%b\n" % (item.header, _dumps(body))
        answer = await self.send(request.incoming, item.path, request.params.engine, lines, _NDJSON)
        if answer.status != 200:
            raise EngineError(f"a further search was refused: the engine answered {answer.status}")
        [response] = await _responses(answer, 1)
        if "hits" not in response:
            raise ItemRefusal(response)
        return response, answer.ms

    async def render(self, incoming: RawRequest, template: Mapping[str, Any]) -> Any:
        """Return the rendered template; None if the engine refuses to render it."""
        answer = await self.send(incoming, b"/_render/template", (), _dumps(template), _JSON)
        if answer.status != 200:
            return None
        try:
            rendered = jsonio.loads_unique(answer.body)
        except ValueError:
            return None
        return rendered.get("template_output") if isinstance(rendered, dict) else None

    async def send(
        self, incoming: RawRequest, path: bytes, params: Sequence[tuple[str, str]], body: bytes, content_type: bytes
    ) -> EngineAnswer:
        """Send one request with the caller's headers and read the whole answer.

        Raises:
            TooManyRequests: The answer does not fit into the memory for bodies.
        """
        unframed = [(name, value) for name, value in forwarded(incoming.headers) if name not in _FRAMING]
        types = await self._media_types.negotiated(unframed)
        headers = types.headers
        if not incoming.has_body or not incoming.header(b"content-type"):
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        headers = [*headers, (b"accept-encoding", b"identity")]
        started = time.perf_counter()
        query_string = urlencode(params, errors="surrogateescape").encode()
        async with self._upstream.send("POST", path, query_string, headers, body) as response:
            parts = []
            async for part in response.content.iter_any():
                incoming.count(len(part))
                parts.append(part)
            raw = b"".join(parts)
            kept = [pair for pair in end_to_end(response.raw_headers) if pair[0] not in _FRAMING]
            ms = (time.perf_counter() - started) * 1000
            return EngineAnswer(response.status, [*kept, *types.response_headers], raw, ms)

    async def _accepted(
        self, incoming: RawRequest, path: bytes, params: Sequence[tuple[str, str]], body: bytes, content_type: bytes
    ) -> EngineAnswer:
        answer = await self.send(incoming, path, params, body, content_type)
        if answer.status != 200:
            raise EngineRefusal(answer)
        return answer

    async def _part(self, request: SearchRequest, path: bytes, positions: Sequence[int]) -> FirstPass:
        """Return the responses to the searches of an `_msearch` that have the same path."""
        items = [request.items[position] for position in positions]
        lines = b"".join(b"%b\n%b\n" % (item.header, _json(item)) for item in items)
        answer = await self._accepted(request.incoming, path, request.params.engine, lines, _NDJSON)
        found = await _responses(answer, len(positions))
        responses = {position: (response, answer.ms) for position, response in zip(positions, found, strict=True)}
        took = max((response.get("took", 0) for response in found), default=0)
        return FirstPass(answer.headers, responses, took, len(answer.body))


async def _response(answer: EngineAnswer) -> dict[str, Any]:
    """Return the decoded response to a search.

    Raises:
        EngineRefusal: It is none: a proxy before the engine has answered.
    """
    try:
        decoded = await jsonio.loads_answer(answer.body)
        if isinstance(decoded["hits"]["hits"], list) and "_shards" in decoded:
            return dict(decoded)
    except (LookupError, TypeError, ValueError):
        pass
    raise EngineRefusal(answer)


async def _responses(answer: EngineAnswer, number: int) -> list[dict[str, Any]]:
    """Return the decoded responses to the searches of an `_msearch`.

    Raises:
        EngineRefusal: They are none: a proxy before the engine has answered.
    """
    try:
        found = (await jsonio.loads_answer(answer.body))["responses"]
        if len(found) == number and all("error" in one or "_shards" in one for one in found):
            return list(found)
    except (LookupError, TypeError, ValueError):
        pass
    raise EngineRefusal(answer)


def _json(item: SearchItem) -> bytes:
    """Return a search's body as it is sent: as received if it had no section."""
    return _dumps(item.body) if item.is_changed and item.body is not None else item.line


def _own_headers(incoming: RawRequest) -> RawHeaders:
    """Return the headers of an answer without any from the engine."""
    headers: RawHeaders = [(b"content-type", _JSON)]
    return [*headers, PRODUCT_HEADER] if asks_vendor_type(incoming.headers) else headers


def _dumps(body: Mapping[str, Any]) -> bytes:
    try:
        return jsonio.dumps(body)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"the body cannot be sent on to the engine: {error}") from error
