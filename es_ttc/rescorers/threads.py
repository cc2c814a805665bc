"""Work shared with idle threads, for calls that run without the interpreter's lock; and scratch memory of a thread."""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from es_ttc.common.processors import processor_count

T = TypeVar("T")


def share(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function with each of some items, here and on every free thread, until all are done or one raises."""
    left = deque(items)

    def take() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException:
                left.clear()
                raise

    helping = [_helpers().submit(take) for _ in range(min(processor_count(), len(left)) - 1)]
    try:
        take()
    finally:
        begun = [future for future in helping if not future.cancel()]
    for future in begun:
        future.result()


_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _helpers() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, processor_count() - 1), thread_name_prefix="es-ttc-share")
        return _pool


def _forget_helpers() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # a child of a fork has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_helpers)


_KEPT_BYTES = 4 * 2**20


class Scratch(threading.local):
    """Named buffers, one set a thread; one larger than 4 MiB is handed out but not kept."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialised array; it is valid until this thread asks for the same name again."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        if size > _KEPT_BYTES:
            return np.empty(shape, dtype)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < size:
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return buffer[:size].view(dtype).reshape(shape)
