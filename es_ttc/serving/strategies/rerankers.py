"""The rerankers of a search: rerankers of the settings, which read texts, and rescorers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from es_ttc.common.caches import ExpiringCache
from es_ttc.common.validation import did_you_mean
from es_ttc.errors import DeadlineExceeded, InvalidRequest, MissingFeature
from es_ttc.index.mappings.attached import side_alias
from es_ttc.reranking.rerankers import Cost, ListwiseCalls, PointwiseCalls, Rerankers, charged_to
from es_ttc.reranking.strategies.methods import BY_THEMSELVES
from es_ttc.rescorers import registry
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features.index_meta import encoded_fields
from es_ttc.serving.features.missing import NoFeatures
from es_ttc.serving.features.scorer import WindowScorer
from es_ttc.serving.features.scores import Method, Timings, WindowRequest
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.strategies.walk import WalkDocuments
from es_ttc.serving.summary import shares_read

T = TypeVar("T")

_FIELDS_SECONDS = 60.0
_FIELDS_KEPT = 10_000


class RescorerReranker:
    """Scores documents by a rescorer, from their stored features, until a deadline."""

    def __init__(
        self, scorer: WindowScorer, method: Method, request: WindowRequest, documents: WalkDocuments, deadline: Deadline
    ) -> None:
        self.encoder: str | None = None
        self.of_query: dict[str, Any] = {}  # its part of the summary
        self.skipped: dict[int, SkipReason] = {}
        self._first_encoder: str | None = None
        self._scorer = scorer
        self._method = method
        self._request = request
        self._documents = documents
        self._deadline = deadline

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return one score for each document; 0 for one without features."""
        hits = [self._documents.hits[document] for document in documents]
        stage, total = Timings(), self._request.timings
        request = replace(self._request, timings=stage)
        try:
            async with asyncio.timeout(self._deadline.left):
                if self._first_encoder is None:  # all calls use the encoder of the first one
                    self._first_encoder = await self._scorer.reader.encoder_of(self._documents.first_pass, request)
                scored = await self._scorer.score(hits, self._method, request, encoder=self._first_encoder)
        except NoFeatures as nothing:
            self.skipped |= {documents[place]: fault for place, fault in nothing.skipped.items()}
            return [0.0] * len(hits)
        except TimeoutError:
            raise DeadlineExceeded("the search's time was over before the documents were scored") from None
        finally:
            total.features += stage.features
            total.score += stage.score
            total.encode = max(total.encode, stage.encode)
        self.encoder, self.of_query = scored.encoder or self.encoder, shares_read(scored.query)
        self._first_encoder = self._first_encoder or self.encoder
        self.skipped |= {documents[place]: fault for place, fault in scored.skipped.items()}
        return [float(value) for value in np.where(scored.mask, scored.values, 0)]


class _TextReranker:
    """A reranker of the settings, which reads the documents' texts."""

    def __init__(
        self,
        documents: WalkDocuments,
        fields: "RerankedFields",
        caller: Caller,
        query: str,
        timings: Timings,
        deadline: Deadline,
        cost: Cost,
    ) -> None:
        self.cost = cost
        self._documents = documents
        self._fields = fields
        self._caller = caller
        self._query = query
        self._timings = timings
        self._deadline = deadline

    async def _asked(self, documents: Sequence[int], call: Callable[..., Awaitable[T]]) -> T:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._deadline.left):
                passages = await self._documents.passages(documents, lambda index: self._fields.of(index, self._caller))
        except TimeoutError:
            raise DeadlineExceeded("the search's time was over before the documents' texts were read") from None
        finally:
            read = time.perf_counter()
            self._timings.features += (read - began) * 1000
        try:
            with charged_to(self.cost):
                return await call(self._query, passages, seconds=self._deadline.left)
        finally:
            self._timings.score += (time.perf_counter() - read) * 1000


class PointwiseTextReranker(_TextReranker):
    """Scores documents by a reranker of the settings."""

    def __init__(self, calls: PointwiseCalls, *rest: Any) -> None:
        super().__init__(*rest)
        self._calls = calls

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return one score for each document; see :meth:`es_ttc.reranking.rerankers.calls.PointwiseCalls.scores`."""
        return await self._asked(documents, self._calls.scores)


class ListwiseTextReranker(_TextReranker):
    """Orders documents by a reranker of the settings."""

    def __init__(self, calls: ListwiseCalls, *rest: Any) -> None:
        super().__init__(*rest)
        self._calls = calls

    async def order(self, documents: Sequence[int]) -> list[int]:
        """Return the documents, best first; see :meth:`es_ttc.reranking.rerankers.calls.ListwiseCalls.order`."""
        return [documents[place] for place in await self._asked(documents, self._calls.order)]


class RerankedFields:
    """The text fields of an index, from its mapping or that of its side index; cached for a short time."""

    def __init__(self, gateway: Gateway) -> None:
        self._engine = gateway.engine
        self._known: ExpiringCache[str, tuple[str, ...]] = ExpiringCache(_FIELDS_KEPT, _FIELDS_SECONDS)

    async def of(self, index: str, caller: Caller) -> tuple[str, ...]:
        """Return the fields, or raise a MissingFeature if no mapping says which of its fields are text."""
        known = self._known.get(index)
        if known is not None:
            return known.value
        places = ((index, self._engine.as_caller(caller)), (side_alias(index), self._engine.as_side_reader(caller)))
        if fields := await encoded_fields(places):
            self._known.put(index, fields)
            return fields
        raise MissingFeature(
            f"a reranker reads texts, and nothing says which fields of index [{index}] are text: add features with "
            f"`es-ttc attach {index} --text-fields ...`"
        )


def reranking_method(
    name: str, params: Mapping[str, Any], rerankers: Rerankers, *, max_tokens: int | None
) -> Method | None:
    """Return the rescorer that a request names as its reranker; None for a reranker of the settings."""
    if name in rerankers.names:
        if params:
            raise InvalidRequest(f"[reranker_params] are for methods of es-ttc: reranker [{name}] has its settings")
        return None
    if name not in BY_THEMSELVES:
        if name in registry.names():
            raise InvalidRequest(
                f"[reranker] cannot be [{name}], which judges the documents of a window together: take one of "
                f"[{', '.join((*BY_THEMSELVES, *rerankers.names))}]"
            )
        raise InvalidRequest(f"unknown reranker [{name}]{did_you_mean(name, (*BY_THEMSELVES, *rerankers.names))}")
    if max_tokens is not None:
        raise InvalidRequest(
            f"[max_tokens] is for rerankers that are paid by tokens: [{name}] takes none, leave it out"
        )
    rescorer = registry.load(name)
    return Method(rescorer, registry.parse_params(rescorer, params), detail=False)
