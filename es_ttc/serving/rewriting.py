"""The `query` hook: `ttc` queries, each rewritten to one native query.

Fields, expansion (cached or new), deadline, and the plain query as fallback; and the data of the corpus that rewriters
get, read with the caller's credentials.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

from es_ttc.common.caches import ExpiringCache
from es_ttc.enrichment.proposals.document_frequency import (
    FieldFrequencies,
    Frequencies,
    document_frequencies,
    field_frequencies,
)
from es_ttc.enrichment.proposals.phrases import Tokens, analyse
from es_ttc.errors import ConfigurationError, EngineError, EsTtcError, InvalidRequest, MissingFeature, MissingText
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.spec import ENRICHMENT
from es_ttc.llm import JsonSchema, Prompt
from es_ttc.rescorers.base import Params
from es_ttc.rewriters import registry
from es_ttc.rewriters.base import Expansion, Fields, Rewriter
from es_ttc.rewriters.prompts import Prompts
from es_ttc.rewriters.weighted import NAMED
from es_ttc.serving.answer_forms import require_form, require_scores
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features.index_meta import encoded_fields
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, CallerKeys
from es_ttc.serving.request.body import FoundClause, Place, put_at
from es_ttc.serving.request.request import Pairs
from es_ttc.serving.request.response import add_summary
from es_ttc.serving.request.section import KEY, Section, parse_section, require_clause
from es_ttc.serving.summary import Summary, record_fallback
from es_ttc.serving.tracing import span

_WORD = re.compile(r"\w+")
_FAILING = "the engine refused a question about the corpus"
TIMEOUT_MS = 3000.0
"""Timeout of a section that sets none. The model's answer is cached for the next request when it arrives later."""
_FRESH_SECONDS = 300.0
"""Time for which fields and document frequencies are cached; the model's answers are kept while there is room."""
_MAX_CACHED = 20_000
_SHARED = ("pit", "runtime_mappings", "derived")
"""The parts of a body that decide which documents are searched, apart from the query."""


class QueryClause(NamedTuple):
    """One `ttc` query."""

    place: Place
    section: Section
    text: str


class RewriteResult(NamedTuple):
    """The native query that replaces a `ttc` query, and its summary."""

    clause: QueryClause
    query: dict[str, Any]
    summary: Summary
    ms: float


