"""A search with sections in `rescore`, parsed: the request for the engine, and what the gateway does with its answer.

Several items with a section run in order. Each has a plan of its own, which differs in section, texts and window.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from es_ttc.common.validation import shown, unknown_field
from es_ttc.errors import EsTtcError, InvalidRequest, MissingText, SeveralTexts
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.serving.http.limits import check_query
from es_ttc.serving.plan.bodies import (
    AGGREGATIONS,
    NAMED_SCORES,
    NO_STORED_FIELDS,
    PARAMS_OF_SOURCE,
    as_list,
    doc_values_to_ask,
    guard,
    hides_ids,
    matches,
    not_asked,
    texts_to_ask,
    whole_body,
    with_url,
)
from es_ttc.serving.plan.highlights import Highlight, without_highlights
from es_ttc.serving.plan.items import DEFAULT_WINDOW, RETRIEVER, RescoreItem, parse_items, ranked_texts
from es_ttc.serving.plan.part_words import PartWords
from es_ttc.serving.plan.query_parts import QueryParts, UndividedQuery, query_parts
from es_ttc.serving.request.body import body_integer, boolean, fielded_texts, url_integer
from es_ttc.serving.request.query import changes_scores
from es_ttc.serving.request.section import KEY, Candidates, Section, milliseconds, texts_in

DEFAULT_SIZE = 10
_TOTAL_UP_TO = 10_000
_LEARNING_TO_RANK = "learning_to_rank"
_ALL_THEIR_HITS = frozenset({"standard", "knn"})
"""Retrievers that return as many hits as are asked for; all others return `rank_window_size` at most."""
_RANK_WINDOW = 10
_COLLAPSE_KEYS = ["field", "inner_hits", "max_concurrent_group_searches"]


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

    @property
    def ranks(self) -> slice:
        """The places of the page's hits in the order of all."""
        return slice(self.start, self.start + self.size)


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
        divided_query: What the query says besides its words, which multiplies the final score; None if it says nothing,
            or if the section combines both scores itself.
        undivided: Why what the query says besides its words cannot be told from them, or None.
        part_words: The engine's scores of each part of the question; None if its texts are not ranked each by itself.
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
    divided_query: QueryParts | None = None
    undivided: str | None = None
    part_words: PartWords | None = None

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
    def shows_source(self) -> bool:
        """Whether hits contain their whole `_source`."""
        body, url = self.body, dict(self.params)
        return body.get("_source", True) is True and "stored_fields" not in body and PARAMS_OF_SOURCE.isdisjoint(url)

    @property
    def completed(self) -> int:
        """Number of hits that are read completely: those of the page, and those that an item needs with their ids."""
        return max([self.page.size, *(one.page.window for one in self.later if one.section.method in STRATEGIES)])

    def reading(self, fields: Sequence[str]) -> "SearchPlan":
        """Return the plan of a search whose hits contain the doc values of further fields."""
        if not fields or self.problem is not None:
            return self
        missing = not_asked(self.body, fields)
        body = {**self.body, "docvalue_fields": [*self.body["docvalue_fields"], *missing]}
        return replace(
            self, body=body, hidden=(*self.hidden, *missing), numbers=tuple(dict.fromkeys((*self.numbers, *fields)))
        )

    @property
    def is_divided(self) -> bool:
        """Whether the engine is asked for the parts of the query, by named queries with scores."""
        return self.divided_query is not None and self.divided_query.query is not None

    @property
    def asks_named_scores(self) -> bool:
        """Whether the engine is asked for scores by named queries."""
        return self.is_divided or bool(self.part_words and self.part_words.queries)

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body of the search that asks for the scores of named queries."""
        body = body if self.divided_query is None else self.divided_query.asked(body)
        return {**body} if self.part_words is None else self.part_words.asked(body)

    def page_alone(self) -> "SearchPlan":
        """Return the plan of a search whose window is not ranked: fewer hits are requested, if that is possible."""
        end = self.page.start + self.page.size
        if self.collapse is not None or self.later or end >= self.page.fetch:
            return self
        return replace(self, page=replace(self.page, fetch=end), body={**self.body, "size": end})

    def undivided_query(self, reason: str | None = None) -> "SearchPlan":
        """Return the plan of a search whose query's words are not told from what else it says."""
        return replace(self, divided_query=None, undivided=reason)

    def without_named_scores(self, reason: str) -> "SearchPlan":
        """Return the plan of a search whose engine is not asked for the scores of named queries."""
        plan = self.undivided_query(reason) if self.is_divided else self
        asked = self.part_words is not None and self.part_words.queries
        return replace(plan, part_words=PartWords(reason=reason)) if asked else plan

    @property
    def group_fields(self) -> list[Any]:
        """The doc-value fields with documents' groups; empty if the request does not collapse."""
        if self.collapse is None:
            return []
        name = self.collapse.field
        asked = [entry for entry in self.body["docvalue_fields"] if matches(entry, name)]
        return [{**entry, "field": name} if isinstance(entry, dict) else name for entry in asked]


