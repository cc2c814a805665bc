"""Rewriting of one `ttc` query: fields, expansion (cached or new), deadline, and the plain query as fallback."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import ConfigurationError, EsTtcError, InvalidRequest, MissingFeature, MissingText
from es_ttc.rescorers.base import Params
from es_ttc.rewriters import registry
from es_ttc.rewriters.base import Expansion, Fields, Rewriter
from es_ttc.rewriters.prompts import Prompts
from es_ttc.rewriters.weighted import NAMED
from es_ttc.serving.deadline import attempt, budget_ms, fell_back
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, callers
from es_ttc.serving.http.raw_request import DEFAULT_LIMITS, RequestLimits
from es_ttc.serving.query.corpus import CallerCorpus, CorpusQuestions
from es_ttc.serving.request.body import FoundClause, Place, put_at
from es_ttc.serving.request.request import Pairs
from es_ttc.serving.request.response import add_summary
from es_ttc.serving.request.section import KEY, Section, parse_section, require_clause
from es_ttc.serving.tracing import span

_FRESH_SECONDS = 300.0
"""Time for which fields and document frequencies are cached; the model's answers are kept while there is room."""
_MAX_CACHED = 20_000
_ALL_FIELDS = ("*",)
"""The fields of the plain query where no text fields are known: the engines search all that hold text."""
_NOT_RIGHTS = frozenset(
    {b"user-agent", b"x-opaque-id", b"x-request-id", b"traceparent", b"tracestate", b"x-elastic-client-meta"}
)
"""Headers that differ from request to request and give no rights."""


@dataclass(frozen=True, slots=True)
class QueryClause:
    """One `ttc` query."""

    place: Place
    section: Section
    text: str


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """A `ttc` query with the data of its request.

    Attributes:
        clause: The query.
        body: The body that contains it.
        caller: The request context with which the corpus is read.
        shards: The URL parameters that decide which shards and copies are searched, and their statistics.
        timeout_ms: The search timeout of the request, in ms, or None.
        started: `time.perf_counter` when the request arrived.
    """

    clause: QueryClause
    body: Mapping[str, Any]
    caller: Caller
    shards: Pairs
    timeout_ms: float | None
    started: float


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The native query and its summary."""

    clause: QueryClause
    query: dict[str, Any]
    summary: dict[str, Any]
    applied: bool
    detail: bool
    ms: float


class RewriteService:
    """Rewrites `ttc` queries."""

    def __init__(self, gateway: Gateway) -> None:
        self._upstream = gateway.upstream
        self._model = gateway.model
        self._prompts = Prompts(gateway.settings.sketch_prompts)
        self._metrics = gateway.metrics
        self._default_timeout_ms = gateway.settings.rewrite_timeout_ms
        self._secret = secrets.token_bytes(32)
        self._fields: ExpiringCache[str, Fields] = ExpiringCache(_MAX_CACHED, _FRESH_SECONDS)
        self._expansions: ExpiringCache[str, Expansion] = ExpiringCache(_MAX_CACHED, _FRESH_SECONDS)

    async def rewritten(self, question: RewriteRequest) -> RewriteResult:
        """Return the native query for a `ttc` query.

        Raises:
            InvalidRequest: The method is unknown, or its parameters are invalid.
            EngineError: The engine returned an error.
            EsTtcError: Rewriting failed, and the request says ``on_error: fail``.
        """
        section = question.clause.section
        rewriter = registry.load(section.method)
        params = registry.parse_params(rewriter, section.params)
        began = time.perf_counter()
        context = self._context_key(question)
        engine = CorpusQuestions(self._upstream, question.caller, _shared(question.body), question.shards)
        fields = Fields(tuple(rewriter.fields(params)) or _ALL_FIELDS)
        outcome: tuple[Expansion, bool] | EsTtcError
        try:
            if rewriter.asks_model:
                self._model.require(rewriter.name)
            if not question.clause.text.strip():
                raise MissingText(f"[{KEY}.query_text] is empty: the query has no text to rewrite")
            fields = await self._searched(engine, context, rewriter, params)
        except (MissingFeature, MissingText, ConfigurationError) as problem:
            if section.on_error == "fail":
                raise
            outcome = problem
        else:
            corpus = CallerCorpus(engine, self._model, self._prompts, fields)
            with span("rewrite"):
                outcome = await self._expanded(question, rewriter, params, corpus, context)
        ms = (time.perf_counter() - began) * 1000
        self._metrics.stage_seconds.labels("rewrite").observe(ms / 1000)
        summary: dict[str, Any] = {"method": rewriter.name, "applied": not isinstance(outcome, EsTtcError)}
        if isinstance(outcome, EsTtcError):
            fell_back(self._metrics, "plain query answered", rewriter.name, outcome)
            summary["reason"] = str(outcome)
            expansion = None
        else:
            expansion, cached = outcome
            summary |= {"terms": len(expansion.terms), "dropped": len(expansion.dropped), "kept": cached}
            summary |= expansion.summary
            if section.detail:
                summary |= _detail(expansion)
        query = rewriter.query(question.clause.text, fields, expansion, params, named=bool(section.detail))
        summary["took"] = {"rewrite": round(ms, 2)}
        return RewriteResult(question.clause, query, summary, bool(summary["applied"]), bool(section.detail), ms)

    async def _searched(self, engine: CorpusQuestions, context: str, rewriter: Rewriter[Any], params: Params) -> Fields:
        named, needs = list(rewriter.fields(params)), rewriter.enrichment(params)
        key = jsonio.dumps([context, named, needs]).decode()
        cached = self._fields.get(key)
        if cached is not None:
            return cached.value
        found = await engine.fields(named, enrichment=needs, method=rewriter.name)
        self._fields.put(key, found)
        return found

    async def _expanded(
        self, question: RewriteRequest, rewriter: Rewriter[Any], params: Params, corpus: CallerCorpus, context: str
    ) -> tuple[Expansion, bool] | EsTtcError:
        """Return the expansion and whether it was cached, or the reason for the plain query."""
        section, text = question.clause.section, question.clause.text
        key_parts = [
            context,
            rewriter.name,
            rewriter.remembers(params),
            text,
            corpus.fields.text,
            corpus.fields.enrichment,
        ]
        key = hashlib.sha256(jsonio.dumps(key_parts)).hexdigest()
        cached = self._expansions.get(key)
        if cached is not None:
            return cached.value, True
        budget = budget_ms(section.timeout_ms or self._default_timeout_ms, question.timeout_ms, question.started)
        outcome = await attempt(
            rewriter.expand(text, corpus, params), what="rewriting", method=rewriter.name, budget_ms=budget
        )
        if isinstance(outcome, EsTtcError):
            if section.on_error == "fail":
                raise outcome
            return outcome
        self._expansions.put(key, outcome)
        return outcome, False

    def _context_key(self, question: RewriteRequest) -> str:
        """Return a key for the caller's rights, target and shards, as a hash.

        Document frequencies count documents that the caller may read, so a cached value is used for that caller only.
        """
        caller = question.caller
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        rights = sorted((name, value) for name, value in callers(caller.headers) if name not in _NOT_RIGHTS)
        for name, value in rights:
            digest.update(b"%d:%b=%d:%b" % (len(name), name, len(value), value))
        digest.update(jsonio.dumps([caller.indices, caller.params, question.shards, _shared(question.body)]))
        return digest.hexdigest()[:32]


def _shared(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a body that decide which documents are searched, apart from the query."""
    return {key: body[key] for key in ("pit", "runtime_mappings", "derived") if key in body}


