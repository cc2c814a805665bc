"""A search with sections in `rescore`, parsed: the request for the engine, and what the gateway does with its answer.

The engine gets the caller's request without the section, from the first hit to the end of the last block of the page. A
native rescorer that matches nothing replaces the section: it changes no score, and so the engine itself applies the
rules of a native rescore (no `sort`, no `scroll`, `max_rescore_window`) with its own messages. Exceptions, sent without
that rescorer, are a sort by score and then by further keys, and a `retriever`, which allows no `rescore` beside it: its
section stands in `ext`.

Several items with a section run in order. Each has a plan of its own, which differs in section, texts and window.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.common.entry_points import parse_params
from es_ttc.common.validation import shown, unknown_field
from es_ttc.errors import EsTtcError, InvalidRequest, MissingText, SeveralTexts
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer, RerankerSignal
from es_ttc.serving.candidates.filters import PARAMS_OF_QUERY, changes_scores, query_of_url
from es_ttc.serving.features.keys import SEQ_NO
from es_ttc.serving.http.limits import check_query
from es_ttc.serving.request.body import body_integer, boolean, fielded_texts, texts_of, texts_of_retriever, url_integer
from es_ttc.serving.request.section import (
    DEFAULT_METHOD,
    KEY,
    Candidates,
    Section,
    milliseconds,
    parse_section,
    texts_in,
)
from es_ttc.serving.rescore.highlights import Highlight, take_highlights
from es_ttc.serving.rescore.query_parts import QueryParts, UndividedQuery, query_parts

DEFAULT_WINDOW = 100
DEFAULT_SIZE = 10
MAX_ITEMS = 4
"""Maximum number of items with a section in one `rescore` list."""
NAMED_SCORES = "include_named_queries_score"
_WINDOW_SIZE = "window_size"
_RESCORE_KEYS = [_WINDOW_SIZE, KEY]
_NO_STORED_FIELDS = "_none_"
_TOTAL_UP_TO = 10_000
_NEED_STORED_FIELDS = frozenset({"_source_excludes", "_source_includes", "fields", "highlight", "script_fields"})
_LEARNING_TO_RANK = "learning_to_rank"
_RETRIEVER = "retriever"
_ALL_THEIR_HITS = frozenset({"standard", "knn"})
"""Retrievers that return as many hits as are asked for; all others return `rank_window_size` at most."""
_RANK_WINDOW = 10
_COLLAPSE_KEYS = ["field", "inner_hits", "max_concurrent_group_searches"]

OF_HITS = frozenset(
    {"_source", "docvalue_fields", "fields", "highlight", "script_fields", "seq_no_primary_term", "version"}
)
"""Parts of a body that affect only the contents of hits."""
AGGREGATIONS = frozenset({"aggregations", "aggs"})
OF_THE_SEARCH = AGGREGATIONS | {"min_score", "profile", "suggest", "terminate_after", "track_total_hits"}
"""Parts of a body that concern the whole search and no single hit."""
_SAFE_PARAMS = frozenset(
    {
        "allow_no_indices", "allow_partial_search_results", "batched_reduce_size", "cancel_after_time_interval",
        "ccs_minimize_roundtrips", "error_trace", "expand_wildcards", "human", "ignore_throttled", "ignore_unavailable",
        "include_named_queries_score", "max_concurrent_shard_requests", "phase_took", "pre_filter_shard_size",
        "preference", "request_cache", "rest_total_hits_as_int", "routing", "search_type", "stats", "timeout",
        "track_scores", "track_total_hits", "typed_keys",
    }
)  # fmt: skip
"""URL parameters with the same meaning in a second request for the same documents."""
_OF_MATCHING = frozenset({*PARAMS_OF_QUERY, "scroll", "search_pipeline", "sort", "terminate_after"})
_SAFE_VALUES: Mapping[str, tuple[str, ...]] = {
    "search_pipeline": ("_none",),
    "sort": ("_score", "_score:desc"),
}
"""URL parameters that mean nothing with these values."""
PARAMS_OF_HITS = frozenset(
    {
        "_source", "_source_excludes", "_source_includes", "explain", "seq_no_primary_term", "stored_fields", "version",
    }
)  # fmt: skip
"""URL parameters that affect only the contents of hits."""


def params_of_matching(params: Sequence[tuple[str, str]]) -> list[str]:
    """Return the URL parameters that decide which documents are found or how they are scored."""
    return [name for name, value in params if name in _OF_MATCHING and value not in _SAFE_VALUES.get(name, ())]


def unsafe_params(params: Sequence[tuple[str, str]]) -> list[str]:
    """Return the URL parameters by which a further request may find other documents, or other contents of hits."""
    return [name for name, value in params if name not in _SAFE_PARAMS and value not in _SAFE_VALUES.get(name, ())]


class ExtSection(Section):
    """The contents of a ``ttc`` section in `ext`, with the window's size inside."""

    place: ClassVar[str] = f"ext.{KEY}"
    window_size: int = Field(DEFAULT_WINDOW, ge=1, description="How many of the retriever's first hits are ranked.")


