"""The page of a ranked search: its hits as the response shows them, with scores, details and explanations."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import EsTtcError
from es_ttc.index.mappings.spec import HASH
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.plan.query_parts import without_parts
from es_ttc.serving.request.response import shortest
from es_ttc.serving.request.section import ScoreMode, Section
from es_ttc.serving.rescore.candidates import NONE_JOINED, JoinedCandidates
from es_ttc.serving.rescore.collapse import WindowGroups
from es_ttc.serving.rescore.order import Order, ScoredWindow, first_pass_order
from es_ttc.serving.rescore.relevance import shown_relevance
from es_ttc.serving.summary import Summary
from es_ttc.vectors.tokens import Float32

NO_FEATURES = "no features, kept below the scored documents"
PINNED = "a first-pass score far above those of the others, kept on top"
FACTOR = "factor: what the query says besides its words"
BURIED = "scored 0 by the functions of the query, kept below the scored documents"


@dataclass(frozen=True, slots=True)
class RankedPage:
    """The hits of a plan's page in a method's order; in the engine's order if the method could not be applied.

    Attributes:
        hits: The hits as the response shows them. Those of a window without stored fields, and candidates, lack theirs.
        max_score: The greatest score of the whole ranking; None if the engine's own stays.
        groups: The groups of the ranked documents, if the request collapses.
        candidates: The candidates that joined the window.
        fallbacks: Why the method was not applied, or not to all documents, with the event for the log.
        skipped: Why features of documents were not used, one reason a document.
        items: The results of the items, if there are several.
        rest: Ranks complete hits by the items that need them, None if there are none.
    """

    hits: list[dict[str, Any]]
    summary: Summary
    max_score: float | None = None
    groups: WindowGroups | None = None
    candidates: JoinedCandidates = NONE_JOINED
    fallbacks: Sequence[tuple[str, EsTtcError]] = ()
    skipped: Sequence[SkipReason] = ()
    items: "tuple[RankedPage, ...]" = ()
    rest: "Callable[[list[dict[str, Any]]], Awaitable[RankedPage]] | None" = None


def first_pass_page(
    plan: SearchPlan, hits: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], WindowGroups | None]:
    """Return the hits of a page in the engine's order, and the groups of all hits."""
    places, groups = first_pass_order(plan, hits)
    page = [shown_hit(hits[place], plan.section, None, None, _origin(hits[place], place)) for place in places]
    return page, groups


