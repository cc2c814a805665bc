"""One request to an engine: repeated where that may help, with its failures converted to errors."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import stamina

from es_ttc.engine.http import TLS_ERRORS
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError

BUSY = frozenset({429, 502, 503, 504})
ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.2
MAX_WAIT_SECONDS = 5.0
READ_POSTS = frozenset(
    {"_search", "_count", "_msearch", "_mget", "_refresh", "_analyze", "_validate", "_termvectors", "_field_caps"}
)
"""Last parts of paths whose POST changes nothing, so that it may be repeated."""

_FIXES = {
    "CERTIFICATE_VERIFY_FAILED": "name the file with the certificate of its CA in ES_TTC_CA_CERTS",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: give http:// in place of https://",
    "Server disconnected": "if it speaks TLS, give https:// in place of http://",
}
"""By a part of an error's text what to do."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The engine's response; the body is decoded, or None if it was empty."""

    status: int
    body: Any


class Unreachable(Exception):
    """The engine returned no response.

    Args:
        may_repeat: Whether to repeat the request: not if the time is spent, nor if the certificate is not accepted.
        unsent: Whether nothing was sent, because no connection was made: even a write may then go to another node.
    """

    def __init__(self, reason: str, *, may_repeat: bool, unsent: bool = False) -> None:
        super().__init__(reason)
        self.may_repeat = may_repeat
        self.unsent = unsent


def is_no_engine(error: EsTtcError) -> bool:
    """Return whether an error says that no engine answers, and not that its certificate is not accepted."""
    cause = error.__cause__
    return isinstance(cause, Unreachable) and not any(isinstance(each, TLS_ERRORS) for each in _origins(cause))


def _origins(error: BaseException) -> list[BaseException]:
    """Return an error and those behind it, each once: the clients' own stand between, and may name each other."""
    found: list[BaseException] = []
    after: BaseException | None = error
    while after is not None and not any(after is each for each in found):
        found.append(after)
        after = after.__cause__ or after.__context__
    return found


def why_unconnected(error: object) -> str:
    """Return in words why a client has no connection; the error's own text if it is of no common kind."""
    for part, fix in _FIXES.items():
        if part in str(error):
            return f"{error}; {fix}"
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, TLS_ERRORS):
        return str(error)
    match error.os_error:
        case ConnectionRefusedError():
            return f"nothing listens on port {error.port} (connection refused)"
        case socket.gaierror():
            return f"the name [{error.host}] is unknown"
        case reason:
            return str(reason.strerror or reason)


async def answer_of(
    send: Callable[[], Awaitable[HttpAnswer]],
    method: str,
    path: str,
    *,
    engine: str,
    nodes: int,
    seconds: float,
    accept: Sequence[int] = (),
) -> HttpAnswer:
    """Return the response to a request; a read is repeated where that may help."""
    repeatable = method in ("GET", "HEAD") or (method == "POST" and path.rpartition("/")[2] in READ_POSTS)
    other_nodes = nodes > 1

    def worth_repeating(error: Exception) -> bool:
        if isinstance(error, Unreachable):
            return error.may_repeat and (repeatable or (error.unsent and other_nodes))
        return repeatable and isinstance(error, EngineUnavailable)

    attempts = stamina.retry_context(
        on=worth_repeating,
        attempts=max(ATTEMPTS, nodes) if repeatable or other_nodes else 1,
        timeout=seconds,
        wait_initial=FIRST_WAIT_SECONDS,
        wait_max=MAX_WAIT_SECONDS,
        wait_jitter=FIRST_WAIT_SECONDS,
    )
    try:
        async for attempt in attempts:
            with attempt:
                answer = await send()
                if answer.status >= 300 and answer.status not in accept:
                    raise _failure(method, path, answer)
                return answer
    except Unreachable as error:
        raise EngineUnavailable(f"{engine} cannot be reached: {error}") from error
    raise AssertionError("stamina ends in an answer or in an error")


def require_all_shards(answer: Mapping[str, Any], index: str) -> None:
    """Raise an error for a partial answer: missing documents would be taken for deleted ones, or for none."""
    if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
        raise EngineUnavailable(f"index [{index}] answered from a part of its shards only: try again")


def not_json(engine: str, method: str, path: str) -> EngineError:
    """Return the error for a response that cannot be decoded."""
    return EngineError(f"{engine} answered {method} {path} with something that is not JSON")


def reason_of(error: Any) -> str:
    """Return ``type: reason`` of an error object, with its causes."""
    if not isinstance(error, Mapping):
        return str(error)
    roots = error.get("root_cause") or [error]
    parts = [f"{roots[0].get('type')}: {roots[0].get('reason')}"]
    cause = error.get("caused_by")
    while isinstance(cause, Mapping):
        parts.append(str(cause.get("reason")))
        cause = cause.get("caused_by")
    return ", caused by ".join(dict.fromkeys(parts))


def _failure(method: str, path: str, answer: HttpAnswer) -> EngineError:
    kind = EngineUnavailable if answer.status in BUSY else EngineError
    body = answer.body
    reason = reason_of(body.get("error", body)) if isinstance(body, Mapping) else str(body or "no reason given")
    ours, _, why = reason.partition(": ")
    said_by_gateway = ours.startswith("ttc_") and why
    return kind(
        why if said_by_gateway else f"the engine answered {method} {path} with {answer.status}: {reason}",
        upstream_status=answer.status,
        upstream=body,
    )
