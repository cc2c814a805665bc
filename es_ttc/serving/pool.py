"""Work off the event loop: few threads, a short queue for each kind of request, turns among the kinds.

Kinds that wait take turns at the threads that come free, however much waits of each. What is no search never has all
the threads, where there are two or more: a search that comes in need not wait for it to end.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from es_ttc.common.cancellable_calls import Call
from es_ttc.errors import TooManyRequests

SEARCH = "search"
"""The kind of work of whatever says nothing else: searches."""
_SEARCHES = frozenset({SEARCH, "score"})
"""Kinds of work that somebody's search waits for; an engine with our plugin asks for scores."""

P = ParamSpec("P")
T = TypeVar("T")

_kind: ContextVar[str] = ContextVar("kind of work", default=SEARCH)


@contextmanager
def work_of(kind: str) -> Iterator[None]:
    """Let what is run from here on, and what is begun here, count as work of a kind."""
    token = _kind.set(kind)
    try:
        yield
    finally:
        _kind.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A call that waits for a thread."""

    work: Callable[[], Any]
    result: asyncio.Future[Any]


class BoundedPool:
    """Threads with a bounded queue for each kind of work.

    It belongs to one event loop at a time.

    Args:
        name: What the threads do; stands in messages and thread names.
        threads: Calls that run at the same time.
        queue: Calls of one kind that may wait.
    """

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._name = name
        self._threads = threads
        self._queue = queue
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"es-ttc-{name}")
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._running: Counter[str] = Counter()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on a thread of the pool.

        When the caller is cancelled a call that has begun is given up: it runs on alone, without what it was to end.

        Raises:
            TooManyRequests: The queue of this kind of work is full.
        """
        kind = _kind.get()
        if self._waits(kind) >= self._queue and not self._may_start(kind):
            raise TooManyRequests(
                f"too much is waiting for {self._name} (of kind [{kind}]): try again, or allow more threads"
            )
        running = Call()
        work = partial(running.run, partial(function, *args, **kwargs))
        call = _Waiting(work, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(kind, deque()).append(call)
        self._start()
        try:
            result: T = await call.result
        except asyncio.CancelledError:
            running.give_up()
            raise
        finally:
            self._forget(kind, call)
        return result

    def close(self) -> None:
        """Drop what is waiting; what runs is not waited for."""
        for calls in self._waiting.values():
            for call in calls:
                call.result.cancel()
        self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _waits(self, kind: str) -> int:
        return len(self._waiting.get(kind, ()))

    def _may_start(self, kind: str) -> bool:
        """Whether there is a thread for a call of a kind now."""
        running = self._running.total()
        others = running - sum(self._running[one] for one in _SEARCHES)
        most_others = max(1, self._threads - 1)
        return running < self._threads and (kind in _SEARCHES or others < most_others)

    def _start(self) -> None:
        """Give the free threads to the kinds that wait, in turn."""
        while (kind := next((one for one in self._waiting if self._may_start(one)), None)) is not None:
            calls = self._waiting.pop(kind)
            call = calls.popleft()
            if calls:
                self._waiting[kind] = calls  # behind the other kinds
            running = self._executor.submit(call.work)
            self._running[kind] += 1
            loop = call.result.get_loop()
            running.add_done_callback(partial(self._ended_on_thread, loop, kind, call))

    def _ended_on_thread(self, loop: asyncio.AbstractEventLoop, kind: str, call: _Waiting, ended: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended, kind, call, ended)

    def _ended(self, kind: str, call: _Waiting, ended: Future[Any]) -> None:
        self._running[kind] -= 1
        if not call.result.done():
            _hand_on(ended, call.result)
        self._start()

    def _forget(self, kind: str, call: _Waiting) -> None:
        """Take a call out of the queue whose caller has left before it began."""
        calls = self._waiting.get(kind)
        if calls is not None and call in calls:
            calls.remove(call)
            if not calls:
                del self._waiting[kind]


def _hand_on(ended: Future[Any], result: asyncio.Future[Any]) -> None:
    """Give a call's outcome to whoever waits for it."""
    if ended.cancelled():
        result.cancel()
        return
    error = ended.exception()
    if error is None:
        result.set_result(ended.result())
    elif isinstance(error, StopIteration):  # futures do not take it
        result.set_exception(RuntimeError(f"a call raised {error!r}"))
    else:
        result.set_exception(error)
