"""Where in the texts of a page's hits the evidence lies: `passages`, fragments of `highlight`, and `"detail": "map"`.

It depends on the query and on stored features only, so every method has it. Features are read for the hits of the page
alone, with the caller's rights, in what is left of the section's time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EncoderError, EsTtcError, MissingFeature
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.evidence_map import evidence_map
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams
from es_ttc.rescorers.spectral.passages import BestPassage, best_passages
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features.scores import FeatureNeeds, Method, Timings, WindowRequest, first_pass_scores
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.response import add_took
from es_ttc.serving.request.section import MAX_PASSAGES
from es_ttc.serving.rescore.context import add_context
from es_ttc.serving.rescore.window import SearchAgain
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

T = TypeVar("T")
Named = tuple[str, BestPassage]
"""A passage with the name of its field."""
Show = Callable[[Query, TokenVectors, ScaleNorms | None, NDArray[np.int32]], T]
"""Returns what is shown of one document, from its tokens, their norms if they are stored, and their offsets."""

_PASSAGES = FeatureNeeds("passages", frozenset({Feature.TOKENS, Feature.OFFSETS}), frozenset({Feature.NORMS}))
_MAP = replace(_PASSAGES, reader="map")
_MAP_WITH_QUERY_TOKENS = replace(_MAP, required=_MAP.required | {Feature.QUERY_TOKENS})


@dataclass(frozen=True, slots=True)
class _HitEvidence(Generic[T]):
    """The evidence in one hit, with the names of its text fields by the ordinals of offsets."""

    fields: tuple[str, ...]
    found: T


async def add_evidence(
    gateway: Gateway,
    response: dict[str, Any],
    plan: SearchPlan,
    method: Method | None,
    caller: Caller,
    search_again: SearchAgain,
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
    budget, name = plan.section.timeout_ms or gateway.settings.scoring_timeout_ms, plan.section.method
    deadline = Deadline.within(budget, timeout_ms=plan.timeout_ms, started=started, since=since)
    if plan.reads_passages:
        began = time.perf_counter()
        with span("passages"):
            adding = _add_passages(gateway, hits, plan, caller, search_again)
            failure = await deadline.run(adding, "reading passages", method=name)
        if failure is not None:
            if plan.section.on_error == "fail":
                raise failure
            response["ttc"]["passages"] = {"reason": str(failure)}
        _add_time(response, "passages", began)
    if plan.section.shows_map:
        began = time.perf_counter()
        try:
            with span("map"):
                maps = await deadline.run(_maps(gateway, hits, plan, method, caller), "reading the map", method=name)
        except EsTtcError as error:
            maps = error
        if isinstance(maps, EsTtcError):
            response["ttc"]["map"] = {"reason": str(maps)}
            maps = []
        for hit, detail in zip(hits, maps, strict=False):
            if detail is not None and detail.found:
                hit["_ttc"] = {**hit.get("_ttc", {}), "map": {"fields": list(detail.fields), **detail.found}}
        _add_time(response, "map", began)


async def _add_passages(
    gateway: Gateway, hits: Sequence[dict[str, Any]], plan: SearchPlan, caller: Caller, search_again: SearchAgain
) -> None:
    """Add passages and fragments to hits, in place; after a failure they have none, or passages without context."""
    for hit in hits:
        _show_passages(hit, (), plan)
    for hit, passages in zip(hits, await _passages(gateway, hits, plan, caller), strict=True):
        _show_passages(hit, passages, plan)
    if plan.section.context is not None:
        await add_context(hits, plan, search_again, gateway.scoring)


async def _passages(
    gateway: Gateway, hits: Sequence[dict[str, Any]], plan: SearchPlan, caller: Caller
) -> list[list[Named]]:
    """Return the passages of each hit, best first."""
    # A field's fragments are chosen among the passages of all fields, so there must be enough of them.
    count = MAX_PASSAGES if plan.highlights else plan.section.passages

    def passages(
        query: Query, tokens: TokenVectors, norms: ScaleNorms | None, offsets: NDArray[np.int32]
    ) -> list[BestPassage]:
        return best_passages(query.of_tokens, tokens, norms, offsets, count)

    of_hits = await _evidence(gateway, hits, plan, caller, _PASSAGES, passages)
    encoded = {name for evidence in of_hits if evidence is not None for name in evidence.fields}
    unknown = [highlight.field for highlight in plan.highlights if highlight.field not in encoded]
    if unknown:
        raise MissingFeature(
            f"[highlight.fields] names [{unknown[0]}], which has no token vectors: the page's documents have them "
            f"of [{', '.join(sorted(encoded))}]"
        )
    return [
        []
        if evidence is None
        else [(evidence.fields[one.field], one) for one in evidence.found if one.field < len(evidence.fields)]
        for evidence in of_hits
    ]


async def _maps(
    gateway: Gateway, hits: Sequence[dict[str, Any]], plan: SearchPlan, method: Method | None, caller: Caller
) -> list[_HitEvidence[dict[str, Any]] | None]:
    """Return the map of each hit."""
    own = None if method is None else method.params
    scales = own.scales if isinstance(own, SpectralParams) else DEFAULT_SCALES
    show = partial(evidence_map, scales=scales)
    try:
        return await _evidence(gateway, hits, plan, caller, _MAP_WITH_QUERY_TOKENS, show)
    except EncoderError:  # a server that gives pooled vectors or token vectors, not both
        return await _evidence(gateway, hits, plan, caller, _MAP, show)


async def _evidence(
    gateway: Gateway,
    hits: Sequence[dict[str, Any]],
    plan: SearchPlan,
    caller: Caller,
    features: FeatureNeeds,
    show: Show[T],
) -> list[_HitEvidence[T] | None]:
    """Return the evidence in each hit; None for one without features of its present text."""
    if plan.problem is not None:
        raise plan.problem
    bare = Window([hit.get("_id", "") for hit in hits], first_pass_scores(hits))
    prepared = await gateway.scorer.reader.read(
        hits, bare, features, WindowRequest(plan.texts, None, caller, Timings())
    )
    numbers = {place: number for place, number in prepared.positions().items() if place not in prepared.stale}
    shown = await gateway.scoring.run(_shown, show, prepared.query, prepared.window, [*numbers.values()])
    evidence: list[_HitEvidence[T] | None] = [None] * len(hits)
    for (place, number), found in zip(numbers.items(), shown, strict=True):
        evidence[place] = _HitEvidence(prepared.fields[number], found)
    return evidence


def _shown(show: Show[T], query: Query, window: Window, numbers: Sequence[int]) -> list[T]:
    """Return what is shown of some documents of a window with token vectors."""
    tokens, norms, offsets = window.tokens, window.norms, window.offsets
    assert tokens is not None and offsets is not None  # noqa: S101, PT018 - they are needed
    return [show(query, tokens[n], None if norms is None else norms[n], offsets[n]) for n in numbers]


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