def _detail(expansion: Expansion) -> dict[str, Any]:
    """Return the terms with their document frequencies, and the dropped terms with the reason."""
    return {
        "expansion": [
            {"term": term.text, "weight": round(term.weight, 4)}
            | ({} if term.documents is None else {"documents": term.documents})
            | ({} if term.group is None else {"group": term.group})
            for term in expansion.terms
        ],
        **({"excluded": [term.text for term in expansion.excluded]} if expansion.excluded else {}),
        "left_out": [
            {"term": one.text, "why": str(one.reason)} | ({} if one.documents is None else {"documents": one.documents})
            for one in expansion.dropped
        ],
    }


def parse_query(found: FoundClause, limits: RequestLimits = DEFAULT_LIMITS) -> QueryClause:
    """Parse a `ttc` query.

    Raises:
        InvalidRequest: It is invalid.
    """
    value = found.value
    for key in value:
        if key != KEY:
            raise InvalidRequest(f"[query] holds [{key}] beside [{KEY}]: join the two by a [bool] query")
    section = parse_section(value[KEY], limits)
    require_clause(
        section,
        "query",
        lambda key: "leave it out" if key == "candidates" else f"in [query] give [{KEY}.params] a weight",
    )
    if section.query_texts is not None:
        raise InvalidRequest(f"[{KEY}.query_texts] belongs to [rescore]: in [query] give one text in [query_text]")
    if section.query_text is None:
        raise InvalidRequest(f"[{KEY}.query_text] is missing: give the query's text beside [{KEY}.method]")
    return QueryClause(found.place, section, section.query_text)


def put_queries(body: dict[str, Any], results: Sequence[RewriteResult]) -> dict[str, Any]:
    """Return a body with native queries in place of its `ttc` queries."""
    for one in results:
        body = put_at(body, one.clause.place, one.query)
    return body


def add_rewritings(response: dict[str, Any], results: Sequence[RewriteResult]) -> None:
    """Add the summaries of rewritten queries to a response, and the matched terms to its hits, in place."""
    add_summary(response, "query", [one.summary for one in results], max(one.ms for one in results))
    if any(one.detail for one in results):
        _show_matches(response.get("hits", {}).get("hits", []))


def _show_matches(hits: list[dict[str, Any]]) -> None:
    """Move the names of es-ttc's clauses from each hit's own names to its detail."""
    for hit in hits:
        names = hit.get("matched_queries", ())
        ours = [name for name in names if name.startswith(NAMED)]
        if not ours:
            continue
        own_names = (
            {name: names[name] for name in names if name not in ours}
            if isinstance(names, dict)
            else [name for name in names if name not in ours]
        )
        if own_names:
            hit["matched_queries"] = own_names
        else:
            del hit["matched_queries"]
        hit["_ttc"] = {**hit.get("_ttc", {}), "matched": [name.removeprefix(NAMED) for name in ours]}
