"""Calls on threads that whoever waits for them may give up: a thread cannot be stopped, what it waits for can."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_here = threading.local()


class Call:
    """One call.

    Attributes:
        given_up: Done when nobody waits for the call any more.
    """

    def __init__(self) -> None:
        self.given_up: Future[None] = Future()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def run(self, function: Callable[[], T]) -> T:
        """Call a function; on this thread it is the current call meanwhile."""
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def give_up(self) -> None:
        """Say that nobody waits any more; what was to end then is ended."""
        with self._lock:
            if not self.given_up.done():
                self.given_up.set_result(None)
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call a function as soon as the call is given up; at once where it has been."""
        with self._lock:
            self._ends.append(end)
            if self.given_up.done():
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


def current() -> Call:
    """Return the call that this thread is in; outside one, a call that nobody gives up."""
    return getattr(_here, "call", None) or Call()
