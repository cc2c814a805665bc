"""What an agent may ask: which indices there are, a search, and why a document ranks where it does.

Every request is a standard one to the gateway, with the caller's credentials, and only reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import BaseModel, Field

from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.queries import matching
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.engine_requests import EngineRequests

WINDOW = 100
MAX_HITS = 50
_TEXT_CHARACTERS = 600
_PASSAGE_CHARACTERS = 300  # on each side of the place that matched best
_META = urlencode({"filter_path": f"*.mappings._meta.{ROOT}.text_fields"}).encode()
_COUNTS = urlencode({"format": "json", "h": "index,docs.count"}).encode()


class IndexInfo(BaseModel):
    """An index that the gateway can rank."""

    name: str
    documents: int | None = Field(description="Number of documents, if the engine tells it.")
    text_fields: list[str] = Field(description="Fields that a search looks into.")


class Methods(BaseModel):
    """The ranking methods of the gateway."""

    default: str
    methods: list[str]


class FoundDocument(BaseModel):
    """A document that a search found."""

    index: str
    id: str
    score: float | None
    passage: str | None = Field(description="The part of the text that matched best, if the method tells.")
    fields: dict[str, str] = Field(description="The beginning of each text field.")


class SearchResult(BaseModel):
    """The answer to a search."""

    ranked_by: str = Field(description="The method; the engine's own ranking if it could not be applied.")
    reason: str | None = Field(description="Why the method was not applied.")
    total: int | None
    hits: list[FoundDocument]


class Explanation(BaseModel):
    """Why a document ranks where it does."""

    rank: int = Field(description="Its rank among the documents that were compared, from 1.")
    compared: int = Field(description="Number of documents that were compared.")
    first_pass_rank: int | None = Field(description="Its rank by BM25; none if only its vector found it.")
    score: float | None
    signals: dict[str, Any] = Field(description="Each signal's score, and its share from 0 to 1 in the window.")
    passage: str | None = Field(description="The part of the text that matched best.")


class SearchTools:
    """The tools, for one caller."""

    def __init__(self, gateway: EngineRequests) -> None:
        self._gateway = gateway

    async def indices(self) -> list[IndexInfo]:
        """Return the indices that have features, with their text fields.

        Raises:
            EngineError: The engine refused.
            EngineUnavailable: The gateway or the engine does not answer.
        """
        what = "the indices could not be listed"
        mappings = await self._gateway.json("GET", b"/_mapping", _META, failing=what)
        counts = await self._gateway.json("GET", b"/_cat/indices", _COUNTS, failing=what)
        documents = {row["index"]: int(row["docs.count"]) for row in counts if row.get("docs.count") is not None}
        return [
            IndexInfo(
                name=name,
                documents=documents.get(name),
                text_fields=mapping["mappings"]["_meta"][ROOT].get("text_fields", []),
            )
            for name, mapping in sorted(mappings.items())
        ]

    async def methods(self) -> Methods:
        """Return the methods that a search may name."""
        info = await self._gateway.json("GET", b"/_ttc/", failing="the gateway did not tell its methods")
        return Methods(default="blend", methods=info["methods"])

    async def search(
        self,
        index: str,
        query: str,
        *,
        method: str = "blend",
        size: int = 10,
        fields: Sequence[str] = (),
        filters: Mapping[str, Any] | None = None,
    ) -> SearchResult:
        """Search an index.

        Raises:
            InvalidRequest: The index has no features, or the size is out of range.
            EngineError: The engine refused.
            EngineUnavailable: The gateway or the engine does not answer.
        """
        if not 1 <= size <= MAX_HITS:
            raise InvalidRequest(f"[size] must be from 1 to {MAX_HITS}, got {size}")
        names = tuple(fields) or await self._text_fields(index)
        answer = await self._rank(index, query, method, size, names, filters)
        summary = answer.get("ttc") or {}
        return SearchResult(
            ranked_by=method if summary.get("applied") else "bm25",
            reason=summary.get("reason"),
            total=(answer["hits"].get("total") or {}).get("value"),
            hits=[_document(hit, names) for hit in answer["hits"]["hits"]],
        )

    async def explain(self, index: str, query: str, document: str, *, method: str = "blend") -> Explanation:
        """Return why a document ranks where it does for a query.

        Raises:
            InvalidRequest: The document is not among those that the query compares.
            EngineError: The engine refused.
            EngineUnavailable: The gateway or the engine does not answer.
        """
        names = await self._text_fields(index)
        hits = (await self._rank(index, query, method, WINDOW, names, None))["hits"]["hits"]
        place = next((place for place, hit in enumerate(hits) if hit["_id"] == document), None)
        if place is None:
            raise InvalidRequest(
                f"document [{document}] is not among the {len(hits)} best of index [{index}] for this query"
            )
        detail = hits[place].get("_ttc") or {}
        return Explanation(
            rank=place + 1,
            compared=len(hits),
            first_pass_rank=detail.get("first_pass_rank"),
            score=hits[place].get("_score"),
            signals=detail.get("signals") or {},
            passage=_passage(hits[place]),
        )

    async def _text_fields(self, index: str) -> tuple[str, ...]:
        """Return the text fields of an index; those that have features, of an alias."""
        path = f"/{quote(index, safe=',*')}/_mapping".encode()
        mappings = await self._gateway.json(
            "GET", path, _META, failing=f"index [{index}] could not be read", in_own_words=True
        )
        found = (mapping["mappings"]["_meta"][ROOT].get("text_fields", ()) for mapping in mappings.values())
        names = tuple(dict.fromkeys(name for fields in found for name in fields))
        if not names:
            raise InvalidRequest(f"index [{index}] has no features: name the text [fields] to search")
        return names

    async def _rank(
        self,
        index: str,
        query: str,
        method: str,
        size: int,
        fields: Sequence[str],
        filters: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        match = matching(query, fields)
        body = {
            "query": match if filters is None else {"bool": {"must": [match], "filter": [filters]}},
            "size": size,
            "_source": [*fields],
            "rescore": {
                "window_size": max(size, WINDOW),
                "ttc": {"method": method, "query_text": query, "detail": True},
            },
        }
        path = f"/{quote(index, safe=',*')}/_search".encode()
        found: dict[str, Any] = await self._gateway.json(
            "POST", path, body=body, failing="the search failed", in_own_words=True
        )
        return found


def _document(hit: Mapping[str, Any], fields: Sequence[str]) -> FoundDocument:
    texts = {name: compose(hit.get("_source") or {}, [name])[0] for name in fields}
    return FoundDocument(
        index=hit["_index"],
        id=hit["_id"],
        score=hit.get("_score"),
        passage=_passage(hit),
        fields={name: _shortened(text) for name, text in texts.items() if text},
    )


def _passage(hit: Mapping[str, Any]) -> str | None:
    """Return the text around the place that matched best."""
    detail = hit.get("_ttc") or {}
    if "start" not in detail:
        return None
    text = compose(hit.get("_source") or {}, [detail["field"]])[0]
    start, end = max(0, detail["start"] - _PASSAGE_CHARACTERS), detail["end"] + _PASSAGE_CHARACTERS
    return f"{'...' * (start > 0)}{text[start:end]}{'...' * (end < len(text))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}..."