@dataclass(frozen=True, slots=True)
class Collapse:
    """The caller's `collapse`."""

    field: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """The ranks of the page, and the window of the first pass that is reordered.

    Attributes:
        window: Number of first-pass ranks that are reordered: the same for every page.
        fetch: Number of requested first-pass ranks: the window, and the page if it ends after that.
    """

    start: int
    size: int
    window: int
    fetch: int


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A parsed search.

    Attributes:
        texts: The query's texts, one or more.
        page: The ranks of the page; of groups, if the request collapses.
        body: The body for the engine.
        params: The URL parameters for the engine.
        hidden: Doc-value fields that only the gateway requested: they are removed from the response.
        hide_ids: Whether the caller requested hits without `_id` (`stored_fields: _none_`).
        timeout_ms: The caller's own search timeout, in ms, or None.
        highlights: Fields of `highlight` whose fragments are passages.
        numbers: Numeric fields of documents that the methods read.
        later: The plans of the items that follow, in order; their pages are their windows.
        problem: Why the section cannot be applied, known before the first pass; the first pass is answered.
        plain: The caller's own search, with a native rescorer that matches nothing in place of the sections: the answer
            if a request of the gateway's own is refused. Empty if a refusal is the answer.
        changes_scores: Whether the query has functions: then a first-pass score of 0 is meant to bury a document.
        by_further_keys: Whether `sort` has keys after `_score`, which order documents of equal score.
        parts: What the query says besides its words, which multiplies the final score; None if it says nothing, or if
            the section combines both scores itself.
        undivided: Why what the query says besides its words cannot be told from them, or None.
    """

    section: Section
    texts: tuple[str, ...]
    page: Page
    collapse: Collapse | None
    body: dict[str, Any]
    params: list[tuple[str, str]]
    hidden: tuple[str, ...]
    hide_ids: bool
    explain: bool
    timeout_ms: float | None
    highlights: tuple[Highlight, ...] = ()
    numbers: tuple[str, ...] = ()
    later: "tuple[SearchPlan, ...]" = ()
    problem: EsTtcError | None = None
    plain: Mapping[str, Any] = field(default_factory=dict)
    changes_scores: bool = False
    by_further_keys: bool = False
    parts: QueryParts | None = None
    undivided: str | None = None

    @property
    def total_up_to(self) -> int | None:
        """Up to where the engine counts documents; None if it counts all, or none."""
        asked = self._total
        number = url_integer(asked) if isinstance(asked, str) else None if isinstance(asked, bool) else asked
        return number if isinstance(number, int) and number >= 0 else None

    @property
    def shows_more_than_hits(self) -> bool:
        """Whether the response has a total or aggregations, which are those of all documents that are found."""
        return self.aggregates or boolean(self._total) is not False

    @property
    def _total(self) -> Any:
        return dict(self.params).get("track_total_hits", self.body.get("track_total_hits", _TOTAL_UP_TO))

    @property
    def aggregates(self) -> bool:
        """Whether the caller requested aggregations."""
        return any(self.body.get(name) for name in AGGREGATIONS)

    @property
    def shows_named_scores(self) -> bool:
        """Whether the caller requested the scores of named queries."""
        asked = dict(self.params).get(NAMED_SCORES, self.body.get(NAMED_SCORES, False))
        return boolean(asked) is True

    @property
    def reads_passages(self) -> bool:
        """Whether hits contain passages."""
        return bool(self.section.passages or self.highlights)

    @property
    def completed(self) -> int:
        """Number of hits that are read completely: those of the page, and those that an item needs with their ids."""
        return max([self.page.size, *(one.page.window for one in self.later if one.section.method in STRATEGIES)])

    def reading(self, fields: Sequence[str]) -> "SearchPlan":
        """Return the plan of a search whose hits contain the doc values of further fields."""
        if not fields or self.problem is not None:
            return self
        missing = _not_asked(self.body, fields)
        body = {**self.body, "docvalue_fields": [*self.body["docvalue_fields"], *missing]}
        return replace(
            self, body=body, hidden=(*self.hidden, *missing), numbers=tuple(dict.fromkeys((*self.numbers, *fields)))
        )

    @property
    def is_divided(self) -> bool:
        """Whether the engine is asked for the parts of the query, by named queries with scores."""
        return self.parts is not None and self.parts.query is not None

    def undivided_query(self, reason: str | None = None) -> "SearchPlan":
        """Return the plan of a search whose query's words are not told from what else it says."""
        return replace(self, parts=None, undivided=reason)

    @property
    def group_fields(self) -> list[Any]:
        """The doc-value fields with documents' groups; empty if the request does not collapse."""
        if self.collapse is None:
            return []
        name = self.collapse.field
        asked = [entry for entry in self.body["docvalue_fields"] if _matches(entry, name)]
        return [{**entry, "field": name} if isinstance(entry, dict) else name for entry in asked]


