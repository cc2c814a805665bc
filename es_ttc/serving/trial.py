"""A trial of adapters of queries: some queries are answered by both rankings, interleaved, and clicks decide.

Team-draft interleaving (Radlinski, Kurup and Joachims 2008, *How does clickthrough data reflect retrieval quality?*):
both rankings in turn add their best document that is not shown yet; a coin says who begins each round. The coins and
the choice of queries follow from a query's text, so that its pages fit together and whoever sends it sees the same.
"""

import asyncio
import errno
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from random import Random
from threading import Semaphore
from typing import Any, Literal, NamedTuple

from starlette.types import Send

from es_ttc.encoders.query_adapters import QueryAdapter, in_trial
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.serving.features.keys import DocumentId
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.logs import log
from es_ttc.serving.plan.plan import plan_search
from es_ttc.serving.request.request import Api, SearchParams, may_be_ours
from es_ttc.serving.request.response import Outcome, respond_as_asked
from es_ttc.serving.request.section import KEY
from es_ttc.serving.search import Searches
from es_ttc.settings import GatewaySettings

Team = Literal["learned", "frozen"]

_CHANGES_HITS = frozenset({"filter_path", "format", "from", "q", "scroll", "search_type", "size", "sort", "source"})
"""URL parameters with which a search is not part of a trial."""
_CHANGES_ORDER = frozenset({"collapse", "pit", "search_after", "slice", "sort"})
"""Keys of a body with which a search is not part of a trial."""
_MAX_WAITING = 1000
"""Lines that wait for the disk; further ones are lost."""
_WARN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A search that is part of a trial."""

    adapter: QueryAdapter
    body: dict[str, Any]
    text: str
    start: int
    size: int
    coin: Random


class _Answer(NamedTuple):
    body: dict[str, Any]
    headers: RawHeaders


class Trial:
    """Answers searches; those of a share of the queries by both rankings, which it writes to a file."""

    def __init__(self, gateway: Gateway, searches: Searches, file: Path) -> None:
        self._searches = searches
        self._offload = gateway.offload
        self._file = _TrialLog(file)
        self._adapters = gateway.encoders.adapters
        self._share = gateway.settings.trial_share
        self._max_window = gateway.settings.max_window

    async def answer(self, incoming: RawRequest, api: Api, send: Send, *, is_template: bool) -> Outcome:
        """Answer one request; see :meth:`es_ttc.serving.search.Searches.answer`."""
        if api is Api.SEARCH and not is_template:
            drawn = self._drawn(incoming, await incoming.read())
            interleaved = None if drawn is None else await self._interleaved(incoming, drawn)
            if interleaved is not None:
                pretty = SearchParams.parse(incoming.query_string).pretty
                body = jsonio.dumps(interleaved.body, pretty=pretty)
                await respond_as_asked(incoming, send, interleaved.headers, body, self._offload)
                return Outcome(api.kind, 200)
        return await self._searches.answer(incoming, api, send, is_template=is_template)

    def _drawn(self, incoming: RawRequest, raw: bytes) -> _Drawn | None:
        """Return a search that is part of a trial; None for all others, also those with errors."""
        segments = incoming.segments
        adapter = self._adapters.of("" if segments[0] in tuple(Api) else segments[0])
        if adapter is None or not may_be_ours(raw) or incoming.header(b"content-encoding"):
            return None
        params = SearchParams.parse(incoming.query_string)
        try:
            body = jsonio.loads_json(raw)
            plan = plan_search(body, params.engine, max_window=self._max_window) if isinstance(body, dict) else None
        except (InvalidRequest, RecursionError, ValueError):
            return None
        if plan is None or len(plan.texts) != 1 or not plan.page.size or not _CHANGES_HITS.isdisjoint(params.url):
            return None
        if not _CHANGES_ORDER.isdisjoint(body):
            return None
        text = " ".join(plan.texts[0].split())
        seed = f"{adapter.identity.key}\n{text}".encode(errors="replace")
        coin = Random(blake2b(seed).digest())  # noqa: S311 - of a draft
        if coin.random() >= self._share:
            return None
        return _Drawn(adapter, body, text, plan.page.start, plan.page.size, coin)

    async def _interleaved(self, incoming: RawRequest, drawn: _Drawn) -> _Answer | None:
        """Return the answer of both rankings, and log it; None if one of them could not be made."""
        raw = jsonio.dumps({**drawn.body, "from": 0, "size": drawn.start + drawn.size})
        answers = await asyncio.gather(*(self._ranked(incoming, raw, learned=learned) for learned in (True, False)))
        if answers[0] is None or answers[1] is None:
            return None
        learned, frozen = answers[0].body, answers[1].body
        hits = {DocumentId.of(hit): hit for answer in (frozen, learned) for hit in answer["hits"]["hits"]}
        rankings = [[DocumentId.of(hit) for hit in answer["hits"]["hits"]] for answer in (learned, frozen)]
        page = slice(drawn.start, drawn.start + drawn.size)
        drafted = team_draft(rankings[0], rankings[1], drawn.coin)[: page.stop]
        shown: list[dict[str, Any]] = []
        score = float("inf")
        for name, _ in drafted:  # scores of two rankings do not compare: none may be above the one before
            score = min(score, hits[name]["_score"])
            shown.append({**hits[name], "_score": score})
        frozen["hits"] |= {"hits": shown[page], "max_score": shown[0]["_score"] if shown else None}
        frozen[KEY]["trial"] = drawn.adapter.identity.key
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "index": incoming.segments[0],
            "adapter": drawn.adapter.identity.key,
            "query": drawn.text,
            "from": drawn.start,
            "hits": [[name.routed.id, team] for name, team in drafted[page]],
        }
        self._file.add(jsonio.dumps(line) + b"\n")
        return answers[1]

    async def _ranked(self, incoming: RawRequest, raw: bytes, *, learned: bool) -> _Answer | None:
        """Return the answer with or without the adapter; None if the method could not be applied."""
        context = copy_context()
        context.run(in_trial.set, learned)
        accept = [header for header in incoming.headers if header[0] == b"accept"]
        search = self._searches.ask(incoming.another(incoming.raw_path, incoming.query_string, raw, accept))
        outcome, headers, raw_answer = await asyncio.create_task(search, context=context)
        if outcome.status != 200 or not outcome.applied:
            return None
        body: dict[str, Any] = jsonio.loads_json(raw_answer)
        return _Answer(body, headers) if all("_id" in hit for hit in body["hits"]["hits"]) else None


class _TrialLog:
    """Appends lines on a thread; what cannot be written is lost, and a warning says so once a minute."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._room = Semaphore(_MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="es-ttc-trial")
        self._lost, self._quiet_until = 0, 0.0

    def add(self, line: bytes) -> None:
        """Write a line soon."""
        if self._room.acquire(blocking=False):
            self._thread.submit(self._write, line)
        else:
            self._lose(f"{_MAX_WAITING} lines wait to be written")

    def _write(self, line: bytes) -> None:
        try:
            _append(self._file, line)
        except OSError as error:
            self._lose(str(error.strerror))
        finally:
            self._room.release()

    def _lose(self, reason: str) -> None:
        self._lost += 1
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _WARN_SECONDS
            log.warning("searches of the trial not logged", trial_log=str(self._file), reason=reason, lost=self._lost)


def require_trial_possible(settings: GatewaySettings) -> None:
    """Raise a ConfigurationError for a trial without adapters, or whose file cannot be written."""
    if settings.trial_log is None:
        return
    if not settings.query_adapters:
        raise ConfigurationError("[trial_log] is for a trial of [query_adapters]: name some, or leave it out")
    try:
        _append(settings.trial_log, b"")
    except OSError as error:
        raise ConfigurationError(f"[trial_log] {settings.trial_log} cannot be written: {error.strerror}") from error


def team_draft(learned: Sequence[Any], frozen: Sequence[Any], coin: Random) -> list[tuple[Any, Team]]:
    """Return two rankings as one, each document with the ranking that has put it there."""
    rankings: dict[Team, Sequence[Any]] = {"learned": learned, "frozen": frozen}
    drafted: dict[Any, Team] = {}
    while True:
        teams: list[Team] = ["learned", "frozen"]
        coin.shuffle(teams)
        before = len(drafted)
        for team in teams:
            best = next((one for one in rankings[team] if one not in drafted), None)
            if best is not None:
                drafted[best] = team
        if len(drafted) == before:
            return list(drafted.items())


def _append(file: Path, line: bytes) -> None:
    """Append a line by one call, so that lines of several processes do not mix."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
