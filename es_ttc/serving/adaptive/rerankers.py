"""Who judges the documents of a walk: a reranker of the settings, which reads texts, or a method of this project."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from es_ttc.common.caches import ExpiringCache
from es_ttc.common.validation import did_you_mean
from es_ttc.errors import DeadlineExceeded, InvalidRequest, MissingFeature
from es_ttc.index.mappings.attached import side_alias
from es_ttc.reranking.rerankers import Cost, ListwiseCalls, PointwiseCalls, Rerankers, charged_to
from es_ttc.reranking.strategies.methods import BY_THEMSELVES
from es_ttc.rescorers import registry
from es_ttc.serving.adaptive.candidates import CandidateDocuments
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.features.scoring import Method, NoFeatures, Timings, WindowScorer
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream

_FIELDS_SECONDS = 60.0
_FIELDS_KEPT = 10_000


class RescorerReranker:
    """Scores documents by a rescorer of this project, from their stored features.

    Args:
        scorer: Reads features and runs methods.
        method: The rescorer.
        documents: The walk's documents.
        texts: The query's texts.
        begun: The query on its way through the encoder.
        caller: In whose name features are read.
        took: Receives the stages' times.
        end: `time.monotonic` when the walk's time is over.
    """

    def __init__(
        self,
        scorer: WindowScorer,
        method: Method,
        documents: CandidateDocuments,
        texts: tuple[str, ...],
        begun: asyncio.Task[EncodedQuery] | None,
        caller: Caller,
        took: Timings,
        end: float,
    ) -> None:
        self.encoder: str | None = None
        self.skipped: dict[int, SkipReason] = {}
        self._like: str | None = None
        self._scorer = scorer
        self._method = method
        self._documents = documents
        self._texts = texts
        self._begun = begun
        self._caller = caller
        self._took = took
        self._end = end

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return one score a document; 0 for one without features.

        Raises:
            EsTtcError: Features could not be read, or the method failed, or the time is over.
        """
        hits = [self._documents.hits[document] for document in documents]
        stage = Timings()
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                if self._like is None:  # all calls judge by one encoder, whatever comes first
                    self._like = await self._scorer.encoder_of(self._documents.first_pass, self._caller)
                scored = await self._scorer.score(
                    hits, self._method, self._texts, self._begun, self._caller, stage, like=self._like
                )
        except NoFeatures as nothing:
            self.skipped |= {documents[place]: fault for place, fault in nothing.skipped.items()}
            return [0.0] * len(hits)
        except TimeoutError:
            raise DeadlineExceeded("the search's time was over before the documents were scored") from None
        finally:
            self._took.features += stage.features
            self._took.score += stage.score
            self._took.encode = max(self._took.encode, stage.encode)
        self.encoder = scored.encoder or self.encoder
        self._like = self._like or self.encoder
        self.skipped |= {documents[place]: fault for place, fault in scored.skipped.items()}
        return [float(value) for value in np.where(scored.mask, scored.values, 0)]


class _TextReranker:
    """What both sorts of rerankers that read texts share: passages of documents, and the time that is left."""

    def __init__(
        self,
        documents: CandidateDocuments,
        fields: "TextFields",
        caller: Caller,
        query: str,
        took: Timings,
        end: float,
        cost: Cost,
    ) -> None:
        self.cost = cost
        self._documents = documents
        self._fields = fields
        self._caller = caller
        self._query = query
        self._took = took
        self._end = end

    @property
    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    async def _passages(self, documents: Sequence[int]) -> list[Any]:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._left):
                return await self._documents.passages(documents, lambda index: self._fields.of(index, self._caller))
        except TimeoutError:
            raise DeadlineExceeded("the search's time was over before the documents' texts were read") from None
        finally:
            self._took.features += (time.perf_counter() - began) * 1000


class PointwiseTextReranker(_TextReranker):
    """Scores documents by a reranker that reads texts."""

    def __init__(self, calls: PointwiseCalls, *rest: Any) -> None:
        super().__init__(*rest)
        self._calls = calls

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return one score a document; see :meth:`es_ttc.reranking.rerankers.calls.PointwiseCalls.scores`."""
        passages = await self._passages(documents)
        began = time.perf_counter()
        try:
            with charged_to(self.cost):
                return await self._calls.scores(self._query, passages, seconds=self._left)
        finally:
            self._took.score += (time.perf_counter() - began) * 1000


class ListwiseTextReranker(_TextReranker):
    """Orders documents by a reranker that reads texts."""

    def __init__(self, calls: ListwiseCalls, *rest: Any) -> None:
        super().__init__(*rest)
        self._calls = calls

    async def order(self, documents: Sequence[int]) -> list[int]:
        """Return the documents, best first; see :meth:`es_ttc.reranking.rerankers.calls.ListwiseCalls.order`."""
        passages = await self._passages(documents)
        began = time.perf_counter()
        try:
            with charged_to(self.cost):
                order = await self._calls.order(self._query, passages, seconds=self._left)
        finally:
            self._took.score += (time.perf_counter() - began) * 1000
        return [documents[place] for place in order]


class TextFields:
    """The text fields of an index, as its mapping or that of its side index names them; kept for a while.

    Args:
        upstream: The engine.
        attached: In whose name side indices are read.
    """

    def __init__(self, upstream: Upstream, attached: AttachedFeatureLocator) -> None:
        self._upstream = upstream
        self._attached = attached
        self._kept: ExpiringCache[str, tuple[str, ...]] = ExpiringCache(_FIELDS_KEPT, _FIELDS_SECONDS)

    async def of(self, index: str, caller: Caller) -> tuple[str, ...]:
        """Return the fields.

        Raises:
            MissingFeature: Nothing says which of its fields are text.
            EngineUnavailable: The engine does not answer.
        """
        kept = self._kept.get(index)
        if kept is not None:
            return kept.value
        for name, door in ((index, caller), (side_alias(index), self._attached.door(caller))):
            async for values in meta_of(self._upstream, name, "text_fields", door):
                if values:
                    self._kept.put(index, tuple(values[0]))
                    return tuple(values[0])
        raise MissingFeature(
            f"a reranker reads texts, and nothing says which fields of index [{index}] are text: add features with "
            f"`es-ttc attach {index} --text-fields ...`"
        )


def rescorer_of(name: str, params: Mapping[str, Any], rerankers: Rerankers, *, max_tokens: int | None) -> Method | None:
    """Return the method of this project that a request names as its reranker; None for one of the settings.

    Raises:
        InvalidRequest: There is no such reranker, or it has no such parameters.
    """
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
