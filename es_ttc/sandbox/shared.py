"""Arrays and texts in memory that both processes share. The child can write only its own result."""

import ctypes
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAP_POPULATE = 0x8000 if sys.platform == "linux" else 0
_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Shared:
    """A block of memory without a name; it is released with the last descriptor."""

    def __init__(self, content: bytes | memoryview, *, writable: bool = False) -> None:
        self.size = max(1, len(content))
        self.descriptor = os.memfd_create("es-ttc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, self.size)
        view = memoryview(content)
        while view:
            view = view[os.write(self.descriptor, view) :]
        seals = _SEALED if writable else _SEALED | fcntl.F_SEAL_WRITE
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)

    @classmethod
    def of(cls, values: NDArray[Any], *, writable: bool = False) -> "Shared":
        """Return a shared array."""
        return cls(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, writable=writable)

    def read(self) -> bytes:
        """Return the present content."""
        with mmap.mmap(self.descriptor, self.size, prot=mmap.PROT_READ) as mapped:
            return mapped[:]

    def close(self) -> None:
        """Release the memory."""
        self._closing()


@dataclass(frozen=True, slots=True)
class SharedTexts:
    """Texts as one block of UTF-8, with the end of each, ``(n,)`` int64."""

    blob: Shared
    ends: Shared
    count: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "SharedTexts":
        """Return shared texts."""
        encoded = [text.encode("utf-8", "replace") for text in texts]
        ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
        return cls(Shared(b"".join(encoded)), Shared.of(ends), len(texts))


@dataclass(frozen=True, slots=True)
class SharedChunks:
    """The chunks of n documents at one granularity: ``(count, d)`` float32 and ``(n + 1,)`` int64 starts, shared."""

    vectors: Shared
    starts: Shared
    count: int


def mapped(descriptor: int, shape: Sequence[int], dtype: str, *, writable: bool = False) -> NDArray[Any]:
    """Return shared memory as an array, in the child, which may neither query a file's size nor copy descriptors."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    if size == 0:
        os.close(descriptor)
        return np.zeros(tuple(shape), kind)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # Populated at once: page faults would cost more than the pages.
    address = _mmap(None, size, protection, mmap.MAP_SHARED | _MAP_POPULATE, descriptor, 0)
    os.close(descriptor)
    if address == _FAILED:
        raise MemoryError
    mapping = (ctypes.c_char * size).from_address(address)
    weakref.finalize(mapping, _munmap, address, size)  # released with the last array that uses it
    block = memoryview(mapping).cast("B")
    values: NDArray[Any] = np.frombuffer(block, kind).reshape(tuple(shape))
    values.flags.writeable = writable
    return values


def decoded_texts(blob: NDArray[Any], ends: NDArray[Any]) -> list[str]:
    """Return the texts of :class:`SharedTexts`."""
    data = blob.tobytes()
    return [data[start:end].decode() for start, end in pairwise([0, *ends.tolist()])]


_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_munmap = _libc.munmap
_munmap.restype = ctypes.c_int
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
