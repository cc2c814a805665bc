"""The encoder of a window, and the documents of the window that have features of that encoder.

The encoder of an index is that of most of its documents. A document with features of another encoder is skipped. Scores
of different encoders cannot be compared, so two indices with different encoders are an error. The engine is asked for
the encoders of an index only if the documents of a window have several, or one that this gateway does not have.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EncoderMismatch, EngineError, EngineUnavailable
from es_ttc.index.mappings.spec import ENCODER
from es_ttc.serving.engine_requests import EngineRequests, IncompleteAnswer
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream

_SECONDS = 30.0
"""Time for which the encoders of an index are cached."""
_MAX_CACHED = 1024
_MAX_ENCODERS = 10


class IndexEncoderLookup:
    """Finds the encoders of indices.

    Args:
        upstream: The engine.
        side_caller: Returns the request context with which a side index is read for a caller.
        preferred: Returns the encoders that are preferred if two have the same number of documents.
    """

    def __init__(
        self, upstream: Upstream, side_caller: Callable[[Caller], Caller], preferred: Callable[[], Sequence[str]]
    ) -> None:
        self._engine = EngineRequests(upstream)
        self._side_caller = side_caller
        self._preferred = preferred
        self._cache: ExpiringCache[tuple[str, str], Mapping[str, int]] = ExpiringCache(_MAX_CACHED, _SECONDS)

    async def agreed(self, keys: Sequence[DocumentKey], caller: Caller) -> str:
        """Return the encoder of a window's documents, which are one or more.

        Raises:
            EncoderMismatch: The documents are of indices with different encoders.
        """
        if len({key.encoder for key in keys}) == 1:
            return keys[0].encoder
        (index, encoder), *others = (await self._by_index(keys, caller)).items()
        other = next((one for one in others if one[1] != encoder), None)
        if other is not None:
            raise EncoderMismatch(
                f"the window holds documents of two encoders, [{encoder}] in index [{index}] and [{other[1]}] in index "
                f"[{other[0]}]: search one of them at a time, or ingest one of them again"
            )
        return encoder

    async def is_encoder_of_all(self, encoder: str, keys: Sequence[DocumentKey], caller: Caller) -> bool:
        """Return whether an encoder is that of every index of some documents."""
        return set((await self._by_index(keys, caller)).values()) == {encoder}

    async def _by_index(self, keys: Sequence[DocumentKey], caller: Caller) -> dict[str, str]:
        """Return the encoder of each index of some documents."""
        in_window: dict[str, Counter[str]] = defaultdict(Counter)
        sides = {key.index for key in keys if key.side}
        for key in keys:
            in_window[key.index][key.encoder] += 1
        counts = await asyncio.gather(*(self._counts(index, caller, side=index in sides) for index in in_window))
        return {
            index: most_frequent(in_index, window_counts, self._preferred())
            for (index, window_counts), in_index in zip(in_window.items(), counts, strict=True)
        }

    async def _counts(self, index: str, caller: Caller, *, side: bool) -> Mapping[str, int]:
        """Return the number of documents per encoder of an index, among those that the caller may read.

        They are cached, unless the engine does not answer for now: then the window's counts decide.
        """
        place = (index, caller.indices)
        cached = self._cache.get(place)
        if cached is not None:
            return cached.value
        try:
            counts = await self._read_counts(index, self._side_caller(caller) if side else caller)
        except (EngineUnavailable, IncompleteAnswer):
            return {}
        self._cache.put(place, counts)
        return counts

    async def _read_counts(self, index: str, caller: Caller) -> Mapping[str, int]:
        body: dict[str, Any] = {
            "size": 0,
            "track_total_hits": False,
            "query": {"bool": {"filter": [{"term": {"_index": index}}]}},
            "aggs": {"encoders": {"terms": {"field": ENCODER, "size": _MAX_ENCODERS}}},
        }
        try:
            answer = await self._engine.as_caller(caller).search([index], body, failing="encoders could not be counted")
            return {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["encoders"]["buckets"]}
        except (EngineUnavailable, IncompleteAnswer):
            raise
        except (EngineError, ValueError, LookupError, TypeError):
            return {}  # the counts of the window decide


def most_frequent(in_index: Mapping[str, int], in_window: Mapping[str, int], preferred: Sequence[str]) -> str:
    """Return the encoder of most documents of an index."""

    def rank(encoder: str) -> tuple[int, int, int, str]:
        place = preferred.index(encoder) if encoder in preferred else len(preferred)
        return -in_index.get(encoder, 0), -in_window.get(encoder, 0), place, encoder

    return min(in_index or in_window, key=rank)
