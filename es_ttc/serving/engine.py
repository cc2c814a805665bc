"""Requests to the engine that the gateway makes itself, each sent once.

A request that only passes is streamed by :meth:`es_ttc.serving.http.upstream.Upstream.forward`.

:class:`EngineClient` sends the gateway's own requests with a caller's credentials, or with the gateway's, and turns a
refusal into an exception: 401 and 403 are NotForCaller, 404 is NotThere, any other status than 200 is an EngineError;
no answer, or none in time, is EngineUnavailable. An answer to a search from a part of the documents is
IncompleteAnswer: the others would be taken for absent.

A client's own search is sent with all of the client's headers and without a timeout. The engine's refusal is a Refusal,
whose body is the client's answer.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, urlencode

from es_ttc.engine import exchange
from es_ttc.engine.protocol import Detected, Engine
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.serving.answer_forms import Form, require_form, require_search_answer
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, RawHeaders, callers, end_to_end, forwarded
from es_ttc.serving.http.raw_request import RawRequest, answer_too_long
from es_ttc.serving.http.upstream import Upstream

JSON_MEDIA = b"application/json"
NDJSON_MEDIA = b"application/x-ndjson"
_CBOR = b"application/cbor"
_IDENTITY = (b"accept-encoding", b"identity")
_FRAMING = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_OF_THE_BODY = (400, 500)
_CONTAINER_BYTES = 64
"""Counted for each object or array of an answer: decoded, they take far more memory and time than text."""
_SEARCH_FAILED = "the search failed"

Body = Mapping[str, Any]


class NotForCaller(EngineError):
    """The engine does not accept the credentials, or the caller lacks the right."""


class NotThere(EngineError):
    """There is no such index."""


class IncompleteAnswer(EngineError):
    """Only a part of the documents was searched."""


class Refusal(EngineError):
    """The engine refused a client's search, or one search of its `_msearch`; the client gets the engine's error."""

    def __init__(self, status: int | None, response: Any) -> None:
        super().__init__(refusal_reason(response, status), upstream_status=status, upstream=response)

    @property
    def of_the_body(self) -> bool:
        """Whether another body may be accepted: it is no matter of rights, of a missing index, or of a busy engine."""
        return self.upstream_status in _OF_THE_BODY

    def body(self) -> dict[str, Any]:
        """Return the engine's error."""
        return self.upstream if isinstance(self.upstream, dict) else super().body()


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The engine's answer to one request; headers and time, in ms, of a client's own search only."""

    status: int
    body: bytes
    headers: RawHeaders
    ms: float = 0.0


class EngineRefusal(Refusal):
    """The engine refused a client's whole request, or a proxy before it answered; the client gets that answer."""

    def __init__(self, answer: EngineAnswer) -> None:
        super().__init__(answer.status, _json_or_none(answer.body))
        self.answer = answer


_KINDS: dict[int, type[EngineError]] = {401: NotForCaller, 403: NotForCaller, 404: NotThere}


