"""What research reads of an index: windows and features, found and read as searches do, in few requests.

The first passes and the kNN searches of many queries are one `_msearch`. Features are read for each document once, in
blocks that the caller chooses.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.queries import matching
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.serving.candidates.batches import SearchBody, TargetSearches, searches_of
from es_ttc.serving.candidates.nearest import KnnTarget, NearestSearch, Neighbour
from es_ttc.serving.candidates.targets import SearchedIndices, searched_indices_of
from es_ttc.serving.features.columns import columns, numbers_of
from es_ttc.serving.features.decoding import Stored, consistent
from es_ttc.serving.features.keys import IDENTIFYING_FIELDS, DocumentId, DocumentKey, content_ids, unreadable
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.rescore.candidates import outside
from es_ttc.serving.rescore.two_requests import these
from es_ttc.settings import GatewaySettings

MAX_QUERIES_TOGETHER = 25
"""Queries of one `_msearch`: a first pass and a kNN search each."""
_MAX_LOCATED_TOGETHER = 1000

T = TypeVar("T")
Hit = Mapping[str, Any]
"""A document's index, and its id and routing."""
Key = DocumentKey
"""Identifies a document's features; documents of equal content have the same."""


@dataclass(frozen=True, slots=True)
class FoundWindow:
    """What one query finds: `first` hits of the first pass, then those of the documents that join."""

    hits: Sequence[Hit]
    first: int


class IndexReader:
    """Reads windows and features of an index with a caller's rights.

    Args:
        gateway: A gateway, running or not.
        caller: Whose credentials are used, and the searched index.
        encoder: The encoder of the index's features.
        fields: Numeric fields that are read of each document.
    """

    def __init__(self, gateway: Gateway, caller: Caller, encoder: Encoder, fields: Sequence[str] = ()) -> None:
        self._gateway = gateway
        self._caller = caller
        self._encoder = encoder
        self._fields = fields

    async def require_fields(self) -> None:
        """Refuse an index without one of the numeric fields."""
        fix = "name a field of a numeric type, with doc values"
        await self._gateway.numbers.require(self._fields, "[field] names", self._caller, fix=fix)

    async def encoded(self, text: str) -> Query:
        """Return a query's vectors, those of its tokens too; with the adapter of the target, if it has one."""
        encoders, target = self._gateway.encoders, self._caller.indices
        return (await encoders.finish(self._encoder, (text,), target, None, tokens=True)).query

    async def windows(
        self, queries: Sequence[Query], text_fields: Sequence[str], size: int, progress: Callable[[int], None]
    ) -> list[FoundWindow]:
        """Return what queries find: their first passes over some text fields, and the documents nearest to them.

        Args:
            queries: The queries.
            text_fields: The fields that the first pass searches.
            size: Number of documents of the first pass, joined by as many nearest ones.
            progress: Told how many queries are done.
        """
        path = f"/{self._caller.indices}/_msearch".encode()
        windows_found: list[FoundWindow] = []
        async with searches_of(self._gateway, self._caller, path, b"", b"{}") as searches:
            indices = await searched_indices_of(searches, [], {})
            for some in parts(queries, MAX_QUERIES_TOGETHER):
                windows_found += await self._found(some, text_fields, size, searches, indices)
                progress(len(windows_found))
        return windows_found

    async def keys(self, hits: Sequence[Hit]) -> dict[DocumentId, Key]:
        """Return the keys of documents' features, of each document once; none of those that cannot be used."""
        by_document = {DocumentId.of(hit): hit for hit in hits}
        keys: dict[DocumentId, Key] = {}
        for some in parts([*by_document.items()], _MAX_LOCATED_TOGETHER):
            located = await self._gateway.attached.locate([hit for _, hit in some], self._caller)
            for (document, _), key in zip(some, located.keys, strict=True):
                if key is not None and key.encoder == self._encoder.identity.key and unreadable(key) is None:
                    keys[document] = key
        return keys

    async def features(self, keys: Sequence[Key], features: frozenset[Feature]) -> list[Stored]:
        """Return stored features of documents."""
        read = await self._gateway.features.window(keys, features, self._caller)
        return [consistent(stored) for stored in read.documents]

    async def compute(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on a scoring thread."""
        return await self._gateway.scoring.run(function, *args)

    def numbers(self, hits: Sequence[Hit]) -> dict[str, NDArray[np.float64]]:
        """Return the numeric fields of hits, ``(n,)`` by name."""
        return numbers_of(hits, self._fields)

    async def _found(
        self,
        queries: Sequence[Query],
        text_fields: Sequence[str],
        size: int,
        searches: TargetSearches,
        indices: SearchedIndices,
    ) -> list[FoundWindow]:
        bodies = [{"query": matching(query.text, text_fields), "size": size, **self._marks} for query in queries]
        # the nearest first: its searches are sent a step of the event loop later, in the request of the first passes
        finding = self._nearest(queries, size, searches, indices)
        nearest, answers = await asyncio.gather(finding, searches.send(bodies))
        firsts = [answer["hits"]["hits"] for answer in answers]
        joined = [[dict(document.hit) for document in outside(*pair)] for pair in zip(firsts, nearest, strict=True)]
        scored = [
            {
                "query": {"bool": {"should": [body["query"]], "filter": [these(hits)]}},
                "size": max(1, len(hits)),
                **self._marks,
            }
            for body, hits in zip(bodies, joined, strict=True)
        ]
        windows_found = []
        for first, hits, answer in zip(firsts, joined, await searches.send(scored), strict=True):
            scores = dict(zip(content_ids(answer["hits"]["hits"]), answer["hits"]["hits"], strict=True))
            for hit, identity in zip(hits, content_ids(hits), strict=True):
                hit["_score"] = scores[identity]["_score"] if identity in scores else 0.0
            windows_found.append(FoundWindow([*first, *hits], len(first)))
        return windows_found

    async def _nearest(
        self, queries: Sequence[Query], size: int, searches: TargetSearches, indices: SearchedIndices
    ) -> list[Sequence[Neighbour]]:
        """Return for each query the documents nearest to it."""
        if indices.encoder is None:
            return [[] for _ in queries]
        target = KnnTarget(self._caller, indices, searches, fields=self._marks)
        search = NearestSearch(self._gateway, target)
        return [documents for documents, _ in await search.nearest([query.vectors[:1] for query in queries], size)]

    @property
    def _marks(self) -> SearchBody:
        fields = [*IDENTIFYING_FIELDS, *self._fields]
        return {"_source": False, "docvalue_fields": fields, "track_total_hits": False}


@asynccontextmanager
async def own_gateway(settings: GatewaySettings, encoder: Encoder) -> AsyncIterator[Gateway]:
    """Yield the parts of a gateway with its own credentials, for this process alone; it answers no requests."""
    gateway = Gateway(settings, lambda _name, _folder: encoder, OnlyProcess())
    try:
        async with gateway.upstream:
            yield gateway
    finally:
        await gateway.close()


def window_of(ids: Sequence[str], documents: Sequence[Stored], features: frozenset[Feature]) -> Window:
    """Return documents with some features as a window without first-pass scores."""
    return Window(list(ids), np.zeros(len(ids), np.float32), **columns(documents, features, partial=True))


def parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of a sequence."""
    return (whole[start : start + size] for start in range(0, len(whole), size))
