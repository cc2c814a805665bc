"""Work off the event loop: few threads, a short queue, and late work that is left behind."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from es_ttc.calls import Call
from es_ttc.errors import TooManyRequests

P = ParamSpec("P")
T = TypeVar("T")


class BoundedPool:
    """Threads with a bounded queue.

    Args:
        name: What the threads do; stands in messages and thread names.
        threads: Calls that run at the same time.
        queue: Calls that may wait.
    """

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"es-ttc-{name}")
        self._room = threading.BoundedSemaphore(threads + queue)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on a thread of the pool.

        When the caller is cancelled a call that has begun is given up: it runs on alone, without what it was to end.

        Raises:
            TooManyRequests: The queue is full.
        """
        if not self._room.acquire(blocking=False):
            raise TooManyRequests(f"too much is waiting for {self._name}: try again, or allow more threads")
        call = Call()
        try:
            future = self._executor.submit(call.run, partial(function, *args, **kwargs))
        except RuntimeError:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            call.give_up()
            raise

    def close(self) -> None:
        """Drop what is waiting; what runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)
