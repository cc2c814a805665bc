"""Callers and targets whose searches the engine has recently answered.

Encoding a query at the same time as the first pass saves time. But anyone could cause this work with a search that the
engine refuses, or of a target that does not exist. So the query of the first search of each caller and target is
encoded after the engine's answer.
"""

import time
from collections.abc import Callable

from es_ttc.common.caches import ExpiringCache
from es_ttc.serving.http.caller import CallerKeys, RawHeaders

_MAX_REMEMBERED = 10_000
_SECONDS = 600.0


class AcceptedCallers:
    """Remembers callers and targets by a keyed hash; no credential is stored.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = CallerKeys()
        self._searches: ExpiringCache[bytes, None] = ExpiringCache(_MAX_REMEMBERED, _SECONDS, clock)

    def __contains__(self, search: tuple[RawHeaders, bytes]) -> bool:
        """Return whether the engine has recently answered a search with these headers of this target."""
        return self._keys.of(*search) in self._searches

    def add(self, headers: RawHeaders, target: bytes) -> None:
        """Remember that the engine has answered a search."""
        self._searches.put(self._keys.of(headers, target), None)
