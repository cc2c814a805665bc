"""HTTP for clients: uvicorn's protocol with limits of sizes and times, and errors in the engines' format.

A request that exceeds a limit is refused before the application sees it. The connection of a client that is too slow is
closed. An upgrade is never taken: the request is answered as if it had not asked for one (RFC 9110, section 7.8).
Trailers are dropped: whoever checks or removes headers before the gateway sees only those before the body.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from es_ttc.engine.addresses import not_a_path
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.settings import GatewaySettings

_WINDOW_SECONDS = 5.0
_HEADER_SECONDS = 20.0
"""Maximum time from the first byte of a request to the end of its headers."""
_SEND_SECONDS = 60.0
"""Maximum time for which a client may read nothing of its response."""
_BODY_SECONDS = 600.0
"""Maximum time that a client may take to send a body; time in which the engine is slow does not count."""
_MIN_BODY_RATE = 500
"""Minimum rate at which a client must send a body, in bytes per second."""
_LAST_REQUEST_SECONDS = 1.0
"""Time for a request on an idle connection of a server that ends: it may be on its way."""
_FORMS = (b"http://", b"https://")  # absolute form: the scheme and the host are dropped, the path is what counts


class TargetTooLong(InvalidRequest):
    """A request's first line is longer than the engine accepts."""

    type = "too_long_http_line_exception"


class HeadersTooLong(InvalidRequest):
    """A request's headers are longer than the engine accepts."""

    type = "too_long_http_header_exception"


class RequestTimeout(EsTtcError):
    """A client took too long to send its request."""

    status = 408
    type = "ttc_request_timeout_exception"


class UnknownTransferCoding(EsTtcError):
    """A request's body has another transfer coding than chunked."""

    status = 501
    type = "ttc_transfer_coding_exception"


