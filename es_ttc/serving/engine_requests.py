"""Requests to the engine that the gateway makes itself, each sent once: searches in a caller's place, and its own.

A request that only passes is streamed by :meth:`es_ttc.serving.http.upstream.Upstream.forward`.

:class:`EngineSearches` sends a caller's search with all of its headers; a refusal is the caller's answer.
:class:`EngineRequests` sends with a caller's credentials, or the gateway's own, and turns a refusal into an exception:
401 and 403 are NotForCaller, 404 is NotThere, any other status than 200 is an EngineError; no answer, or none in time,
is EngineUnavailable. An answer to a search from a part of the documents is IncompleteAnswer: the others would be taken
for absent.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlencode

from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.serving.answer_forms import Form, require_form, require_search_answer
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import (
    PRODUCT_HEADER,
    Caller,
    RawHeaders,
    asks_vendor_type,
    callers,
    end_to_end,
    forwarded,
)
from es_ttc.serving.http.raw_request import RawRequest, answer_too_long
from es_ttc.serving.http.upstream import Upstream

if TYPE_CHECKING:
    from es_ttc.serving.request.request import SearchItem, SearchRequest

JSON = b"application/json"
_NDJSON = b"application/x-ndjson"
_CBOR = b"application/cbor"
_IDENTITY = (b"accept-encoding", b"identity")
_FRAMING = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_OF_THE_BODY = (400, 500)
_CONTAINER_BYTES = 64
"""Counted for each object or array of an answer: decoded, they take far more memory and time than text."""
_SEARCH_FAILED = "the search failed"


class NotForCaller(EngineError):
    """The engine does not accept the credentials, or the caller lacks the right."""


class NotThere(EngineError):
    """There is no such index."""


class IncompleteAnswer(EngineError):
    """Only a part of the documents was searched."""


_KINDS: dict[int, type[EngineError]] = {401: NotForCaller, 403: NotForCaller, 404: NotThere}


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer to one request; headers and time, in ms, of a search in a caller's place only."""

    status: int
    body: bytes
    headers: RawHeaders
    ms: float = 0.0


class EngineRequests:
    """Sends requests of the gateway's own; :meth:`as_caller` or :meth:`as_gateway` set the request context."""

    def __init__(self, upstream: Upstream, caller: Caller | None = None) -> None:
        self._upstream = upstream
        self._caller = caller

    def as_caller(self, caller: Caller) -> Self:
        """Return an object that sends requests with a caller's credentials."""
        return type(self)(self._upstream, caller)

    def as_gateway(self) -> Self:
        """Return an object that sends requests with the gateway's own credentials."""
        return self.as_caller(Caller(self._upstream.service_headers()))

    async def send(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: bytes | None = None,
        *,
        content_type: bytes = JSON,
        accept: bytes = JSON,
    ) -> Answer:
        """Send one request and return its answer, whatever its status."""
        headers = [*callers(self._bound().headers), (b"accept", accept), _IDENTITY]
        if body is not None:
            headers.append((b"content-type", content_type))
        async with self._upstream.send(method, path, query_string, headers, body, ours=True) as response:
            return Answer(response.status, await response.read(), [])

    async def read(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: Any = None,
        *,
        failing: str,
        in_own_words: bool = False,
        accept: bytes = JSON,
    ) -> bytes:
        """Send one request with a JSON body and return its answer, not decoded."""
        sent = None if body is None else jsonio.dumps(body)
        answer = await self.send(method, path, query_string, sent, accept=accept)
        if answer.status != 200:
            raise _refused(failing, answer, in_own_words=in_own_words)
        return answer.body

    async def json(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: Any = None,
        *,
        failing: str,
        in_own_words: bool = False,
        form: Form = dict,
    ) -> Any:
        """Send one request with a JSON body and return its decoded answer of some form; see :meth:`read`."""
        raw = await self.read(method, path, query_string, body, failing=failing, in_own_words=in_own_words)
        try:
            answer = await jsonio.loads_answer(raw)
        except ValueError:
            raise EngineError(f"{failing}: the answer is not JSON") from None
        require_form(answer, form, failing)
        return answer

    async def search(
        self, concrete: Sequence[str], body: dict[str, Any], query_string: bytes | None = None, *, failing: str
    ) -> dict[str, Any]:
        """Send one `_search` of the caller's target, or of its point in time, and require answers of all shards.

        The default URL parameters are those that decide how the target's names are resolved; see
        :meth:`es_ttc.serving.http.caller.Caller.path` for the concrete indices. An error begins with `failing`.
        """
        path, query_string, body = self._search_target(concrete, body, query_string)
        answer = require_search_answer(await self.json("POST", path, query_string, body, failing=failing), failing)
        require_complete(answer, failing)
        return answer

    async def search_as_cbor(self, concrete: Sequence[str], body: dict[str, Any], *, failing: str) -> bytes:
        """Send one `_search` and return its answer as CBOR, not decoded; see :meth:`search`.

        An alias may name indices without the fields that are read: shards that cannot match are left out beforehand.
        """
        caller = self._bound()
        own = caller.indices == "" or unquote(caller.indices) in concrete
        skips = None if own else caller.query_string(pre_filter_shard_size="1")
        path, query_string, body = self._search_target(concrete, body, skips)
        return await self.read("POST", path, query_string, body, failing=failing, accept=_CBOR)

    def _search_target(
        self, concrete: Sequence[str], body: dict[str, Any], query_string: bytes | None
    ) -> tuple[bytes, bytes, dict[str, Any]]:
        caller = self._bound()
        if caller.pit is not None:
            return b"/_search", b"", {**body, "pit": caller.pit}
        return caller.path(concrete, "_search"), caller.query_string() if query_string is None else query_string, body

    def _bound(self) -> Caller:
        if self._caller is None:
            raise RuntimeError("a request needs a request context: call as_caller or as_gateway first")
        return self._caller


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The engine's responses to the searches of a request."""

    headers: RawHeaders
    responses: Mapping[int, tuple[dict[str, Any], float]]
    took: int = 0
    size: int = 0


