"""Whose searches of what the engine has answered lately: only those are worth encoding before it answers.

Encoding a query beside the engine's first pass saves time. For a caller whom the engine refuses, or a target that does
not exist, it would be work that anyone can ask for, so the first search of each waits for the engine.
"""

import hmac
import secrets
import time
from collections.abc import Callable

from es_ttc.common.caches import ExpiringCache
from es_ttc.serving.http.caller import RawHeaders

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"es-security-runas-user", b"x-proxy-user", b"x-proxy-roles"})
_MOST = 10_000
_SECONDS = 600.0


class AcceptedCallers:
    """Remembers callers and targets by a keyed hash; no credential is kept.

    Args:
        clock: Seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._searches: ExpiringCache[bytes, None] = ExpiringCache(_MOST, _SECONDS, clock)

    def __contains__(self, search: tuple[RawHeaders, bytes]) -> bool:
        """Whether the engine has answered a search with these headers of this target lately."""
        return self._digest(*search) in self._searches

    def add(self, headers: RawHeaders, target: bytes) -> None:
        """Remember that the engine has answered a search."""
        self._searches.put(self._digest(headers, target), None)

    def _digest(self, headers: RawHeaders, target: bytes) -> bytes:
        parts = [target, *(part for name, value in headers if name in _CREDENTIALS for part in (name, value))]
        return hmac.digest(self._key, b"".join(b"%d:%b" % (len(part), part) for part in parts), "sha256")
