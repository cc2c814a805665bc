"""Scratch memory that a thread keeps between calls: the kernels' time is lost to page faults where it is asked anew."""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
