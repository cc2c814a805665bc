"""SIGTERM handled like Ctrl-C: it cancels the coroutine that runs, and raises KeyboardInterrupt in other code.

An exception in the middle of an event loop's own work may leave a thread that nothing ends, or a request that nothing
awaits. asyncio cancels the main task on Ctrl-C for that reason; here SIGTERM does, also where Ctrl-C is ignored, as in
a background job of a shell.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

T = TypeVar("T")


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C in this context, e.g. so that a temporary index is deleted. For the main thread."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class InterruptibleRunner:
    """Like `asyncio.Runner`; SIGTERM too cancels its coroutine, where that is handled like Ctrl-C."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._runner.get_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine."""
        in_main_thread = threading.current_thread() is threading.main_thread()  # others can set no handler
        if not in_main_thread or signal.getsignal(signal.SIGTERM) is not _interrupt:
            return self._runner.run(coroutine)
        main = _MainTask()
        try:
            return self._runner.run(main.run(coroutine))
        except asyncio.CancelledError:
            if main.is_interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGTERM, _interrupt)


class _MainTask:
    """The task of a coroutine, which SIGTERM cancels."""

    def __init__(self) -> None:
        self.is_interrupted = False

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in this task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        signal.signal(signal.SIGTERM, partial(self._interrupt, task, asyncio.get_running_loop()))
        return await coroutine

    def _interrupt(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, *_: object) -> None:
        if task.done():
            raise KeyboardInterrupt
        self.is_interrupted = True
        task.cancel()
        loop.call_soon_threadsafe(_wake_up)


def _wake_up() -> None:
    """Do nothing: a loop that waits for the network goes on when it is called."""


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
