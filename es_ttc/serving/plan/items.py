"""The items of `rescore` with a section, as the caller wrote them, and their checks."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field

from es_ttc.common.entry_points import parse_params
from es_ttc.common.validation import shown, unknown_field
from es_ttc.errors import InvalidRequest
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer, RerankerSignal
from es_ttc.serving.request.body import body_integer, texts_of, texts_of_retriever
from es_ttc.serving.request.section import DEFAULT_METHOD, KEY, MAX_PARTS, Section, parse_section

DEFAULT_WINDOW = 100
MAX_ITEMS = 4
"""Maximum number of items with a section in one `rescore` list."""
RETRIEVER = "retriever"
_WINDOW_SIZE = "window_size"
_RESCORE_KEYS = [_WINDOW_SIZE, KEY]


class ExtSection(Section):
    """The contents of a ``ttc`` section in `ext`, with the window's size inside."""

    place: ClassVar[str] = f"ext.{KEY}"
    window_size: int = Field(DEFAULT_WINDOW, ge=1, description="How many of the retriever's first hits are ranked.")


@dataclass(frozen=True, slots=True)
class RescoreItem:
    """An item of `rescore` with a section.

    Attributes:
        position: Its place in the caller's list, from 1.
        window: Its `window_size`; None if it has none.
    """

    position: int
    section: Section
    window: int | None

    @classmethod
    def parse(cls, position: int, item: Mapping[str, Any]) -> Self:
        """Parse one item."""
        section = parse_section(item[KEY], default_method=DEFAULT_METHOD)
        if section.parts is not None:
            _check_parts(section, item[KEY].get("query_texts"))
        if _WINDOW_SIZE not in item:
            return cls(position, section, None)
        window = body_integer(item[_WINDOW_SIZE])
        if window is None or window < 1:
            raise InvalidRequest(
                f"[rescore.window_size] must be an integer of 1 or more, got {shown(item[_WINDOW_SIZE])}"
            )
        return cls(position, section, window)

    def within(self, bound: int | None) -> Self:
        """Return the item with a window that is not greater than a bound."""
        return self if bound is None or (self.window or DEFAULT_WINDOW) <= bound else replace(self, window=bound)


class RescoreItems(NamedTuple):
    """What `rescore` holds: native rescorers, then items with a section."""

    natives: Sequence[Any]
    items: Sequence[RescoreItem]


def parse_items(rescore: Any) -> RescoreItems | None:
    """Return the items of `rescore`; None if none has a section.

    An item of `blend` with the signal `reranker` is two: its other signals, then the reranker over the best.
    """
    rescorers = find_rescore(rescore)
    if rescorers is None:
        return None
    natives, ours = rescorers
    numbered = [
        (position, part) for position, item in enumerate(ours, len(natives) + 1) for part in _with_reranker(item)
    ]
    first, *later = [RescoreItem.parse(position, part) for position, part in numbered]
    key = first.section.relevance_key
    if key is not None and first.section.method != DEFAULT_METHOD:
        raise InvalidRequest(
            f"[{KEY}.{key}] is for method [{DEFAULT_METHOD}], not [{first.section.method}]: leave one out"
        )
    if later and any(item.section.parts is not None for item in (first, *later)):
        raise InvalidRequest(
            f"[{KEY}.parts] needs the only item of [rescore] with [{KEY}] (a reranker in [blend] is an item too), got "
            f"{1 + len(later)}: leave the others out, or [parts]"
        )
    for item in later:
        require_later(item.section, item.position)
    _require_once([first.section, *(item.section for item in later)])
    return RescoreItems(natives, (first, *later))