class RewriteService:
    """Rewrites `ttc` queries."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._prompts = Prompts(gateway.settings.rewriter_prompts)
        self._keys = CallerKeys()
        self._fields: ExpiringCache[str, Fields] = ExpiringCache(_MAX_CACHED, _FRESH_SECONDS)
        self._expansions: ExpiringCache[str, Expansion] = ExpiringCache(_MAX_CACHED, _FRESH_SECONDS)

    async def rewritten(
        self,
        clause: QueryClause,
        body: Mapping[str, Any],
        caller: Caller,
        shards: Pairs,
        timeout_ms: float | None,
        started: float,
    ) -> RewriteResult:
        """Return the native query for a `ttc` query of a body; the corpus is read with the caller's ``shards``."""
        section, gateway = clause.section, self._gateway
        rewriter = registry.load(section.method)
        params = registry.parse_params(rewriter, section.params)
        began = time.perf_counter()
        shared = {key: body[key] for key in _SHARED if key in body}
        context = self._context_key(caller, shards, shared)
        corpus = CallerCorpus(gateway, self._prompts, caller, shared, shards, tuple(rewriter.fields(params)))
        outcome: tuple[Expansion, bool] | EsTtcError
        try:
            if rewriter.asks_model:
                gateway.model.require(rewriter.name)
            if not clause.text.strip():
                raise MissingText(f"[{KEY}.query_text] is empty: the query has no text to rewrite")
            corpus.fields = await self._searched_fields(corpus, context, rewriter, params)
        except (MissingFeature, MissingText, ConfigurationError) as problem:
            outcome = problem
        else:
            deadline = Deadline.within(section.timeout_ms or TIMEOUT_MS, timeout_ms=timeout_ms, started=started)
            with span("rewrite"):
                outcome = await self._expanded(clause.text, rewriter, params, corpus, context, deadline)
        if isinstance(outcome, EsTtcError) and section.on_error == "fail":
            raise outcome
        ms = (time.perf_counter() - began) * 1000
        gateway.metrics.stage_seconds.labels("rewrite").observe(ms / 1000)
        took = {"rewrite": ms}
        if isinstance(outcome, EsTtcError):
            record_fallback(gateway.metrics, "plain query answered", rewriter.name, outcome)
            summary, expansion = Summary.fell_back(rewriter.name, outcome, took), None
        else:
            expansion, cached = outcome
            parts: dict[str, Any] = {"terms": len(expansion.terms), "dropped": len(expansion.dropped), "cached": cached}
            parts |= {**expansion.summary, **(_detail(expansion) if section.detail else {})}
            summary = Summary(rewriter.name, took, parts)
        query = rewriter.query(clause.text, corpus.fields, expansion, params, named=bool(section.detail))
        return RewriteResult(clause, query, summary, ms)

    async def _searched_fields(
        self, corpus: "CallerCorpus", context: str, rewriter: Rewriter[Any], params: Params
    ) -> Fields:
        named, needs = list(rewriter.fields(params)), rewriter.enrichment(params)
        key = jsonio.dumps([context, named, needs]).decode()
        cached = self._fields.get(key)
        if cached is not None:
            return cached.value
        fields = await corpus.searched_fields(named, enrichment=needs, method=rewriter.name)
        self._fields.put(key, fields)
        return fields

    async def _expanded(
        self,
        text: str,
        rewriter: Rewriter[Any],
        params: Params,
        corpus: "CallerCorpus",
        context: str,
        deadline: Deadline,
    ) -> tuple[Expansion, bool] | EsTtcError:
        """Return the expansion and whether it was cached, or the reason for the plain query."""
        fields, remembers = corpus.fields, rewriter.remembers(params)
        key_parts = [context, rewriter.name, remembers, text, fields.text, fields.enrichment]
        key = hashlib.sha256(jsonio.dumps(key_parts)).hexdigest()
        cached = self._expansions.get(key)
        if cached is not None:
            return cached.value, True
        outcome = await deadline.run(rewriter.expand(text, corpus, params), "rewriting", method=rewriter.name)
        if isinstance(outcome, EsTtcError):
            return outcome
        self._expansions.put(key, outcome)
        return outcome, False

    def _context_key(self, caller: Caller, shards: Pairs, shared: Mapping[str, Any]) -> str:
        """Return a key for the caller's rights, target and shards, as a hash.

        Document frequencies count documents that the caller may read, so a cached value is used for that caller only.
        """
        target = jsonio.dumps([caller.indices, caller.params, shards, shared])
        return self._keys.of(caller.headers, target).hex()


