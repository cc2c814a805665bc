"""Batches of searches: the searches of several retrievals in one request.

Each retrieval of an `_msearch` sends several kNN searches, one after the other. A batch is sent as soon as every
retrieval that has not ended waits for an answer. So the number of requests is that of the longest retrieval, not the
sum of all.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
R = TypeVar("R")

Member = int


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[S, R]):
    """Searches of one member that are to be sent."""

    member: Member
    searches: Sequence[S]
    answers: asyncio.Future[Sequence[R]]


class BatchedSearches(Generic[S, R]):
    """Sends the searches of several members in batches.

    Args:
        send: Sends searches and returns their answers, in their order.
    """

    def __init__(self, send: Callable[[Sequence[S]], Awaitable[Sequence[R]]]) -> None:
        self.sent = 0
        self._send = send
        self._members: set[Member] = set()
        self._waiting: list[_Waiting[S, R]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._last = 0

    def join(self, count: int) -> list[Member]:
        """Add members and return them. A batch is sent when each of them has sent searches, or has left."""
        members = list(range(self._last, self._last + count))
        self._last += count
        self._members.update(members)
        return members

    @asynccontextmanager
    async def active(self, member: Member) -> AsyncIterator[None]:
        """Remove a member at the end of the context."""
        try:
            yield
        finally:
            self._members.discard(member)
            self._send_if_all_wait()

    async def send(self, member: Member, searches: Sequence[S]) -> Sequence[R]:
        """Send searches with the next batch and return their answers, in their order.

        Raises:
            Exception: The batch failed; every member of the batch gets the same exception.
        """
        loop = asyncio.get_running_loop()
        waiting: _Waiting[S, R] = _Waiting(member, searches, loop.create_future())
        self._waiting.append(waiting)
        loop.call_soon(self._send_if_all_wait)  # after further calls of the same member in this step of the loop
        try:
            return await waiting.answers
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _send_if_all_wait(self) -> None:
        if not self._waiting or self._members - {waiting.member for waiting in self._waiting}:
            return
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._send_batch(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, batch: Sequence[_Waiting[S, R]]) -> None:
        self.sent += 1
        searches = [search for waiting in batch for search in waiting.searches]
        try:
            answers = await self._send(searches)
        except Exception as error:  # noqa: BLE001 - passed to every member of the batch
            for waiting in batch:
                if not waiting.answers.done():
                    waiting.answers.set_exception(error)
            return
        start = 0
        for waiting in batch:
            end = start + len(waiting.searches)
            if not waiting.answers.done():
                waiting.answers.set_result(answers[start:end])
            start = end