class Refusal(Exception):
    """The engine refused a search; `response` is its decoded error."""

    def __init__(self, status: int | None, response: Any) -> None:
        super().__init__(status)
        self._status = status
        self.response = response

    @property
    def of_the_body(self) -> bool:
        """Whether another body may be accepted: it is no matter of rights, of a missing index, or of a busy engine."""
        return self._status in _OF_THE_BODY

    @property
    def reason(self) -> str:
        """The engine's reason."""
        return reason_of(self.response, self._status)


class EngineRefusal(Refusal):
    """The engine refused a whole request, or a proxy before it answered; the caller gets that answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, _json_or_none(answer.body))
        self.answer = answer


class ItemRefusal(Refusal):
    """The engine refused one search of an `_msearch`."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(response.get("status"), response)


class EngineSearches:
    """Sends requests to the engine with the headers of a request's caller, and reads answers of at most some bytes."""

    def __init__(self, upstream: Upstream, max_answer: int) -> None:
        self._upstream = upstream
        self._max_answer = max_answer

    async def first_pass(self, request: "SearchRequest") -> FirstPass:
        """Return the engine's responses to all searches that have no error, or raise an EngineRefusal."""
        if not request.is_multi:
            [item] = request.items
            answer = await self._accepted(request.incoming, item.path, item.params, _json(item), JSON)
            return FirstPass(answer.headers, {0: (await _response(answer), answer.ms)}, size=len(answer.body))
        positions: dict[bytes, list[int]] = {}
        for position, item in enumerate(request.items):
            if item.error is None:
                positions.setdefault(item.path, []).append(position)
        parts = [self._part(request, path, some) for path, some in positions.items()]
        product = [PRODUCT_HEADER] if asks_vendor_type(request.incoming.headers) else []
        first = FirstPass([(b"content-type", JSON), *product], {})
        for part in await asyncio.gather(*parts):
            responses = {**first.responses, **part.responses}
            first = FirstPass(part.headers, responses, max(first.took, part.took), first.size + part.size)
        return first

    async def again(
        self, request: "SearchRequest", item: "SearchItem", body: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        """Return the engine's response to another body of a search, and its time in milliseconds.

        Raises:
            EngineRefusal: The engine refused it, for a `_search`, or the answer is none of an engine.
            ItemRefusal: The engine refused it, for a search of an `_msearch`.
            EngineError: The engine refused the whole `_msearch`.
        """
        if not request.is_multi:
            return await self.search(request, item.path, item.params, body)
        lines = b"%b\n%b\n" % (item.header, _dumps(body))
        answer = await self.send(request.incoming, item.path, request.params.engine, lines, _NDJSON)
        if answer.status != 200:
            raise EngineError(f"a further search was refused: the engine answered {answer.status}")
        [response] = await _responses(answer, 1)
        if "hits" not in response:
            raise ItemRefusal(response)
        return response, answer.ms

    async def search(
        self, request: "SearchRequest", path: bytes, params: Sequence[tuple[str, str]], body: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float]:
        """Return the engine's response to a `_search`, and its time in milliseconds.

        Raises:
            EngineRefusal: The engine refused it, or the answer is none of an engine.
        """
        answer = await self._accepted(request.incoming, path, params, _dumps(body), JSON)
        return await _response(answer), answer.ms

    async def render(self, incoming: RawRequest, template: Mapping[str, Any]) -> Any:
        """Return the rendered template; None if the engine refuses to render it."""
        answer = await self.send(incoming, b"/_render/template", (), _dumps(template), JSON)
        if answer.status != 200:
            return None
        try:
            rendered = jsonio.loads_unique(answer.body)
        except ValueError:
            return None
        return rendered.get("template_output") if isinstance(rendered, dict) else None

    async def send(
        self, incoming: RawRequest, path: bytes, params: Sequence[tuple[str, str]], body: bytes, content_type: bytes
    ) -> Answer:
        """Send one request with the caller's headers and read the whole answer."""
        unframed = [(name, value) for name, value in forwarded(incoming.headers) if name not in _FRAMING]
        if content_type == JSON:  # also for a further search of an `_msearch`
            unframed = [(name, value.replace(b"x-ndjson", b"json")) for name, value in unframed]
        headers, negotiated = await self._upstream.negotiated(unframed)
        if not incoming.has_body or not incoming.header(b"content-type"):
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        headers = [*headers, _IDENTITY]
        started = time.perf_counter()
        query_string = urlencode(params, errors="surrogateescape").encode()
        async with self._upstream.send("POST", path, query_string, headers, body) as response:
            parts, total = [], 0
            async for part in response.content.iter_any():
                size = len(part) + _CONTAINER_BYTES * (part.count(b"{") + part.count(b"["))
                total += size
                if total > self._max_answer:
                    raise answer_too_long(self._max_answer)
                incoming.count(size)
                parts.append(part)
            kept = [pair for pair in end_to_end(response.raw_headers) if pair[0] not in _FRAMING]
            ms = (time.perf_counter() - started) * 1000
            return Answer(response.status, b"".join(parts), [*kept, *negotiated], ms)

    async def _accepted(
        self, incoming: RawRequest, path: bytes, params: Sequence[tuple[str, str]], body: bytes, content_type: bytes
    ) -> Answer:
        answer = await self.send(incoming, path, params, body, content_type)
        if answer.status != 200:
            raise EngineRefusal(answer)
        return answer

    async def _part(self, request: "SearchRequest", path: bytes, positions: Sequence[int]) -> FirstPass:
        """Return the responses to the searches of an `_msearch` that have the same path."""
        items = [request.items[position] for position in positions]
        lines = b"".join(b"%b\n%b\n" % (item.header, _json(item)) for item in items)
        answer = await self._accepted(request.incoming, path, request.params.engine, lines, _NDJSON)
        found = await _responses(answer, len(positions))
        responses = {position: (response, answer.ms) for position, response in zip(positions, found, strict=True)}
        took = max((response.get("took", 0) for response in found), default=0)
        return FirstPass(answer.headers, responses, took, len(answer.body))


async def _response(answer: Answer) -> dict[str, Any]:
    """Return the decoded response to a search; an EngineRefusal if a proxy before the engine has answered."""
    try:
        decoded = await jsonio.loads_answer(answer.body)
        is_search = isinstance(decoded["hits"]["hits"], list) and "_shards" in decoded
    except (LookupError, TypeError, ValueError):
        is_search = False
    if not is_search:
        raise EngineRefusal(answer)
    return require_search_answer(decoded, _SEARCH_FAILED)


async def _responses(answer: Answer, number: int) -> list[dict[str, Any]]:
    """Return the decoded responses to the searches of an `_msearch`; see :func:`_response`."""
    try:
        found = (await jsonio.loads_answer(answer.body))["responses"]
        are_searches = len(found) == number and all("error" in one or "_shards" in one for one in found)
    except (LookupError, TypeError, ValueError):
        are_searches = False
    if not are_searches:
        raise EngineRefusal(answer)
    return [one if "error" in one else require_search_answer(one, _SEARCH_FAILED) for one in found]


def _json(item: "SearchItem") -> bytes:
    """Return a search's body as it is sent: as received if it had no section."""
    return _dumps(item.body) if item.is_changed and item.body is not None else item.line


def _dumps(body: Mapping[str, Any]) -> bytes:
    try:
        return jsonio.dumps(body)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"the body cannot be sent on to the engine: {error}") from error


