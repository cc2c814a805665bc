"""What a kNN clause searches: the encoder of its vectors, and which indices have them beside themselves."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.versions import Product
from es_ttc.errors import EncoderMismatch, MissingFeature
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.queries import MOST_CANDIDATES
from es_ttc.index.mappings.spec import ENCODER, STATE, VECTOR
from es_ttc.serving.knn.answers import Answer, Body, SearchClient, require_whole
from es_ttc.serving.logs import log

_NOT_FOR_THIS_CALLER = (401, 403, 404)
_FEW = 1000
_COUNT: Body = {"size": 0, "track_total_hits": False}
_BY_INDEX = {"terms": {"field": "_index", "size": MOST_CANDIDATES}}
_BY_ENCODER = {"terms": {"field": ENCODER, "size": 10}}
_UNSEARCHABLE = {
    "filter": {"bool": {"filter": [{"term": {STATE: READY}}], "must_not": [{"exists": {"field": VECTOR}}]}},
    "aggs": {"indices": _BY_INDEX},
}
"""Documents whose vector is not in a field that kNN searches: OpenSearch allows none without ``index.knn``."""
_BY_BOTH = {**_BY_INDEX, "aggs": {"encoders": {"terms": {"field": ENCODER, "size": 1}}}}


@dataclass(frozen=True, slots=True)
class SideIndex:
    """The side index of an index that is searched.

    Attributes:
        source: The index.
        name: The side index that its alias led to: all searches of a request are of this one, whatever takes over.
        documents: Documents that the side index has vectors of.
        matching: Documents of the source that the caller sees and that match his filter; some may have no vectors.
    """

    source: str
    name: str
    documents: int
    matching: int

    def first_count(self, k: int) -> int:
        """Return how many neighbours are to be looked at so that k of them can be expected to match."""
        wanted = k if self.matching >= self.documents else -(-3 * k * self.documents // (2 * max(1, self.matching)))
        return min(wanted, MOST_CANDIDATES)

    def filter_first(self, count: int) -> bool:
        """Whether to ask for all documents that match before their vectors are searched, in place of afterwards.

        Args:
            count: Neighbours that would be looked at otherwise.
        """
        few = self.matching <= _FEW and 2 * self.matching < self.documents
        return few or (count >= MOST_CANDIDATES and self.matching <= MOST_CANDIDATES and self.matching < self.documents)


@dataclass(frozen=True, slots=True)
class SearchedIndices:
    """What a clause searches.

    Attributes:
        encoder: Identity of the encoder of all vectors; None where nothing that the caller sees has one.
        own: Whether documents hold vectors themselves.
        sides: The indices whose vectors are beside them.
        unsearchable: Indices whose documents hold vectors themselves, which kNN cannot search.
    """

    encoder: str | None
    own: bool
    sides: Sequence[SideIndex]
    unsearchable: Sequence[str] = ()

    def require_searchable(self) -> None:
        """Raise an error if kNN would pass over documents that have vectors.

        Raises:
            MissingFeature: An index holds vectors that the engine cannot search.
        """
        if self.unsearchable:
            raise MissingFeature(
                f"kNN cannot search the vectors in index [{', '.join(self.unsearchable)}], which was created without "
                "[index.knn]: attach it without --in-index (after `es-ttc detach`), or reindex it into an index with "
                "[index.knn: true]"
            )


async def searched_indices_of(
    asks: SearchClient, filters: Sequence[Any], shared: Body, product: Product
) -> SearchedIndices:
    """Find out what a clause searches.

    Args:
        asks: Ask the engine.
        filters: The clause's own.
        shared: Parts of the caller's body that they may depend on.
        product: The engine's.

    Raises:
        EncoderMismatch: The documents carry vectors of several encoders.
        EngineError: The engine failed.
    """
    counted: Body = {"encoders": _BY_ENCODER, "indices": _BY_INDEX}
    if product == "opensearch":
        counted["unsearchable"] = _UNSEARCHABLE
    [answer] = await asks.searched([{**shared, **_COUNT, "aggs": counted}])
    encoders = _encoders(answer)
    unsearchable = [*_by_index(answer["aggregations"]["unsearchable"])] if product == "opensearch" else []
    if len(encoders) > 1:
        [answer] = await asks.searched([{**shared, **_COUNT, "aggs": {"encoders": _BY_ENCODER, "indices": _BY_BOTH}}])
        encoders = most_of_each(answer)
    seen = _by_index(answer["aggregations"])
    own = bool(encoders)
    sides: list[SideIndex] = []
    if not own or len(seen) > 1:
        sides, beside = await _sides(asks, seen, filters, shared)
        encoders = list(dict.fromkeys([*encoders, *beside]))
    if len(encoders) > 1:
        raise EncoderMismatch(
            f"the searched documents carry vectors of two encoders, [{encoders[0]}] and [{encoders[1]}]: search one of "
            "them at a time, or ingest one of them again"
        )
    return SearchedIndices(encoders[0] if encoders else None, own, sides, unsearchable)


async def _sides(
    asks: SearchClient, seen: Mapping[str, int], filters: Sequence[Any], shared: Body
) -> tuple[list[SideIndex], list[str]]:
    """Return the side indices of the searched indices, and their encoders."""
    names = [index for index in seen if ":" not in index]  # not of another cluster, whose side indices are not ours
    probe = {**_COUNT, "query": {"term": {STATE: READY}}, "aggs": {"encoders": _BY_ENCODER, "indices": _BY_INDEX}}
    probed = asks.beside([(side_alias(index), probe) for index in names])
    if filters:
        count = {**shared, **_COUNT, "query": {"bool": {"filter": [*filters]}}, "aggs": {"indices": _BY_INDEX}}
        answers, [counted] = await asyncio.gather(probed, asks.searched([count]))
        seen = _by_index(counted["aggregations"])
    else:
        answers = await probed
    sides: list[SideIndex] = []
    encoders: list[str] = []
    for index, answer in zip(names, answers, strict=True):
        if _is_there(index, answer):
            found = dict(_by_index(answer["aggregations"])) or {side_alias(index): 0}
            [(name, documents)] = found.items()  # an alias leads to one
            sides.append(SideIndex(index, name, documents, seen.get(index, 0)))
            encoders += _encoders(answer)[:1]  # that of most of its documents
    return sides, encoders


def most_of_each(answer: Answer) -> list[str]:
    """Return the encoders of indices: each has that of most of its documents."""
    buckets = answer["aggregations"]["indices"]["buckets"]
    firsts = [bucket["encoders"]["buckets"][0]["key"] for bucket in buckets if bucket["encoders"]["buckets"]]
    return list(dict.fromkeys(firsts))


def _encoders(answer: Answer) -> list[str]:
    return [bucket["key"] for bucket in answer["aggregations"]["encoders"]["buckets"]]


def _by_index(aggregations: Answer) -> dict[str, int]:
    return {bucket["key"]: bucket["doc_count"] for bucket in aggregations["indices"]["buckets"]}


def _is_there(index: str, answer: Answer) -> bool:
    """Whether a search of a side index has found one that this caller may search."""
    if "error" in answer and answer.get("status") in _NOT_FOR_THIS_CALLER:
        if answer["status"] != 404:
            log.warning("vectors beside an index cannot be searched", index=index, status=answer["status"])
        return False
    require_whole(answer)
    return bool(answer["_shards"]["total"])
