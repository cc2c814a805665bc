"""The documents of a search: those of the first pass, and others that the engine returned to this caller.

Each other document is searched on the caller's target, with the caller's credentials and the conditions of the search.
A document that the caller may not read never gets a number, so the graph traversal cannot pass through it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.reranking.rerankers import Passage
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.keys import SEQ_NO

_AT_ONCE = 1000
"""Number of documents per search."""

Identity = tuple[str, str]
"""Concrete index and id."""
Body = dict[str, Any]


class WalkDocuments:
    """Numbers documents, those of the first pass first, and reads their fields.

    Each search has the URL parameters `params` and the body parts `shared`, and each document matches `conditions`.
    """

    def __init__(
        self,
        engine: EngineRequests,
        params: bytes,
        shared: Mapping[str, Any],
        conditions: Sequence[Any],
        hits: Sequence[dict[str, Any]],
        marks: Sequence[Any] = (),
    ) -> None:
        self.hits = list(hits)
        self.first_pass = list(hits)
        self._engine = engine
        self._params = params
        self._shared = shared
        self._conditions = conditions
        self._marks = [HASH, ENCODER, VERSION, SEQ_NO, *marks]
        self._numbers = {_identity(hit): number for number, hit in enumerate(self.hits)}
        self._hidden: set[Identity] = set()
        self._passages: dict[int, Passage] = {}

    def identity(self, document: int) -> Identity:
        """Return a document's index and id."""
        return _identity(self.hits[document])

    async def seen(self, identities: Sequence[Identity]) -> dict[Identity, int]:
        """Return the numbers of those documents that exist and that the caller may read; new ones get a number."""
        unknown: dict[str, list[str]] = {}
        for index, identifier in dict.fromkeys(identities):
            if (index, identifier) not in self._numbers and (index, identifier) not in self._hidden:
                unknown.setdefault(index, []).append(identifier)
        for index, ids in unknown.items():
            marks = {"_source": False, "docvalue_fields": self._marks, "version": True}
            for start in range(0, len(ids), _AT_ONCE):
                for hit in await self._search(index, ids[start : start + _AT_ONCE], marks):
                    hit["_score"] = None
                    if self._numbers.setdefault(_identity(hit), len(self.hits)) == len(self.hits):
                        self.hits.append(hit)
            self._hidden.update((index, one) for one in ids if (index, one) not in self._numbers)
        return {one: self._numbers[one] for one in identities if one in self._numbers}

    async def passages(
        self, documents: Sequence[int], fields: Callable[[str], Awaitable[Sequence[str]]]
    ) -> list[Passage]:
        """Return the texts of documents for a reranker, from the text fields of each index; none of a deleted one."""
        unread: dict[str, list[int]] = {}
        for document in documents:
            if document not in self._passages:
                unread.setdefault(self.identity(document)[0], []).append(document)
        for index, numbers in unread.items():
            names = await fields(index)
            by_id = {self.identity(number)[1]: number for number in numbers}
            for hit in await self._search(index, list(by_id), {"_source": list(names)}):
                number = by_id.get(hit["_id"])
                if number is not None:
                    self._passages[number] = _passage(hit.get("_source") or {}, names)
        return [self._passages.get(document, _passage({}, ())) for document in documents]

    async def search(self, index: str, body: Body, params: bytes) -> list[dict[str, Any]]:
        """Run one search on the caller's target and return its hits."""
        answer = await self._engine.search([index], body, params, failing="documents could not be read")
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        return hits

    def matching(self, index: str, ids: Sequence[str], query: Any = None) -> Body:
        """Return the search for some documents under the conditions of the search."""
        must: list[Any] = [{"ids": {"values": [*ids]}}, {"term": {"_index": index}}, *self._conditions]
        scored = {"should": [query]} if query else {}
        return {"query": {"bool": {"filter": must, **scored}}, "size": len(ids), "track_total_hits": False}

    async def _search(self, index: str, ids: Sequence[str], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        return await self.search(index, {**self._shared, **self.matching(index, ids), **fields}, self._params)


def _identity(hit: Mapping[str, Any]) -> Identity:
    return str(hit["_index"]), str(hit.get("_id", ""))


def _passage(source: Mapping[str, Any], names: Sequence[str]) -> Passage:
    try:
        text, _ = compose(source, names)
    except InvalidRequest:  # an object in place of a text counts as no text
        text = ""
    return Passage(sha256(text.encode(errors="replace")).hexdigest()[:32], text)
