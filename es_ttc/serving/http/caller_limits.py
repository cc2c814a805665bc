"""Limits of what each caller may have answered at a time, and rescored per second."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from es_ttc.common.caches import LruCache
from es_ttc.errors import TooManyRequests
from es_ttc.serving.http.caller import CallerKeys
from es_ttc.serving.http.raw_request import RawRequest

_CREDENTIALS = frozenset({b"authorization", b"cookie", b"es-security-runas-user", b"x-proxy-user", b"x-proxy-roles"})
_MAX_CALLERS = 10_000


class CallerLimits:
    """Limits of each caller's concurrent requests, and of the windows that are rescored for it per second; 0 for none.

    A caller is who sends the same credentials, or without any the address that a request comes from. Each process of a
    gateway counts for itself.
    """

    def __init__(self, requests: int, windows: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._windows = windows
        self._clock = clock
        self._keys = CallerKeys()
        self._in_flight: Counter[bytes] = Counter()
        self._allowances: LruCache[bytes, tuple[float, float]] = LruCache(_MAX_CALLERS)

    @contextmanager
    def request(self, incoming: RawRequest) -> Iterator[None]:
        """Count a request of a caller while it is answered."""
        if not self._requests:
            yield
            return
        key = self.key(incoming)
        if self._in_flight[key] >= self._requests:
            raise TooManyRequests(
                f"this caller has {self._requests} requests that are being answered: wait for one of them "
                "[max_caller_requests]"
            )
        self._in_flight[key] += 1
        try:
            yield
        finally:
            self._in_flight[key] -= 1
            if not self._in_flight[key]:
                del self._in_flight[key]

    def windows(self, incoming: RawRequest, count: int = 1) -> None:
        """Count windows of one search that are to be rescored for a caller.

        A search is admitted if one window is left. What its further ones take is missing for the next search.
        """
        if not self._windows:
            return
        key, now, burst = self.key(incoming), self._clock(), max(1.0, self._windows)
        left, since = self._allowances.get(key) or (burst, now)
        left = min(burst, left + (now - since) * self._windows)
        if left < 1:
            self._allowances.put(key, (left, now))
            raise TooManyRequests(
                f"{self._windows:g} windows per second are rescored for one caller: send fewer searches with a [ttc] "
                "section [max_caller_windows_per_second]",
                retry_after=max(1, math.ceil((1 - left) / self._windows)),
            )
        self._allowances.put(key, (left - count, now))

    def key(self, incoming: RawRequest) -> bytes:
        """Return the key of the caller of a request."""
        credentials = [pair for pair in incoming.headers if pair[0] in _CREDENTIALS]
        return self._keys.of(credentials, b"" if credentials else incoming.client.encode())
