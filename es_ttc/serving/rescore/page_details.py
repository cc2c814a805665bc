"""Details of a page's hits by methods that rank nothing: what `passages` and `"detail": "map"` show.

They depend on the query and on stored features only, so every method has them. Features are read for the hits of the
page alone, with the caller's rights, in what is left of the section's time.
"""

import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EsTtcError
from es_ttc.rescorers.base import Feature, Params, Query, Rescorer, Window
from es_ttc.serving.features.scores import Method, ScoringRequest, Timings
from es_ttc.serving.features.scoring import WindowScorer
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.fallback import attempt, budget_ms
from es_ttc.serving.search.stage import Answered
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

T = TypeVar("T")


class UnrankedTokens:
    """The part of a method that ranks nothing and shows something of token vectors; so they are read as for scores."""

    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS})
    similarity: ClassVar[bool] = True

    def score(self, query: Query, window: Window, params: Any) -> Float32:  # noqa: ARG002
        """Return zeros."""
        return np.zeros(len(window), np.float32)


def located_tokens(window: Window) -> Iterator[tuple[TokenVectors, ScaleNorms | None, NDArray[np.int32]]]:
    """Yield each document's token vectors, their norms if they are stored, and the tokens' places in the text."""
    assert window.tokens is not None  # noqa: S101 - promised by needs
    assert window.offsets is not None  # noqa: S101 - promised by needs
    norms: Sequence[ScaleNorms | None] = window.norms or [None] * len(window)
    return zip(window.tokens, norms, window.offsets, strict=True)


@dataclass(frozen=True, slots=True)
class HitDetail:
    """What a method shows about one hit.

    Attributes:
        fields: The names of the text fields, by the ordinals of offsets.
        shown: The method's detail.
    """

    fields: tuple[str, ...]
    shown: dict[str, Any]


class PageReader:
    """Reads the features of a page's hits, and runs a method's `detail` on them.

    Args:
        scorer: Reads features, and runs what is computed.
        default_timeout_ms: Time budget of a request that sets none.
    """

    def __init__(self, scorer: WindowScorer, default_timeout_ms: float) -> None:
        self._scorer = scorer
        self._default_timeout_ms = default_timeout_ms

    async def details(
        self, answered: Answered, plan: SearchPlan, rescorer: Rescorer[Any], params: Params
    ) -> list[HitDetail | None]:
        """Return what a method shows about each hit of the page; None for one without features of its present text.

        Args:
            answered: The response, whose hits contain what identifies their features.
            plan: The parsed search.
            rescorer: The method.
            params: Its parameters.

        Raises:
            MissingFeature: The index lacks what the method needs.
            EsTtcError: The features cannot be had.
        """
        if plan.problem is not None:
            raise plan.problem
        hits: list[dict[str, Any]] = answered.response["hits"]["hits"]
        method = Method(rescorer, params, detail=True)
        request = ScoringRequest(method, plan.texts, None, answered.caller, Timings())
        scored = await self._scorer.score(hits, request)
        position = {place: number for place, number in scored.positions().items() if place not in scored.stale}
        details = await self._scorer.details(scored, method, [*position.values()])
        found: list[HitDetail | None] = [None] * len(hits)
        for (place, number), detail in zip(position.items(), details, strict=True):
            found[place] = HitDetail(scored.fields[number], detail)
        return found

    async def in_time(
        self, work: Awaitable[T], what: str, answered: Answered, plan: SearchPlan, since: float
    ) -> T | EsTtcError:
        """Return the result of work in what is left of the section's time, or the reason of its failure.

        Args:
            work: The work.
            what: Its name in messages.
            answered: The response.
            plan: The parsed search.
            since: `time.perf_counter` when scoring began, which has the same time budget.

        Raises:
            InvalidRequest: The request is malformed.
        """
        total = plan.section.timeout_ms or self._default_timeout_ms
        budget = max(0.0, total - (time.perf_counter() - since) * 1000)
        return await attempt(
            work,
            what=what,
            method=plan.section.method,
            budget_ms=budget_ms(budget, plan.timeout_ms, answered.request.started),
        )
