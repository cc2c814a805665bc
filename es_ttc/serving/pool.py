"""Work off the event loop: bounded pools of threads, offloading of long requests, and splitting of long work.

A pool has one queue for each kind of work. The kinds take turns at free threads, and within a kind the callers. If a
pool has two or more threads, work other than searches never uses all of them, so that a new search does not wait for
its end.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from es_ttc.common.cancellable_calls import Call
from es_ttc.common.long_steps import long_step
from es_ttc.errors import TooManyRequests

SEARCH = "search"
"""The default kind of work."""
_SEARCHES = frozenset({SEARCH, "score"})
"""Kinds of work that a search waits for; ``score`` is for an engine with the plugin."""

_OFFLOAD_THREADS = 2  # more threads would make the event loop wait longer for the interpreter's lock
_INLINE_BYTES = 8192  # for shorter input, a change of threads takes longer than the work

P = ParamSpec("P")
T = TypeVar("T")

_kind: ContextVar[str] = ContextVar("kind of work", default=SEARCH)
_caller: ContextVar[bytes] = ContextVar("caller", default=b"")


@contextmanager
def work_of(kind: str) -> Iterator[None]:
    """Set the kind of work of all calls in this context, including those of tasks created in it."""
    token = _kind.set(kind)
    try:
        yield
    finally:
        _kind.reset(token)


@contextmanager
def work_for(caller: bytes) -> Iterator[None]:
    """Set the caller for whom the work in this context is done."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A call that waits for a thread."""

    work: Callable[[], Any]
    result: asyncio.Future[Any]


class _Turns:
    """The waiting calls of one kind: the callers take turns."""

    def __init__(self) -> None:
        self._of_callers: dict[bytes, deque[_Waiting]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_callers.values()))

    def __iter__(self) -> Iterator[_Waiting]:
        return chain.from_iterable(self._of_callers.values())

    def append(self, caller: bytes, call: _Waiting) -> None:
        """Let a call wait."""
        self._of_callers.setdefault(caller, deque()).append(call)

    def pop(self) -> _Waiting:
        """Remove the oldest call of the caller whose turn it is."""
        caller = next(iter(self._of_callers))
        calls = self._of_callers.pop(caller)
        call = calls.popleft()
        if calls:
            self._of_callers[caller] = calls  # behind the other callers
        return call

    def remove(self, caller: bytes, call: _Waiting) -> None:
        """Remove a call if it still waits."""
        calls = self._of_callers.get(caller, deque())
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._of_callers[caller]


class BoundedPool:
    """Threads with a bounded queue for each kind of work. One event loop uses it at a time."""

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._name = name
        self._threads = threads
        self._queue = queue
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"es-ttc-{name}")
        self._waiting: dict[str, _Turns] = {}
        self._running: Counter[str] = Counter()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on a thread of the pool.

        If the caller is cancelled, a running call is abandoned: it ends by itself, and its result is dropped.
        """
        kind, caller = _kind.get(), _caller.get()
        if self._waits(kind) >= self._queue and not self._may_start(kind):
            raise TooManyRequests(f"{self._queue} calls wait for {self._name}: try again later, or start more gateways")
        running = Call()
        work = partial(running.run, partial(function, *args, **kwargs))
        call = _Waiting(work, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(kind, _Turns()).append(caller, call)
        self._start()
        try:
            result: T = await call.result
            if kind in _SEARCHES:
                await long_step()
        except asyncio.CancelledError:
            running.give_up()
            raise
        finally:
            self._forget(kind, caller, call)
        return result

    def close(self) -> None:
        """Cancel waiting calls; running calls are not waited for."""
        for calls in self._waiting.values():
            for call in calls:
                call.result.cancel()
        self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def searches_wait(self) -> bool:
        """Whether a call that a search waits for waits for a thread."""
        return any(self._waits(kind) for kind in _SEARCHES)

    def _waits(self, kind: str) -> int:
        return len(self._waiting.get(kind, ()))

    def _may_start(self, kind: str) -> bool:
        """Return whether there is a thread for a call of a kind now."""
        running = self._running.total()
        others = running - sum(self._running[one] for one in _SEARCHES)
        most_others = max(1, self._threads - 1)
        return running < self._threads and (kind in _SEARCHES or others < most_others)

    def _start(self) -> None:
        """Start waiting calls on free threads, one kind after the other."""
        while (kind := next((one for one in self._waiting if self._may_start(one)), None)) is not None:
            calls = self._waiting.pop(kind)
            call = calls.pop()
            if calls:
                self._waiting[kind] = calls  # behind the other kinds
            running = self._executor.submit(call.work)
            self._running[kind] += 1
            loop = call.result.get_loop()
            running.add_done_callback(partial(self._ended_on_thread, loop, kind, call))

    def _ended_on_thread(self, loop: asyncio.AbstractEventLoop, kind: str, call: _Waiting, ended: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._ended, kind, call, ended)

    def _ended(self, kind: str, call: _Waiting, ended: Future[Any]) -> None:
        self._running[kind] -= 1
        if not call.result.done():
            _copy_outcome(ended, call.result)
        self._start()

    def _forget(self, kind: str, caller: bytes, call: _Waiting) -> None:
        """Remove a call whose caller was cancelled before it started."""
        calls = self._waiting.get(kind)
        if calls is not None:
            calls.remove(caller, call)
            if not calls:
                del self._waiting[kind]


def _copy_outcome(ended: Future[Any], result: asyncio.Future[Any]) -> None:
    if ended.cancelled():
        result.cancel()
        return
    error = ended.exception()
    if error is None:
        result.set_result(ended.result())
    elif isinstance(error, StopIteration):  # asyncio's futures do not accept it
        result.set_exception(RuntimeError(f"a call raised {error!r}"))
    else:
        result.set_exception(error)


class Offload:
    """Runs functions with long input on threads, and those with short input at once."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_OFFLOAD_THREADS, thread_name_prefix="es-ttc-requests")

    async def run(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function."""
        if size <= _INLINE_BYTES:
            return function(*args, **kwargs)
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Cancel waiting calls."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def slices(sizes: Sequence[float], *, most: int, weight: float) -> Iterator[slice]:
    """Yield slices of a sequence, each as long as the limits allow, so that other work can run between them."""
    start, total = 0, 0.0
    for place, size in enumerate(sizes):
        if place > start and (place - start >= most or total + size > weight):
            yield slice(start, place)
            start, total = place, 0.0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
