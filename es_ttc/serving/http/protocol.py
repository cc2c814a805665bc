"""HTTP towards clients: uvicorn's protocol with limits of sizes and times, and refusals in the engines' shape.

Beyond a limit a request is refused before any of our code sees it. A client that is too slow loses its connection.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, cast

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from es_ttc.engine.addresses import not_a_path
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.settings import GatewaySettings

_WINDOW_SECONDS = 5.0
_FORMS = (b"http://", b"https://")  # absolute form: the scheme and the host are dropped, the path is what counts


class TargetTooLong(InvalidRequest):
    """A request's first line is longer than the engine reads."""

    type = "too_long_http_line_exception"


class HeadersTooLong(InvalidRequest):
    """A request's headers are longer than the engine reads."""

    type = "too_long_http_header_exception"


class RequestTimeout(EsTtcError):
    """A client took too long to send its request."""

    status = 408
    type = "ttc_request_timeout_exception"


class TooManyConnections(EsTtcError):
    """More clients are connected than allowed."""

    status = 503
    type = "rejected_execution_exception"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one connection.

    Attributes:
        target: Bytes of a request's path and query string.
        headers: Bytes of all headers of a request.
        connections: Connections that are open at a time.
        header_seconds: From the first byte of a request to the end of its headers.
        idle_seconds: Without a request.
        body_seconds: For a body, the time apart in which we read none of it.
        body_rate: Bytes a second that a client must send of a body.
        send_seconds: In which a client takes nothing of its answer.
    """

    target: int
    headers: int
    connections: int
    header_seconds: float
    idle_seconds: float
    body_seconds: float
    body_rate: int
    send_seconds: float


def http_limits(settings: GatewaySettings) -> HttpLimits:
    """Return the limits that the settings give."""
    return HttpLimits(
        target=settings.max_target_kb * 1024,
        headers=settings.max_header_kb * 1024,
        connections=settings.max_connections,
        header_seconds=settings.header_timeout,
        idle_seconds=settings.idle_timeout,
        body_seconds=settings.body_timeout,
        body_rate=settings.min_body_rate,
        send_seconds=settings.send_timeout,
    )


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a client; :func:`limited_protocol` gives it its limits."""

    limits: ClassVar[HttpLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: EsTtcError | None = None
        self._in_head = True
        self._unparsed = 0  # bytes since the parser last came to the end of something
        self._header_bytes = 0
        self._body_bytes = 0  # of the window of time that is running
        self._body_time = 0.0
        self._was_paused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for it."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.limits.idle_seconds, self.transport.close)
        if len(self.connections) > self.limits.connections:
            self._refuse(TooManyConnections(f"{self.limits.connections} connections are open: try again"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        for timer in (self._head_timer, self._body_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self.transport.is_closing():
            return
        if self._in_head and self._unparsed == 0:
            self._time_head()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self.limits.target + self.limits.headers + len(data) and not self.transport.is_closing():
            self._refuse(self._headers_too_long())

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        super().on_url(url)
        if len(self.url) > self.limits.target:
            raise self._remember(
                TargetTooLong(
                    f"the request's path and query string are longer than {self.limits.target} bytes: send the "
                    "parameters in the body, or raise [max_target_kb] and the engine's "
                    "[http.max_initial_line_length]"
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.limits.headers:
            raise self._remember(self._headers_too_long())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer a request."""
        if not self._has_path():
            raise self._remember(not_a_path(self.url))
        self._in_head, self._unparsed = False, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()
        self._body_bytes, self._body_time, self._was_paused = 0, 0.0, False
        self._body_timer = self.loop.call_later(self._window, self._look_at_body)

    def on_chunk_header(self) -> None:
        """Take the beginning of a chunk of the body."""
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._in_head, self._unparsed, self._header_bytes = True, 0, 0
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for a client that does not take its answer, but not for ever."""
        super().pause_writing()
        self._send_timer = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, in the engines' shape."""
        self._refuse(self._refusal or InvalidRequest(f"{msg.rstrip('.')[:1].lower()}{msg.rstrip('.')[1:]}"))

    @property
    def _window(self) -> float:
        return min(_WINDOW_SECONDS, self.limits.body_seconds)

    def _has_path(self) -> bool:
        """Whether the request's target is a path, or `*` of OPTIONS, or an address whose path can be taken."""
        if self.url.startswith(b"/"):
            return True
        if self.url == b"*":
            return self.parser.get_method() == b"OPTIONS"
        scheme = next((form for form in _FORMS if self.url[: len(form)].lower() == form), None)
        if scheme is None:
            return False
        authority = self.url[len(scheme) :].partition(b"?")[0].partition(b"/")[0]
        if b"/" not in self.url[len(scheme) :]:  # no path at all stands for the root
            rest = self.url[len(scheme) + len(authority) :]
            self.url = scheme + authority + b"/" + rest
        return bool(authority)

    def _time_head(self) -> None:
        """Start the clock for a request's headers with its first byte; more bytes do not start it anew."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(self.limits.header_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._refuse(
            RequestTimeout(f"the request's headers took longer than {self.limits.header_seconds:g} s (header_timeout)")
        )

    def _look_at_body(self) -> None:
        """Look at what has come of the body in the last seconds, those apart in which we read nothing."""
        paused = self.flow.read_paused
        if not paused and not self._was_paused:
            self._body_time += self._window
            if self._body_bytes < self.limits.body_rate * self._window:
                self._refuse(
                    RequestTimeout(f"the body came slower than {self.limits.body_rate} bytes a second (min_body_rate)")
                )
                return
            if self._body_time >= self.limits.body_seconds:
                self._refuse(RequestTimeout(f"the body took longer than {self.limits.body_seconds:g} s (body_timeout)"))
                return
        self._was_paused, self._body_bytes = paused, 0
        self._body_timer = self.loop.call_later(self._window, self._look_at_body)

    def _headers_too_long(self) -> HeadersTooLong:
        return HeadersTooLong(
            f"the request's headers are longer than {self.limits.headers} bytes: send fewer, or raise [max_header_kb] "
            "and the engine's [http.max_header_size]"
        )

    def _remember(self, refusal: EsTtcError) -> EsTtcError:
        """Keep why a request is refused: the parser passes on only that it is."""
        self._refusal = refusal
        return refusal

    def _refuse(self, error: EsTtcError) -> None:
        """Answer with an error where no answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self._in_head:  # the error is about another request than the one in progress
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_answer(error))
        self.transport.close()


def limited_protocol(limits: HttpLimits) -> type[LimitedProtocol]:
    """Return the protocol's class with some limits, as uvicorn takes it."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


def _answer(error: EsTtcError) -> bytes:
    body = orjson.dumps(error.body())
    phrase = HTTPStatus(error.status).phrase
    head = (
        f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
