"""`/_ttc/explain`: why a document stands where it does in a search, or why it is not on the first page.

The search runs as it is, with details of its whole window. Further searches, all with the caller's credentials, tell of
the document alone: whether the query matches it, at which rank, which clauses it fails (by the engine's named queries),
which of the query's words it lacks.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from es_ttc.common.validation import validated
from es_ttc.errors import EngineError, InvalidRequest, UnknownIndex
from es_ttc.serving.admin.endpoint import EndpointRunner, json_object, received, with_callers_errors
from es_ttc.serving.answer_forms import Form, require_form, require_scores
from es_ttc.serving.engine import EngineClient, refusal_reason
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.plan.items import DEFAULT_WINDOW, find_rescore
from es_ttc.serving.plan.plan import DEFAULT_SIZE
from es_ttc.serving.request.body import body_integer, body_number, find_clauses, texts_of
from es_ttc.serving.request.section import DEFAULT_METHOD, KEY, Section, parse_section
from es_ttc.serving.search import Searches

_KIND = "explain"
_AT_ONCE = 4
_MAX_BODY = 2**20
_MAX_CLAUSES = 500
_MAX_LEAVES = 500  # of the named clauses of one search: engines accept 1,024
_MAX_SEARCHES = 8
_MAX_WORDS = 50
_MAX_SHOWN = 120
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 0.5, 0.0)
_ALIKE = 1e-9
_FAILING = "the document could not be examined"
_TOKENS: Form = {"tokens": [{"start_offset": int, "end_offset": int}]}
_OF_MATCHING = frozenset({"derived", "runtime_mappings"})
_DROPPED = frozenset(
    {
        "aggs",
        "aggregations",
        "collapse",
        "explain",
        "fields",
        "highlight",
        "profile",
        "rescore",
        "stored_fields",
        "suggest",
    }
)
_DROPPED_OF_SECTION = frozenset({"context", "min_relevance", "passages"})
_REFUSED = {400: InvalidRequest, 404: UnknownIndex}


class ExplainRequest(BaseModel):
    """A document, and the search that it is expected in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: str = Field(min_length=1, description="The searched index, an alias or a list, as in the URL.")
    id: str = Field(min_length=1, description="Id of the document.")
    search: dict[str, Any] = Field(
        description="Body of the search. Without a `ttc` section in `rescore` it is explained with `blend`."
    )


class FailedClause(BaseModel):
    """A clause that the document fails."""

    path: str = Field(description="Its place in the body.")
    clause: dict[str, Any] = Field(description="The clause.")


class WeightChange(BaseModel):
    """A change of one weight of blend that brings the document to the first page."""

    signal: str
    times: float = Field(description="Factor of the signal's weight.")
    rank: int = Field(description="The document's rank with it.")


class Explanation(BaseModel):
    """Where a document stands in a search, and why."""

    index: str
    id: str
    reasons: list[str] = Field(description="What is found, in sentences.")
    rank: int | None = Field(None, description="Its rank in the answer; null if it is not among the documents found.")
    found: int = Field(0, description="Number of documents of the answer that were compared.")
    score: float | None = None
    matches: bool = Field(False, description="Whether the query matches it.")
    first_pass_rank: int | None = Field(None, description="Its rank by the query alone, the least of equal scores.")
    first_pass_score: float | None = None
    factor: float | None = Field(None, description="What the query says besides its words makes of its score.")
    joined: bool = Field(False, description="Whether it joined the window by its vector.")
    relevance: float | None = None
    left_out: bool = Field(False, description="Whether it is left out by `min_relevance`.")
    signals: dict[str, dict[str, float | int | None]] = Field(
        default_factory=dict, description="By signal `score`, and `rank` among the documents of the window."
    )
    failed: list[FailedClause] = Field(default_factory=list, description="Clauses that keep it from matching.")
    lacking_words: list[str] = Field(default_factory=list, description="Words of the query that it does not have.")
    weights: list[WeightChange] = Field(default_factory=list, description="Least changes of one weight.")


