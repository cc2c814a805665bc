"""What shows where in the texts of a page's hits the evidence lies: passages and maps."""

from es_ttc.serving.features.scores import Method
from es_ttc.serving.features.scoring import WindowScorer
from es_ttc.serving.rescore.maps import MapReader
from es_ttc.serving.rescore.page_details import PageReader
from es_ttc.serving.rescore.passages import PassageReader
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.stage import Answered


class PageEvidence:
    """Adds to hits what their request asks for.

    Args:
        scorer: Reads features, and runs what is computed.
        default_timeout_ms: Time budget of a request that sets none.
    """

    def __init__(self, scorer: WindowScorer, default_timeout_ms: float) -> None:
        pages = PageReader(scorer, default_timeout_ms)
        self._passages = PassageReader(pages)
        self._maps = MapReader(pages)

    async def add(self, answered: Answered, plan: SearchPlan, method: Method | None, since: float) -> None:
        """Add passages, fragments and maps to the hits of a page, in place.

        Args:
            answered: The response, whose hits contain what identifies their features.
            plan: The parsed search.
            method: The method that scores documents, if it is one of ours.
            since: `time.perf_counter` when scoring began, which has the same time budget.

        Raises:
            EsTtcError: Passages cannot be had, and the request says ``on_error: fail``.
        """
        if plan.reads_passages:
            await self._passages.add(answered, plan, since)
        if plan.section.shows_map:
            await self._maps.add(answered, plan, method, since)
