"""Where in the texts of a page's hits the evidence lies: `passages`, fragments of `highlight`, and `"detail": "map"`.

It depends on the query and on stored features only, so every method has it. Features are read for the hits of the page
alone, with the caller's rights, in what is left of the section's time.
"""

import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from es_ttc.errors import EncoderError, EsTtcError, MissingFeature
from es_ttc.rescorers.base import Feature, Params, Query, Rescorer, Window
from es_ttc.rescorers.evidence_map import evidence_map
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams
from es_ttc.rescorers.spectral.passages import Passage, best_passages
from es_ttc.serving.deadline import attempt, budget_ms
from es_ttc.serving.features.scores import Method, ScoringRequest, Timings
from es_ttc.serving.features.window import WindowScorer
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.response import add_took
from es_ttc.serving.request.section import MAX_PASSAGES
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

T = TypeVar("T")
Named = tuple[str, Passage]
"""A passage with the name of its field."""


class _UnrankedTokens:
    """The part of a method that ranks nothing and shows something of token vectors; so they are read as for scores."""

    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS})
    similarity: ClassVar[bool] = True

    def score(self, query: Query, window: Window, params: Any) -> Float32:  # noqa: ARG002
        return np.zeros(len(window), np.float32)


class _Count(Params):
    count: int = Field(ge=1, le=MAX_PASSAGES, description="Maximum number of passages of a document.")


class _Passages(_UnrankedTokens):
    name: ClassVar[str] = "passages"
    Params: ClassVar[type[Params]] = _Count

    def needs(self, params: _Count) -> frozenset[Feature]:  # noqa: ARG002
        return frozenset({Feature.TOKENS, Feature.OFFSETS})

    def detail(self, query: Query, window: Window, params: _Count) -> list[dict[str, Any]]:
        return [
            {"passages": best_passages(query.of_tokens, *features, params.count)} for features in _tokens_of(window)
        ]


class _Rows(Params):
    scales: tuple[float, ...] = Field(description="The scales of the spectral part.")
    late: bool = Field(description="Whether the query's tokens have rows too.")


class _Map(_UnrankedTokens):
    name: ClassVar[str] = "map"
    Params: ClassVar[type[Params]] = _Rows

    def needs(self, params: _Rows) -> frozenset[Feature]:
        of_query = {Feature.QUERY_TOKENS} if params.late else set[Feature]()
        return frozenset({Feature.TOKENS, Feature.OFFSETS, *of_query})

    def detail(self, query: Query, window: Window, params: _Rows) -> list[dict[str, Any]]:
        return [evidence_map(query, *features, params.scales) for features in _tokens_of(window)]


_PASSAGES, _MAP = _Passages(), _Map()


def _tokens_of(window: Window) -> Iterator[tuple[TokenVectors, ScaleNorms | None, NDArray[np.int32]]]:
    """Yield each document's token vectors, their norms if they are stored, and the tokens' places in the text."""
    assert window.tokens is not None  # noqa: S101 - promised by needs
    assert window.offsets is not None  # noqa: S101 - promised by needs
    norms: Sequence[ScaleNorms | None] = window.norms or [None] * len(window)
    return zip(window.tokens, norms, window.offsets, strict=True)


@dataclass(frozen=True, slots=True)
class _HitDetail:
    """What a method shows about one hit, with the names of its text fields by the ordinals of offsets."""

    fields: tuple[str, ...]
    shown: dict[str, Any]


async def add_evidence(
    gateway: Gateway,
    response: dict[str, Any],
    plan: SearchPlan,
    method: Method | None,
    caller: Caller,
    *,
    since: float,
    started: float,
) -> None:
    """Add passages, fragments and maps to the hits of a page, in place; after a failure the response says why not.

    ``method`` is None for a method of another kind: a map has the scales of spectral retrieval. ``since`` is
    `time.perf_counter` when scoring began, which has the same time budget, ``started`` when the request arrived.
    """
    hits: list[dict[str, Any]] = response["hits"]["hits"]
    if not hits:
        return

    async def in_time(work: Awaitable[T], what: str) -> T | EsTtcError:
        total = plan.section.timeout_ms or gateway.settings.default_timeout_ms
        left = max(0.0, total - (time.perf_counter() - since) * 1000)
        budget = budget_ms(left, plan.timeout_ms, started)
        return await attempt(work, what=what, method=plan.section.method, budget_ms=budget)

    if plan.reads_passages:
        began = time.perf_counter()
        with span("passages"):
            passages = await in_time(_passages(gateway.scorer, hits, plan, caller), "reading passages")
        if isinstance(passages, EsTtcError):
            if plan.section.on_error == "fail":
                raise passages
            response["ttc"]["passages"] = {"reason": str(passages)}
            passages = [[] for _ in hits]
        for hit, found in zip(hits, passages, strict=True):
            _show_passages(hit, found, plan)
        _add_time(response, "passages", began)
    if plan.section.shows_map:
        began = time.perf_counter()
        try:
            with span("map"):
                maps = await in_time(_maps(gateway.scorer, hits, plan, method, caller), "reading the map")
        except EsTtcError as error:
            maps = error
        if isinstance(maps, EsTtcError):
            response["ttc"]["map"] = {"reason": str(maps)}
            maps = []
        for hit, detail in zip(hits, maps, strict=False):
            if detail is not None and detail.shown:
                hit["_ttc"] = {**hit.get("_ttc", {}), "map": {"fields": list(detail.fields), **detail.shown}}
        _add_time(response, "map", began)


