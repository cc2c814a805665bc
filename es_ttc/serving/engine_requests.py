"""The gateway's own requests to the engine: each in somebody's name, read as a whole, its refusal an error.

What passes through from a caller is streamed by :class:`es_ttc.serving.http.upstream.Upstream`; what the gateway asks
for itself goes through here, so what a refusal becomes is decided in one place. 401 and 403 are NotForCaller, 404 is
NotThere, any other status than 200 is a plain EngineError, 429 and 5xx too: nothing is sent a second time, since the
first pass is there to answer. No answer, or none in time, is EngineUnavailable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from es_ttc.errors import EngineError
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, RawHeaders, callers
from es_ttc.serving.http.upstream import Upstream

JSON = b"application/json"
_CBOR = b"application/cbor"


class NotForCaller(EngineError):
    """The engine does not know who asks, or does not let him."""


class NotThere(EngineError):
    """There is no such index."""


_KINDS: dict[int, type[EngineError]] = {401: NotForCaller, 403: NotForCaller, 404: NotThere}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine answered.

    Attributes:
        status: HTTP status.
        raw: The body as it came.
    """

    status: int
    raw: bytes


class EngineRequests:
    """Sends requests of the gateway's own, in the name of whom they are bound to.

    Args:
        upstream: The engine.
        caller: Whose credentials and naming parameters requests carry; nothing is sent before that is said.
    """

    def __init__(self, upstream: Upstream, caller: Caller | None = None) -> None:
        self._upstream = upstream
        self._caller = caller

    def as_caller(self, caller: Caller) -> Self:
        """Return the same in a caller's name."""
        return type(self)(self._upstream, caller)

    def as_gateway(self) -> Self:
        """Return the same with the gateway's own credentials."""
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

        Args:
            method: The HTTP method.
            path: Percent-encoded.
            query_string: Encoded.
            body: As it is sent.
            content_type: The body's.
            accept: How the answer is to be written; never compressed, which costs far more than it saves.

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

        Args:
            method: The HTTP method.
            path: Percent-encoded.
            query_string: Encoded.
            body: What is sent as JSON; nothing where it is None.
            failing: What the error says first.
            in_own_words: Whether the error gives the engine's reason, and its answer for the caller to see.
            accept: How the answer is to be written.

        Raises:
            EngineError: The engine refused; see the module.
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
            EngineError: The engine refused; see the module.
            EngineUnavailable: No answer came in time.
            ValueError: The answer is not JSON.
        """
        return jsonio.loads(
            await self.read(method, path, query_string, body, failing=failing, in_own_words=in_own_words)
        )

    async def search(
        self, concrete: Sequence[str], body: dict[str, Any], query_string: bytes | None = None, *, failing: str
    ) -> dict[str, Any]:
        """Run one `_search` through the caller's door: by the names and inside the point in time that he searches.

        Args:
            concrete: Indices that are meant; see :meth:`es_ttc.serving.http.upstream.Caller.path`.
            body: The search.
            query_string: Its URL parameters; None for those that say what the caller's names stand for. Inside a point
                in time there are none.
            failing: What the error says first.

        Raises:
            EngineError: The engine refused; see the module.
            EngineUnavailable: No answer came in time.
            ValueError: The answer is not JSON.
        """
        path, query_string, body = self._search_target(concrete, body, query_string)
        found: dict[str, Any] = await self.json("POST", path, query_string, body, failing=failing)
        return found

    async def search_as_cbor(self, concrete: Sequence[str], body: dict[str, Any], *, failing: str) -> bytes:
        """Run one `_search` and return its answer as CBOR, not decoded; see :meth:`search`.

        Raises:
            EngineError: The engine refused; see the module.
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
            raise RuntimeError("a request goes out in somebody's name: as_caller or as_gateway says whose")
        return self._caller


def _refused(failing: str, answer: Answer, *, in_own_words: bool) -> EngineError:
    """Return the error for an answer that is none to use."""
    kind = _KINDS.get(answer.status, EngineError)
    if not in_own_words:
        return kind(f"{failing}: the engine answered {answer.status}", upstream_status=answer.status)
    try:
        told = jsonio.loads(answer.raw)
    except ValueError:
        told = None
    return kind(f"{failing}: {_reason(told, answer.status)}", upstream_status=answer.status, upstream=told)


def _reason(told: Any, status: int) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    reason = error.get("reason") if isinstance(error, dict) else error
    return f"it answered {status}" if reason is None else str(reason)
