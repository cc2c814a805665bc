"""The indices of a target that kNN searches: the encoder of their vectors, and their side indices."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EncoderMismatch
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.queries import MAX_KNN_CANDIDATES
from es_ttc.index.mappings.spec import ENCODER, STATE
from es_ttc.serving.answer_forms import TERMS, require_form
from es_ttc.serving.candidates.batches import SearchAnswer, SearchBody, TargetSearches, require_whole_answer
from es_ttc.serving.http.caller import CallerKeys
from es_ttc.serving.logs import log
from es_ttc.serving.request.request import SearchItem, SearchRequest, shared_parts

_MAX_REMEMBERED = 1000
_MAX_INDICES = 256  # of a target that is remembered: a pattern may name thousands
_REMEMBERED_SECONDS = 60.0
_NOT_READABLE = (401, 403, 404)
_FEW = 1000
_COUNT: SearchBody = {"size": 0, "track_total_hits": False}
_BY_INDEX = {"terms": {"field": "_index", "size": MAX_KNN_CANDIDATES}}
_COUNTS = {"encoders": {"terms": {"field": ENCODER, "size": 10}}, "indices": _BY_INDEX}
_NO_INDEX: SearchAnswer = {"indices": {"buckets": []}}  # a search of no index has no aggregations
_BY_BOTH = {**_BY_INDEX, "aggs": {"encoders": {"terms": {"field": ENCODER, "size": 1}}}}


@dataclass(frozen=True, slots=True)
class SideIndex:
    """The side index of a searched index."""

    source: str
    name: str  # the concrete index that the alias named at the beginning; all searches of a request use it
    documents: int  # with vectors in the side index
    matching: int  # of the source, that the caller may read and that match the filter; some may have no vectors

    def first_count(self, k: int) -> int:
        """Return the number of neighbours to request so that k of them can be expected to match."""
        count = k if self.matching >= self.documents else -(-3 * k * self.documents // (2 * max(1, self.matching)))
        return min(count, MAX_KNN_CANDIDATES)

    def filter_first(self, count: int) -> bool:
        """Return whether to read the ids of all matching documents before the vectors are searched."""
        few = self.matching <= _FEW and 2 * self.matching < self.documents
        return few or (
            count >= MAX_KNN_CANDIDATES and self.matching <= MAX_KNN_CANDIDATES and self.matching < self.documents
        )


@dataclass(frozen=True, slots=True)
class SearchedIndices:
    """The indices that are searched."""

    encoder: str | None  # of all vectors; None if no document that the caller may read has one
    own: bool  # whether documents contain vectors themselves
    sides: Sequence[SideIndex]
    counts: Mapping[str, int] = field(default_factory=dict)  # by index, documents that the caller may read


def count_request(shared: SearchBody) -> SearchBody:
    """Return the search that counts documents by encoder and by index."""
    return {**shared, **_COUNT, "aggs": _COUNTS}


async def searched_indices_of(searches: TargetSearches, filters: Sequence[Any], shared: SearchBody) -> SearchedIndices:
    """Return the indices that are searched, or raise an EncoderMismatch for vectors of several encoders."""
    [answer] = await searches.send([count_request(shared)])
    if "aggregations" not in answer:  # there is no index: a pattern that matches none
        return SearchedIndices(None, own=False, sides=())
    encoders = _encoders(answer)
    if len(encoders) > 1:
        [answer] = await searches.send([{**shared, **_COUNT, "aggs": {**_COUNTS, "indices": _BY_BOTH}}])
        encoders = _most_of_each(answer)
    counts = _counts_by_index(answer["aggregations"])
    own = bool(encoders)
    sides: Sequence[SideIndex] = []
    if not own or len(counts) > 1:
        (sides, side_encoders), matching = await asyncio.gather(
            _sides(searches, counts), _matching(searches, counts, filters, shared)
        )
        sides = _with_matching(sides, matching)
        encoders = list(dict.fromkeys([*encoders, *side_encoders]))
    if len(encoders) > 1:
        raise EncoderMismatch(
            f"the searched documents have vectors of two encoders, [{encoders[0]}] and [{encoders[1]}]: search one of "
            "them at a time, or ingest one of them again"
        )
    return SearchedIndices(encoders[0] if encoders else None, own, sides, counts)


async def matched_again(
    searches: TargetSearches, indices: SearchedIndices, filters: Sequence[Any], shared: SearchBody
) -> SearchedIndices:
    """Return indices that an earlier search has found, with the numbers of documents that match other filters."""
    matching = await _matching(searches, indices.counts, filters, shared)
    return replace(indices, sides=_with_matching(indices.sides, matching))


class TargetCache:
    """The indices that earlier searches of a caller and a target have found, for a minute.

    What a search counts depends on the caller's rights, on the indices and shards that the request's parameters select,
    and on fields that the body defines.
    """

    def __init__(self) -> None:
        self._keys = CallerKeys()
        self._known: ExpiringCache[bytes, SearchedIndices | None] = ExpiringCache(_MAX_REMEMBERED, _REMEMBERED_SECONDS)

    def key_of(self, request: SearchRequest, item: SearchItem) -> bytes | None:
        """Return the key of a search's caller and target; None for a point in time, of which nothing is kept."""
        caller = request.caller(item)
        if not caller.indices:
            return None
        target = str((caller.indices, caller.params, request.shard_params(item), shared_parts(item.body or {})))
        return self._keys.of(caller.headers, target.encode(errors="replace"))

    def of(self, key: bytes | None) -> SearchedIndices | None:
        """Return what is known under a key."""
        known = None if key is None else self._known.get(key)
        return None if known is None else known.value

    def put(self, key: bytes | None, indices: SearchedIndices | None) -> None:
        """Remember indices under a key; forget them if there are none."""
        if key is not None and (indices is None or len(indices.counts) <= _MAX_INDICES):
            self._known.put(key, indices)


