"""The gateway's own requests to the engine, with a caller's credentials or its own; errors become exceptions.

A caller's own request is streamed by :class:`es_ttc.serving.http.upstream.Upstream`. A status of 401 or 403 is
NotForCaller, 404 is NotThere, any other status than 200 is an EngineError. No request is sent again, because the first
pass is the fallback. No answer, or none in time, is EngineUnavailable. An answer to a search from a part of the
documents is IncompleteAnswer: the others would be taken for absent.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import aiohttp

from es_ttc.errors import EngineError
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, RawHeaders, callers

JSON = b"application/json"
_CBOR = b"application/cbor"


class Connection(Protocol):
    """The connection to the engine; see :class:`es_ttc.serving.http.upstream.Upstream`."""

    def send(
        self,
        method: str,
        raw_path: bytes,
        query_string: bytes,
        headers: RawHeaders,
        data: bytes | None,
        *,
        ours: bool = False,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send one request and return its response, not yet read."""
        ...

    def service_headers(self) -> RawHeaders:
        """Return the headers with the gateway's own credentials."""
        ...


class NotForCaller(EngineError):
    """The engine does not accept the credentials, or the caller lacks the right."""


class NotThere(EngineError):
    """There is no such index."""


class IncompleteAnswer(EngineError):
    """Only a part of the documents was searched."""


_KINDS: dict[int, type[EngineError]] = {401: NotForCaller, 403: NotForCaller, 404: NotThere}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the engine."""

    status: int
    raw: bytes


class EngineRequests:
    """Sends requests of the gateway's own.

    Args:
        upstream: The engine.
        caller: The request context; None if :meth:`as_caller` or :meth:`as_gateway` sets it before a request.
    """

    def __init__(self, upstream: Connection, caller: Caller | None = None) -> None:
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
        """Send one request and return its answer, whatever its status.

        Raises:
            EngineUnavailable: No answer came in time.
        """
        headers: RawHeaders = [
            *callers(self._bound().headers),
            (b"accept", accept),
            (b"accept-encoding", b"identity"),
        ]
        if body is not None:
            headers.append((b"content-type", content_type))
        async with self._upstream.send(method, path, query_string, headers, body, ours=True) as response:
            return Answer(response.status, await response.read())

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
        """Send one request with a JSON body and return its answer, not decoded.

        Raises:
            EngineError: The engine returned an error; see the module.
            EngineUnavailable: No answer came in time.
        """
        sent = None if body is None else jsonio.dumps(body)
        answer = await self.send(method, path, query_string, sent, accept=accept)
        if answer.status != 200:
            raise _refused(failing, answer, in_own_words=in_own_words)
        return answer.raw

    async def json(
        self,
        method: str,
        path: bytes,
        query_string: bytes = b"",
        body: Any = None,
        *,
        failing: str,
        in_own_words: bool = False,
    ) -> Any:
        """Send one request with a JSON body and return its decoded answer; see :meth:`read`.

        Raises:
            EngineError: The engine returned an error, see the module, or its answer is not JSON.
            EngineUnavailable: No answer came in time.
        """
        raw = await self.read(method, path, query_string, body, failing=failing, in_own_words=in_own_words)
        try:
            return await jsonio.loads_answer(raw)
        except ValueError:
            raise EngineError(f"{failing}: the answer is not JSON") from None

    async def search(
        self, concrete: Sequence[str], body: dict[str, Any], query_string: bytes | None = None, *, failing: str
    ) -> dict[str, Any]:
        """Send one `_search` of the caller's target, or of its point in time.

        Args:
            concrete: The concrete indices; see :meth:`es_ttc.serving.http.caller.Caller.path`.
            body: The search.
            query_string: Its URL parameters; None for those that decide how the target's names are resolved. With a
                point in time there are none.
            failing: Beginning of the error message.

        Raises:
            EngineError: The engine returned an error; see the module.
            EngineUnavailable: No answer came in time.
            IncompleteAnswer: Only a part of the documents was searched.
        """
        path, query_string, body = self._search_target(concrete, body, query_string)
        found: dict[str, Any] = await self.json("POST", path, query_string, body, failing=failing)
        require_complete(found, failing)
        return found

    async def search_as_cbor(self, concrete: Sequence[str], body: dict[str, Any], *, failing: str) -> bytes:
        """Send one `_search` and return its answer as CBOR, not decoded; see :meth:`search`.

        Raises:
            EngineError: The engine returned an error; see the module.
            EngineUnavailable: No answer came in time.
        """
        path, query_string, body = self._search_target(concrete, body, None)
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


def require_complete(answer: Mapping[str, Any], failing: str) -> None:
    """Raise an error if a search's answer covers only a part of the documents: it timed out, or shards failed.

    Raises:
        IncompleteAnswer: It does.
    """
    failed = answer.get("_shards", {}).get("failed", 0)
    if failed:
        raise IncompleteAnswer(f"{failing}: [{failed}] shards did not answer")
    if answer.get("timed_out"):
        raise IncompleteAnswer(f"{failing}: the search's timeout ended it before all documents were searched")


def _refused(failing: str, answer: Answer, *, in_own_words: bool) -> EngineError:
    """Return the exception for an answer with an error status."""
    kind = _KINDS.get(answer.status, EngineError)
    if not in_own_words:
        return kind(f"{failing}: the engine answered {answer.status}", upstream_status=answer.status)
    try:
        decoded = jsonio.loads(answer.raw)
    except ValueError:
        decoded = None
    return kind(f"{failing}: {_reason(decoded, answer.status)}", upstream_status=answer.status, upstream=decoded)


def _reason(answer: Any, status: int) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    reason = error.get("reason") if isinstance(error, dict) else error
    return f"it answered {status}" if reason is None else str(reason)