def plan_search(
    body: Mapping[str, Any],
    params: Sequence[tuple[str, str]],
    *,
    max_window: int,
    not_text: Set[str] = frozenset(),
) -> SearchPlan | None:
    """Parse a search; return None if it has no section in `rescore`.

    The URL parameters override the body, as in the engines. Fields of ``not_text`` are no analysed text.
    """
    found = find_rescore(body.get("rescore"))
    if found is None:
        return None
    natives = found[0]
    items = [(place, part) for place, one in enumerate(found[1], len(natives) + 1) for part in with_reranker(one)]
    section = parse_section(items[0][1][KEY], default_method=DEFAULT_METHOD)
    rest = {key: value for key, value in body.items() if key != "rescore"}
    url = dict(params)
    key = section.relevance_key
    if key is not None and section.method != DEFAULT_METHOD:
        raise InvalidRequest(f"[{KEY}.{key}] is for method [{DEFAULT_METHOD}], not [{section.method}]: leave one out")
    by_retriever = _RETRIEVER in rest  # the engine collapses its hits before they are ranked
    collapse = None if by_retriever or rest.get("collapse") is None else parse_collapse(rest.pop("collapse"))
    most = _most_hits(rest[_RETRIEVER]) if by_retriever else None
    bound = most if by_retriever else _most_ranked(natives)
    (_, item), *later = [(place, _within(one, bound)) for place, one in items]
    page = plan_page(_ranks("from", url, rest, 0), _ranks("size", url, rest, DEFAULT_SIZE), item, max_window)
    if section.min_relevance is not None and not page.size:
        raise InvalidRequest(f"[{KEY}.min_relevance] counts hits of the window, and [size] is 0: take [size] 1 or more")
    if most is not None and page.size <= most:
        page = replace(page, fetch=min(page.fetch, most))
    if collapse is not None:
        require_within(natives, page.window)
        page = replace(page, fetch=min(page.window, page.fetch))  # the groups beyond it are the engine's
    _take_from_url(rest, url)
    texts, problem = _query_texts(section, rest, not_text)
    check_query(texts)
    highlights = take_highlights(rest) if "highlight" in rest else ()
    own_window = page.window if "window_size" in item else max(1, page.start + page.size)
    one_window = not natives and not later and section.method not in STRATEGIES and "search_after" not in rest
    sortable = one_window and url.keys().isdisjoint(("scroll", "sort"))
    by_further_keys = sortable and _has_keys_after_score(rest.get("sort"))
    plain = {**rest, "from": page.start, "size": page.size}
    if collapse is not None:  # an engine that refuses it with a native rescorer cannot apply the rules of the latter
        plain |= {"collapse": collapse.body} | ({"rescore": natives} if natives else {})
        plain = plain if by_further_keys or ("sort" not in rest and "scroll" not in url) else {}
    elif not by_further_keys and not by_retriever:
        plain["rescore"] = [*natives, _guard(own_window)]
    hide_ids = _take_none_fields(rest, url)
    if hide_ids and plain:
        plain["stored_fields"] = _NO_STORED_FIELDS
    hidden = _ask_for_doc_values(rest) + _ask_for_texts(rest, highlights)
    if collapse is not None and not any(_matches(entry, collapse.field) for entry in rest["docvalue_fields"]):
        rest["docvalue_fields"].append(collapse.field)  # not hidden: the engines return it too
    rest |= {"from": 0, "size": page.fetch}
    rest |= {} if by_further_keys or by_retriever else {"rescore": [*natives, _guard(page.window)]}
    plan = SearchPlan(
        section=section,
        texts=texts,
        page=page,
        collapse=collapse,
        body=rest,
        params=[(name, value) for name, value in params if name in url and name not in ("from", "size")],
        hidden=hidden,
        hide_ids=hide_ids,
        explain=bool(boolean(url.get("explain", rest.get("explain", False)))),
        timeout_ms=own_timeout(rest, url),
        highlights=highlights,
        problem=problem,
        plain=plain,
        changes_scores=changes_scores(rest.get("query")),
        by_further_keys=by_further_keys,
    )
    plan = replace(plan, later=_later_plans(plan, later))
    return plan if by_retriever or "score_mode" in section.model_fields_set else _divided(plan, natives)