async def _matching(
    searches: TargetSearches, counts: Mapping[str, int], filters: Sequence[Any], shared: SearchBody
) -> Mapping[str, int]:
    """Return by index the number of documents that match filters."""
    if not filters:
        return counts
    count = {**shared, **_COUNT, "query": {"bool": {"filter": [*filters]}}, "aggs": {"indices": _BY_INDEX}}
    [counted] = await searches.send([count])
    return _counts_by_index(counted.get("aggregations", _NO_INDEX))


def _with_matching(sides: Sequence[SideIndex], matching: Mapping[str, int]) -> list[SideIndex]:
    return [replace(side, matching=matching.get(side.source, 0)) for side in sides]


async def _sides(searches: TargetSearches, counts: Mapping[str, int]) -> tuple[Sequence[SideIndex], list[str]]:
    """Return the side indices of the searched indices, and their encoders."""
    names = [index for index in counts if ":" not in index]  # side indices of other clusters are not searched
    probe = {**_COUNT, "query": {"term": {STATE: READY}}, "aggs": _COUNTS}
    answers = await searches.send_to_sides([(side_alias(index), probe) for index in names])
    sides: list[SideIndex] = []
    encoders: list[str] = []
    for index, answer in zip(names, answers, strict=True):
        if _exists(index, answer):
            in_side = _counts_by_index(answer["aggregations"]) or {side_alias(index): 0}
            [(name, documents)] = in_side.items()  # an alias names one side index
            sides.append(SideIndex(index, name, documents, counts[index]))
            encoders += _encoders(answer)[:1]  # that of most of its documents
    return sides, encoders


def _most_of_each(answer: SearchAnswer) -> list[str]:
    """Return for each index the encoder of most of its documents, each encoder once."""
    buckets = _buckets(answer["aggregations"], "indices")
    firsts = [bucket["encoders"]["buckets"][0]["key"] for bucket in buckets if bucket["encoders"]["buckets"]]
    return list(dict.fromkeys(firsts))


def _encoders(answer: SearchAnswer) -> list[str]:
    return [bucket["key"] for bucket in _buckets(answer["aggregations"], "encoders")]


def _counts_by_index(aggregations: SearchAnswer) -> dict[str, int]:
    return {bucket["key"]: bucket["doc_count"] for bucket in _buckets(aggregations, "indices")}


def _buckets(aggregations: SearchAnswer, name: str) -> Sequence[SearchAnswer]:
    """Return the buckets of an aggregation by encoder or index."""
    require_form(aggregations, {name: TERMS}, "documents could not be counted")
    buckets: Sequence[SearchAnswer] = aggregations[name]["buckets"]
    return buckets


def _exists(index: str, answer: SearchAnswer) -> bool:
    """Return whether a search of a side index has found one that this caller may search."""
    if "error" in answer and answer.get("status") in _NOT_READABLE:
        if answer["status"] != 404:
            log.warning("side index cannot be searched", index=index, status=answer["status"])
        return False
    require_whole_answer(answer)
    return bool(answer["_shards"]["total"])
