"""Limits on the bytes of bodies: of one request's, and of all that are in memory, answers to searches included."""

from es_ttc.errors import RequestTooLarge, TooManyRequests


class BodyMemory:
    """Counts the bytes of all bodies that are in memory.

    Args:
        limit: Maximum number of bytes, or None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.used = 0

    def share(self) -> "BodyShare":
        """Return the share of one request."""
        return BodyShare(self)


class BodyShare:
    """The bytes of one request."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    def take(self, size: int) -> None:
        """Count more bytes.

        Raises:
            TooManyRequests: The limit is reached together with other requests.
            RequestTooLarge: It is reached by this request alone.
        """
        memory = self._memory
        if memory.limit is not None and memory.used + size > memory.limit:
            if self._held + size > memory.limit:
                raise RequestTooLarge(
                    f"the request's body and the engine's answer are longer than {memory.limit // 2**20} MiB together "
                    "(max_bodies_mb): ask for fewer documents, or for less of their [_source]"
                )
            raise TooManyRequests(
                f"bodies of requests and answers fill the {memory.limit // 2**20} MiB that they may hold together "
                "(max_bodies_mb): try again"
            )
        memory.used += size
        self._held += size

    def give_back(self) -> None:
        """Release them."""
        self._memory.used -= self._held
        self._held = 0


def too_large(limit: int) -> RequestTooLarge:
    """Return the error for a body of more bytes than the gateway reads."""
    return RequestTooLarge(
        f"the body is longer than {limit} bytes, the most that the gateway reads of a search (max_body_mb)"
    )
