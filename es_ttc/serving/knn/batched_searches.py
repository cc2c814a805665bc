"""Several retrievals in step: what all of them ask the engine next goes out as one request.

Retrievals of one `_msearch` proceed by rounds, each of which is a kNN search. Left alone they would make a request a
round each; here a request is sent as soon as every retrieval that is still at work waits for an answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")

Member = int


@dataclass(frozen=True, slots=True)
class _PendingBatch(Generic[Q, R]):
    member: Member
    questions: Sequence[Q]
    answers: asyncio.Future[Sequence[R]]


class BatchedSearches(Generic[Q, R]):
    """Sends the questions of several members together.

    Args:
        send: Answers questions, in their order.
    """

    def __init__(self, send: Callable[[Sequence[Q]], Awaitable[Sequence[R]]]) -> None:
        self.sent = 0
        self._send = send
        self._members: set[Member] = set()
        self._waiting: list[_PendingBatch[Q, R]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._last = 0

    def join(self, count: int) -> list[Member]:
        """Return so many new members: nothing is sent before each of them has asked, or left."""
        members = list(range(self._last, self._last + count))
        self._last += count
        self._members.update(members)
        return members

    @asynccontextmanager
    async def at_work(self, member: Member) -> AsyncIterator[None]:
        """Let a member leave when its work ends, however it ends."""
        try:
            yield
        finally:
            self._members.discard(member)
            self._look()

    async def ask(self, member: Member, questions: Sequence[Q]) -> Sequence[R]:
        """Ask questions and return their answers, in their order.

        Raises:
            Exception: Whatever ``send`` raises, for all whose questions went with it.
        """
        loop = asyncio.get_running_loop()
        asked: _PendingBatch[Q, R] = _PendingBatch(member, questions, loop.create_future())
        self._waiting.append(asked)
        loop.call_soon(self._look)  # what a member asks at once goes out at once
        try:
            return await asked.answers
        finally:
            if asked in self._waiting:
                self._waiting.remove(asked)

    def _look(self) -> None:
        """Send what waits, if every member waits."""
        if not self._waiting or self._members - {asked.member for asked in self._waiting}:
            return
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._answer(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _answer(self, batch: Sequence[_PendingBatch[Q, R]]) -> None:
        self.sent += 1
        questions = [question for asked in batch for question in asked.questions]
        try:
            answers = await self._send(questions)
        except Exception as error:  # noqa: BLE001 - handed on to all who asked
            for asked in batch:
                if not asked.answers.done():
                    asked.answers.set_exception(error)
            return
        start = 0
        for asked in batch:
            end = start + len(asked.questions)
            if not asked.answers.done():
                asked.answers.set_result(answers[start:end])
            start = end