class EngineClient:
    """Sends requests; :meth:`as_caller`, :meth:`as_gateway` and :meth:`as_side_reader` say with whose credentials.

    Attributes:
        upstream: The connections.
    """

    def __init__(self, upstream: Upstream, caller: Caller | None = None) -> None:
        self.upstream = upstream
        self._caller = caller

    def as_caller(self, caller: Caller) -> Self:
        """Return a client that sends requests with a caller's credentials."""
        return type(self)(self.upstream, caller)

    def as_gateway(self) -> Self:
        """Return a client that sends requests with the gateway's own credentials."""
        return self.as_caller(self.upstream.gateway_caller())

    def as_side_reader(self, caller: Caller) -> Self:
        """Return a client that reads side indices: as a caller, or as the gateway if [side_index_auth] says so."""
        if self.upstream.settings.side_index_auth == "gateway":
            return self.as_gateway()
        return self.as_caller(Caller(caller.headers))

    @property
    def caller(self) -> Caller:
        """The request context of what is sent."""
        if self._caller is None:
            raise RuntimeError("a request needs a request context: call as_caller or as_gateway first")
        return self._caller

    def protocol(self) -> Engine:
        """Return the client in the form that `es_ttc.index` and `es_ttc.enrichment` use."""
        return _ProtocolEngine(self)

    async def send(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: bytes | None = None,
        *,
        content_type: bytes = JSON_MEDIA,
        accept: bytes = JSON_MEDIA,
    ) -> EngineAnswer:
        """Send one request and return its answer, whatever its status."""
        headers = [*callers(self.caller.headers), (b"accept", accept), _IDENTITY]
        if body is not None:
            headers.append((b"content-type", content_type))
        async with self.upstream.send(method, path, query_string, headers, body, ours=True) as response:
            return EngineAnswer(response.status, await response.read(), [])

    async def read(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: Any = None,
        *,
        failing: str,
        in_own_words: bool = False,
        accept: bytes = JSON_MEDIA,
    ) -> bytes:
        """Send one request with a JSON body and return its answer, not decoded."""
        sent = None if body is None else jsonio.dumps(body)
        answer = await self.send(method, path, query_string, sent, accept=accept)
        if answer.status == 200:
            return answer.body
        if in_own_words:
            raise refused(failing, answer.status, _json_or_none(answer.body))
        kind = _KINDS.get(answer.status, EngineError)
        raise kind(f"{failing}: the engine answered {answer.status}", upstream_status=answer.status)

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
        return await self.search_at(path, body, query_string, failing=failing)

    async def search_at(
        self, path: bytes, body: Body, query_string: bytes = b"", *, failing: str, in_own_words: bool = False
    ) -> dict[str, Any]:
        """Send one `_search` to a path, and require answers of all shards."""
        decoded = await self.json("POST", path, query_string, body, failing=failing, in_own_words=in_own_words)
        answer = require_search_answer(decoded, failing)
        require_complete(answer, failing)
        return answer

    async def search_as_cbor(self, concrete: Sequence[str], body: dict[str, Any], *, failing: str) -> bytes:
        """Send one `_search` and return its answer as CBOR, not decoded; see :meth:`search`.

        An alias may name indices without the fields that are read: shards that cannot match are left out beforehand.
        """
        caller = self.caller
        own = caller.indices == "" or unquote(caller.indices) in concrete
        skips = None if own else caller.query_string(pre_filter_shard_size="1")
        path, query_string, body = self._search_target(concrete, body, skips)
        return await self.read("POST", path, query_string, body, failing=failing, accept=_CBOR)

    async def msearch(
        self, path: bytes, query_string: bytes, searches: Sequence[tuple[bytes, Body]], *, failing: str
    ) -> list[dict[str, Any]]:
        """Send the headers and bodies of an `_msearch` and return the answers; that of one search may be an error."""
        response = await self.send("POST", path, query_string, _lines(searches), content_type=NDJSON_MEDIA)
        try:
            decoded = await jsonio.loads_answer(response.body)
        except ValueError:
            decoded = None
        if response.status != 200:
            raise refused(failing, response.status, decoded)
        require_form(decoded, {"responses": [dict]}, failing)
        answers: list[dict[str, Any]] = decoded["responses"]
        if len(answers) != len(searches):
            raise EngineError(f"{failing}: the engine answered {len(answers)} searches of {len(searches)}")
        return [answer if "error" in answer else require_search_answer(answer, failing) for answer in answers]

    async def send_for(
        self,
        incoming: RawRequest,
        path: bytes,
        params: Sequence[tuple[str, str]],
        body: bytes,
        content_type: bytes = JSON_MEDIA,
    ) -> EngineAnswer:
        """Send one request with the headers of a client's request, and read an answer of limited size."""
        unframed = [(name, value) for name, value in forwarded(incoming.headers) if name not in _FRAMING]
        if content_type == JSON_MEDIA:  # also for a further search of an `_msearch`
            unframed = [(name, value.replace(b"x-ndjson", b"json")) for name, value in unframed]
        headers, negotiated = await self.upstream.negotiated(unframed)
        if not incoming.has_body or not incoming.header(b"content-type"):
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        headers = [*headers, _IDENTITY]
        started = time.perf_counter()
        query_string = urlencode(params, errors="surrogateescape").encode()
        async with self.upstream.send("POST", path, query_string, headers, body) as response:
            parts, total = [], 0
            async for part in response.content.iter_any():
                size = len(part) + _CONTAINER_BYTES * (part.count(b"{") + part.count(b"["))
                total += size
                if total > self.upstream.max_answer:
                    raise answer_too_long(self.upstream.max_answer)
                incoming.count(size)
                parts.append(part)
            received = [pair for pair in end_to_end(response.raw_headers) if pair[0] not in _FRAMING]
            ms = (time.perf_counter() - started) * 1000
            return EngineAnswer(response.status, b"".join(parts), [*received, *negotiated], ms)

    async def search_for(
        self, incoming: RawRequest, path: bytes, params: Sequence[tuple[str, str]], body: bytes | Body
    ) -> tuple[dict[str, Any], EngineAnswer]:
        """Send one `_search` with the headers of a client's request, and return its decoded answer beside the raw one.

        Raises:
            EngineRefusal: The engine refused it, or the answer is none of an engine.
        """
        answer = await self.send_for(incoming, path, params, json_of(body))
        try:
            decoded = await jsonio.loads_answer(answer.body)
            is_search = isinstance(decoded["hits"]["hits"], list) and "_shards" in decoded
        except (LookupError, TypeError, ValueError):
            is_search = False
        if answer.status != 200 or not is_search:
            raise EngineRefusal(answer)
        return require_search_answer(decoded, _SEARCH_FAILED), answer

    async def msearch_for(
        self,
        incoming: RawRequest,
        path: bytes,
        params: Sequence[tuple[str, str]],
        searches: Sequence[tuple[bytes, bytes | Body]],
    ) -> tuple[list[dict[str, Any]], EngineAnswer]:
        """Send the headers and bodies of an `_msearch`; see :meth:`search_for`. An answer of one may be an error."""
        answer = await self.send_for(incoming, path, params, _lines(searches), NDJSON_MEDIA)
        try:
            decoded = (await jsonio.loads_answer(answer.body))["responses"]
            are_searches = len(decoded) == len(searches) and all({"error", "_shards"} & item.keys() for item in decoded)
        except (AttributeError, LookupError, TypeError, ValueError):
            are_searches = False
        if answer.status != 200 or not are_searches:
            raise EngineRefusal(answer)
        return [item if "error" in item else require_search_answer(item, _SEARCH_FAILED) for item in decoded], answer

    def _search_target(
        self, concrete: Sequence[str], body: dict[str, Any], query_string: bytes | None
    ) -> tuple[bytes, bytes, dict[str, Any]]:
        caller = self.caller
        if caller.pit is not None:
            return b"/_search", b"", {**body, "pit": caller.pit}
        return caller.path(concrete, "_search"), caller.query_string() if query_string is None else query_string, body