def _check_parts(section: Section, texts: Any) -> None:
    """Refuse the parts of a question that are not several texts, or that a method cannot rank each by itself."""
    if section.query_texts is None:
        raise InvalidRequest(
            f'[{KEY}.parts] "each" needs [query_texts]: give the text of each part there, e.g. ["a", "b"]'
        )
    if len(section.query_texts) < len(texts):
        raise InvalidRequest(f"[{KEY}.query_texts] has an empty text, and [parts] ranks by each text: leave it out")
    if not 2 <= len(texts) <= MAX_PARTS:
        fix = "leave [parts] out" if len(texts) < 2 else "give fewer, or leave [parts] out"
        raise InvalidRequest(
            f'[{KEY}.parts] "each" takes 2 to {MAX_PARTS} texts in [query_texts], got {len(texts)}: {fix}'
        )
    if section.method in STRATEGIES:
        raise InvalidRequest(
            f"[{KEY}.parts] is not for [{section.method}], which reranks by one text: take another method, e.g. "
            f"[{DEFAULT_METHOD}], or leave [parts] out"
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


def with_rescore(body: dict[str, Any]) -> dict[str, Any]:
    """Return a search with its section as an item of `rescore`, if it has a `retriever` and the section is in `ext`."""
    if RETRIEVER not in body:
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


def with_text(replaced: dict[str, Any], body: Mapping[str, Any], texts: set[tuple[str, ...]]) -> dict[str, Any]:
    """Return a body with the text of its clauses in the first rescoring section, if that has no text of its own."""
    rescore = find_rescore(body.get("rescore"))
    if rescore is None or len(texts) != 1 or any(ranked_texts(body)):
        return replaced
    natives, [item, *later] = rescore
    section = item[KEY]
    [several] = texts
    if not several or not isinstance(section, dict) or section.keys() & {"query_text", "query_texts"}:
        return replaced
    text = {"query_text": several[0]} if len(several) == 1 else {"query_texts": list(several)}
    return {**replaced, "rescore": [*natives, {**item, KEY: {**section, **text}}, *later]}


def ranked_texts(body: Mapping[str, Any], not_text: Set[str] = frozenset()) -> Iterator[str]:
    """Yield the texts that a search's query or retriever ranks by; fields of ``not_text`` are not analysed text."""
    yield from texts_of(body.get("query"), not_text)
    yield from texts_of_retriever(body.get(RETRIEVER), not_text)


def require_later(section: Section, position: int) -> None:
    """Refuse a section that fetches documents from outside its window, or asks for relevance, after another item."""
    if section.relevance_key is not None:
        raise InvalidRequest(
            f"[{KEY}.{section.relevance_key}] of item {position} of [rescore] would be that of a part of the window: "
            "give it to the first item"
        )
    if section.candidates is not None and section.candidates.knn:
        raise InvalidRequest(
            f"[{KEY}.candidates] of item {position} of [rescore] would join documents that the items before it have "
            "not seen: give it to the first item"
        )
    strategy = STRATEGIES.get(section.method)
    if strategy is not None and strategy.walks:
        raise InvalidRequest(
            f"[{section.method}] finds documents outside its window, so it must be the first item of [rescore] with "
            f"[{KEY}], not item {position}: put it first, or take [rr]"
        )


def _require_once(sections: Sequence[Section]) -> None:
    """Refuse several items that ask for what the page shows once."""
    for key, asked in (("passages", "passages"), ("shows_map", 'detail] "map')):
        if sum(bool(getattr(section, key)) for section in sections) > 1:
            raise InvalidRequest(
                f"[{KEY}.{asked}] is asked for by several items of [rescore], and the page is the same for all: keep "
                "it in one of them"
            )


def _with_reranker(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an item of `blend` with the signal `reranker` as two: its other signals, the reranker over the best."""
    section = item[KEY]
    own_params = section.get("params") if isinstance(section, Mapping) else None
    if not isinstance(own_params, Mapping) or section.get("method", DEFAULT_METHOD) != BlendRescorer.name:
        return [item]
    signals = own_params.get("signals")
    if "reranker" not in own_params and not (isinstance(signals, Mapping) and "reranker" in signals):
        return [item]
    params = parse_params(BlendParams, own_params, BlendRescorer.name)
    others = {name: weight for name, weight in (params.signals or {}).items() if name != "reranker"}
    rest = {key: value for key, value in own_params.items() if key not in ("signals", "reranker")}
    first = {**item, KEY: {**section, "params": rest | ({"signals": others} if others else {})}}
    if not params.reranker_weight:
        return [first]
    chosen = params.reranker or RerankerSignal()
    shared = {key: section[key] for key in ("on_error", "timeout") if key in section}
    shared["detail"] = bool(section.get("detail"))
    second = {"reranker": chosen.name, "budget": chosen.top, "first_pass_weight": 1 / params.reranker_weight}
    window = min(chosen.top, body_integer(item.get(_WINDOW_SIZE, DEFAULT_WINDOW)) or chosen.top)
    return [first, {_WINDOW_SIZE: window, KEY: {"method": "rr", "params": second, **shared}}]
