"""The searches of all retrievals of a request on their way to the engine: one request a round and door."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import EngineError
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.knn.answers import Answer, Body, SearchClient, refusal, require_whole
from es_ttc.serving.knn.batched_searches import BatchedSearches, Member


@dataclass(frozen=True, slots=True)
class MsearchItem:
    """One search of an `_msearch` of ours.

    Attributes:
        beside: Whether it is of a side index, in place of what the caller searches.
        header: What names its indices.
        body: The search.
    """

    beside: bool
    header: bytes
    body: Body


BatchedMsearch = BatchedSearches[MsearchItem, Answer]


class SearchClients:
    """The ways to the engine that a request's retrievals have.

    Args:
        upstream: The engine.
        attached: Knows in whose name side indices are read.
        caller: In whose name everything else is.
        path: Of the engine's `_msearch`, through the caller's door.
        query_string: Its parameters.
    """

    def __init__(
        self, upstream: Upstream, attached: AttachedFeatureLocator, caller: Caller, path: bytes, query_string: bytes
    ) -> None:
        self._engine = EngineRequests(upstream)
        self._searched = path, query_string, caller
        self._beside = b"/_msearch", b"", attached.door(caller)

    async def send(self, lines: Sequence[MsearchItem]) -> list[Answer]:
        """Return the answers to several searches, in their order.

        Raises:
            EngineError: The engine refused one of the requests.
            EngineUnavailable: It does not answer.
        """
        asked = [self._sent(lines, beside=beside) for beside in (False, True)]
        searched, beside = map(iter, await asyncio.gather(*asked))
        return [next(beside if line.beside else searched) for line in lines]

    async def _sent(self, lines: Sequence[MsearchItem], *, beside: bool) -> Sequence[Answer]:
        part = [line for line in lines if line.beside == beside]
        if not part:
            return []
        path, query_string, caller = self._beside if beside else self._searched
        sent = b"".join(b"%b\n%b\n" % (line.header, jsonio.dumps(line.body)) for line in part)
        engine = self._engine.as_caller(caller)
        replied = await engine.send("POST", path, query_string, sent, content_type=b"application/x-ndjson")
        answer = _decoded(replied.raw)
        if replied.status != 200:
            raise refusal(replied.status, answer)
        if not isinstance(answer, dict) or len(answer.get("responses", ())) != len(part):
            raise EngineError("kNN searches were answered by something that is no such answer")
        return list(answer["responses"])


def search_client_of(rounds: BatchedMsearch, member: Member, header: bytes) -> SearchClient:
    """Return one retrieval's ways to ask.

    Args:
        rounds: Send what all retrievals of the request ask.
        member: The retrieval.
        header: The header line of its searches through the caller's door.
    """

    async def searched(bodies: Sequence[Body]) -> Sequence[Answer]:
        answers = await rounds.ask(member, [MsearchItem(False, header, body) for body in bodies])
        for answer in answers:
            require_whole(answer)
        return answers

    async def beside(asked: Sequence[tuple[str, Body]]) -> Sequence[Answer]:
        return await rounds.ask(member, [MsearchItem(True, _if_it_is_there(name), body) for name, body in asked])

    return SearchClient(searched, beside)


def _if_it_is_there(name: str) -> bytes:
    """Return the header of a search of a side index, which is no error where there is none."""
    return jsonio.dumps({"index": name, "ignore_unavailable": True, "allow_no_indices": True})


def _decoded(raw: bytes) -> Any:
    try:
        return jsonio.loads(raw)
    except ValueError:
        return None
