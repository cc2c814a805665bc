"""What the hooks have in common whose clauses stand in a search's body: found, answered, replaced, told about.

A clause of ours is answered, and a native query put in its place; what is left is a search like any other and goes on
to the next handler. Its answer then gets what there is to say about the clauses. In an `_msearch` each item stands for
itself: one whose clause cannot be answered becomes an error, and the others keep their places.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Send

from es_ttc.errors import EsTtcError
from es_ttc.gateway import jsonio
from es_ttc.gateway.captured import NOTHING, Captured, is_refusal, refused
from es_ttc.gateway.incoming import Incoming
from es_ttc.gateway.search import Outcome, SearchHandler, require_json_answer

C = TypeVar("C")
A = TypeVar("A")

Params = Sequence[tuple[str, str]]


class Onward(Protocol):
    """What answers a search from which our clauses are taken out."""

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`."""
        ...

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`."""
        ...


@dataclass(frozen=True, slots=True)
class Found(Generic[C]):
    """A search with clauses of ours.

    Attributes:
        body: Its body.
        clauses: The clauses; one or more.
        header: Its line in an `_msearch`; empty in a `_search`.
    """

    body: dict[str, Any]
    clauses: Sequence[C]
    header: bytes = b""


class HookHandler(ABC, Generic[C, A]):
    """Answers searches with clauses of one hook, and hands all others on.

    Args:
        searches: Reads requests.
        onward: Answers what is left of a search.
    """

    marks: tuple[bytes, ...]
    """A body without any of these bytes has no clause of the hook."""

    def __init__(self, searches: SearchHandler, onward: Onward) -> None:
        self._searches = searches
        self._onward = onward

    @abstractmethod
    def clauses_of(self, body: Mapping[str, Any]) -> list[C]:
        """Return the hook's clauses in a body.

        Raises:
            InvalidRequest: One cannot be meant as it stands.
        """

    @abstractmethod
    async def answers(
        self, incoming: Incoming, asked: Sequence[Found[C]], params: Params, started: float
    ) -> list[list[A] | EsTtcError]:
        """Return for each of some searches the answers to its clauses, or why there are none."""

    @abstractmethod
    def changed(self, body: dict[str, Any], answers: Sequence[A]) -> dict[str, Any]:
        """Return the body that is left when clauses are replaced by what answers them."""

    @abstractmethod
    def add(self, answer: dict[str, Any], answers: Sequence[A], filter_path: str) -> None:
        """Add to a search's answer what there is to say about its clauses."""

    @abstractmethod
    def applied(self, answer: A) -> bool:
        """Whether a method did its work."""

    @abstractmethod
    def told(self, answer: A) -> bool:
        """Whether there is anything to say about it."""

    def has_clauses(self, body: dict[str, Any]) -> bool:
        """Whether a body has clauses of the hook, be they right or wrong."""
        try:
            return bool(self.clauses_of(body))
        except EsTtcError:
            return True

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        found = await self._searches.offload.run(len(text or b""), self._found, text)
        if found is None:
            return await self._onward.search(incoming, send)
        return await self.answer(incoming, send, found, params, started)

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`: each item on its own."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        items = await self._searches.items(text) if text is not None and self._marked(text) else None
        read = [] if items is None else await self._searches.offload.run(len(text or b""), self._read_items, items)
        if items is None or not any(read):
            return await self._onward.msearch(incoming, send)
        require_json_answer(incoming, params)
        faults = {number: one for number, one in enumerate(read) if isinstance(one, EsTtcError)}
        asked = {number: one for number, one in enumerate(read) if isinstance(one, Found)}
        every = await self.answers(incoming, list(asked.values()), params, started)
        answered: dict[int, list[A]] = {}
        lines = [part for item in items for part in item]
        for (number, found), answers in zip(asked.items(), every, strict=True):
            if isinstance(answers, EsTtcError):
                faults[number] = answers
            else:
                answered[number] = answers
                lines[2 * number + 1] = jsonio.dumps(self.changed(found.body, answers))
        for number in faults:
            lines[2 * number + 1] = NOTHING
        incoming.replace_body(b"\n".join(lines) + b"\n")
        captured = Captured(incoming)
        outcome = await self._onward.msearch(incoming, captured)
        return await self._merged(captured, send, outcome, params, faults, answered)

    async def answer(self, incoming: Incoming, send: Send, found: Found[C], params: Params, started: float) -> Outcome:
        """Answer one search with clauses of ours."""
        require_json_answer(incoming, params)
        [answers] = await self.answers(incoming, [found], params, started)
        if isinstance(answers, EsTtcError):
            if is_refusal(answers):
                return await refused(incoming, send, answers)
            raise answers
        incoming.replace_body(jsonio.dumps(self.changed(found.body, answers)))
        captured = Captured(incoming)
        outcome = await self._onward.search(incoming, captured)
        return await self._merged(captured, send, outcome, params, {}, {0: answers})

    async def _merged(
        self,
        captured: Captured,
        send: Send,
        outcome: Outcome,
        params: Params,
        faults: Mapping[int, EsTtcError],
        answered: Mapping[int, Sequence[A]],
    ) -> Outcome:
        """Send the answer with what there is to say about each search's clauses."""
        filter_path = dict(params).get("filter_path", "")
        every = [one for answers in answered.values() for one in answers]

        def add(number: int, answer: dict[str, Any]) -> None:
            self.add(answer, answered[number], filter_path)

        return await captured.merged(
            send,
            outcome,
            params,
            faults,
            dict.fromkeys(answered, add),
            applied=all(map(self.applied, every)),
            ours=any(map(self.told, every)),
        )

    def _marked(self, text: bytes) -> bool:
        return any(mark in text for mark in self.marks)

    def _found(self, text: bytes | None, header: bytes = b"") -> Found[C] | None:
        """Return a body and its clauses of ours; None where it has none, or is not ours to judge."""
        if text is None or not self._marked(text):
            return None
        try:
            body = self._searches.limits.decoded(text)
        except ValueError:
            return None
        clauses = self.clauses_of(body) if isinstance(body, dict) else []
        return Found(body, clauses, header) if clauses else None

    def _read_items(self, items: Sequence[tuple[bytes, bytes]]) -> "list[Found[C] | EsTtcError | None]":
        return [self._read_item(*item) for item in items]

    def _read_item(self, header: bytes, line: bytes) -> "Found[C] | EsTtcError | None":
        try:
            return self._found(line, header)
        except EsTtcError as error:
            return error
