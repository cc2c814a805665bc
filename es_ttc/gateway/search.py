"""`_search`, `_msearch`, templates of both: what carries our section is answered by us, all else is passed through."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.types import Send

from es_ttc.errors import EngineError, EsTtcError, InvalidRequest
from es_ttc.gateway import jsonio
from es_ttc.gateway.accepted import Accepted
from es_ttc.gateway.attached import AttachedFeatures
from es_ttc.gateway.filter_path import filtered
from es_ttc.gateway.incoming import Incoming, RawHeaders
from es_ttc.gateway.limits import MARK, RequestLimits
from es_ttc.gateway.offload import Offload
from es_ttc.gateway.proxy import answer_headers, end_answer, forward, start_answer
from es_ttc.gateway.rescoring import Rescoring, Search, WalkSearch, add_groups, add_to_first_pass, groups_beyond, hide
from es_ttc.gateway.search_body import SearchPlan, parse_params, plan_search
from es_ttc.gateway.section import KEY
from es_ttc.gateway.split import bare_window, can_split, filled, marks_of, page_hits
from es_ttc.gateway.upstream import Caller, Upstream, asks_vendor_type, end_to_end, forwarded, plain_types

_OUR_PARAMS = frozenset({"filter_path", "format", "pretty", "source", "source_content_type"})
_OUR_HEADERS = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_NAMING_PARAMS = frozenset({"allow_no_indices", "expand_wildcards", "ignore_unavailable"})
_SCORED_AT_ONCE = 8  # searches of one _msearch
_RENDERED_AT_ONCE = 8  # templates of one _msearch/template
_BEGUN_AT_ONCE = 20  # searches of one _msearch, before others have a turn
_LONG_WORK = 2**20  # whatever is filtered may be long
_JSON_ACCEPTED = ("", "*/*", "application/*")
_NDJSON = b"application/x-ndjson"
_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer to a request of ours.

    Attributes:
        status: Its HTTP status.
        headers: Its headers, as they go to the caller; without those of the body's framing.
        body: Its body.
        ms: What it took.
    """

    status: int
    headers: RawHeaders
    body: bytes
    ms: float


