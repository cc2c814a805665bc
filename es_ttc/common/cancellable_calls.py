"""Calls in threads that can be cancelled: a thread cannot be stopped, but its resource can be closed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from es_ttc.errors import DeadlineExceeded

T = TypeVar("T")

_here = threading.local()


class Call:
    """One call."""

    def __init__(self) -> None:
        self.given_up: Future[None] = Future()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def run(self, function: Callable[[], T]) -> T:
        """Call a function; in this thread it is the current call meanwhile."""
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def give_up(self) -> None:
        """Cancel the call, and run the registered functions."""
        with self._lock:
            if not self.given_up.done():
                self.given_up.set_result(None)
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """During the block, call a function as soon as the call is cancelled; at once if it is already."""
        with self._lock:
            self._ends.append(end)
            if self.given_up.done():
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


def stop_if_given_up() -> None:
    """End the call of this thread if its caller no longer waits for it."""
    if current().given_up.done():
        raise DeadlineExceeded("the call was given up")


def current() -> Call:
    """Return the call of this thread; outside one, a call that is never cancelled."""
    return getattr(_here, "call", None) or Call()
