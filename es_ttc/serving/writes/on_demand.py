"""Encodes the documents of windows that lack features, after the responses, with the gateway's own account.

It reads their texts and writes their features as a fill does. It uses a share of the processors' time, and none while a
search waits for a thread.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from es_ttc.common.processors import processor_count
from es_ttc.encoders.base import Encoder
from es_ttc.errors import EngineUnavailable, EsTtcError
from es_ttc.index.attach.encode_by_id import EncodedDocuments, encode_searched
from es_ttc.index.attach.feature_locations import encoded_counts
from es_ttc.index.attach.fill import encode_items
from es_ttc.index.attach.target import FeatureWrite
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.features.keys import DocumentId, RoutedId
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.logs import log
from es_ttc.serving.pool import work_of

_KIND = "on_demand"
_MAX_TOGETHER = 16
"""Documents that are read, encoded and written before the next ones are: few, so that gateways see soon what others
have encoded; more would be encoded twice. Each time the engine refreshes the side index."""
_WAIT_SECONDS = 0.01
_RETRY_SECONDS = 5.0
_COUNT_SECONDS = 15.0


def rest_after(busy: float, elapsed: float, share: float) -> float:
    """Return the seconds to rest after some, of which all processors were busy for a part, to use a share of them."""
    return max(0.0, busy / share - elapsed)


class OnDemandEncoder:
    """Encodes what waits in the gateway's queue."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._queue = gateway.on_demand
        self._share = gateway.settings.on_demand_share
        self._busy = 0.0  # seconds of encoding the documents that were taken last
        self._engine = gateway.engine.as_gateway().protocol()

    async def run(self) -> None:
        """Encode documents, most often seen first, and count those of the indices now and then."""
        if self._share:
            await asyncio.gather(self._encode_waiting(), self._count())

    async def _encode_waiting(self) -> None:
        while True:
            index, documents = await self._queue.take(_MAX_TOGETHER)
            began, self._busy = time.monotonic(), 0.0
            try:
                await self._encode(index, documents)
            except Exception as error:  # noqa: BLE001 - whatever fails, later searches queue the documents again
                problem = str(error) if isinstance(error, EsTtcError) else f"{type(error).__name__}: {error}"
                log.warning("documents could not be encoded on demand", index=index, problem=problem)
                self._gateway.metrics.on_demand_documents.labels("error").inc(len(documents))
                if isinstance(error, EngineUnavailable):
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._queue.indices.exclude(index)
            await asyncio.sleep(rest_after(self._busy, time.monotonic() - began, self._share))

    async def _encode(self, index: str, documents: Sequence[DocumentId]) -> None:
        held = await self._queue.indices.location(index)
        if held is None:
            return
        encoder = await self._gateway.encoders.serving(held.spec.encoder.key, index)
        routed = [document.routed for document in documents]
        outcome = await encode_searched(self._engine, held, routed, encoder, self._encode_items)
        for version in outcome.without:
            self._queue.settle(DocumentId(index, RoutedId(*version.key)), version.seq_no)
        self._record(outcome)

    def _record(self, outcome: EncodedDocuments) -> None:
        counts = {
            "encoded": outcome.encoded,
            "present": outcome.present,
            "changed": outcome.changed,
            "without": len(outcome.without),
        }
        for name, count in counts.items():
            self._gateway.metrics.on_demand_documents.labels(name).inc(count)

    async def _encode_items(self, documents: Sequence[Any], spec: IndexSpec, encoder: Encoder) -> list[FeatureWrite]:
        """Encode some documents at a time, when no search waits for a thread."""
        items: list[FeatureWrite] = []
        for start in range(0, len(documents), processor_count()):
            while self._gateway.scoring.searches_wait or self._gateway.encoding.searches_wait:  # noqa: ASYNC110 - two pools
                await asyncio.sleep(_WAIT_SECONDS)
            started, some = time.monotonic(), documents[start : start + processor_count()]
            with work_of(_KIND):
                items += await self._gateway.encoding.run(encode_items, some, spec, encoder)
            self._busy += time.monotonic() - started
        return items

    async def _count(self) -> None:
        """Count the documents of the indices, and those with features, for the metrics."""
        metrics = self._gateway.metrics
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            try:
                counts = [await encoded_counts(self._engine, held) for held in self._queue.indices.known]
            except Exception as error:  # noqa: BLE001 - the next count may succeed
                log.warning(
                    "documents of indices on demand were not counted", problem=f"{type(error).__name__}: {error}"
                )
                continue
            metrics.on_demand_index_documents.set(sum(documents for documents, _ in counts))
            metrics.on_demand_encoded_documents.set(sum(encoded for _, encoded in counts))
