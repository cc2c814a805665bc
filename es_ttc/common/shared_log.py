"""A log of records in memory that several processes share: one writes a record, all of them read it.

The memory is a ring of segments. Records are appended to the newest segment; when it is full, the oldest one is used
again. A process reads a segment through a mapping of its own, and the mapping says by its existence that the segment is
in use: numpy arrays over a record keep the mapping alive, so a segment is never written over while any process still
refers to a record in it. All is anonymous memory: it goes when the last process ends, however it ends.

A record is visible once the number of the segment's bytes has been raised, after its last byte. So a process that is
killed while it writes leaves nothing behind. Locks are those of a file of their own (closing any descriptor of a file
ends a process's locks of it, and a mapping has one): the system releases them with the process.
"""

import fcntl
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_RECORD = struct.Struct("<II")  # bytes of the key, bytes of the value
_ALIGNMENT = 16
_WORD = 8
_NEWEST = 0  # word of the header: number of the newest segment since the start
_LENGTHS = 1  # from this word on: bytes that each segment holds
_WRITING = 0  # byte of the file of locks that a writer holds; the next ones belong to the processes


class Record(NamedTuple):
    """A record of the log."""

    key: bytes
    value: memoryview
    segment: int


class SharedLog:
    """A log in memory for several processes; pickling it for a child process shares it.

    A process takes part after :meth:`join`. It is not thread-safe. :func:`make_shared_log` makes one.
    """

    def __init__(self, file: int, locks: int, segment_size: int, processes: int, segments: int) -> None:
        self._file = file
        self._locks = locks
        self._size = segment_size
        self._segments = segments
        self._processes = processes
        self._start = _header_size(processes, segments)
        self._memory = mmap.mmap(file, self._start + segment_size * segments)
        self._header: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64, _words(processes, segments))
        self._slots = self._header[_LENGTHS + segments :].reshape(processes, segments + 1)
        self._slot: int | None = None
        self._mappings: dict[int, memoryview] = {}
        self._read_to: dict[int, int] = {}

    @property
    def capacity(self) -> int:
        """Size of all records, in bytes."""
        return self._size * self._segments

    @property
    def segment_size(self) -> int:
        """Size of a segment, in bytes; no record can be larger."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Size of the records that are there, in bytes."""
        return int(self._header[_LENGTHS : _LENGTHS + self._segments].sum())

    @property
    def oldest(self) -> int:
        """Number of the oldest segment with records; those before it are being emptied."""
        return max(0, self._newest - self._segments + 2)

    def join(self) -> None:
        """Take part in the log."""
        with self._locked():
            for slot in range(self._processes):
                if self._claim(slot):
                    self._slots[slot] = 0
                    self._slot = slot
                    return
        raise RuntimeError(f"{self._processes} processes share the log already")

    def set_flag(self, value: int) -> None:
        """Set this process's flag, which the others read with :meth:`flags`."""
        self._slots[self._own, self._segments] = value

    def flags(self) -> list[int]:
        """Return the flags of all processes that take part."""
        return [int(self._slots[slot, self._segments]) for slot in range(self._processes) if self._alive(slot)]

    def has_news(self) -> bool:
        """Return whether there may be records that this process has not read."""
        newest = self._newest
        return self._read_to.get(newest, 0) < self._length(newest)

    def news(self) -> list[Record]:
        """Return the records that this process has not read; none while another one writes."""
        with self._locked(wait=False) as locked:
            return self._unread() if locked else []

    def append(self, records: Sequence[tuple[bytes, bytes | memoryview]]) -> list[Record]:
        """Append records, and return those that this process has not read, with its own.

        A record whose key is among the unread ones is left out, and so are records for which there is no room now.
        """
        with self._locked():
            unread = self._unread()
            known = {record.key for record in unread}
            for key, value in records:
                if key not in known and not self._append(key, value):
                    break
            return unread + self._unread()

    def forget(self, segment: int) -> None:
        """Let go of a segment; it can be used again when nothing refers to its records."""
        self._mappings.pop(segment, None)
        self._read_to.pop(segment, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Share the log with a child process that is being started."""
        files = reduction.DupFd(self._file), reduction.DupFd(self._locks)
        return _attached, (*files, self._size, self._processes, self._segments)

    @property
    def _newest(self) -> int:
        return int(self._header[_NEWEST])

    @property
    def _own(self) -> int:
        if self._slot is None:
            raise RuntimeError("a process takes part in the log after join()")
        return self._slot

    def _length(self, segment: int) -> int:
        return int(self._header[_LENGTHS + segment % self._segments])

    def _append(self, key: bytes, value: bytes | memoryview) -> bool:
        """Append one record; return whether there was room."""
        needed = _aligned(_RECORD.size + len(key)) + _aligned(len(value))
        if needed > self._size:
            return True  # it is left out, the next one may fit
        segment = self._newest
        if self._length(segment) + needed > self._size:
            segment += 1
            if self._in_use(segment % self._segments):
                return False
            self._header[_LENGTHS + segment % self._segments] = 0
            self._header[_NEWEST] = segment
        length = self._length(segment)
        at = self._start + segment % self._segments * self._size + length
        _RECORD.pack_into(self._memory, at, len(key), len(value))
        self._memory[at + _RECORD.size : at + _RECORD.size + len(key)] = key
        at += _aligned(_RECORD.size + len(key))
        self._memory[at : at + len(value)] = value
        self._header[_LENGTHS + segment % self._segments] = length + needed  # from here on it can be read
        return True

    def _unread(self) -> list[Record]:
        found: list[Record] = []
        for segment in range(self.oldest, self._newest + 1):
            start, end = self._read_to.get(segment, 0), self._length(segment)
            if start < end:
                found.extend(_records(self._mapped(segment), segment, start, end))
                self._read_to[segment] = end
        return found

    def _mapped(self, segment: int) -> memoryview:
        """Return this process's mapping of a segment; while it exists the segment is in use."""
        known = self._mappings.get(segment)
        if known is not None:
            return known
        place = segment % self._segments
        mapping = mmap.mmap(self._file, self._size, access=mmap.ACCESS_READ, offset=self._start + place * self._size)
        self._slots[self._own, place] = segment + 1
        weakref.finalize(mapping, _let_go, self._slots, self._own, place, segment + 1).atexit = False
        self._mappings[segment] = memoryview(mapping)
        return self._mappings[segment]

    def _in_use(self, place: int) -> bool:
        """Return whether a process refers to the records at a place of the ring."""
        return any(self._slots[slot, place] and self._alive(slot) for slot in range(self._processes))

    def _alive(self, slot: int) -> bool:
        """Return whether a process holds a slot; one that has ended holds none."""
        if slot == self._slot:
            return True
        if not self._claim(slot):
            return True
        self._slots[slot] = 0
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, slot + 1)
        return False

    def _claim(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot + 1)
        except OSError:
            return False
        return True

    @contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the log's lock; yield whether it is held, which it always is after waiting."""
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, _WRITING)
        except OSError:
            if wait:
                raise
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, _WRITING)