def plan_search(
    body: Mapping[str, Any],
    params: Sequence[tuple[str, str]],
    *,
    max_window: int,
    not_text: Set[str] = frozenset(),
) -> SearchPlan | None:
    """Parse a search; return None if it has no section in `rescore`.

    The URL parameters override the body, as in the engines. Fields of ``not_text`` are not analysed text.
    """
    items = parse_items(body.get("rescore"))
    if items is None:
        return None
    url = dict(params)
    natives, by_retriever = items.natives, RETRIEVER in body  # the engine collapses a retriever's hits before
    collapse = None if by_retriever or body.get("collapse") is None else parse_collapse(body["collapse"])
    most = _most_hits(body[RETRIEVER]) if by_retriever else None
    bound = most if by_retriever else _most_ranked(natives)
    first, *later = [item.within(bound) for item in items.items]
    section = first.section
    page = plan_page(body, url, first, max_window)
    if section.min_relevance is not None and not page.size:
        raise InvalidRequest(f"[{KEY}.min_relevance] counts hits of the window, and [size] is 0: take [size] 1 or more")
    if most is not None and page.size <= most:
        page = replace(page, fetch=min(page.fetch, most))
    if collapse is not None:
        require_within(natives, page.window)
        page = replace(page, fetch=min(page.window, page.fetch))  # the groups beyond it are the engine's
    left_out = {"rescore"} if collapse is None else {"rescore", "collapse"}
    rest, url = with_url({key: value for key, value in body.items() if key not in left_out}, url)
    texts, problem = _query_texts(section, rest, not_text)
    check_query(texts)
    rest, highlights = without_highlights(rest) if "highlight" in rest else (rest, ())
    one_window = not natives and not later and section.method not in STRATEGIES and "search_after" not in rest
    sortable = one_window and url.keys().isdisjoint(("scroll", "sort"))
    by_further_keys = sortable and _has_keys_after_score(rest.get("sort"))
    has_guard = not by_further_keys and not by_retriever
    plain = {**rest, "from": page.start, "size": page.size}
    if collapse is not None:  # an engine that refuses it with a native rescorer cannot apply the rules of the latter
        plain |= {"collapse": collapse.body} | ({"rescore": natives} if natives else {})
        plain = plain if by_further_keys or ("sort" not in rest and "scroll" not in url) else {}
    elif has_guard:
        plain["rescore"] = [*natives, guard(page.window if first.window else max(1, page.start + page.size))]
    hide_ids = hides_ids(rest, url)
    if hide_ids:  # hits need an `_id`
        plain |= {"stored_fields": NO_STORED_FIELDS} if plain else {}
        rest = {key: value for key, value in rest.items() if key != "stored_fields"} | {"_source": False}
        url = {name: value for name, value in url.items() if name != "stored_fields"}
    fields, highlighted = doc_values_to_ask(rest), texts_to_ask(rest, highlights)
    rescorers = [*natives, guard(page.window)] if has_guard else []
    group = None if collapse is None else collapse.field
    plan = SearchPlan(
        section=section,
        texts=texts,
        page=page,
        collapse=collapse,
        body=whole_body(rest, page.fetch, rescorers, fields, highlighted, group),
        params=[(name, value) for name, value in params if name in url and name not in ("from", "size")],
        hidden=fields + highlighted,
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
    if section.parts is not None:
        plan = replace(plan, part_words=PartWords.of(plan.body.get("query"), texts))
    return plan if by_retriever or "score_mode" in section.model_fields_set else _divided(plan, natives)


def _divided(plan: SearchPlan, natives: Sequence[Any]) -> SearchPlan:
    """Return a plan with the parts of its query, if it says more than its words."""
    try:
        parts = query_parts(plan.body.get("query"), plan.texts, plan.body.get("indices_boost"))
    except UndividedQuery as problem:
        return replace(plan, undivided=str(problem))
    if parts is not None and natives:
        return replace(plan, undivided="native rescorers before the section have changed the scores")
    return replace(plan, divided_query=parts)


def _most_hits(retriever: Any) -> int | None:
    """Return how many hits a retriever returns at most; None without a limit of its own."""
    kind, inner = next(iter(retriever.items()), ("", None)) if isinstance(retriever, Mapping) else ("", None)
    if kind in _ALL_THEIR_HITS or not isinstance(inner, Mapping):
        return None
    rescorers = inner.get("rescore", []) if kind == "rescorer" else [{"window_size": inner.get("rank_window_size")}]
    windows = [one.get("window_size") for one in as_list(rescorers) if isinstance(one, Mapping)]
    return min((body_integer(_RANK_WINDOW if window is None else window) or 1 for window in windows), default=None)


def _has_keys_after_score(sort: Any) -> bool:
    """Return whether a sort begins with the score, greatest first, and has further keys."""
    by_score: list[Any] = ["_score", {"_score": "desc"}, {"_score": {}}, {"_score": {"order": "desc"}}]
    return isinstance(sort, list) and len(sort) > 1 and sort[0] in by_score


def _most_ranked(natives: Sequence[Any]) -> int | None:
    """Return the window of native rescorers after which Elasticsearch accepts no greater one, and no hit beyond it."""
    given = [
        native.get("window_size") for native in natives if isinstance(native, dict) and _LEARNING_TO_RANK in native
    ]
    return min((bound for bound in map(body_integer, given) if bound is not None and bound > 0), default=None)


def require_within(natives: Sequence[Any], ours: int) -> None:
    """Refuse native rescorers that reorder documents after the window of a collapsed search."""
    for native in natives:
        window = body_integer(native.get("window_size", DEFAULT_SIZE)) if isinstance(native, dict) else None
        if window is not None and window > ours:
            raise InvalidRequest(
                f"[rescore.window_size] {window} of a native rescorer is greater than {ours}, that of [{KEY}], which "
                "cannot be used with [collapse]: take a window_size that is at least as great for the latter"
            )


def _later_plans(first: SearchPlan, items: Sequence[RescoreItem]) -> tuple[SearchPlan, ...]:
    """Return the plans of the items after the first one with a section."""
    plans = [first]
    for item in items:
        before, section = plans[-1], item.section
        window = item.window or before.page.window
        if window > before.page.window:
            raise InvalidRequest(
                f"[rescore.window_size] {window} of item {item.position} of [rescore] is greater than "
                f"{before.page.window}, the number of documents that the item before it reorders last: each item "
                "reorders the first documents of the one before, so windows may not grow"
            )
        own = section.query_text is not None or section.query_texts is not None
        texts, problem = _own_texts(section) if own else (before.texts, before.problem)
        inherited = {"candidates": Candidates(knn=0), "timeout": section.timeout or before.section.timeout}
        size = window if first.page.fetch else 0
        plans.append(
            replace(
                first,
                section=section.model_copy(update=inherited),
                texts=texts,
                problem=problem,
                page=Page(0, size, window, size),
                collapse=None,
                divided_query=None,
                undivided=None,
                highlights=(),
            )
        )
    return tuple(plans[1:])


def parse_collapse(data: Any) -> Collapse:
    """Parse `collapse`."""
    if not isinstance(data, dict) or not isinstance(data.get("field"), str):
        raise InvalidRequest(f'[collapse] must be an object such as {{"field": "group"}}, got {shown(data)}')
    for key in data:
        if key not in _COLLAPSE_KEYS:
            raise unknown_field(key, _COLLAPSE_KEYS, "collapse")
    return Collapse(data["field"], data)


def plan_page(body: Mapping[str, Any], url: Mapping[str, str], item: RescoreItem, max_window: int) -> Page:
    """Return the page and its window."""
    start, size = _ranks("from", url, body, 0), _ranks("size", url, body, DEFAULT_SIZE)
    window = item.window or DEFAULT_WINDOW
    if window > max_window:
        raise InvalidRequest(
            f"Rescore window [{window}] is too large: [window_size] must be at most [{max_window}], the gateway's "
            "limit (max_window)"
        )
    return Page(start, size, window, max(window, start + size) if size else 0)


def _ranks(name: str, url: Mapping[str, str], body: Mapping[str, Any], default: int) -> int:
    value_asked: Any = url.get(name, body.get(name, default))
    value = url_integer(value_asked) if name in url else body_integer(value_asked)
    if value is None or value < 0:
        raise InvalidRequest(f"[{name}] must be an integer of 0 or more, got {shown(value_asked)}")
    return value


def _query_texts(
    section: Section, body: Mapping[str, Any], not_text: Set[str]
) -> tuple[tuple[str, ...], EsTtcError | None]:
    """Return the query's texts; if there is not one set of them, none and why."""
    if section.query_text is not None or section.query_texts is not None:
        return _own_texts(section)
    try:
        distinct = list(dict.fromkeys(ranked_texts(body, not_text)))
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    if len(distinct) == 1:
        return (distinct[0],), None
    fix = f"give the text in [{KEY}.query_text]"
    if not distinct:
        return (), MissingText(f"[{KEY}.query_text] is missing and the query has no text of its own: {fix}")
    fields = frozenset(name for names, _ in fielded_texts(body.get("query")) for name in names)
    why = f"[{KEY}.query_text] is missing and the query holds {len(distinct)} different texts: {fix}"
    return (), SeveralTexts(why, fields)


def _own_texts(section: Section) -> tuple[tuple[str, ...], EsTtcError | None]:
    texts = texts_in(section)
    name = "query_text" if section.query_texts is None else "query_texts"
    return texts, None if texts else MissingText(f"[{KEY}.{name}] is empty: the query has no text to rank by")


def own_timeout(body: Mapping[str, Any], url: Mapping[str, str]) -> float | None:
    """Return the caller's own search timeout, in ms, or None."""
    timeout = url.get("timeout", body.get("timeout"))
    try:
        value = milliseconds(timeout) if isinstance(timeout, str) else None
    except ValueError:  # -1 for none, or an invalid value, for which the engine returns the error
        return None
    return value or None
