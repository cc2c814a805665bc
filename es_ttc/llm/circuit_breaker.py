"""A circuit breaker: an endpoint that has failed several times in a row is not contacted for a while."""

import time
from collections.abc import Callable

_LONGEST_SECONDS = 300.0


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
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)