def _divided(plan: SearchPlan, natives: Sequence[Any]) -> SearchPlan:
    """Return a plan with the parts of its query, if it says more than its words."""
    try:
        parts = query_parts(plan.body.get("query"), plan.texts, plan.body.get("indices_boost"))
    except UndividedQuery as problem:
        return replace(plan, undivided=str(problem))
    if parts is not None and natives:
        return replace(plan, undivided="native rescorers before the section have changed the scores")
    return replace(plan, parts=parts)


def with_rescore(body: dict[str, Any]) -> dict[str, Any]:
    """Return a search with its section as an item of `rescore`, if it has a `retriever` and the section is in `ext`."""
    if _RETRIEVER not in body:
        return body
    ext = body["ext"] if isinstance(body.get("ext"), dict) else {}
    if body.get("rescore") and (KEY in ext or find_rescore(body["rescore"]) is not None):
        raise InvalidRequest(
            f"[rescore] cannot be used with [retriever]: put the section into [{ExtSection.place}], and native "
            "rescorers into a [rescorer] retriever"
        )
    if KEY not in ext:
        return body
    section = ext[KEY]
    parse_section(section, default_method=DEFAULT_METHOD, model=ExtSection)
    others = {name: value for name, value in ext.items() if name != KEY}
    rest = {key: value for key, value in body.items() if key != "ext"} | ({"ext": others} if others else {})
    item = {key: value for key, value in section.items() if key == _WINDOW_SIZE}
    return rest | {"rescore": item | {KEY: {key: value for key, value in section.items() if key != _WINDOW_SIZE}}}


