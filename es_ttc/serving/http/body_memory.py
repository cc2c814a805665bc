"""How many bytes of requests' bodies are in memory at a time."""

from es_ttc.errors import TooManyRequests


class BodyMemory:
    """Counts the bytes of all bodies that are in memory.

    Args:
        limit: Most of them, or None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.used = 0

    def share(self) -> "BodyShare":
        """Return what one request takes of it."""
        return BodyShare(self)


class BodyShare:
    """The bytes that one request holds.

    Args:
        memory: What they count against.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    def take(self, size: int) -> None:
        """Count more bytes.

        Raises:
            TooManyRequests: Others hold so many that there is no room.
        """
        memory = self._memory
        if memory.limit is not None and memory.used + size > memory.limit:
            raise TooManyRequests(
                f"bodies of requests fill the {memory.limit // 2**20} MiB that they may hold together "
                "(max_bodies_mb): try again"
            )
        memory.used += size
        self._held += size

    def give_back(self) -> None:
        """Count them no longer."""
        self._memory.used -= self._held
        self._held = 0