class CallerCorpus:
    """The searched documents and the model; see :class:`es_ttc.rewriters.base.Corpus`.

    It sends requests as :class:`es_ttc.engine.protocol.SearchApi` says.

    All its searches have parts of the caller's body (`shared`: a point in time, runtime fields) and URL parameters
    (`shards`: which shards and copies, which statistics). Before the searched `fields` are looked up, they are those of
    the plain query: those named in the request, or all that hold text.
    """

    def __init__(
        self,
        gateway: Gateway,
        prompts: Prompts,
        caller: Caller,
        shared: Mapping[str, Any],
        shards: Pairs,
        named: tuple[str, ...],
    ) -> None:
        self.fields = Fields(named or ("*",))
        self._engine = gateway.engine.as_caller(caller)
        self._side_caller = gateway.attached.side_caller(caller)
        self._model = gateway.model
        self._prompts = prompts
        self._caller = caller
        self._shared = shared
        self._shards = dict(shards)
        self._target = unquote(caller.indices)

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, or answers as an assistant."""
        return self._model.continues

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name."""
        return self._prompts.named(name, "completions" if self.continues else "chat")

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return the model's answer."""
        return await self._model.ask(prompt, max_tokens=max_tokens, stop=stop, schema=schema)

    async def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts.

        If several indices analyse differently, or the caller may search an index but not call `_analyze`, lower-cased
        words are returned.
        """
        if self._target not in ("", "_all") and not set("*,") & set(self._target):
            try:
                return await analyse(self, self._target, self.fields.names[0], texts)
            except EngineError as error:
                if not 400 <= (error.upstream_status or 0) < 500:
                    raise
        return [tuple(word.casefold() for word in _WORD.findall(text)) for text in texts]

    async def frequencies(self, phrases: Sequence[str]) -> Frequencies:
        """Return document frequencies among the caller's documents."""
        return await document_frequencies(self, self._target, self._counted_fields, phrases)

    async def field_frequencies(self, words: Sequence[str]) -> FieldFrequencies:
        """Return document frequencies of words, field by field, among the caller's documents."""
        return await field_frequencies(self, self._target, self._counted_fields, words)

    @property
    def _counted_fields(self) -> tuple[str, ...]:
        return (*self.fields.names, *((ENRICHMENT,) if self.fields.enrichment else ()))

    async def best(self, query: Mapping[str, Any], size: int) -> list[tuple[float, str]]:
        """Return the scores and texts of a query's best documents."""
        names = self.fields.names
        body = {"query": query, "size": size, "_source": [*names], "track_total_hits": False}
        hits = (await self.search(self._target, body))["hits"]["hits"]
        require_scores(hits, _FAILING)
        return [(float(hit["_score"]), compose(hit.get("_source") or {}, names)[0]) for hit in hits]

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109, ARG002 - the upstream has its own
    ) -> Any:
        """Send one JSON request and return the decoded answer."""
        return await self._engine.json(
            method, path.encode(), urlencode(params or {}).encode(), body, failing=_FAILING, in_own_words=True
        )

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:  # noqa: ARG002
        """Run one `_search` on the caller's target, whatever index is named, as the caller's own search is run."""
        path = f"/{self._caller.indices}/_search" if self._caller.indices else "/_search"
        naming = {} if "pit" in self._shared else dict(self._caller.params)
        query_string = urlencode({**naming, **self._shards, **params}).encode()
        body = {**self._shared, **body}
        return await self._engine.search_at(path.encode(), body, query_string, failing=_FAILING, in_own_words=True)

    async def searched_fields(self, named: Sequence[str], *, enrichment: bool | None, method: str) -> Fields:
        """Return the fields that are searched: those ``named`` with boosts, else the indices' own.

        The field of enrichment is searched if ``enrichment``; if None, where an index has it.
        """
        indices, existing = await self._existing([ENRICHMENT, *(name.partition("^")[0] for name in named)])
        has_enrichment = ENRICHMENT in existing and enrichment is not False
        if enrichment and not has_enrichment:
            raise MissingFeature(
                f"method [{method}] is to search [{ENRICHMENT}], which index [{self._target}] does not have: add it "
                f"with `es-ttc index enrichment {self._target}`, or leave out [params.enrichment]"
            )
        if not named:
            return Fields(await self._own_text_fields(indices, method), has_enrichment)
        if self._target and not existing - {ENRICHMENT}:
            raise MissingFeature(
                f"none of [params.text_fields] is a field of index [{self._target}]: {', '.join(named)}"
            )
        return Fields(tuple(named), has_enrichment)

    async def _existing(self, names: Sequence[str]) -> tuple[Sequence[str], frozenset[str]]:
        """Return the indices of the caller's target, and which of some fields they have."""
        if not self._target:
            return (), frozenset(names) - {ENRICHMENT}
        params = {**dict(self._caller.params), "fields": ",".join(names)}
        answer = await self.request("GET", f"/{self._caller.indices}/_field_caps", params=params)
        require_form(answer, {"indices": [str], "fields": dict}, _FAILING)
        return answer["indices"], frozenset(name for name in names if name in answer["fields"])

    async def _own_text_fields(self, indices: Sequence[str], method: str) -> tuple[str, ...]:
        """Return the encoded fields by the mappings of the target, or of the side indices of its indices."""
        places = [(self._target or "*", self._caller)]
        if indices:
            places.append((",".join(map(side_alias, indices)), self._side_caller))
        if fields := await encoded_fields(self._engine, places):
            return fields
        raise MissingFeature(
            f"method [{method}] does not know which fields of index [{self._target}] hold text: name them in "
            '[params.text_fields], e.g. ["title^2", "text"]'
        )


def _detail(expansion: Expansion) -> dict[str, Any]:
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


def parse_query(found: FoundClause) -> QueryClause:
    """Return a parsed `ttc` query, or raise an InvalidRequest."""
    value = found.value
    for key in value:
        if key != KEY:
            raise InvalidRequest(f"[query] holds [{key}] beside [{KEY}]: join the two by a [bool] query")
    section = parse_section(value[KEY])
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
    if any(one.clause.section.detail for one in results):
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