def _most_hits(retriever: Any) -> int | None:
    """Return how many hits a retriever returns at most; None without a limit of its own."""
    kind, inner = next(iter(retriever.items()), ("", None)) if isinstance(retriever, Mapping) else ("", None)
    if kind in _ALL_THEIR_HITS or not isinstance(inner, Mapping):
        return None
    rescorers = inner.get("rescore", []) if kind == "rescorer" else [{"window_size": inner.get("rank_window_size")}]
    windows = [one.get("window_size") for one in _as_list(rescorers) if isinstance(one, Mapping)]
    return min((body_integer(_RANK_WINDOW if one is None else one) or 1 for one in windows), default=None)


def with_reranker(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an item of `blend` with the signal `reranker` as two: its other signals, the reranker over the best."""
    section = item[KEY]
    given = section.get("params") if isinstance(section, Mapping) else None
    if not isinstance(given, Mapping) or section.get("method", DEFAULT_METHOD) != BlendRescorer.name:
        return [item]
    signals = given.get("signals")
    if "reranker" not in given and not (isinstance(signals, Mapping) and "reranker" in signals):
        return [item]
    params = parse_params(BlendParams, given, BlendRescorer.name)
    others = {name: weight for name, weight in (params.signals or {}).items() if name != "reranker"}
    rest = {key: value for key, value in given.items() if key not in ("signals", "reranker")}
    first = {**item, KEY: {**section, "params": rest | ({"signals": others} if others else {})}}
    if not params.reranker_weight:
        return [first]
    chosen = params.reranker or RerankerSignal()
    kept = {key: section[key] for key in ("on_error", "timeout") if key in section}
    kept["detail"] = bool(section.get("detail"))
    second = {"reranker": chosen.name, "budget": chosen.top, "first_pass_weight": 1 / params.reranker_weight}
    window = min(chosen.top, body_integer(item.get("window_size", DEFAULT_WINDOW)) or chosen.top)
    return [first, {"window_size": window, KEY: {"method": "rr", "params": second, **kept}}]


def _has_keys_after_score(sort: Any) -> bool:
    """Return whether a sort begins with the score, greatest first, and has further keys."""
    by_score: list[Any] = ["_score", {"_score": "desc"}, {"_score": {}}, {"_score": {"order": "desc"}}]
    return isinstance(sort, list) and len(sort) > 1 and sort[0] in by_score


def _most_ranked(natives: Sequence[Any]) -> int | None:
    """Return the window of native rescorers after which Elasticsearch accepts no greater one, and no hit beyond it."""
    given = [one.get("window_size") for one in natives if isinstance(one, dict) and _LEARNING_TO_RANK in one]
    return min((bound for bound in map(body_integer, given) if bound is not None and bound > 0), default=None)


def _within(item: dict[str, Any], bound: int | None) -> dict[str, Any]:
    """Return an item with a window that is not greater than a bound."""
    asked = body_integer(item.get("window_size", DEFAULT_WINDOW))
    return item if bound is None or asked is None or asked <= bound else {**item, "window_size": bound}


def require_within(natives: Sequence[Any], ours: int) -> None:
    """Refuse native rescorers that reorder documents after the window of a collapsed search."""
    for one in natives:
        window = body_integer(one.get("window_size", DEFAULT_SIZE)) if isinstance(one, dict) else None
        if window is not None and window > ours:
            raise InvalidRequest(
                f"[rescore.window_size] {window} of a native rescorer is greater than {ours}, that of [{KEY}], which "
                "cannot be used with [collapse]: take a window_size that is at least as great for the latter"
            )


def _later_plans(first: SearchPlan, items: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[SearchPlan, ...]:
    """Return the plans of the items after the first one with a section, each with its place in the caller's list."""
    plans = [first]
    for number, item in items:
        before = plans[-1]
        section = parse_section(item[KEY], default_method=DEFAULT_METHOD)
        require_later(section, number)
        window = _window_size(item, before.page.window)
        if window > before.page.window:
            raise InvalidRequest(
                f"[rescore.window_size] {window} of item {number} of [rescore] is greater than {before.page.window}, "
                "the number of documents that the item before it reorders last: each item reorders the first "
                "documents of the one before, so windows may not grow"
            )
        own = section.query_text is not None or section.query_texts is not None
        texts, problem = _own_texts(section) if own else (before.texts, before.problem)
        kept = {"candidates": Candidates(knn=0), "timeout": section.timeout or before.section.timeout}
        size = window if first.page.fetch else 0
        plans.append(
            replace(
                first,
                section=section.model_copy(update=kept),
                texts=texts,
                problem=problem,
                page=Page(0, size, window, size),
                collapse=None,
                parts=None,
                undivided=None,
                highlights=(),
            )
        )
    for key in ("passages", "shows_map"):
        if sum(bool(getattr(one.section, key)) for one in plans) > 1:
            shows = "passages" if key == "passages" else 'detail] "map'
            raise InvalidRequest(
                f"[{KEY}.{shows}] is asked for by several items of [rescore], and the page is the same for all: keep "
                "it in one of them"
            )
    return tuple(plans[1:])


def require_later(section: Section, number: int) -> None:
    """Refuse a section that fetches documents from outside its window, or asks for relevance, after another item."""
    if section.relevance_key is not None:
        raise InvalidRequest(
            f"[{KEY}.{section.relevance_key}] of item {number} of [rescore] would be that of a part of the window: "
            "give it to the first item"
        )
    if section.candidates is not None and section.candidates.knn:
        raise InvalidRequest(
            f"[{KEY}.candidates] of item {number} of [rescore] would join documents that the items before it have not "
            "seen: give it to the first item"
        )
    strategy = STRATEGIES.get(section.method)
    if strategy is not None and strategy.walks:
        raise InvalidRequest(
            f"[{section.method}] finds documents outside its window, so it must be the first item of [rescore] with "
            f"[{KEY}], not item {number}: put it first, or take [rr]"
        )


def find_rescore(rescore: Any) -> tuple[list[Any], list[dict[str, Any]]] | None:
    """Return the native rescorers and the items with a section, or None if no item has one."""
    items = rescore if isinstance(rescore, list) else [rescore]
    ours = [position for position, item in enumerate(items) if isinstance(item, dict) and KEY in item]
    if not ours:
        return None
    if len(ours) > MAX_ITEMS:
        raise InvalidRequest(f"[rescore] holds [{KEY}] {len(ours)} times: it may hold it {MAX_ITEMS} times at most")
    position = ours[0]
    if ours != list(range(position, len(items))):
        raise InvalidRequest(f"[rescore] has native rescorers after [{KEY}]: put them before it")
    for item in items[position:]:
        if "query" in item:
            raise InvalidRequest(f"[rescore] holds [query] and [{KEY}] in one item: make them two items of a list")
        for key in item:
            if key not in _RESCORE_KEYS:
                raise unknown_field(key, _RESCORE_KEYS, "rescore")
    return items[:position], items[position:]


def with_text(replaced: dict[str, Any], body: Mapping[str, Any], texts: set[tuple[str, ...]]) -> dict[str, Any]:
    """Return a body with the text of its clauses in the first rescoring section, if that has no text of its own."""
    rescore = find_rescore(body.get("rescore"))
    if rescore is None or len(texts) != 1 or any(_texts_in(body)):
        return replaced
    natives, [item, *later] = rescore
    section = item[KEY]
    [several] = texts
    if not several or not isinstance(section, dict) or section.keys() & {"query_text", "query_texts"}:
        return replaced
    text = {"query_text": several[0]} if len(several) == 1 else {"query_texts": list(several)}
    return {**replaced, "rescore": [*natives, {**item, KEY: {**section, **text}}, *later]}


def parse_collapse(data: Any) -> Collapse:
    """Parse `collapse`."""
    if not isinstance(data, dict) or not isinstance(data.get("field"), str):
        raise InvalidRequest(f'[collapse] must be an object such as {{"field": "group"}}, got {shown(data)}')
    for key in data:
        if key not in _COLLAPSE_KEYS:
            raise unknown_field(key, _COLLAPSE_KEYS, "collapse")
    return Collapse(data["field"], data)


def plan_page(start: int, size: int, item: Mapping[str, Any], max_window: int) -> Page:
    """Return the page and its window."""
    window = _window_size(item, DEFAULT_WINDOW)
    fetch = max(window, start + size)
    if fetch > max_window:
        what = f"[window_size] {window}" if window > max_window else f"[from] + [size] {start + size}"
        raise InvalidRequest(
            f"Rescore window [{fetch}] is too large: {what} must be at most [{max_window}], "
            "the gateway's limit (max_window)"
        )
    return Page(start, size, window, fetch if size else 0)


def _window_size(item: Mapping[str, Any], default: int) -> int:
    asked = body_integer(item.get("window_size", default))
    if asked is None or asked < 1:
        raise InvalidRequest(
            f"[rescore.window_size] must be an integer of 1 or more, got {shown(item.get('window_size'))}"
        )
    return asked


def _guard(window: int) -> dict[str, Any]:
    """Return the native rescorer that replaces the section: it matches nothing."""
    return {"window_size": window, "query": {"rescore_query": {"match_none": {}}}}


def _ranks(name: str, url: Mapping[str, str], body: Mapping[str, Any], default: int) -> int:
    given: Any = url.get(name, body.get(name, default))
    value = url_integer(given) if name in url else body_integer(given)
    if value is None or value < 0:
        raise InvalidRequest(f"[{name}] must be an integer of 0 or more, got {shown(given)}")
    return value


def _query_texts(
    section: Section, body: Mapping[str, Any], not_text: Set[str]
) -> tuple[tuple[str, ...], EsTtcError | None]:
    """Return the query's texts; if there is not one set of them, none and why."""
    if section.query_text is not None or section.query_texts is not None:
        return _own_texts(section)
    try:
        found = list(dict.fromkeys(_texts_in(body, not_text)))
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    if len(found) == 1:
        return (found[0],), None
    fix = f"give the text in [{KEY}.query_text]"
    if not found:
        return (), MissingText(f"[{KEY}.query_text] is missing and the query has no text of its own: {fix}")
    fields = frozenset(name for names, _ in fielded_texts(body.get("query")) for name in names)
    why = f"[{KEY}.query_text] is missing and the query holds {len(found)} different texts: {fix}"
    return (), SeveralTexts(why, fields)


def _texts_in(body: Mapping[str, Any], not_text: Set[str] = frozenset()) -> list[str]:
    """Return the texts that a search's query, or its retriever, ranks by."""
    return [*texts_of(body.get("query"), not_text), *texts_of_retriever(body.get(_RETRIEVER), not_text)]


def _own_texts(section: Section) -> tuple[tuple[str, ...], EsTtcError | None]:
    texts = texts_in(section)
    name = "query_text" if section.query_texts is None else "query_texts"
    return texts, None if texts else MissingText(f"[{KEY}.{name}] is empty: the query has no text to rank by")


def _take_from_url(body: dict[str, Any], url: dict[str, str]) -> None:
    """Move URL parameters that say which documents are found, and their doc values, into the body, in place.

    Further searches have other parameters, and OpenSearch gives doc values twice that two places ask for.
    """
    query = query_of_url(url)
    if query is not None:
        body["query"] = query
        for name in PARAMS_OF_QUERY:
            url.pop(name, None)
    if url.get("sort") and not body.get("sort"):
        keys = [name.rpartition(":") for name in url["sort"].split(",")]
        if all(order in ("asc", "desc") for field, _, order in keys if field):
            body["sort"] = [{field: order} if field else order for field, _, order in keys]
            del url["sort"]
    ends = url_integer(url.get("terminate_after", ""))
    if ends is not None and ends >= 0:
        body["terminate_after"] = ends
        del url["terminate_after"]
    names = url.pop("docvalue_fields", "")
    if names:
        body["docvalue_fields"] = [*_as_list(body.get("docvalue_fields", [])), *names.split(",")]


def _take_none_fields(body: dict[str, Any], url: dict[str, str]) -> bool:
    """Replace `stored_fields: _none_` by `_source: false`, in place, because hits need an `_id`; return whether it was.

    A request with a part that needs stored fields, or returns ids in any case, is not changed.
    """
    source_wanted = url["_source"] != "false" if "_source" in url else body.get("_source", False) is not False
    if source_wanted or not _NEED_STORED_FIELDS.isdisjoint(body.keys() | url.keys()):
        return False
    if url.get("stored_fields", body.get("stored_fields")) not in (_NO_STORED_FIELDS, [_NO_STORED_FIELDS]):
        return False
    url.pop("stored_fields", None)
    body.pop("stored_fields", None)
    body["_source"] = False
    return True


def _ask_for_doc_values(body: dict[str, Any]) -> tuple[str, ...]:
    """Add the doc values that identify a document's features, in place; return those that were not requested."""
    asked = _as_list(body.get("docvalue_fields", []))
    missing = _not_asked(body, (HASH, ENCODER))
    # no pattern matches it; `seq_no_primary_term` would also affect `top_hits`
    if SEQ_NO not in map(_field_name, _fields_of_hits(body)):
        missing = (*missing, SEQ_NO)
    body["docvalue_fields"] = [*asked, *missing]
    return missing


def _ask_for_texts(body: dict[str, Any], highlights: Sequence[Highlight]) -> tuple[str, ...]:
    """Add the texts of highlighted fields to the hits' `fields`, in place; return those that were not requested."""
    if not highlights:
        return ()
    if has_top_hits(body):
        raise InvalidRequest(
            f"[highlight] with type [{KEY}] cannot be used with an aggregation [top_hits]: send them in two searches"
        )
    asked = body.get("fields", [])
    if not isinstance(asked, list):
        return ()  # the engine returns the error
    names = dict.fromkeys(highlight.field for highlight in highlights)
    missing = tuple(name for name in names if not any(_matches(entry, name) for entry in asked))
    body["fields"] = [*asked, *missing]
    return missing


def has_top_hits(part: Any) -> bool:
    """Return whether one of the aggregations of a body, or of an aggregation, is `top_hits`."""
    if not isinstance(part, dict):
        return False
    named = [one for key in ("aggs", "aggregations") if isinstance(part.get(key), dict) for one in part[key].values()]
    return "top_hits" in part or any(map(has_top_hits, named))


def _not_asked(body: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return those fields that the hits of a search do not contain."""
    asked = _fields_of_hits(body)
    return tuple(name for name in names if not any(_matches(entry, name) for entry in asked))


def _fields_of_hits(body: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a body that name fields of hits, or patterns of them."""
    fields = body.get("fields")
    return [*_as_list(body.get("docvalue_fields", [])), *(fields if isinstance(fields, list) else [])]


def _matches(entry: Any, name: str) -> bool:
    """Return whether an entry of `docvalue_fields`, or of `fields`, names a field, by a pattern or in full."""
    return fnmatchcase(name, _field_name(entry))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _field_name(entry: Any) -> str:
    return str(entry.get("field", "")) if isinstance(entry, dict) else str(entry)


def own_timeout(body: Mapping[str, Any], url: Mapping[str, str]) -> float | None:
    """Return the caller's own search timeout, in ms, or None."""
    timeout = url.get("timeout", body.get("timeout"))
    try:
        value = milliseconds(timeout) if isinstance(timeout, str) else None
    except ValueError:  # -1 for none, or an invalid value, for which the engine returns the error
        return None
    return value or None