class TooManyConnections(EsTtcError):
    """More clients are connected than allowed."""

    status = 503
    type = "rejected_execution_exception"


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a client; :func:`limited_protocol` sets its limits."""

    limits: ClassVar[GatewaySettings]
    leaving: ClassVar[bool] = False
    """Whether the server ends: each connection is closed after its next response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: EsTtcError | None = None
        self._in_head = True
        self._unparsed = 0  # bytes since the parser last completed an element
        self._header_bytes = 0
        self._body_bytes = 0  # of the present time window
        self._body_time = 0.0
        self._was_paused = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless too many are open."""
        super().connection_made(transport)
        self._start("head", self.limits.idle_timeout, self.transport.close)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(TooManyConnections(f"{self.limits.max_connections} connections are open: try again"))
        elif self.leaving:
            self.shutdown()

    def shutdown(self) -> None:
        """Answer the request that is in progress, or that comes within a moment, and close the connection."""
        if self._is_idle:
            self.loop.call_later(_LAST_REQUEST_SECONDS, self._close_idle)
        elif self.cycle is not None:
            self.cycle.keep_alive = False

    @property
    def _is_idle(self) -> bool:
        """Whether no request has begun."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return (cycle is None or cycle.response_complete) and self._unparsed == 0

    def _close_idle(self) -> None:
        if self._is_idle:
            self.transport.close()

    def _start(self, timer: str, seconds: float, action: Callable[[], None]) -> None:
        """Start a timer, again if it runs."""
        self._stop(timer)
        self._timers[timer] = self.loop.call_later(seconds, action)

    def _stop(self, timer: str) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release a connection."""
        for timer in (*self._timers,):
            self._stop(timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.transport.is_closing():
            return
        if self._in_head and self._unparsed == 0:  # of a request's first byte: further bytes do not restart the timer
            self._start("head", _HEADER_SECONDS, self._head_is_late)
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(self._refusal or InvalidRequest("invalid HTTP request received"))
            return
        longest = 1024 * (self.limits.max_target_kb + self.limits.max_header_kb)
        if self._unparsed > longest + len(data) and not self.transport.is_closing():
            self._refuse(self._headers_too_long())

    def _parse(self, data: memoryview) -> None:
        """Parse bytes; where a head asks for an upgrade, the parser stops, and a new one reads it without that."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
                self.parser.feed_data(head)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((first, *lines, b"", b""))

    def on_url(self, url: bytes) -> None:
        """Handle a part of the request's target."""
        super().on_url(url)
        if len(self.url) > (most := self.limits.max_target_kb * 1024):
            raise self._remember(
                TargetTooLong(
                    f"the request's path and query string are longer than {most} bytes: send the "
                    "parameters in the body, or raise [max_target_kb] and the engine's "
                    "[http.max_initial_line_length]"
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.limits.max_header_kb * 1024:
            raise self._remember(self._headers_too_long())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the response to a request."""
        if not self._has_path():
            raise self._remember(not_a_path(self.url))
        if self.parser.should_upgrade():
            return
        self._check_framing()
        self._in_head, self._unparsed = False, 0
        self._stop("head")
        super().on_headers_complete()
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False
        self._body_bytes, self._body_time, self._was_paused = 0, 0.0, False
        self._start("body", self._window, self._check_body_rate)

    def on_chunk_header(self) -> None:
        """Handle the beginning of a chunk of the body."""
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body."""
        self._unparsed = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        self._in_head, self._unparsed, self._header_bytes = True, 0, 0
        self._stop("body")
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for a client that does not read its response, up to a timeout."""
        super().pause_writing()
        self._start("send", _SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume writing."""
        self._stop("send")
        super().resume_writing()

    @property
    def _window(self) -> float:
        return min(_WINDOW_SECONDS, _BODY_SECONDS)

    def _has_path(self) -> bool:
        """Return whether the request's target is a path, or `*` of OPTIONS, or a URL, which gets a path."""
        if self.parser.get_method() == b"CONNECT":
            return False
        if self.url.startswith(b"/"):
            return True
        if self.url == b"*":
            return self.parser.get_method() == b"OPTIONS"
        scheme = next((form for form in _FORMS if self.url[: len(form)].lower() == form), None)
        if scheme is None:
            return False
        rest = self.url[len(scheme) :]
        authority = rest.partition(b"?")[0].partition(b"/")[0]
        if b"/" not in rest:  # no path means the root
            self.url = scheme + authority + b"/" + rest[len(authority) :]
        return bool(authority)

    def _check_framing(self) -> None:
        """Refuse what another server may read differently: several hosts, or a coding besides chunked (RFC 9112)."""
        codings = b", ".join(value for name, value in self.headers if name == b"transfer-encoding").strip().lower()
        if codings not in (b"", b"chunked"):
            coding = codings.decode("latin-1")
            raise self._remember(
                UnknownTransferCoding(f"the Transfer-Encoding [{coding}] is not supported: send [chunked] alone")
            )
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise self._remember(InvalidRequest("the request has several [Host] headers: send one"))

    def _head_is_late(self) -> None:
        self._refuse(RequestTimeout(f"the request's headers took longer than {_HEADER_SECONDS:g} s"))

    def _check_body_rate(self) -> None:
        """Check the bytes of the body in the last seconds, without those in which the gateway does not read."""
        paused = self.flow.read_paused
        if not paused and not self._was_paused:
            self._body_time += self._window
            if self._body_bytes < _MIN_BODY_RATE * self._window:
                reason = f"the body came slower than {_MIN_BODY_RATE} bytes a second"
                self._refuse(RequestTimeout(reason))
                return
            if self._body_time >= _BODY_SECONDS:
                self._refuse(RequestTimeout(f"the body took longer than {_BODY_SECONDS:g} s"))
                return
        self._was_paused, self._body_bytes = paused, 0
        self._start("body", self._window, self._check_body_rate)

    def _headers_too_long(self) -> HeadersTooLong:
        return HeadersTooLong(
            f"the request's headers are longer than {self.limits.max_header_kb * 1024} bytes: send fewer, or raise "
            "[max_header_kb] and the engine's [http.max_header_size]"
        )

    def _remember(self, refusal: EsTtcError) -> EsTtcError:
        """Keep the reason of a refusal, because the parser passes on only that there is one."""
        self._refusal = refusal
        return refusal

    def _refuse(self, error: EsTtcError) -> None:
        """Send an error if no response has begun, and close the connection."""
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self._in_head:  # the error concerns another request than the one in progress
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = orjson.dumps(error.body())
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        product = b"".join(b"%s: %s\r\n" % header for header in getattr(self.config.app, "product_headers", ()))
        rest = product + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
        self.transport.write(head.encode() + rest)
        self.transport.close()


def limited_protocol(settings: GatewaySettings) -> type[LimitedProtocol]:
    """Return the protocol class with the limits of the settings, for uvicorn."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": settings})