class Rescored(NamedTuple):
    """A search that the engine has answered and we have put into order."""

    headers: RawHeaders
    answer: dict[str, Any]
    applied: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, for metrics and logs.

    Attributes:
        kind: ``passthrough``, ``search`` or ``msearch``.
        status: The HTTP status.
        applied: Whether every search of ours was rescored.
    """

    kind: str
    status: int
    applied: bool = True


class SearchHandler:
    """Answers searches.

    Args:
        upstream: The engine.
        rescoring: Puts answers into a method's order.
        attached: Finds the features of attached indices.
        limits: What a search with a section of ours may hold.
        max_body: Bytes of a body that are read.
        max_window: Greatest window that may be asked for.
    """

    def __init__(
        self,
        upstream: Upstream,
        rescoring: Rescoring,
        attached: AttachedFeatures,
        limits: RequestLimits,
        *,
        max_body: int,
        max_window: int,
    ) -> None:
        self.limits = limits
        self.offload = Offload()
        self._accepted = Accepted()
        self._upstream = upstream
        self._rescoring = rescoring
        self._attached = attached
        self._max_body = max_body
        self._max_window = max_window

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`."""
        started = time.perf_counter()
        body, text, params = await self.read(incoming)
        plan = await self.offload.run(len(text or b""), self._plan, text, engines_params(params))
        if plan is None:
            return await self._pass(incoming, send, body)
        return await self._answer(incoming, send, plan, params, started)

    async def template(self, incoming: Incoming, send: Send, rendered: Mapping[str, Any] | None) -> Outcome:
        """Answer one `_search/template` by what it renders to, as a `_search`.

        What cannot be rendered, and what renders to a search without a section of ours, goes to the engine as it came.

        Args:
            incoming: The request.
            send: Where the answer goes.
            rendered: What :meth:`rendered_template` gave.
        """
        started = time.perf_counter()
        body, _, params = await self.read(incoming)
        plan = None if rendered is None else self._planned(rendered, engines_params(params))
        if plan is None:
            return await self._pass(incoming, send, body)
        incoming.target = without_template(incoming.raw_path)
        return await self._answer(incoming, send, plan, params, started)

    async def rendered_template(self, incoming: Incoming, text: bytes | None) -> dict[str, Any] | None:
        """Return the search that a template stands for, or None where that is the engine's own to find out.

        Only the engine knows what a stored template holds, so each of them is rendered first; one that stands in the
        request is where it could hold something of ours.
        """
        data = await self.offload.run(len(text or b""), self._template, text or b"")
        if data is None or data.get("simulate") or ("id" not in data and KEY.encode() not in (text or b"")):
            return None
        asked: dict[str, Any] = {key: data[key] for key in ("id", "params", "source") if key in data}
        answer = await self._ask(incoming, "", _dumps(asked), _JSON, path=b"/_render/template")
        rendered = (_object(answer.body) or {}).get("template_output")
        if answer.status != 200 or not isinstance(rendered, dict):
            return None
        return rendered | {key: True for key in ("explain", "profile") if data.get(key) is True}

    async def _answer(
        self, incoming: Incoming, send: Send, plan: SearchPlan, params: Sequence[tuple[str, str]], started: float
    ) -> Outcome:
        """Answer a search that carries a section of ours."""
        require_json_answer(incoming, params)
        known = (incoming.headers, incoming.target) in self._accepted
        search = self._rescoring.begin(plan, started, encode=known)
        rescored: Rescored | Answer | None = None
        if isinstance(search, Search) and can_split(plan):
            expects_ids = self._attached.expects_ids(caller_of(incoming, plan.body))
            rescored = None if expects_ids else await self._in_two_steps(incoming, search)
        if rescored is None:
            rescored = await self._in_one_step(incoming, search)
        if isinstance(rescored, Rescored):
            rescored = await self._with_groups(incoming, search, rescored)
        if isinstance(rescored, Answer):
            await _send(incoming, send, rescored.status, rescored.headers, rescored.body)
            return Outcome("search", rescored.status)
        headers, answer, applied = rescored
        hide(answer["hits"]["hits"], plan)
        await _send(incoming, send, 200, _marked(headers, applied=applied), await self._rendered(answer, params))
        return Outcome("search", 200, applied)

    async def _in_one_step(self, incoming: Incoming, search: Search | WalkSearch) -> Rescored | Answer:
        """Return the rescored answer, or the engine's own where it refuses the search."""
        first = await self._ask(incoming, search.plan.query_string, _dumps(search.plan.body), _JSON)
        if first.status != 200:
            return first
        answer = jsonio.loads(first.body)
        self._remember(incoming, answer)
        applied = await self._rescoring.finish(search, answer, caller_of(incoming, search.plan.body), first.ms)
        return Rescored(first.headers, answer, applied)

    async def _in_two_steps(self, incoming: Incoming, search: Search) -> Rescored | Answer | None:
        """Do the same by way of a bare window; None where the page needs the whole request after all."""
        plan = search.plan
        first = await self._ask(incoming, plan.query_string, _dumps(bare_window(plan)), _JSON)
        if first.status != 200:
            return first
        answer = jsonio.loads(first.body)
        self._remember(incoming, answer)
        window = answer["hits"]["hits"]
        if await self._attached.needs_ids(window, caller_of(incoming, plan.body)):
            return None
        marks = marks_of(window)
        by_hit = {id(hit): mark for hit, mark in zip(window, marks, strict=True)}
        applied = await self._rescoring.finish(search, answer, caller_of(incoming, plan.body), first.ms)
        page = answer["hits"]["hits"]
        if not page:
            return Rescored(first.headers, answer, applied)
        wanted = [mark for hit in page if (mark := by_hit[id(hit)]) is not None]
        if len(wanted) < len(page):
            return None
        body = page_hits(plan.body, wanted, filter(None, marks))
        second = await self._ask(incoming, plan.query_string, _dumps(body), _JSON)
        if second.status != 200:
            return None
        full = jsonio.loads(second.body)
        hits = None if full["_shards"]["failed"] else filled(page, wanted, full["hits"]["hits"])
        if hits is None:
            return None
        answer["hits"]["hits"] = hits
        add_to_first_pass(answer, second.ms)
        return Rescored(first.headers, answer, applied)

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`: every item on its own, errors of ours included."""
        started = time.perf_counter()
        body, text, params = await self.read(incoming)
        items = None if text is None or MARK not in text else await self.items(text)
        if items is None:
            return await self._pass(incoming, send, body)
        plans = await self.offload.run(len(text or b""), self._plan_items, [line for _, line in items])
        if not any(plans):
            return await self._pass(incoming, send, body)
        searches = await self._begin_items(incoming, items, plans, started)
        asked = [number for number, search in enumerate(searches) if not isinstance(search, EsTtcError)]
        return await self._answer_items(incoming, send, items, searches, [(incoming.target, asked)], params, started)

    async def rendered_items(
        self, incoming: Incoming, items: Sequence[tuple[bytes, bytes]]
    ) -> list[dict[str, Any] | None]:
        """Return what each template of an `_msearch/template` stands for; see :meth:`rendered_template`."""
        room = asyncio.Semaphore(_RENDERED_AT_ONCE)

        async def rendered(line: bytes) -> dict[str, Any] | None:
            async with room:
                return await self.rendered_template(incoming, line)

        return await asyncio.gather(*(rendered(line) for _, line in items))

    async def msearch_template(
        self, incoming: Incoming, send: Send, bodies: Sequence[dict[str, Any] | None] | None = None
    ) -> Outcome:
        """Answer one `_msearch/template`: items that render to a search of ours as those of an `_msearch`.

        The others go to the engine as they came, in one request.

        Args:
            incoming: The request.
            send: Where the answer goes.
            bodies: What :meth:`rendered_items` gave; None where nothing is rendered yet.
        """
        started = time.perf_counter()
        body, text, params = await self.read(incoming)
        items = None if text is None else await self.items(text)
        if items is None:
            return await self._pass(incoming, send, body)
        if bodies is None:
            bodies = await self.rendered_items(incoming, items)
        plans = [self._plan_item(data) for data in bodies]
        if not any(plans):
            return await self._pass(incoming, send, body)
        searches = await self._begin_items(incoming, items, plans, started)
        incoming.target = without_template(incoming.raw_path)
        ours = [number for number, search in enumerate(searches) if isinstance(search, Search | WalkSearch)]
        others = [number for number, search in enumerate(searches) if search is None]
        parts = [(incoming.target, ours), (incoming.raw_path, others)]
        return await self._answer_items(incoming, send, items, searches, parts, params, started)

    async def _answer_items(
        self,
        incoming: Incoming,
        send: Send,
        items: Sequence[tuple[bytes, bytes]],
        searches: Sequence[Search | WalkSearch | EsTtcError | None],
        parts: Sequence[tuple[bytes, Sequence[int]]],
        params: Sequence[tuple[str, str]],
        started: float,
    ) -> Outcome:
        """Answer several searches, some of which are ours.

        Args:
            incoming: The request.
            send: Where the answer goes.
            items: Headers and bodies, as they came.
            searches: For each item our search, what is wrong with it, or None where it is the engine's.
            parts: Which items the engine is asked at which path.
            params: The URL parameters.
            started: When the request came in.
        """
        require_json_answer(incoming, params)
        asked = [
            self._ask_items(incoming, path, numbers, items, searches, params) for path, numbers in parts if numbers
        ]
        took, headers = 0, answer_headers([(b"content-type", _JSON)], vendor=asks_vendor_type(incoming.headers))
        given: dict[int, tuple[dict[str, Any], float]] = {}
        for first, numbers in await asyncio.gather(*asked):
            if first.status != 200:
                await _send(incoming, send, first.status, first.headers, first.body)
                return Outcome("msearch", first.status)
            answer, headers = jsonio.loads(first.body), first.headers
            took = max(took, answer["took"])
            given |= {number: (one, first.ms) for number, one in zip(numbers, answer["responses"], strict=True)}
        room = asyncio.Semaphore(_SCORED_AT_ONCE)

        async def one(number: int, search: Search | WalkSearch | EsTtcError | None) -> tuple[Any, bool]:
            if isinstance(search, EsTtcError):
                return search.body(), True
            response, first_ms = given[number]
            if search is None or "hits" not in response:
                return response, True
            header = items[number][0]
            self._remember(incoming, response, header)
            async with room:
                try:
                    applied = await self._rescoring.finish(
                        search, response, caller_of(incoming, search.plan.body, header), first_ms
                    )
                    refusal = await self._add_item_groups(incoming, search, header, response)
                except EsTtcError as error:
                    return error.body(), True
            if refusal is not None:
                return refusal, True
            hide(response["hits"]["hits"], search.plan)
            return response, applied

        finished = await asyncio.gather(*(one(number, search) for number, search in enumerate(searches)))
        took = max(took, round((time.perf_counter() - started) * 1000))
        answered = {"took": took, "responses": [response for response, _ in finished]}
        applied = all(done for _, done in finished)
        await _send(incoming, send, 200, _marked(headers, applied=applied), await self._rendered(answered, params))
        return Outcome("msearch", 200, applied)

    async def _ask_items(
        self,
        incoming: Incoming,
        path: bytes,
        numbers: Sequence[int],
        items: Sequence[tuple[bytes, bytes]],
        searches: Sequence[Search | WalkSearch | EsTtcError | None],
        params: Sequence[tuple[str, str]],
    ) -> tuple[Answer, Sequence[int]]:
        lines = [_item_lines(*items[number], searches[number]) for number in numbers]
        return await self._ask(
            incoming, urlencode(engines_params(params)), b"".join(lines), _NDJSON, path=path
        ), numbers

    async def _with_groups(
        self, incoming: Incoming, search: Search | WalkSearch, rescored: Rescored
    ) -> Rescored | Answer:
        """Add the groups beyond the window to a page; return the engine's answer where it refuses."""
        beyond = groups_beyond(search)
        if beyond is None:
            return rescored
        rest = await self._ask(incoming, search.plan.query_string, _dumps(beyond), _JSON)
        if rest.status != 200:
            return rest
        add_groups(rescored.answer, search, jsonio.loads(rest.body), rest.ms)
        return rescored

    async def _add_item_groups(
        self, incoming: Incoming, search: Search | WalkSearch, header: bytes, response: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Do the same for an item of an `_msearch`; return the engine's error in its place where it refuses."""
        beyond = groups_beyond(search)
        if beyond is None:
            return None
        params = engines_params(parse_params(incoming.query_string.decode("latin-1")))
        second = await self._ask(incoming, urlencode(params), b"%b\n%b\n" % (header, _dumps(beyond)), _NDJSON)
        if second.status != 200:
            raise EngineError(f"groups could not be read: the engine answered {second.status}")
        answer: dict[str, Any] = jsonio.loads(second.body)["responses"][0]
        if "hits" not in answer:
            return answer
        add_groups(response, search, answer, second.ms)
        return None

    async def read(self, incoming: Incoming) -> tuple[bytes, bytes | None, list[tuple[str, str]]]:
        """Return the body as it came, the request's text (None where only the engine can read it), the parameters.

        Raises:
            InvalidRequest: The text may carry a section of ours and holds more than such a request may.
        """
        body = await incoming.read(self._max_body)
        text = await incoming.plain(self._max_body, self.limits, self.offload)
        params = parse_params(incoming.query_string.decode("latin-1"))
        if text is not None and not text.strip():
            text = dict(params).get("source", "").encode(errors="surrogateescape")
        readable = text is None or incoming.rewritten or await self.offload.run(len(text), self.limits.admits, text)
        return body, text if readable else None, params

    async def items(self, text: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return an `_msearch` body's pairs of header and search; None where they are the engine's to read.

        Raises:
            InvalidRequest: There are more than an `_msearch` with a section of ours may have.
        """
        return await self.offload.run(len(text), items_of, text) if self.limits.admits_items(text) else None

    async def passed(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer a search that has nothing of ours: the engine answers it as it came."""
        return await self._pass(incoming, send, await incoming.read(self._max_body))

    async def _pass(self, incoming: Incoming, send: Send, body: bytes) -> Outcome:
        return Outcome("passthrough", await forward(self._upstream, incoming, send, body=body))

    def _template(self, text: bytes) -> dict[str, Any] | None:
        """Decode a template's request; None for anything else, and for what is too long to be one of ours."""
        try:
            self.limits.check_text(text)
            return _object(text, self.limits)
        except InvalidRequest:
            return None

    def _plan(self, text: bytes | None, params: Sequence[tuple[str, str]]) -> SearchPlan | None:
        """Return the plan of a search that carries our section in `rescore`, or None."""
        data = None if text is None or MARK not in text else _object(text, self.limits)
        return None if data is None else self._planned(data, params)

    def _planned(self, data: Mapping[str, Any], params: Sequence[tuple[str, str]]) -> SearchPlan | None:
        return plan_search(data, params, max_window=self._max_window, limits=self.limits)

    def _plan_items(self, lines: Sequence[bytes]) -> list[SearchPlan | EsTtcError | None]:
        """Return the plan of each search of an `_msearch`, what is wrong with it, or None where it is the engine's."""
        plans: list[SearchPlan | EsTtcError | None] = []
        for line in lines:
            try:
                plans.append(self._plan(line, []))
            except EsTtcError as error:
                plans.append(error)
        return plans

    def _plan_item(self, data: Mapping[str, Any] | None) -> SearchPlan | EsTtcError | None:
        try:
            return None if data is None else self._planned(data, [])
        except EsTtcError as error:
            return error

    def _remember(self, incoming: Incoming, answer: Mapping[str, Any], header: bytes = b"") -> None:
        """Encode the caller's next search of the same target beside the engine's first pass."""
        if answer["hits"]["hits"]:
            self._accepted.add(incoming.headers, incoming.target + header)

    async def _begin_items(
        self,
        incoming: Incoming,
        items: Sequence[tuple[bytes, bytes]],
        plans: Sequence[SearchPlan | EsTtcError | None],
        started: float,
    ) -> list[Search | WalkSearch | EsTtcError | None]:
        """Begin the searches of an `_msearch`, with a pause for others after every few."""
        searches: list[Search | WalkSearch | EsTtcError | None] = []
        for number, ((header, _), plan) in enumerate(zip(items, plans, strict=True), 1):
            if isinstance(plan, SearchPlan):
                known = (incoming.headers, incoming.target + header) in self._accepted
                try:
                    searches.append(self._rescoring.begin(plan, started, encode=known))
                except EsTtcError as error:
                    searches.append(error)
            else:
                searches.append(plan)
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
        return searches

    async def _rendered(self, answer: dict[str, Any], params: Sequence[tuple[str, str]]) -> bytes:
        url = dict(params)
        if url.get("filter_path"):
            keep_empty = await self._upstream.product() == "elasticsearch"
            answer = await self.offload.run(_LONG_WORK, filtered, answer, url["filter_path"], keep_empty=keep_empty)
        return jsonio.dumps(answer, pretty=url.get("pretty", "false") in ("", "true"))

    async def _ask(
        self, incoming: Incoming, query_string: str, body: bytes, content_type: bytes, *, path: bytes | None = None
    ) -> Answer:
        """Send the engine's part of a request in the caller's name and read the whole answer."""
        headers = [(name, value) for name, value in forwarded(incoming.headers) if name not in _OUR_HEADERS]
        vendor = asks_vendor_type(headers) and await self._upstream.product() == "opensearch"
        headers = plain_types(headers) if vendor else headers
        if not incoming.has_body or not incoming.header(b"content-type"):
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        headers.append((b"accept-encoding", b"identity"))
        started = time.perf_counter()
        async with self._upstream.send(
            "POST", path or incoming.target, query_string.encode(), headers, body
        ) as response:
            raw = await response.read()
            kept = [pair for pair in end_to_end(response.raw_headers) if pair[0] not in _OUR_HEADERS]
            ms = (time.perf_counter() - started) * 1000
            return Answer(response.status, answer_headers(kept, vendor=vendor), raw, ms)


def caller_of(incoming: Incoming, body: Mapping[str, Any], header: bytes = b"") -> Caller:
    """Return in whose name features are read; an `_msearch` item's header may name its own indices."""
    segments = incoming.segments
    indices = "" if segments[0] in ("_search", "_msearch") else segments[0]
    params = parse_params(incoming.query_string.decode("latin-1"))
    if header.strip():
        told = jsonio.loads_object(header, "the header of an item")
        indices = quote(_joined(told.get("index") or told.get("indices") or ""), safe=",:*") or indices
        params += [(name, _joined(value)) for name, value in told.items()]
    naming = tuple((name, value) for name, value in params if name in _NAMING_PARAMS)
    return Caller(incoming.headers, indices, naming, body.get("pit"))


def _joined(value: Any) -> str:
    """Return a header's value as a URL parameter has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _object(raw: bytes, limits: RequestLimits | None = None) -> dict[str, Any] | None:
    """Decode a JSON object; None for anything else.

    Raises:
        InvalidRequest: It is nested more deeply than the limits allow.
    """
    try:
        data = jsonio.loads(raw) if limits is None else limits.decoded(raw)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def items_of(text: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return an `_msearch` body's pairs of header and search, or None where the lines do not pair up."""
    lines = text.split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    if len(lines) % 2:
        return None
    return list(zip(lines[::2], lines[1::2], strict=True))


def without_template(raw_path: bytes) -> bytes:
    """Return the path of the search that a template's path stands for."""
    return raw_path.rstrip(b"/").removesuffix(b"/template")


def _item_lines(header: bytes, line: bytes, search: Search | WalkSearch | EsTtcError | None) -> bytes:
    body = _dumps(search.plan.body) if isinstance(search, Search | WalkSearch) else line
    return b"%b\n%b\n" % (header, body)


def engines_params(params: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the parameters that are left to the engine."""
    return [(name, value) for name, value in params if name not in _OUR_PARAMS]


def require_json_answer(incoming: Incoming, params: Sequence[tuple[str, str]]) -> None:
    """Refuse to answer a search of ours in another format.

    Raises:
        InvalidRequest: The caller wants no JSON.
    """
    wanted = dict(params).get("format", "json").lower()
    accepted = [part.partition(";")[0].strip().lower() for part in incoming.header(b"accept").split(",")]
    if wanted != "json" or not any(part in _JSON_ACCEPTED or part.endswith("json") for part in accepted):
        raise InvalidRequest("a search with a [ttc] section is answered in JSON only: ask for application/json")


def _dumps(body: Mapping[str, Any]) -> bytes:
    try:
        return jsonio.dumps(body)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"the body cannot be sent on to the engine: {error}") from error


def _marked(headers: RawHeaders, *, applied: bool) -> RawHeaders:
    return [*headers, (b"x-ttc-applied", b"true" if applied else b"false")]


async def _send(incoming: Incoming, send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    await start_answer(send, status, [*headers, (b"content-length", str(len(body)).encode())])
    await end_answer(incoming, send, body)
