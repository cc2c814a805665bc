"""Work on long requests, kept off the event loop so that everybody else is still answered."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 2  # each thread that computes makes the event loop wait for the interpreter's lock
_INLINE_BYTES = 8192  # below, a change of threads costs more than the work


class Offload:
    """Runs functions on a few threads where their input is long, and at once where it is short."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="es-ttc-requests")

    async def run(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function.

        Args:
            size: Bytes of its input.
            function: What is called.
            args: Its arguments.
            kwargs: Its arguments by keyword.
        """
        if size <= _INLINE_BYTES:
            return function(*args, **kwargs)
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Drop what is waiting."""
        self._executor.shutdown(wait=False, cancel_futures=True)