async def _passages(
    scorer: WindowScorer, hits: Sequence[dict[str, Any]], plan: SearchPlan, caller: Caller
) -> list[list[Named]]:
    """Return the passages of each hit, best first."""
    # A field's fragments are chosen among the passages of all fields, so there must be enough of them.
    count = MAX_PASSAGES if plan.highlights else plan.section.passages
    details = await _details(scorer, hits, plan, caller, _PASSAGES, _Count(count=count))
    encoded = {name for detail in details if detail is not None for name in detail.fields}
    unknown = [highlight.field for highlight in plan.highlights if highlight.field not in encoded]
    if unknown:
        raise MissingFeature(
            f"[highlight.fields] names [{unknown[0]}], which has no token vectors: the page's documents have them "
            f"of [{', '.join(sorted(encoded))}]"
        )
    return [
        []
        if detail is None
        else [(detail.fields[one.field], one) for one in detail.shown["passages"] if one.field < len(detail.fields)]
        for detail in details
    ]


async def _maps(
    scorer: WindowScorer, hits: Sequence[dict[str, Any]], plan: SearchPlan, method: Method | None, caller: Caller
) -> list[_HitDetail | None]:
    own = None if method is None else method.params
    scales = own.scales if isinstance(own, SpectralParams) else DEFAULT_SCALES
    try:
        return await _details(scorer, hits, plan, caller, _MAP, _Rows(scales=scales, late=True))
    except EncoderError:  # a server that gives pooled vectors or token vectors, not both
        return await _details(scorer, hits, plan, caller, _MAP, _Rows(scales=scales, late=False))


async def _details(
    scorer: WindowScorer,
    hits: Sequence[dict[str, Any]],
    plan: SearchPlan,
    caller: Caller,
    rescorer: Rescorer[Any],
    params: Params,
) -> list[_HitDetail | None]:
    """Return what a method shows about each hit; None for one without features of its present text."""
    if plan.problem is not None:
        raise plan.problem
    method = Method(rescorer, params, detail=True)
    scored = await scorer.score(hits, ScoringRequest(method, plan.texts, None, caller, Timings()))
    position = {place: number for place, number in scored.positions().items() if place not in scored.stale}
    details = await scorer.details(scored, method, [*position.values()])
    found: list[_HitDetail | None] = [None] * len(hits)
    for (place, number), detail in zip(position.items(), details, strict=True):
        found[place] = _HitDetail(scored.fields[number], detail)
    return found


def _show_passages(hit: dict[str, Any], passages: Sequence[Named], plan: SearchPlan) -> None:
    """Add passages and fragments to one hit, in place."""
    if plan.section.passages:
        shown = [
            {"field": name, "start": one.start, "end": one.end, "score": round(one.score, 6)}
            for name, one in passages[: plan.section.passages]
        ]
        hit["_ttc"] = {**hit.get("_ttc", {}), "passages": shown}
    for highlight in plan.highlights:
        values = [text for value in hit.get("fields", {}).get(highlight.field, ()) if (text := str(value))]
        length = len(" ".join(values))  # as the text was encoded
        inside = [passage for name, passage in passages if name == highlight.field and passage.end <= length]
        if inside:
            hit.setdefault("highlight", {})[highlight.field] = highlight.fragments(values, inside)


def _add_time(response: dict[str, Any], stage: str, began: float) -> None:
    ms = (time.perf_counter() - began) * 1000
    response["ttc"]["took"][stage] = round(ms, 2)
    add_took(response, ms)
