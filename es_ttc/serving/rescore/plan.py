"""One `_search` request that carries a section of ours, taken apart: what the engine is asked, what we do after.

The engine's part is the caller's own request without our section, from the first hit to the end of the last block that
the page needs. A native rescorer that matches nothing stands where ours stood: it changes no score, and it makes the
engine itself apply the rules of a native rescore (no `sort`, no `scroll`, `max_rescore_window`) with its own messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from es_ttc.common.validation import shown, unknown_field
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.serving.features.keys import SEQ_NO
from es_ttc.serving.http.limits import DEFAULT_LIMITS, RequestLimits
from es_ttc.serving.rescore.collapse import Collapse, parse_collapse
from es_ttc.serving.search.query_text import texts_of
from es_ttc.serving.search.section import DEFAULT_METHOD, KEY, Section, milliseconds, parse_section

DEFAULT_WINDOW = 100
DEFAULT_SIZE = 10
_RESCORE_KEYS = ["window_size", KEY]
_NO_STORED_FIELDS = "_none_"
_NEED_STORED_FIELDS = frozenset(
    {"_source", "_source_excludes", "_source_includes", "fields", "highlight", "script_fields", "version"}
)


@dataclass(frozen=True, slots=True)
class Page:
    """Which ranks the caller wants, and how the first pass is cut into blocks to be reordered.

    Attributes:
        start: First rank of the page, from 0.
        size: Ranks of the page.
        block: Ranks of a block; the same for every page of one size, so that pages never repeat a document.
        fetch: First-pass ranks that are asked of the engine: to the end of the page's last block.
        window: What a native rescore would have as its window_size: at least the end of the page.
        asked: The caller's own window_size, the same for every page.
    """

    start: int
    size: int
    block: int
    fetch: int
    window: int
    asked: int


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """One search, taken apart.

    Attributes:
        section: The caller's section.
        texts: The query's texts, one or more.
        page: The ranks that are wanted; of groups, where the request collapses.
        collapse: How the rescored window is collapsed, or None.
        body: What the engine is asked.
        params: The URL parameters that go to the engine.
        hidden: Doc-value fields that we asked for and the caller did not: they leave the answer again.
        hidden_marks: The same of what tells a document's version.
        hide_ids: Whether the caller asked for hits without `_id` (`stored_fields: _none_`).
        explain: Whether the caller wants scores explained.
        timeout_ms: The search timeout of the caller's own, in ms, or None.
    """

    section: Section
    texts: tuple[str, ...]
    page: Page
    collapse: Collapse | None
    body: dict[str, Any]
    params: list[tuple[str, str]]
    hidden: tuple[str, ...]
    hidden_marks: tuple[str, ...]
    hide_ids: bool
    explain: bool
    timeout_ms: float | None

    @property
    def group_fields(self) -> list[Any]:
        """How documents' groups are asked for, as doc-value fields; empty where nothing is collapsed."""
        if self.collapse is None:
            return []
        return [entry for entry in self.body["docvalue_fields"] if _field_name(entry) == self.collapse.field]


