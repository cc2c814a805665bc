"""Least-recently-used caches: bounded by the weight of the values, or by their number and age."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WatchedCache(Protocol):
    """What metrics show of a cache: its size in bytes, its entries, and how often they were found."""

    @property
    def hits(self) -> int:
        """Number of entries that were found."""

    @property
    def misses(self) -> int:
        """Number of entries that were not."""

    @property
    def capacity(self) -> int:
        """Its size, in bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes that are used."""

    def __len__(self) -> int:
        """Return the number of entries."""


class LruCache(Generic[K, V]):
    """Keeps the most recently used values, up to a total weight. Not thread-safe: use it in the event loop only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.weight = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of several keys as :meth:`get` does, in half the time."""
        find, used = self._entries.get, self._entries.move_to_end
        values: list[V | None] = []
        misses = 0
        for key in keys:
            entry = find(key)
            if entry is None:
                misses += 1
                values.append(None)
            else:
                used(key)
                values.append(entry[0])
        self.misses += misses
        self.hits += len(values) - misses
        return values

    def peek(self, key: K) -> V | None:
        """Return the value, or None, without marking it as used."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def values(self) -> list[V]:
        """Return all values, without marking them as used."""
        return [value for value, _ in self._entries.values()]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Store a value, replace the key's previous one, and drop the least recently used ones beyond the capacity."""
        self.drop(key)
        if weight > self.capacity:
            return
        self._entries[key] = value, weight
        self.weight += weight
        while self.weight > self.capacity:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.weight -= dropped

    def drop(self, key: K) -> None:
        """Remove a key's value, if there is one."""
        if key in self._entries:
            self.weight -= self._entries.pop(key)[1]


class Fresh(NamedTuple, Generic[V]):
    """A value in a cache; it may be None."""

    value: V


class ExpiringCache(Generic[K, V]):
    """Keeps the most recently used values for a limited time. Not thread-safe: use it in the event loop only."""

    def __init__(self, capacity: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._entries: LruCache[K, tuple[float, V]] = LruCache(capacity)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get(self, key: K) -> Fresh[V] | None:
        """Return the value, or None if there is none or it is too old."""
        entry = self._entries.get(key)
        return Fresh(entry[1]) if entry is not None and self._clock() < entry[0] else None

    def put(self, key: K, value: V) -> None:
        """Store a value, and replace the key's previous one."""
        self._entries.put(key, (self._clock() + self._seconds, value))
