"""A circuit breaker: an endpoint that has failed several times in a row is left alone for a while."""

import time
from collections.abc import Callable

_LONGEST_SECONDS = 300.0


class CircuitBreaker:
    """Counts failures in a row; opens at the limit, then lets one call through at a time until one succeeds.

    Each trial that fails doubles the time until the next, up to five minutes. Failures of calls that were under way
    when it opened do not prolong it.

    Args:
        failures: In a row until it opens.
        seconds: Until the first trial.
        now: A clock in seconds that never goes back.
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
    def seconds_left(self) -> float:
        """Until the next call may go through; 0 where one may now."""
        if self._opened_at is None:
            return 0.0
        since = self._opened_at if self._trial is None else self._trial
        return max(0.0, since + self._pause - self._now())

    def enter(self) -> bool:
        """Whether a call may go through now; where the breaker is open, one that may is its trial."""
        if self._opened_at is None:
            return True
        if self.seconds_left > 0:
            return False
        self._trial = self._now()  # a trial that is never told of (its task was cancelled) ends by this clock
        return True

    def succeeded(self) -> None:
        """Tell that the endpoint has answered."""
        self._failures = 0
        self._pause = self._first
        self._opened_at = self._trial = None

    def failed(self) -> None:
        """Tell that it has not."""
        if self._opened_at is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._opened_at = self._now()
        elif self._trial is not None:
            self._opened_at, self._trial = self._now(), None
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)
