"""One model endpoint over HTTP: concurrency, timeouts, repetitions, a circuit breaker; no text or key is logged."""

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import stamina
from pydantic import SecretStr
from yarl import URL

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure

_MAX_SECONDS = 300.0


class CircuitBreaker:
    """Counts consecutive failures; opens at the limit, then allows one call at a time until one succeeds.

    Each failed trial doubles the time until the next, up to five minutes. Failures of calls that were running when it
    opened do not prolong it.
    """

    def __init__(self, failures: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._first = seconds
        self._now = now
        self._failures = 0
        self._pause = seconds
        self._opened_at: float | None = None
        self._trial: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is open: until a call has succeeded, the trials included."""
        return self._opened_at is not None

    @property
    def seconds_left(self) -> float:
        """Time until the next call is allowed; 0 if one is allowed now."""
        if self._opened_at is None:
            return 0.0
        since = self._opened_at if self._trial is None else self._trial
        return max(0.0, since + self._pause - self._now())

    def enter(self) -> bool:
        """Return whether a call is allowed now; while the breaker is open, an allowed call is its trial."""
        if self._opened_at is None:
            return True
        if self.seconds_left > 0:
            return False
        self._trial = self._now()  # a trial without a result (its task was cancelled) expires by this clock
        return True

    def succeeded(self) -> None:
        """Record that the endpoint has answered."""
        self._failures = 0
        self._pause = self._first
        self._opened_at = self._trial = None

    def failed(self) -> None:
        """Record that it has not answered."""
        if self._opened_at is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened_at = self._now()
        elif self._trial is not None:
            self._opened_at, self._trial = self._now(), None
            self._pause = min(2 * self._pause, _MAX_SECONDS)


logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS = 0.25
_MAX_WAIT_SECONDS = 20.0
_GRACE_SECONDS = 0.05
_MAX_ANSWER_BYTES = 64 * 2**20
_MAX_REASON = 300  # characters of an endpoint's own reason
_REPEATED = 12  # if an endpoint's reason contains this many characters of the request, it is not displayed
_MALFORMED = LlmFailure.MALFORMED
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_NO_OTHER_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
_DOWN = frozenset({LlmFailure.UNREACHABLE, LlmFailure.TIMEOUT, LlmFailure.SERVER, LlmFailure.MALFORMED})
"""Results that count as a failure of the endpoint. An endpoint that rejects a request, or is busy, works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Address and limits of an endpoint."""

    url: URL
    api_key: SecretStr | None = None
    ca_certs: Path | None = None
    timeout: float = 60.0
    attempts: int = 4
    concurrency: int = 8
    breaker_failures: int = 5
    breaker_seconds: float = 10.0


class Endpoint:
    """Sends JSON to one endpoint. Use in one event loop, and close at the end: a connection opens at the first call."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._tls = _tls(settings.ca_certs)
        self._room = asyncio.Semaphore(settings.concurrency)
        self._breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_seconds)
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Its address without credentials, for messages."""
        return str(self._settings.url.with_user(None).with_query(None))

    @property
    def breaker_open(self) -> bool:
        """Whether its circuit breaker is open."""
        return self._breaker.is_open

    @property
    def seconds_closed(self) -> float:
        """Time for which it is not contacted after failures; 0 if it is."""
        return self._breaker.seconds_left

    async def close(self) -> None:
        """Close the connections; the next call opens others."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Send a GET request; see :meth:`post`."""
        return await self._repeated("GET", path, None, seconds)

    async def post(self, path: str, body: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Send one JSON request to a path below the address, "" for itself, and return the decoded answer."""
        return await self._repeated("POST", path, body, seconds)

    async def _repeated(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float | None
    ) -> dict[str, Any]:
        started = time.monotonic()
        deadline = None if seconds is None else started + seconds
        attempts = stamina.retry_context(
            on=_wait_before_repeating,
            attempts=self._settings.attempts,
            timeout=seconds,
            wait_initial=_FIRST_WAIT_SECONDS,
            wait_max=_MAX_WAIT_SECONDS,
            wait_jitter=_FIRST_WAIT_SECONDS,
        )
        try:
            # An attempt has its own timeout, which the breaker counts; this one ends the wait for a free place.
            async with asyncio.timeout(None if seconds is None else seconds + _GRACE_SECONDS):
                async for attempt in attempts:
                    with attempt:
                        return await self._once(method, path, body, deadline)
        except TimeoutError as error:
            spent = time.monotonic() - started
            raise LlmError(
                f"the model at [{self.url}] gave no answer in {spent:.2f} s, the time it had", LlmFailure.TIMEOUT
            ) from error
        raise AssertionError("stamina ends in an answer or in an error")

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float | None
    ) -> dict[str, Any]:
        """Make one attempt, and report its result to the breaker."""
        async with self._room:
            if not self._breaker.enter():
                raise LlmError(
                    f"the model at [{self.url}] has failed {self._settings.breaker_failures} times in a row and is "
                    f"left alone for another {self.seconds_closed:.0f} s",
                    LlmFailure.CIRCUIT_OPEN,
                    retry_after=self.seconds_closed,
                )
            try:
                answer = await self._exchange(method, path, body, self._seconds_for_one(deadline))
            except LlmError as error:
                if error.failure in _DOWN:
                    self._breaker.failed()
                else:
                    self._breaker.succeeded()
                logger.info("model endpoint: %s %s failed: %s", method, path, error.failure)
                raise
            self._breaker.succeeded()
            return answer

    def _seconds_for_one(self, deadline: float | None) -> float:
        left = self._settings.timeout if deadline is None else deadline - time.monotonic()
        return max(0.0, min(self._settings.timeout, left))

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._settings.concurrency, ssl=self._tls)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._settings.api_key is not None:
            headers["Authorization"] = f"Bearer {self._settings.api_key.get_secret_value()}"
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method,
                    self._settings.url.joinpath(*path.strip("/").split("/")) if path else self._settings.url,
                    data=None if body is None else orjson.dumps(body),
                    headers=headers,
                    allow_redirects=False,  # key and prompt are sent only to the configured address
                    timeout=_NO_OTHER_TIMEOUT,
                ) as response,
            ):
                content = await _read(response)
        except TimeoutError as error:
            raise LlmError(
                f"the model at [{self.url}] gave no answer{f' to [{path}]' if path else ''} in {seconds:.3g} s",
                LlmFailure.TIMEOUT,
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LlmError(f"the model at [{self.url}] cannot be reached: {error}", LlmFailure.UNREACHABLE) from error
        if response.status != HTTPStatus.OK:
            raise self._refusal(path, body, response, content)
        return self._decoded(path, content)

    def _answered(self, path: str) -> str:
        return f"the model at [{self.url}] answered{f' [{path}]' if path else ''}"

    def _decoded(self, path: str, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise LlmError(f"{self._answered(path)} with something else than a JSON object", _MALFORMED)
        return answer

    def _refusal(
        self, path: str, body: Mapping[str, Any] | None, response: aiohttp.ClientResponse, content: bytes
    ) -> LlmError:
        status = response.status
        where = f"{self._answered(path)} with {status}"
        if 300 <= status < 400:
            return LlmError(
                f"{where}, a redirect, which is not followed: give the final address", LlmFailure.REFUSED, status=status
            )
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            failure = LlmFailure.RATE_LIMITED
        elif status in _TRANSIENT or status >= 500:
            failure = LlmFailure.SERVER
        else:
            failure = LlmFailure.REFUSED
        after = _retry_after(response.headers.get("Retry-After"))
        return LlmError(f"{where}: {_reason(content, body)}", failure, status=status, retry_after=after)


def _wait_before_repeating(error: Exception) -> bool | float:
    """Return whether to repeat the request, and the delay if the endpoint names one."""
    if not isinstance(error, LlmError):
        return False
    match error.failure:
        case LlmFailure.REFUSED | LlmFailure.CIRCUIT_OPEN:
            return False
        case LlmFailure.RATE_LIMITED | LlmFailure.SERVER if error.upstream_status not in _TRANSIENT:
            return False
        case _ if error.retry_after is not None:
            if error.retry_after > _MAX_WAIT_SECONDS:
                return False
            return error.retry_after + random.uniform(0, _FIRST_WAIT_SECONDS)  # noqa: S311 - not everyone at once
        case _:
            return True


def _retry_after(value: str | None) -> float | None:
    """Read a ``Retry-After`` header: seconds, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone
        return None


def _reason(content: bytes, sent: Mapping[str, Any] | None) -> str:
    """Return an endpoint's own reason, unless it repeats the request, because reasons are logged."""
    try:
        error: Any = json.loads(content)
        error = error.get("error", error)
        reason = error.get("message", "") if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        reason = ""
    text = " ".join(str(reason).split())
    if _repeats(text, " ".join(" ".join(_texts(sent)).split())):
        return "its reason is not shown, since it repeats the request"
    return (text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}...") or "no reason given"


def _repeats(text: str, sent: str) -> bool:
    return any(text[start : start + _REPEATED] in sent for start in range(len(text) - _REPEATED + 1))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a request that may come from a user."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("model", "response_format", "json_schema"):
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(2**16):
        size += len(chunk)
        if size > _MAX_ANSWER_BYTES:
            raise LlmError(f"a model's answer is longer than {_MAX_ANSWER_BYTES // 2**20} MiB", _MALFORMED)
        parts.append(chunk)
    return b"".join(parts)


def api_base(url: str, setting: str) -> URL:
    """Return the address of an OpenAI-compatible API, which ends in ``/v1``."""
    try:
        base = URL(url)
    except ValueError as error:
        raise ConfigurationError(f"[{setting}] is no URL: {error}") from error
    if base.scheme not in ("http", "https") or not base.host:
        raise ConfigurationError(f"[{setting}] must be an http or https URL such as http://127.0.0.1:8000/v1")
    if base.user is not None or base.password is not None:
        raise ConfigurationError(f"[{setting}] holds credentials: give a key in its own setting instead")
    base = base.with_query(None).with_fragment(None)
    parts = [part for part in base.parts if part.strip("/")]
    return base.with_path("/" + "/".join([*parts, *(() if parts[-1:] == ["v1"] else ("v1",))]))


def _tls(ca_certs: Path | None) -> ssl.SSLContext | bool:
    if ca_certs is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_certs)
    except OSError as error:
        raise ConfigurationError(f"certificates cannot be read, got [{ca_certs}]: {error}") from error