def plan_search(
    body: Mapping[str, Any],
    params: Sequence[tuple[str, str]],
    *,
    max_window: int,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> SearchPlan | None:
    """Take a search apart, or return None where it carries no section of ours.

    Args:
        body: The decoded request body; it is not changed.
        params: The decoded URL parameters; they win over the body, as the engines have it.
        max_window: Greatest window that may be asked for.
        limits: How long the query's texts may be, and how much `params` may hold.

    Raises:
        InvalidRequest: Our part of the request cannot be meant as it stands.
    """
    found = find_rescore(body.get("rescore"))
    if found is None:
        return None
    natives, item = found
    section = parse_section(item[KEY], limits, default_method=DEFAULT_METHOD)
    rest = dict(body)
    url = dict(params)
    collapse = None if rest.get("collapse") is None else parse_collapse(rest.pop("collapse"))
    if collapse is not None and natives:
        raise InvalidRequest(f"[collapse] cannot be used with native rescorers: leave [{KEY}] alone in [rescore]")
    page = plan_page(_ranks("from", url, rest, 0), _ranks("size", url, rest, DEFAULT_SIZE), item, max_window)
    if collapse is not None:
        page = replace(page, fetch=min(page.block, page.fetch))  # the groups beyond it are the engine's
    texts = _query_texts(section, rest, url)
    limits.check_query(texts)
    hide_ids = _take_none_fields(rest, url)
    hidden = _ask_for_doc_values(rest, url)
    hidden_marks = _ask_for_version(rest, url)
    if collapse is not None and collapse.field not in map(_field_name, rest["docvalue_fields"]):
        rest["docvalue_fields"].append(collapse.field)  # shown, as the engines show it
    rest |= {"rescore": [*natives, _guard(page.window)], "from": 0, "size": page.fetch}
    return SearchPlan(
        section=section,
        texts=texts,
        page=page,
        collapse=collapse,
        body=rest,
        params=[(name, value) for name, value in params if name in url and name not in ("from", "size")],
        hidden=hidden,
        hidden_marks=hidden_marks,
        hide_ids=hide_ids,
        explain=url["explain"] == "true" if "explain" in url else rest.get("explain") is True,
        timeout_ms=own_timeout(rest, url),
    )


def find_rescore(rescore: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the native rescorers and our item, or None where none of the items is ours.

    Raises:
        InvalidRequest: Ours is not the last, stands twice, or has keys that are not its own.
    """
    items = rescore if isinstance(rescore, list) else [rescore]
    ours = [position for position, item in enumerate(items) if isinstance(item, dict) and KEY in item]
    if not ours:
        return None
    if len(ours) > 1:
        raise InvalidRequest(f"[rescore] holds [{KEY}] {len(ours)} times: keep one, the last of the list")
    position = ours[0]
    if position != len(items) - 1:
        raise InvalidRequest(f"[rescore] has native rescorers after [{KEY}]: put them before it")
    item = items[position]
    if "query" in item:
        raise InvalidRequest(f"[rescore] holds [query] and [{KEY}] in one item: make them two items of a list")
    for key in item:
        if key not in _RESCORE_KEYS:
            raise unknown_field(key, _RESCORE_KEYS, "rescore")
    return items[:position], item


def plan_page(start: int, size: int, item: Mapping[str, Any], max_window: int) -> Page:
    """Lay blocks over the first pass.

    Args:
        start: `from`.
        size: `size`.
        item: Our rescore item, with or without its window_size.
        max_window: No block reaches beyond this rank.

    Raises:
        InvalidRequest: The window is no positive integer, or the page ends beyond ``max_window``.
    """
    asked = item.get("window_size", DEFAULT_WINDOW)
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise InvalidRequest(f"[rescore.window_size] must be an integer of 1 or more, got {shown(asked)}")
    window = max(asked, start + size)
    if window > max_window:
        what = f"[window_size] {asked}" if asked > max_window else f"[from] + [size] {start + size}"
        raise InvalidRequest(
            f"Rescore window [{window}] is too large: {what} must be at most [{max_window}], "
            "the gateway's limit (max_window)"
        )
    block = max(asked, size)
    if size == 0:
        return Page(start, 0, block, 0, window, asked)
    fetch = min(-(-(start + size) // block) * block, max_window)
    return Page(start, size, block, fetch, window, asked)


def _guard(window: int) -> dict[str, Any]:
    return {"window_size": window, "query": {"rescore_query": {"match_none": {}}}}


def _ranks(name: str, url: Mapping[str, str], body: Mapping[str, Any], default: int) -> int:
    value: Any = url.get(name, body.get(name, default))
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"[{name}] must be an integer of 0 or more, got {shown(value)}")
    return value


def _query_texts(section: Section, body: Mapping[str, Any], url: Mapping[str, str]) -> tuple[str, ...]:
    if section.query_texts is not None:
        return section.query_texts
    if section.query_text is not None:
        return (section.query_text,)
    try:
        found = list(dict.fromkeys(texts_of(body.get("query"))))
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    if not found and url.get("q", "").strip():
        found = [url["q"]]
    if len(found) != 1:
        why = f"holds {len(found)} different texts" if found else "has no text of its own"
        raise InvalidRequest(f"[{KEY}.query_text] is missing and the query {why}: give the text in [{KEY}.query_text]")
    return (found[0],)


def _take_none_fields(body: dict[str, Any], url: dict[str, str]) -> bool:
    """Without stored fields a hit has no `_id`: ask for hits without _source instead, and drop the ids later.

    Beside what cannot go without stored fields, or shows ids all the same, the request stays as it is.
    """
    if not _NEED_STORED_FIELDS.isdisjoint(body.keys() | url.keys()):
        return False
    if url.get("stored_fields", body.get("stored_fields")) not in (_NO_STORED_FIELDS, [_NO_STORED_FIELDS]):
        return False
    url.pop("stored_fields", None)
    body.pop("stored_fields", None)
    body["_source"] = False
    return True


def _ask_for_doc_values(body: dict[str, Any], url: Mapping[str, str]) -> tuple[str, ...]:
    """Add the fields that tell a document's content and encoder, where the caller has not asked for them himself."""
    asked = body.get("docvalue_fields", [])
    if not isinstance(asked, list):
        asked = [asked]
    patterns = [*map(_field_name, asked), *url.get("docvalue_fields", "").split(",")]
    fields = body.get("fields")
    patterns += map(_field_name, fields if isinstance(fields, list) else [])
    missing = tuple(
        name for name in (HASH, ENCODER, VERSION) if not any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    if SEQ_NO not in patterns:  # no pattern stands for it; `seq_no_primary_term` would be seen in `top_hits` as well
        missing = (*missing, SEQ_NO)
    body["docvalue_fields"] = [*asked, *missing]
    return missing


def _ask_for_version(body: dict[str, Any], url: dict[str, str]) -> tuple[str, ...]:
    """Ask for each hit's version, where the caller has not; return what of it he is not to see."""
    given = url.pop("version", None)
    asked = body.get("version", False) if given is None else given in ("", "true")
    if not isinstance(asked, bool):  # the engine says what is wrong with it
        return ()
    body["version"] = True
    return () if asked else ("_version",)


def _field_name(entry: Any) -> str:
    return str(entry.get("field", "")) if isinstance(entry, dict) else str(entry)


def own_timeout(body: Mapping[str, Any], url: Mapping[str, str]) -> float | None:
    """Return the search timeout of the caller's own, in ms, or None."""
    timeout = url.get("timeout", body.get("timeout"))
    try:
        value = milliseconds(timeout) if isinstance(timeout, str) else None
    except ValueError:  # -1 for none, or something that the engine will refuse
        return None
    return value or None
