"""Which encoder a window is scored by, where its documents name several.

An index has one encoder: that of most of its documents. A document that names another one is passed over; two indices
with an encoder each are an error, for scores of different encoders cannot be compared. An index is asked only where the
documents of a window disagree, or name an encoder that nobody has.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EncoderMismatch, EngineError
from es_ttc.index.mappings.spec import ENCODER
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream

_SECONDS = 30.0
"""How long an answer is taken as given."""
_MOST_KEPT = 1024
_MOST_ENCODERS = 10


class IndexEncoderLookup:
    """Tells the encoders of indices.

    Args:
        upstream: The engine.
        side_door: In whose name a side index is read for a caller.
        preferred: Gives the encoders that are taken first where as many documents have one as another.
    """

    def __init__(
        self, upstream: Upstream, side_door: Callable[[Caller], Caller], preferred: Callable[[], Sequence[str]]
    ) -> None:
        self._engine = EngineRequests(upstream)
        self._side_door = side_door
        self._preferred = preferred
        self._kept: ExpiringCache[tuple[str, str], Mapping[str, int]] = ExpiringCache(_MOST_KEPT, _SECONDS)

    async def agreed(self, keys: Sequence[DocumentKey], caller: Caller) -> str:
        """Return the encoder that documents of a window are scored by.

        Args:
            keys: The documents; one or more.
            caller: In whose name indices are asked.

        Raises:
            EncoderMismatch: The documents are of indices with different encoders.
        """
        if all(key.encoder == keys[0].encoder for key in keys):
            return keys[0].encoder
        return self._one_of(await self._by_index(keys, caller))

    async def is_the_indexs(self, encoder: str, keys: Sequence[DocumentKey], caller: Caller) -> bool:
        """Whether an encoder is that of all the indices of some documents which name it."""
        return set((await self._by_index(keys, caller)).values()) == {encoder}

    async def _by_index(self, keys: Sequence[DocumentKey], caller: Caller) -> dict[str, str]:
        """Return the encoder of each index of some documents."""
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        sides = {key.index for key in keys if key.side}
        for key in keys:
            seen[key.index][key.encoder] += 1
        counted = await asyncio.gather(*(self._counted(index, caller, side=index in sides) for index in seen))
        return {
            index: most_frequent(found, in_window, self._preferred())
            for (index, in_window), found in zip(seen.items(), counted, strict=True)
        }

    def _one_of(self, encoders: Mapping[str, str]) -> str:
        (index, encoder), *others = encoders.items()
        other = next((one for one in others if one[1] != encoder), None)
        if other is not None:
            raise EncoderMismatch(
                f"the window holds documents of two encoders, [{encoder}] in index [{index}] and [{other[1]}] in index "
                f"[{other[0]}]: search one of them at a time, or ingest one of them again"
            )
        return encoder

    async def _counted(self, index: str, caller: Caller, *, side: bool) -> Mapping[str, int]:
        """Return how many documents of an index have each encoder, as far as the caller may know."""
        place = (index, caller.indices)
        kept = self._kept.get(place)
        if kept is not None:
            return kept.value
        found = await self._ask(index, self._side_door(caller) if side else caller)
        self._kept.put(place, found)
        return found

    async def _ask(self, index: str, door: Caller) -> Mapping[str, int]:
        body: dict[str, Any] = {
            "size": 0,
            "track_total_hits": False,
            "query": {"bool": {"filter": [{"term": {"_index": index}}]}},
            "aggs": {"encoders": {"terms": {"field": ENCODER, "size": _MOST_ENCODERS}}},
        }
        try:
            found = await self._engine.as_caller(door).search([index], body, failing="encoders could not be counted")
            return {bucket["key"]: bucket["doc_count"] for bucket in found["aggregations"]["encoders"]["buckets"]}
        except (EngineError, ValueError, LookupError, TypeError):
            return {}  # the window has to do


def most_frequent(in_index: Mapping[str, int], in_window: Mapping[str, int], preferred: Sequence[str]) -> str:
    """Return the encoder of most documents of an index.

    Args:
        in_index: How many documents have each encoder; empty where that is not known.
        in_window: How many of those of a window; decides where the index does not.
        preferred: Decides where neither does.
    """

    def rank(encoder: str) -> tuple[int, int, int, str]:
        place = preferred.index(encoder) if encoder in preferred else len(preferred)
        return -in_index.get(encoder, 0), -in_window.get(encoder, 0), place, encoder

    return min(in_index or in_window, key=rank)