def require_complete(answer: Mapping[str, Any], failing: str) -> None:
    """Raise an error if a search's answer covers only a part of the documents: it timed out, or shards failed."""
    failed = answer.get("_shards", {}).get("failed", 0)
    if failed:
        raise IncompleteAnswer(f"{failing}: [{failed}] shards did not answer")
    if answer.get("timed_out"):
        raise IncompleteAnswer(f"{failing}: the search's timeout ended it before all documents were searched")


def _refused(failing: str, answer: Answer, *, in_own_words: bool) -> EngineError:
    """Return the exception for an answer with an error status."""
    kind, status = _KINDS.get(answer.status, EngineError), answer.status
    if not in_own_words:
        return kind(f"{failing}: the engine answered {status}", upstream_status=status)
    decoded = _json_or_none(answer.body)
    return kind(f"{failing}: {reason_of(decoded, status)}", upstream_status=status, upstream=decoded)


def reason_of(answer: Any, status: object) -> str:
    """Return the reason in an error of the engine, that of its first cause if there is one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        causes = error.get("root_cause")
        cause = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else error
        error = cause.get("reason") or error.get("reason")
    return f"it answered {status}" if error is None else str(error)


def _json_or_none(raw: bytes) -> Any:
    try:
        return jsonio.loads(raw)
    except ValueError:
        return None
