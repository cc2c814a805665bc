"""The searches of a request's retrievals, in batches: those of all that wait for an answer are one `_msearch` a target.

Each retrieval of an `_msearch` sends several kNN searches, one after the other. A batch is sent as soon as every
retrieval that has not ended waits for an answer. So the number of requests is that of the longest retrieval, not the
sum of all.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from es_ttc.errors import EngineError
from es_ttc.serving import engine_requests
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.knn.bodies import Body

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
    """Sends the searches of several members in batches."""

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


Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SearchClient:
    """The searches of one retrieval. Searches that are sent together become part of one request.

    Attributes:
        search: Sends `_search` bodies to the caller's target. Raises an EngineError for an incomplete answer.
        search_side_indices: Sends `_search` bodies to side indices, each with the index's name or alias. An answer may
            be an error; if there is no such index it has no hits.
    """

    search: Callable[[Sequence[Body]], Awaitable[Sequence[Answer]]]
    search_side_indices: Callable[[Sequence[tuple[str, Body]]], Awaitable[Sequence[Answer]]]


@dataclass(frozen=True, slots=True)
class MsearchItem:
    """One search of an `_msearch`."""

    of_side_index: bool
    header: bytes
    body: Body


BatchedMsearch = BatchedSearches[MsearchItem, Answer]


class MsearchSender:
    """Sends the searches of a request's retrievals."""

    def __init__(
        self, upstream: Upstream, caller: Caller, side_caller: Caller, path: bytes, query_string: bytes
    ) -> None:
        self._engine = EngineRequests(upstream)
        self._target = path, query_string, caller
        self._side_indices = b"/_msearch", b"", side_caller

    async def send(self, items: Sequence[MsearchItem]) -> list[Answer]:
        """Return the answers to several searches, in their order.

        Raises:
            EngineError: The engine returned an error for one of the requests.
            EngineUnavailable: The engine does not answer.
        """
        parts = [self._send(items, of_side_index=of_side_index) for of_side_index in (False, True)]
        from_target, from_side_indices = map(iter, await asyncio.gather(*parts))
        return [next(from_side_indices if item.of_side_index else from_target) for item in items]

    async def _send(self, items: Sequence[MsearchItem], *, of_side_index: bool) -> Sequence[Answer]:
        part = [item for item in items if item.of_side_index == of_side_index]
        if not part:
            return []
        path, query_string, caller = self._side_indices if of_side_index else self._target
        lines = b"".join(b"%b\n%b\n" % (item.header, jsonio.dumps(item.body)) for item in part)
        engine = self._engine.as_caller(caller)
        response = await engine.send("POST", path, query_string, lines, content_type=b"application/x-ndjson")
        answer = await _decoded(response.body)
        if response.status != 200:
            raise search_error(response.status, answer)
        if not isinstance(answer, dict) or len(answer.get("responses", ())) != len(part):
            raise EngineError("the engine's answer to kNN searches is not an answer to an _msearch")
        return list(answer["responses"])


@asynccontextmanager
async def single_client(
    upstream: Upstream, caller: Caller, side_caller: Caller, path: bytes, query_string: bytes, header: bytes
) -> AsyncIterator[SearchClient]:
    """Open the search client of a retrieval that no other one waits for."""
    batches: BatchedMsearch = BatchedSearches(MsearchSender(upstream, caller, side_caller, path, query_string).send)
    [member] = batches.join(1)
    async with batches.active(member):
        yield search_client(batches, member, header)


def search_client(batches: BatchedMsearch, member: Member, header: bytes) -> SearchClient:
    """Return the search client of one retrieval."""

    async def search(bodies: Sequence[Body]) -> Sequence[Answer]:
        answers = await batches.send(member, [MsearchItem(False, header, body) for body in bodies])
        for answer in answers:
            require_complete(answer)
        return answers

    async def search_side_indices(searches: Sequence[tuple[str, Body]]) -> Sequence[Answer]:
        items = [MsearchItem(True, _side_index_header(name), body) for name, body in searches]
        return await batches.send(member, items)

    return SearchClient(search, search_side_indices)


def require_complete(answer: Mapping[str, Any]) -> None:
    """Raise an error if the answer to a search is an error, or covers only a part of the documents.

    Raises:
        EngineError: It is an error.
        IncompleteAnswer: It timed out, or shards failed.
    """
    if "error" in answer:
        raise search_error(answer.get("status"), answer)
    engine_requests.require_complete(answer, "a kNN search was answered from a part of the documents only")


def search_error(status: int | None, answer: Any) -> EngineError:
    """Return the exception for an error of the engine, with the engine's reason if there is one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, dict) else {"reason": error}
    reason = f"it answered {status}" if cause.get("reason") is None else f"{cause['reason']}"
    return EngineError(f"the engine refused a kNN search: {reason}", upstream_status=status, upstream=answer)


def _side_index_header(name: str) -> bytes:
    """Return the header line for a side index; it is no error if there is no such index."""
    return jsonio.dumps({"index": name, "ignore_unavailable": True, "allow_no_indices": True})


async def _decoded(raw: bytes) -> Any:
    try:
        return await jsonio.loads_answer(raw)
    except ValueError:
        return None
