"""Answers that a hook adds something to: what the search itself gives is kept back until there is all to say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from starlette.types import Message, Send

from es_ttc.errors import EngineError, EsTtcError
from es_ttc.gateway import jsonio
from es_ttc.gateway.filter_path import filtered
from es_ttc.gateway.incoming import Incoming, RawHeaders
from es_ttc.gateway.proxy import end_answer, json_headers, start_answer
from es_ttc.gateway.query_text import texts_of
from es_ttc.gateway.search import Outcome
from es_ttc.gateway.search_body import find_rescore
from es_ttc.gateway.section import KEY

_APPLIED = b"x-ttc-applied"
_TEXT = "query_text"
NOTHING = b'{"size":0,"query":{"match_none":{}}}'
"""What the engine is asked in the place of an item that has gone wrong already, so that the others keep theirs."""


class Captured:
    """Keeps an answer, to which something is added before it goes to the caller.

    Attributes:
        status: Its status.
        headers: Its headers.
    """

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.status = 200
        self.headers: RawHeaders = []
        self._body: list[bytes] = []

    @property
    def body(self) -> bytes:
        """What has come of the body so far."""
        return b"".join(self._body)

    async def __call__(self, message: Message) -> None:
        """Take a message of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message["headers"])
        else:
            self._body.append(message.get("body", b""))

    async def merged(
        self,
        send: Send,
        outcome: Outcome,
        params: Sequence[tuple[str, str]],
        faults: Mapping[int, EsTtcError],
        add: Mapping[int, Callable[[int, dict[str, Any]], None]],
        *,
        applied: bool,
        ours: bool,
    ) -> Outcome:
        """Send the answer with what there is to say about each search.

        Args:
            send: Where it goes.
            outcome: How the rest of the request ended.
            params: The URL parameters.
            faults: Errors of items of an `_msearch`, by number.
            add: For each item with a clause of ours what adds to its answer; a `_search` is item 0.
            applied: Whether every method of this hook did its work.
            ours: Whether any method of this hook was asked for.
        """
        body = self.body
        if self.status != 200:
            await self.send(send, self.headers, body)
            return outcome
        answer = jsonio.loads(body) if body.strip() else {}
        for number, adding in add.items():
            one = answer["responses"][number] if "responses" in answer else answer
            if "error" not in one:
                adding(number, one)
        for number, fault in faults.items():
            answer["responses"][number] = fault.upstream if is_refusal(fault) else fault.body()
        applied = outcome.applied and applied
        headers = [pair for pair in self.headers if pair[0] not in (b"content-length", _APPLIED)]
        if ours or any(name == _APPLIED for name, _ in self.headers):
            headers.append(_mark(applied=applied))
        pretty = dict(params).get("pretty", "false") in ("", "true")
        await self.send(send, headers, jsonio.dumps(answer, pretty=pretty))
        return Outcome("msearch" if outcome.kind == "msearch" or faults else "search", 200, applied)

    async def send(self, send: Send, headers: RawHeaders, body: bytes) -> None:
        """Send another answer of the same status in its place."""
        kept = [pair for pair in headers if pair[0] != b"content-length"]
        await start_answer(send, self.status, [*kept, (b"content-length", str(len(body)).encode())])
        await end_answer(self._incoming, send, body)


async def send_joined(
    send: Send, parts: Sequence[tuple[Captured, Sequence[int]]], *, applied: bool, pretty: bool
) -> int:
    """Send the answer to an `_msearch` whose items were answered in several parts.

    Args:
        send: Where it goes.
        parts: Their answers, and the places of their items in the whole; the first one had items of ours.
        applied: Whether every method of ours did its work.
        pretty: Whether the caller wants it to be read by people.

    Returns:
        The status: that of a part which was refused, with the engine's words, if one was.
    """
    first = parts[0][0]
    refused = next((part for part, _ in parts if part.status != 200), None)
    if refused is not None:
        await refused.send(send, refused.headers, refused.body)
        return refused.status
    answers = [(jsonio.loads(part.body), places) for part, places in parts]
    placed = {place: one for answer, places in answers for place, one in zip(places, answer["responses"], strict=True)}
    whole = {**answers[0][0], "responses": [placed[place] for place in sorted(placed)]}
    if "took" in whole:
        whole["took"] = max(answer["took"] for answer, _ in answers)
    headers = [pair for pair in first.headers if pair[0] != _APPLIED]
    await first.send(send, [*headers, _mark(applied=applied)], jsonio.dumps(whole, pretty=pretty))
    return 200


def _mark(*, applied: bool) -> tuple[bytes, bytes]:
    return _APPLIED, b"true" if applied else b"false"


def add_summary(
    answer: dict[str, Any], hook: str, summaries: Sequence[dict[str, Any]], ms: float, filter_path: str
) -> None:
    """Add to an answer what there is to say: beside what another hook of ours has said, below the hook's name.

    Args:
        answer: The search's answer.
        hook: ``knn`` or ``query``.
        summaries: One for each clause; one or more.
        ms: What the clauses took, which counts for the search.
        filter_path: The caller's.
    """
    told: dict[str, Any] = summaries[0] if len(summaries) == 1 else {hook: [*summaries]}
    if KEY in answer:
        told = {**answer[KEY], hook: told.get(hook, told)}
    answer.update(filtered({KEY: told}, filter_path, keep_empty=False) if filter_path else {KEY: told})
    if isinstance(answer.get("took"), int):
        answer["took"] += round(ms)


def with_text(changed: dict[str, Any], body: Mapping[str, Any], texts: set[tuple[str, ...]]) -> dict[str, Any]:
    """Tell a rescorer of ours the text of the clauses that were replaced, where its own section has none.

    Args:
        changed: The body with native queries in the clauses' places.
        body: The body as it came.
        texts: The texts of the clauses.
    """
    rescore = find_rescore(body.get("rescore"))
    if rescore is None or len(texts) != 1 or any(texts_of(body.get("query"))):
        return changed
    section = rescore[1][KEY]
    [asked] = texts
    if not asked or not isinstance(section, dict) or section.keys() & {_TEXT, "query_texts"}:
        return changed
    told = {_TEXT: asked[0]} if len(asked) == 1 else {"query_texts": list(asked)}
    return {**changed, "rescore": [*rescore[0], {**rescore[1], KEY: {**section, **told}}]}


def is_refusal(fault: EsTtcError) -> TypeGuard[EngineError]:
    """Whether the engine itself has told the caller what is wrong: no such index, no right to read it."""
    if not isinstance(fault, EngineError) or not isinstance(fault.upstream, dict):
        return False
    return 400 <= (fault.upstream_status or 0) < 500


async def refused(incoming: Incoming, send: Send, refusal: EngineError) -> Outcome:
    """Answer with the engine's own refusal."""
    body = jsonio.dumps(refusal.upstream)
    status = refusal.upstream_status or refusal.status
    await start_answer(send, status, json_headers(incoming.headers, body))
    await end_answer(incoming, send, body)
    return Outcome("search", status)