class _ProtocolEngine(Engine):
    """An :class:`EngineClient` as an engine of `es_ttc.engine`; its capabilities are not read."""

    product = "opensearch"  # not used: no request that is sent by it depends on the product

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client.upstream.settings)
        self._client = client

    @property
    def name(self) -> str:
        """The engine's name in messages, which do not contain its address."""
        return "the engine"

    async def close(self) -> None:
        """Do nothing: the connections are the gateway's."""

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> exchange.HttpAnswer:
        del seconds  # the gateway's own timeout is used
        query_string = urlencode(params).encode()
        try:
            answer = await self._client.send(
                method, path.encode(), query_string, body, content_type=content_type.encode()
            )
        except EngineUnavailable as error:
            raise exchange.Unreachable(str(error), may_repeat=False) from error
        try:
            return exchange.HttpAnswer(answer.status, await jsonio.loads_answer(answer.body) if answer.body else None)
        except ValueError as error:
            raise self._not_json(method, path) from error

    async def _detect(self, nodes: Mapping[str, Any]) -> Detected:
        del nodes
        raise EngineError("the gateway does not read what the engine can do")


def require_complete(answer: Body, failing: str) -> None:
    """Raise an error if a search's answer covers only a part of the documents: it timed out, or shards failed."""
    failed = answer.get("_shards", {}).get("failed", 0)
    if failed:
        raise IncompleteAnswer(f"{failing}: [{failed}] shards did not answer")
    if answer.get("timed_out"):
        raise IncompleteAnswer(f"{failing}: the search's timeout ended it before all documents were searched")


def refused(failing: str, status: int | None, answer: Any) -> EngineError:
    """Return the exception for a decoded error of the engine, with its reason."""
    kind = _KINDS.get(status or 0, EngineError)
    return kind(f"{failing}: {refusal_reason(answer, status)}", upstream_status=status, upstream=answer)


def refusal_reason(answer: Any, status: object) -> str:
    """Return the reason in an error of the engine, that of its first cause if there is one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        causes = error.get("root_cause")
        cause = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else error
        error = cause.get("reason") or error.get("reason")
    return f"it answered {status}" if error is None else str(error)


def json_of(body: bytes | Body) -> bytes:
    """Return a body as JSON; one that is to be sent as it came is JSON already."""
    if isinstance(body, bytes):
        return body
    try:
        return jsonio.dumps(body)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"the body cannot be sent on to the engine: {error}") from error


def _lines(searches: Sequence[tuple[bytes, bytes | Body]]) -> bytes:
    return b"".join(b"%b\n%b\n" % (header, json_of(body)) for header, body in searches)


def _json_or_none(raw: bytes) -> Any:
    try:
        return jsonio.loads_json(raw)
    except ValueError:
        return None