def make_shared_log(capacity: int, processes: int, segments: int = 8) -> SharedLog:
    """Return a new log, empty."""
    granularity = mmap.ALLOCATIONGRANULARITY
    size = max(granularity, capacity // segments // granularity * granularity)
    file = _anonymous_file(_header_size(processes, segments) + size * segments)
    return SharedLog(file, _anonymous_file(1 + processes), size, processes, segments)


def _attached(file: Any, locks: Any, segment_size: int, processes: int, segments: int) -> SharedLog:
    return SharedLog(file.detach(), locks.detach(), segment_size, processes, segments)


def _words(processes: int, segments: int) -> int:
    """Return the number of words of the header: those of the log, then of each process a mark per segment, a flag."""
    return _LENGTHS + segments + processes * (segments + 1)


def _header_size(processes: int, segments: int) -> int:
    size = _words(processes, segments) * _WORD
    return size + -size % mmap.ALLOCATIONGRANULARITY


def _records(mapping: memoryview, segment: int, start: int, end: int) -> Iterator[Record]:
    while start < end:
        key_size, value_size = _RECORD.unpack_from(mapping, start)
        key = bytes(mapping[start + _RECORD.size : start + _RECORD.size + key_size])
        start += _aligned(_RECORD.size + key_size)
        yield Record(key, mapping[start : start + value_size], segment)
        start += _aligned(value_size)


def _let_go(slots: NDArray[np.uint64], slot: int, place: int, marked: int) -> None:
    if slots[slot, place] == marked:
        slots[slot, place] = 0


def _anonymous_file(size: int) -> int:
    """Return a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("es-ttc-features", os.MFD_CLOEXEC)
    else:
        file, path = tempfile.mkstemp(prefix="es-ttc-features-")
        Path(path).unlink()
    os.ftruncate(file, size)
    return file


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT
