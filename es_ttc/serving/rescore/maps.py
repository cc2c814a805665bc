"""The maps of a page's hits: with `"detail": "map"`, each hit's cosines with the query, token by token."""

import time
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.errors import EncoderError, EsTtcError
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.evidence_map import evidence_map
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams
from es_ttc.serving.features.scores import Method
from es_ttc.serving.rescore.page_details import HitDetail, PageReader, UnrankedTokens, located_tokens
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.response import add_took
from es_ttc.serving.search.stage import Answered
from es_ttc.serving.tracing import span


class _Rows(Params):
    scales: tuple[float, ...] = Field(description="The scales of the spectral part.")
    late: bool = Field(description="Whether the query's tokens have rows too.")


class _MapMethod(UnrankedTokens):
    """The map as the detail of a method that ranks nothing; so it is read and computed as scores are."""

    name: ClassVar[str] = "map"
    Params: ClassVar[type[Params]] = _Rows

    def needs(self, params: _Rows) -> frozenset[Feature]:
        of_query = {Feature.QUERY_TOKENS} if params.late else set[Feature]()
        return frozenset({Feature.TOKENS, Feature.OFFSETS, *of_query})

    def detail(self, query: Query, window: Window, params: _Rows) -> list[dict[str, Any]]:
        return [evidence_map(query, *features, params.scales) for features in located_tokens(window)]


_METHOD = _MapMethod()


class MapReader:
    """Adds maps to hits.

    Args:
        pages: Reads the page's features.
    """

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages

    async def add(self, answered: Answered, plan: SearchPlan, method: Method | None, since: float) -> None:
        """Add a map to each hit of a page, in place. If none can be had, the response says why; the page stays.

        Args:
            answered: The response, whose hits contain what identifies their features.
            plan: The parsed search.
            method: The method that scores documents; the map has its scales if it is spectral retrieval.
            since: `time.perf_counter` when scoring began, which has the same time budget.
        """
        response, began = answered.response, time.perf_counter()
        hits: list[dict[str, Any]] = response["hits"]["hits"]
        if not hits:
            return
        own = None if method is None else method.params
        scales = own.scales if isinstance(own, SpectralParams) else DEFAULT_SCALES
        try:
            with span("map"):
                work = self._of(answered, plan, scales)
                found = await self._pages.in_time(work, "reading the map", answered, plan, since)
        except EsTtcError as error:
            found = error
        if isinstance(found, EsTtcError):
            response["ttc"]["map"] = {"reason": str(found)}
            found = []
        for hit, detail in zip(hits, found, strict=False):
            if detail is not None and detail.shown:
                hit["_ttc"] = {**hit.get("_ttc", {}), "map": {"fields": list(detail.fields), **detail.shown}}
        ms = (time.perf_counter() - began) * 1000
        response["ttc"]["took"]["map"] = round(ms, 2)
        add_took(response, ms)

    async def _of(self, answered: Answered, plan: SearchPlan, scales: tuple[float, ...]) -> list[HitDetail | None]:
        try:
            return await self._pages.details(answered, plan, _METHOD, _Rows(scales=scales, late=True))
        except EncoderError:  # a server that gives pooled vectors or token vectors, not both
            return await self._pages.details(answered, plan, _METHOD, _Rows(scales=scales, late=False))
