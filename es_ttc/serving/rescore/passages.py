"""The passages of a page's hits: in `_ttc`, and as fragments of `highlight`."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.spectral.passages import Passage, best_passages
from es_ttc.serving.rescore.page_details import HitDetail, PageReader, UnrankedTokens, located_tokens
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.response import add_took
from es_ttc.serving.search.section import MAX_PASSAGES
from es_ttc.serving.search.stage import Answered
from es_ttc.serving.tracing import span

Named = tuple[str, Passage]
"""A passage with the name of its field."""


class _Count(Params):
    count: int = Field(ge=1, le=MAX_PASSAGES, description="Maximum number of passages of a document.")


class _PassageMethod(UnrankedTokens):
    """The passages as the details of a method that ranks nothing; so they are read and computed as scores are."""

    name: ClassVar[str] = "passages"
    Params: ClassVar[type[Params]] = _Count

    def needs(self, params: _Count) -> frozenset[Feature]:  # noqa: ARG002
        return frozenset({Feature.TOKENS, Feature.OFFSETS})

    def detail(self, query: Query, window: Window, params: _Count) -> list[dict[str, Any]]:
        return [
            {"passages": best_passages(query.of_tokens, *features, params.count)} for features in located_tokens(window)
        ]


_METHOD = _PassageMethod()


class PassageReader:
    """Adds passages to hits.

    Args:
        pages: Reads the page's features.
    """

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages

    async def add(self, answered: Answered, plan: SearchPlan, since: float) -> None:
        """Add passages and fragments to the hits of a page, in place; after a failure the response says why not.

        Args:
            answered: The response, whose hits contain what identifies their features.
            plan: The parsed search.
            since: `time.perf_counter` when scoring began, which has the same time budget.

        Raises:
            EsTtcError: They cannot be had, and the request says ``on_error: fail``.
        """
        response, began = answered.response, time.perf_counter()
        hits: list[dict[str, Any]] = response["hits"]["hits"]
        if not hits:
            return
        with span("passages"):
            found = await self._pages.in_time(self._of(answered, plan), "reading passages", answered, plan, since)
        if isinstance(found, EsTtcError):
            if plan.section.on_error == "fail":
                raise found
            response["ttc"]["passages"] = {"reason": str(found)}
            found = [[] for _ in hits]
        for hit, passages in zip(hits, found, strict=True):
            _show(hit, passages, plan)
        ms = (time.perf_counter() - began) * 1000
        response["ttc"]["took"]["passages"] = round(ms, 2)
        add_took(response, ms)

    async def _of(self, answered: Answered, plan: SearchPlan) -> list[list[Named]]:
        """Return the passages of each hit, best first."""
        # A field's fragments are chosen among the passages of all fields, so there must be enough of them.
        count = MAX_PASSAGES if plan.highlights else plan.section.passages
        details = await self._pages.details(answered, plan, _METHOD, _Count(count=count))
        encoded = {name for detail in details if detail is not None for name in detail.fields}
        unknown = [highlight.field for highlight in plan.highlights if highlight.field not in encoded]
        if unknown:
            raise MissingFeature(
                f"[highlight.fields] names [{unknown[0]}], which has no token vectors: the page's documents have them "
                f"of [{', '.join(sorted(encoded))}]"
            )
        return [[] if detail is None else _named(detail) for detail in details]


def _named(detail: HitDetail) -> list[Named]:
    """Return a hit's passages with the names of their fields."""
    return [(detail.fields[one.field], one) for one in detail.shown["passages"] if one.field < len(detail.fields)]


def _show(hit: dict[str, Any], passages: Sequence[Named], plan: SearchPlan) -> None:
    """Add passages to one hit, in place."""
    if plan.section.passages:
        shown = [
            {"field": name, "start": one.start, "end": one.end, "score": round(one.score, 6)}
            for name, one in passages[: plan.section.passages]
        ]
        hit["_ttc"] = {**hit.get("_ttc", {}), "passages": shown}
    for highlight in plan.highlights:
        text = _text_of(hit, highlight.field)
        inside = [one for name, one in passages if name == highlight.field and one.end <= len(text)]
        if inside:
            hit.setdefault("highlight", {})[highlight.field] = highlight.fragments(text, inside)


def _text_of(hit: dict[str, Any], field: str) -> str:
    """Return a field's text as it was encoded: several values are joined by one space."""
    return " ".join(map(str, hit.get("fields", {}).get(field, ())))
