"""Sends the kNN searches of a request in batches.

Each retrieval of an `_msearch` sends several searches, one after the other. A batch is sent as soon as every retrieval
that has not ended waits for an answer. So the number of requests is that of the longest retrieval, not the sum of all.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from es_ttc.serving import engine
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller

S = TypeVar("S")
R = TypeVar("R")

SearchBody = dict[str, Any]
SearchAnswer = Mapping[str, Any]
Batch = list[tuple[int, Sequence[S], asyncio.Future[Sequence[R]]]]
"""Searches that are to be sent, each with the member that sends it."""
BatchedSearch = tuple[bool, tuple[bytes, SearchBody]]
"""A search of an `_msearch`: whether it is of a side index, its header and its body."""

_FAILED = "a kNN search failed"


class BatchedSearches(Generic[S, R]):
    """Sends the searches of several members in batches."""

    def __init__(self, send: Callable[[Sequence[S]], Awaitable[Sequence[R]]]) -> None:
        self._send = send
        self._members: set[int] = set()
        self._waiting: Batch[S, R] = []
        self._sending: set[asyncio.Task[None]] = set()

    def join(self, count: int) -> list[int]:
        """Add members and return them. A batch is sent when each of them has sent searches, or has left."""
        members = list(range(len(self._members), len(self._members) + count))
        self._members.update(members)
        return members

    @asynccontextmanager
    async def active(self, member: int) -> AsyncIterator[None]:
        """Remove a member at the end of the context."""
        try:
            yield
        finally:
            self._members.discard(member)
            self._send_if_all_wait()

    async def send(self, member: int, searches: Sequence[S]) -> Sequence[R]:
        """Send searches with the next batch and return their answers, in their order; its failure reaches all."""
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[Sequence[R]] = loop.create_future()
        waiting = (member, searches, answers)
        self._waiting.append(waiting)
        loop.call_soon(self._send_if_all_wait)  # after further calls of the same member in this step of the loop
        try:
            return await answers
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _send_if_all_wait(self) -> None:
        if not self._waiting or self._members - {member for member, _, _ in self._waiting}:
            return
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._send_batch(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, batch: Batch[S, R]) -> None:
        try:
            answers = await self._send([search for _, searches, _ in batch for search in searches])
        except Exception as error:  # noqa: BLE001 - passed to every member of the batch
            for _, _, result in batch:
                if not result.done():
                    result.set_exception(error)
            return
        start = 0
        for _, searches, result in batch:
            if not result.done():
                result.set_result(answers[start : start + len(searches)])
            start += len(searches)


class TargetSearches:
    """The searches of one retrieval. Searches that are sent together become part of one request."""

    def __init__(self, batches: BatchedSearches[BatchedSearch, SearchAnswer], member: int, header: bytes) -> None:
        self._batches = batches
        self._member = member
        self._header = header

    async def send(self, bodies: Sequence[SearchBody]) -> Sequence[SearchAnswer]:
        """Send `_search` bodies to the caller's target, and require complete answers."""
        answers = await self._batches.send(self._member, [(False, (self._header, body)) for body in bodies])
        for answer in answers:
            require_whole_answer(answer)
        return answers

    async def send_to_sides(self, searches: Sequence[tuple[str, SearchBody]]) -> Sequence[SearchAnswer]:
        """Send bodies to side indices by name or alias; an answer may be an error. A missing index has no hits."""
        options = {"ignore_unavailable": True, "allow_no_indices": True}
        items = [(True, (jsonio.dumps({"index": name, **options}), body)) for name, body in searches]
        return await self._batches.send(self._member, items)


def batched(
    gateway: Gateway, caller: Caller, path: bytes, query_string: bytes
) -> BatchedSearches[BatchedSearch, SearchAnswer]:
    """Return what sends the searches of a request's retrievals: one `_msearch` for the target, one for side indices."""
    target, sides = gateway.engine.as_caller(caller), gateway.engine.as_side_reader(caller)

    async def msearch(items: Sequence[BatchedSearch], *, of_side_index: bool) -> Sequence[SearchAnswer]:
        searches = [search for is_side, search in items if is_side == of_side_index]
        if not searches:
            return []
        if of_side_index:
            return await sides.msearch(b"/_msearch", b"", searches, failing=_FAILED)
        return await target.msearch(path, query_string, searches, failing=_FAILED)

    async def send(items: Sequence[BatchedSearch]) -> list[SearchAnswer]:
        parts = await asyncio.gather(msearch(items, of_side_index=False), msearch(items, of_side_index=True))
        of_target, of_sides = map(iter, parts)
        return [next(of_sides if is_side else of_target) for is_side, _ in items]

    return BatchedSearches(send)


@asynccontextmanager
async def searches_of(
    gateway: Gateway, caller: Caller, path: bytes, query_string: bytes, header: bytes
) -> AsyncIterator[TargetSearches]:
    """Open the searches of a retrieval that no other one waits for."""
    batches = batched(gateway, caller, path, query_string)
    [member] = batches.join(1)
    async with batches.active(member):
        yield TargetSearches(batches, member, header)


def require_whole_answer(answer: SearchAnswer) -> None:
    """Raise an EngineError if the answer to a search is an error, or covers only a part of the documents."""
    if "error" in answer:
        raise engine.refused("the engine refused a kNN search", answer.get("status"), answer)
    engine.require_complete(answer, "a kNN search was answered from a part of the documents only")