def ordered_page(
    plan: SearchPlan, window: ScoredWindow, order: Order, details: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the hits of a page in a method's order, with the method's ``details`` by place in the window."""
    ranks, scores, shown = plan.page.ranks, window.scores, []
    for rank, (place, score) in enumerate(
        zip(order.ranking.order[ranks].tolist(), order.ranking.scores[ranks], strict=True), ranks.start
    ):
        hit = window.hits[place]
        detail = {**_origin(hit, window.places[place]), **details.get(place, {})}
        if window.relevance is not None:
            detail["relevance"] = shown_relevance(window.relevance, place)
        if place in scores.stale:
            detail["stale"] = True
        if place in scores.skipped:
            detail["skipped"] = scores.skipped[place].value
        outside = PINNED if place < window.pinned else BURIED if order.buried[place] else None
        rescored = shortest(window.values[place]) if scores.has(place) and outside is None else None
        factor = None if rescored is None or window.factors is None else shortest(window.factors[place])
        if factor is not None:
            detail["factor"] = factor
        if order.turns is not None:
            detail["parts"] = None if rescored is None else order.turns.parts_of(place, rank)
        unscored = outside or NO_FEATURES
        shown.append(
            shown_hit(
                hit, plan.section, shortest(score), rescored, detail,
                explain=plan.explain, unscored=unscored, factor=factor,
            )
        )  # fmt: skip
    return shown


def max_score(scores: Float32) -> float | None:
    """Return the greatest of scores that never rise, ``(n,)``; None if there are none."""
    return shortest(scores[0]) if len(scores) else None


def _origin(hit: Mapping[str, Any], place: int | None) -> dict[str, Any]:
    """Return a hit's rank and score in the first pass, for its details."""
    return {"first_pass_rank": None if place is None else place + 1, "first_pass_score": hit.get("_score")}


def explained(
    value: float,
    method: str,
    mode: ScoreMode,
    rescored: float | None,
    engine: Any,
    *,
    unscored: str = NO_FEATURES,
    factor: float | None = None,
) -> dict[str, Any]:
    """Return the explanation of a final score, with the engine's own explanation of the first pass inside."""
    first_pass = [] if engine is None else [without_guard(engine)]
    if rescored is None:
        description = f"ttc [{method}]: {unscored} in first-pass order"
        return {"value": value, "description": description, "details": first_pass}
    scored = {"value": rescored, "description": f"score of method [{method}]", "details": []}
    description = f"ttc [{method}], score_mode [{mode}], from:"
    by_query = [] if factor is None else [{"value": factor, "description": FACTOR, "details": []}]
    return {"value": value, "description": description, "details": [scored, *by_query, *first_pass]}


def shown_hit(
    hit: dict[str, Any],
    section: Section,
    score: float | None,
    rescored: float | None,
    detail: dict[str, Any],
    *,
    explain: bool = False,
    unscored: str = NO_FEATURES,
    factor: float | None = None,
) -> dict[str, Any]:
    """Return a hit for the response; it is changed in place."""
    if score is None:
        if "_explanation" in hit:
            hit["_explanation"] = without_guard(hit["_explanation"])
    elif explain:
        engine = hit.get("_explanation")
        hit["_explanation"] = explained(
            score, section.method, section.score_mode, rescored, engine, unscored=unscored, factor=factor
        )
    if section.detail:
        hit["_ttc"] = detail
    elif score is not None and (keys := section.keys_of_hits):
        hit["_ttc"] = {key: detail.get(key) for key in keys}
    if score is not None:
        hit["_score"] = score
    return hit


def without_guard(explanation: Any) -> Any:
    """Return an explanation without the node of the native rescorer that replaced the section: a product with 1."""
    if isinstance(explanation, dict) and explanation.get("description") == "product of:":
        details: Sequence[Any] = explanation.get("details", ())
        if len(details) == 2 and isinstance(details[1], dict) and details[1].get("description") == "primaryWeight":
            return details[0]
    return explanation


def add_to_total(response: Mapping[str, Any], count: int, up_to: int | None, *, least: int) -> None:
    """Count further documents in a response's total, up to where the engine counts; None if it counts all.

    The total is at least ``least``: a search that ended early has not counted all documents that the query matches.
    """
    hits = response["hits"]
    total = hits.get("total")
    if isinstance(total, int):
        hits["total"] = max(total + count, least) if total >= 0 else total  # -1 if it is not counted
    elif total is not None and total["relation"] == "eq":
        whole = max(total["value"] + count, least)
        if up_to is not None and whole > up_to:
            hits["total"] = {"value": max(total["value"], up_to), "relation": "gte"}
        else:
            hits["total"] = {"value": whole, "relation": "eq"}


def set_total(response: Mapping[str, Any], count: int) -> None:
    """Set a response's total, if the engine has counted; without hits there is no greatest score."""
    hits = response["hits"]
    if not count:
        hits["max_score"] = None
    if isinstance(hits.get("total"), int):
        hits["total"] = count if hits["total"] >= 0 else hits["total"]
    elif hits.get("total") is not None:
        hits["total"] = {"value": count, "relation": "eq"}


def add_lost_shards(response: dict[str, Any], further: Mapping[str, Any]) -> None:
    """Report the shards that did not answer a further request, or its timeout, as the engine reports them."""
    shards = further.get("_shards", {})
    if shards.get("failed", 0) > response.get("_shards", {}).get("failed", 0):
        response["_shards"] = shards
    if further.get("timed_out"):
        response["timed_out"] = True


def hide(response: Mapping[str, Any], plan: SearchPlan) -> None:
    """Remove from hits, and from options of completion suggesters, the parts that only the gateway requested."""
    suggestions = [entry for entries in response.get("suggest", {}).values() for entry in entries]
    options = [option for entry in suggestions for option in entry.get("options", ()) if "_index" in option]
    for hit in response["hits"]["hits"] if plan.by_further_keys else ():
        hit["sort"] = [hit["_score"], *(hit.get("sort") or ())[1:]]
    for hit in [*response["hits"]["hits"], *options]:
        without_parts(hit, with_scores=plan.shows_named_scores)
        fields = hit.get("fields")
        if fields is not None:
            for name in plan.hidden:
                fields.pop(name, None)
            if not fields:
                del hit["fields"]
        highlight = hit.get("highlight")
        if highlight is not None and highlight.pop(HASH, None) is not None and not highlight:
            del hit["highlight"]
        if plan.hide_ids:
            for name in ("_id", "_routing"):
                hit.pop(name, None)