class Explaining:
    """Answers requests about documents of a search."""

    def __init__(self, gateway: Gateway, searches: Searches) -> None:
        self._gateway = gateway
        self._searches = searches
        self._runner = EndpointRunner(_KIND, gateway.metrics, _AT_ONCE)

    async def explain(self, request: Request) -> Response:
        """Tell why a document stands where it does in a search, or why it is not found."""
        return await self._runner.json(request, with_callers_errors(self._answered(request)))

    async def _answered(self, request: Request) -> dict[str, Any]:
        """Return the explanation; what the engine refuses in the caller's search is the caller's error."""
        incoming = received(request)
        asked = validated(ExplainRequest, await json_object(incoming, _MAX_BODY, self._gateway.offload), _KIND)
        try:
            async with incoming.ended_by_disconnect():
                with self._gateway.callers.request(incoming):
                    return (await self._explained(request, asked)).model_dump()
        except EngineError as error:
            if refused := _REFUSED.get(error.upstream_status or 0):
                raise refused(str(error)) from error
            raise

    async def _explained(self, request: Request, asked: ExplainRequest) -> Explanation:
        search, ids = asked.search, {"ids": {"values": [asked.id]}}
        body, section, window = _with_detail(search)
        size = body_integer(search.get("size"))
        page = DEFAULT_SIZE if size is None else size
        whole = {**body, "from": 0, "size": min(2 * max(window, page), self._gateway.settings.max_window)}
        must = [body["query"]] if body.get("query") else []
        alone = {**body, "query": {"bool": {"must": must, "filter": [ids]}}, "from": 0, "size": 1}
        answer, own = await asyncio.gather(*(self._search(request, asked.index, one) for one in (whole, alone)))
        hits, summary = answer["hits"]["hits"], answer[KEY]
        shown_hits = [hit for hit in hits if hit.get("_id") == asked.id]
        [hit] = shown_hits[:1] or own["hits"]["hits"] or [{}]
        detail, signals = hit.get("_ttc", {}), _ranked_signals(hit, hits)
        left_out = False
        if section.min_relevance is not None and summary["applied"]:
            least = section.min_relevance
            reaching = [one for one in hits if (one["_ttc"].get("relevance") or 0) >= least]
            left_out = bool(shown_hits) and hit not in reaching
            hits = hits if left_out else reaching
        explanation = Explanation(index=asked.index, id=asked.id, reasons=[], found=len(hits), signals=signals)
        explanation.left_out = left_out
        if shown_hits:
            explanation.rank, explanation.score = 1 + hits.index(hit), hit.get("_score")
            explanation.relevance = detail.get("relevance") if "relevance" in summary else None
            explanation.joined = detail.get("first_pass_rank") is None
            explanation.factor = detail.get("factor")
            if explanation.rank > page and not left_out and "items" not in detail and explanation.factor is None:
                explanation.weights = least_changes([*map(_signals, hits)], explanation.rank - 1, page)
        await self._examine(self._gateway.engine.as_caller(Caller(request.headers.raw)), explanation, search, ids)
        explanation.reasons = [*_reasons(explanation, hits, detail, summary, own[KEY], search, section, window, page)]
        return explanation

    async def _examine(
        self, engine: EngineClient, told: Explanation, search: Mapping[str, Any], ids: Mapping[str, Any]
    ) -> None:
        """Find out whether the query matches the document, at which rank, and what it fails and lacks."""
        query, after = search.get("query") or {"match_all": {}}, search.get("post_filter")
        shared = {key: value for key, value in search.items() if key in _OF_MATCHING}
        clauses = [*_clauses("query", query), *([("post_filter", after, True)] if after else [])][:_MAX_CLAUSES]
        words = await self._words(engine, told.index, query)
        # a clause in `filter` adds nothing to the score, which is the query's own
        named = [("query", {"must": [query]}), *((path, {"filter": [clause]}) for path, clause, _ in clauses)]
        named += [(f"word {word}", {"filter": [clause]}) for word, clause in words.items()]
        bodies = [
            {**shared, "query": {"bool": {"filter": [ids], "should": some}}, "size": 1, "_source": False}
            for some in _batches([{"bool": {**clause, "_name": name}} for name, clause in named])
        ]
        path = _search_path(told.index)
        searches = [engine.search_at(path, body, failing=_FAILING, in_own_words=True) for body in bodies]
        answers = await asyncio.gather(*searches)
        matching = answers[0]["hits"]["hits"]
        if not matching:
            raise InvalidRequest(f"there is no document [{told.id}] in [{told.index}] that you may read")
        matched = {
            name for answer in answers for hit in answer["hits"]["hits"] for name in hit.get("matched_queries", ())
        }
        examined = {one["bool"]["_name"] for body in bodies for one in body["query"]["bool"]["should"]}
        told.matches = "query" in matched
        told.failed = [
            FailedClause(path=path, clause=clause)
            for path, clause, wanted in clauses
            if path in examined and wanted is not None and (path in matched) != wanted
        ]
        told.lacking_words = [word for word in words if f"word {word}" in examined - matched]
        if told.matches:
            require_scores(matching, _FAILING)
            told.first_pass_score = matching[0]["_score"]
            above = float(np.nextafter(np.float32(told.first_pass_score), np.float32(np.inf)))
            counted = {"bool": {"must": [query], "filter": [after] if after else []}}
            count = {**shared, "query": counted, "min_score": above, "size": 0, "track_total_hits": True}
            counts = await engine.search_at(path, count, failing=_FAILING, in_own_words=True)
            require_form(counts, {"hits": {"total": {"value": int}}}, _FAILING)
            told.first_pass_rank = counts["hits"]["total"]["value"] + 1

    async def _words(self, engine: EngineClient, index: str, query: Any) -> dict[str, Any]:
        """Return for each word of the query's text, as the engine reads it, the clauses with this word in its place."""
        texts = list(dict.fromkeys(texts_of(query)))
        if len(texts) != 1:
            return {}
        [text] = texts
        leaves = [clause for _, clause, _ in _clauses("query", query) if text in texts_of(clause)]
        words = text.split()
        for field in [name for clause in leaves for name in _fields(clause)][:1]:
            path = f"/{quote(index)}/_analyze".encode()
            try:
                asked = {"field": field, "text": text}
                read = await engine.json("POST", path, body=asked, failing=_FAILING, form=_TOKENS)
                words = [text[token["start_offset"] : token["end_offset"]] for token in read["tokens"]]
            except EngineError:  # an alias of several indices, or no right to analyse
                pass
        some = list(dict.fromkeys(word for word in words if word.strip()))[:_MAX_WORDS]
        return {word: {"bool": {"should": [_with_word(leaf, text, word) for leaf in leaves]}} for word in some}

    async def _search(self, request: Request, index: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the gateway's own answer to a search of the caller."""
        incoming = RawRequest(request.scope, request.receive, self._gateway.bodies)
        outcome, _, found = await self._searches.ask(incoming.another(_search_path(index), b"", jsonio.dumps(body)))
        try:
            answer: Any = jsonio.loads_json(found)
        except ValueError:  # a proxy has answered in the engine's place
            answer = {}
        if outcome.status != 200:
            reason = f"the search failed: {refusal_reason(answer, outcome.status)}"
            raise EngineError(reason, upstream_status=outcome.status)
        require_form(answer, {"hits": {"hits": list}, KEY: dict}, "the search failed")
        return dict(answer)


def _batches(named: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return named clauses in groups that an engine accepts in one search each, as many as are sent."""
    batches: list[list[dict[str, Any]]] = [[]]
    left = _MAX_LEAVES
    for clause in named:
        size = _leaves(clause)
        if size > left and batches[-1]:
            batches.append([])
            left = _MAX_LEAVES
        batches[-1].append(clause)
        left -= size
    return batches[:_MAX_SEARCHES]


def _leaves(part: Any) -> int:
    """Return about how many clauses an engine makes of a part of a query: one for each word in each field."""
    if isinstance(part, dict):
        fields = part.get("fields")
        return sum(map(_leaves, part.values())) * (len(fields) if fields and isinstance(fields, list) else 1)
    if isinstance(part, list):
        return sum(map(_leaves, part))
    return len(part.split()) if isinstance(part, str) else 1


def _search_path(index: str) -> bytes:
    return f"/{quote(index, safe=',:*')}/_search".encode()


def _with_detail(search: Mapping[str, Any]) -> tuple[dict[str, Any], Section, int]:
    """Return a search with details of all hits, without what an explanation does not need; its section and window."""
    if "slice" in search:
        raise InvalidRequest("[search] has a [slice], which is for a scroll or a point in time: leave it out")
    if "retriever" in search or "knn" in search or find_clauses(search):
        raise InvalidRequest(
            f"[search] has a [retriever], a [knn] or a [{KEY}] query, which cannot be explained: give a native [query]"
        )
    rescore = find_rescore(search.get("rescore"))
    natives, item = ([], {KEY: {}}) if rescore is None else (rescore[0], rescore[1][0])
    section = parse_section(item[KEY], default_method=DEFAULT_METHOD)
    section_rest = {key: value for key, value in item[KEY].items() if key not in _DROPPED_OF_SECTION}
    asked = {"detail": True, "on_error": "first_pass", "relevance": section.relevance_key is not None}
    body = {key: value for key, value in search.items() if key not in _DROPPED}
    body |= {"_source": False, "rescore": [*natives, {**item, KEY: {**section_rest, **asked}}]}
    return body, section, body_integer(item.get("window_size")) or DEFAULT_WINDOW


def _clauses(path: str, query: Any, wanted: bool | None = True) -> Iterator[tuple[str, dict[str, Any], bool | None]]:
    """Yield the clauses of a query with their places, and whether the document must match each; None if it need not."""
    inner = query.get("bool") if isinstance(query, dict) else None
    if not isinstance(inner, dict) or wanted is False:
        if isinstance(query, dict):
            yield path, query, wanted
        return
    needed = inner.get("minimum_should_match", 0 if inner.get("must") or inner.get("filter") else 1)
    for kind, required in (("must", True), ("filter", True), ("must_not", False), ("should", None)):
        clause_value = inner.get(kind)
        several = clause_value if isinstance(clause_value, list) else [clause_value]
        if kind == "should" and needed not in (0, "0"):
            if len(several) == 1:
                required = True
            else:
                yield f"{path}.bool.should", {"bool": {"should": clause_value, "minimum_should_match": needed}}, wanted
        for place, clause in enumerate(several):
            place_of = f"[{place}]" if isinstance(clause_value, list) else ""
            yield from _clauses(f"{path}.bool.{kind}{place_of}", clause, None if wanted is None else required)


def _fields(part: Any) -> Iterator[str]:
    """Yield the fields that a clause searches for a text."""
    for key, inner in part.items() if isinstance(part, dict) else ():
        if key.startswith("match") and isinstance(inner, dict):
            yield from inner
        elif key == "fields" and isinstance(inner, list):
            yield from (one.partition("^")[0] for one in map(str, inner) if "*" not in one)
        else:
            for one in inner if isinstance(inner, list) else [inner]:
                yield from _fields(one)


def _with_word(part: Any, text: str, word: str) -> Any:
    """Return a clause with a word in the place of its text, whatever number of words must match."""
    if isinstance(part, dict):
        return {key: _with_word(value, text, word) for key, value in part.items() if key != "minimum_should_match"}
    return word if part == text else part


def _signals(hit: Mapping[str, Any]) -> Mapping[str, Mapping[str, float | None]]:
    """Return the signals in a hit's detail, those of the first of several methods."""
    detail = hit.get("_ttc", {})
    signals: Mapping[str, Mapping[str, float | None]] = detail.get("items", [detail])[0].get("signals", {})
    return signals


def _ranked_signals(
    hit: Mapping[str, Any], hits: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float | int | None]]:
    """Return the score of each of a hit's signals, and its rank by it among hits."""
    by_document: dict[str, dict[str, float | int | None]] = {}
    for name, one in _signals(hit).items():
        scores = [_signals(other).get(name, {}).get("score") for other in hits]
        above = sum(score is not None and score > (one["score"] or 0) for score in scores)
        by_document[name] = {"score": one["score"], "rank": None if one["score"] is None else 1 + above}
    return by_document


def least_changes(
    hits: Sequence[Mapping[str, Mapping[str, float | None]]], place: int, page: int
) -> list[WeightChange]:
    """Return for each signal the least factor of its weight that brings a hit to the first page, if one does.

    ``hits`` have their signals, in the order of their sums of shares; ``place`` counts from 0.
    """
    names, own = list(hits[place]), hits[place]
    scored = [hit for hit in hits if hit.keys() >= own.keys()]
    gaps = np.array([[(one[name]["share"] or 0) - (own[name]["share"] or 0) for name in names] for one in scored])
    changes = []
    for column, name in enumerate(names):
        for factor in _FACTORS:
            rank = 1 + int((gaps.sum(axis=1) + (factor - 1) * gaps[:, column] > _ALIKE).sum())
            if rank <= page:
                changes.append(WeightChange(signal=name, times=factor, rank=rank))
                break
    return changes


def _reasons(
    told: Explanation,
    hits: Sequence[Mapping[str, Any]],
    detail: Mapping[str, Any],
    summary: Mapping[str, Any],
    alone: Mapping[str, Any],
    search: Mapping[str, Any],
    section: Section,
    window: int,
    page: int,
) -> Iterator[str]:
    """Yield what is found, in sentences."""
    method = section.method
    if told.rank is None:
        yield f"it is not among the {told.found} documents that {method} ranks"
    elif told.left_out:
        yield f"its relevance {told.relevance} is below the [min_relevance] {section.min_relevance}: it is left out"
    elif told.rank <= page:
        yield f"it is on the first page, at rank {told.rank} of {told.found}"
    else:
        yield f"{method} ranks it {told.rank} of {told.found}; the first page ends at {page}"
    if not summary["applied"]:
        yield f"{method} was not applied: {summary.get('reason')}"
    if told.first_pass_rank is not None:
        yield f"the query matches it; {told.first_pass_rank - 1:,} documents have a greater score in the first pass"
        if told.first_pass_rank > window and not told.joined:
            yield f"only the first {window} are ranked: a [window_size] of {told.first_pass_rank} would hold it"
    if told.factor is not None:
        greatest = max(hit["_ttc"].get("factor", 0.0) for hit in hits)
        yield (
            f"what the query says besides its words multiplies its score by {told.factor:.3g}; the greatest factor of "
            f"the window is {greatest:.3g}"
        )
    for one in told.failed:
        verb = "matches" if "must_not" in one.path.rsplit(".", 1)[-1] else "does not match"
        clause = jsonio.dumps(one.clause).decode()
        yield f"it {verb} [{one.path}], {clause if len(clause) <= _MAX_SHOWN else f'{clause[:_MAX_SHOWN]}...'}"
    if told.lacking_words:
        yield f"it lacks the words {', '.join(told.lacking_words)}"
    if told.joined:
        yield "its vector is among the nearest to the query, by which it joined"
    elif told.rank is None and "candidates" in summary and not any("filter" in one.path for one in told.failed):
        nearest = summary["candidates"]
        yield nearest.get("reason") or f"its vector is not among the {nearest['knn']} nearest to the query"
    if detail.get("skipped"):
        yield f"its features are not used: {detail['skipped']}"
    if detail.get("stale"):
        yield "its features are of an earlier text: `es-ttc fill` brings them up to date"
    elif told.signals and all(one["score"] is None for name, one in told.signals.items() if name != "lexical"):
        yield "it has no features of its present text: only its words count"
    elif told.rank is None and not alone["applied"] and summary["applied"]:
        yield f"alone it cannot be ranked: {alone.get('reason')}"
    if "encoded_share" in detail:
        yield f"its token vectors are made from {detail['encoded_share']:.0%} of its text"
    if "query_encoded_share" in summary:
        yield f"the encoder has read {min(summary['query_encoded_share']):.0%} of the query"
    minimum = body_number(search.get("min_score"))
    if minimum is not None and told.first_pass_score is not None and told.first_pass_score < minimum:
        yield f"its score {told.first_pass_score:.6g} is below the [min_score] {minimum}"
    for change in told.weights:
        weight = f"{change.times:g} times the weight of [{change.signal}]" if change.times else f"no [{change.signal}]"
        yield f"{weight} would bring it to rank {change.rank}"
