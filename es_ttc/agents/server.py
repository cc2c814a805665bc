"""The server and its tools."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from es_ttc import __version__
from es_ttc.agents.excerpts import CHARACTERS_PER_TOKEN, Excerpt, best_passages, excerpt, text_of
from es_ttc.agents.filters import require_fields, value_counts
from es_ttc.agents.indices import IndexInfo, indices_with_features, text_fields_of
from es_ttc.common.validation import first_error
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.index.mappings.queries import matching
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.serving.admin.explain import Explanation
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.request.section import MAX_PASSAGES
from es_ttc.settings import GatewaySettings

AGENT_WINDOW = 100
MAX_HITS = 50
MAX_TOKENS = 20_000
MAX_QUESTIONS = 15
_MAX_FACET_VALUES = 10
_TITLE_CHARACTERS = 100
_IN_TITLES = 2  # passages that may lie in a title, which is shown anyway
_MAX_VALUE = 200  # characters of a value that is shown beside the texts of a document
_MAX_PASSAGE = 800  # characters of the passages of a hit, where the budget has room for more
_READ_ONLY = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
_INSTRUCTIONS = (
    "Search Elasticsearch or OpenSearch indices by meaning and by words. Begin with list_indices, then search; read "
    "returns more of a document; explain says why a document ranks where it does. Nothing is ever written."
)
Budget = Annotated[int, Field(ge=50, le=MAX_TOKENS, description="About how many tokens of text the answer may have.")]


class Methods(BaseModel):
    """The ranking methods of the gateway."""

    default: str
    methods: list[str]


class FoundDocument(BaseModel):
    """A document that a search found."""

    index: str
    id: str
    score: float | None
    relevance: float | None = Field(description="Probability that it is relevant, if the index has a calibration.")
    title: str | None = Field(description="The beginning of its first text field, if the index has several.")
    answers: list[str] = Field(description="The query and the questions that it is for, if there are `questions`.")
    passages: list[Excerpt] = Field(description="The parts of its text that match best; else its beginning.")


class SearchResult(BaseModel):
    """The answer to a search."""

    ranked_by: str = Field(description="The method; the engine's own ranking if it could not be applied.")
    reason: str | None = Field(description="Why the method was not applied.")
    total: int | None
    query_encoded_share: list[float] | None = Field(
        description="The shares of the query and of each question that were read, if one was not read whole."
    )
    nothing_here: str | None = Field(description="Why there is no document: none is relevant enough.")
    facets: dict[str, dict[str, int]] = Field(description="By field, its most frequent values and their documents.")
    open: list[str] = Field(description="Questions that no document answers, as far as can be told.")
    hits: list[FoundDocument]


class ReadDocument(BaseModel):
    """A document, or a part of it."""

    index: str
    id: str
    texts: list[Excerpt] = Field(description="Its text fields; `end` below `length` means that more can be read.")
    values: dict[str, Any] = Field(description="Its other fields, without long ones.")


class ExplanationWithPassage(Explanation):
    """Why a document ranks where it does, or is not found."""

    passage: Excerpt | None = Field(description="The part of the text that matched best.")


def make_server(settings: GatewaySettings, *, forwards: bool) -> MCPServer[Any]:
    """Return the server.

    Args:
        settings: The gateway's address as ``engine``, certificates and credentials.
        forwards: Whether the credentials are those of each request (`Authorization`), or those of the settings.
    """
    upstream = Upstream(settings)

    @asynccontextmanager
    async def connected(_: MCPServer[Any]) -> AsyncIterator[None]:
        async with upstream:
            yield

    def gateway(context: Context) -> EngineClient:
        if not forwards:
            return EngineClient(upstream).as_gateway()
        given = {name.lower(): value for name, value in (context.headers or {}).items()}
        own = [(b"authorization", given["authorization"].encode())] if "authorization" in given else []
        return EngineClient(upstream, Caller(own))

    async def list_indices(
        context: Context,
        index: Annotated[str, Field(description="Name, alias or pattern of indices.")] = "*",
    ) -> list[IndexInfo]:
        """List the indices that can be searched, with their sizes, text fields and fields to filter by."""
        with _readable_errors():
            return await indices_with_features(gateway(context), index)

    async def list_methods(context: Context) -> Methods:
        """List the ranking methods that search takes. The default, blend, is best unless you know better."""
        with _readable_errors():
            info = await gateway(context).json("GET", b"/_ttc/", failing="the gateway did not tell its methods")
            return Methods(default="blend", methods=info["methods"])

    async def search(
        context: Context,
        index: Annotated[str, Field(description="Name of an index or alias.")],
        query: Annotated[str, Field(description="What to look for, in plain words.")],
        questions: Annotated[
            list[str] | None,
            Field(
                max_length=MAX_QUESTIONS,
                description="The query's parts, a question each: the hits are the best of query and parts in turns.",
            ),
        ] = None,
        size: Annotated[int, Field(ge=1, le=MAX_HITS, description="Number of documents.")] = 10,
        method: Annotated[str, Field(description="Ranking method.")] = "blend",
        fields: Annotated[list[str] | None, Field(description="Text fields; default: those of the index.")] = None,
        facets: Annotated[
            list[str] | None, Field(description="Fields whose most frequent values are counted, see list_indices.")
        ] = None,
        filter: Annotated[  # noqa: A002 - the engines' own word
            dict[str, Any] | None,
            Field(description='A query that documents must match, e.g. {"term": {"lang": "en"}}.'),
        ] = None,
        min_relevance: Annotated[
            float | None,
            Field(ge=0, le=1, description="Minimum relevance of a document, for an index with a calibration."),
        ] = None,
        passages: Annotated[int, Field(ge=1, le=MAX_PASSAGES, description="Passages per document.")] = 1,
        max_tokens: Budget = 2000,
    ) -> SearchResult:
        """Search an index; each hit has the passages that match best, and its relevance if the index has one."""
        with _readable_errors():
            requests = gateway(context)
            await require_fields(requests, index, filter, fields=fields or (), facets=facets or ())
            names = fields or await text_fields_of(requests, index)
            texts = [*dict.fromkeys(text for text in (query, *(questions or ())) if text.strip())] or [query]
            body = _body(texts, method, size, names, filter, min_relevance, passages)
            counted = {name: {"terms": {"field": name, "size": _MAX_FACET_VALUES}} for name in facets or ()}
            answer = await _search(requests, index, body | ({"aggs": counted} if counted else {}))
            summary = answer.get("ttc") or {}
            hits = answer["hits"]["hits"]
            characters = max_tokens * CHARACTERS_PER_TOKEN // max(1, len(hits))
            return SearchResult(
                ranked_by=method if summary.get("applied") else "bm25",
                reason=summary.get("reason"),
                total=(answer["hits"].get("total") or {}).get("value"),
                query_encoded_share=summary.get("query_encoded_share"),
                nothing_here=_nothing_here(summary),
                facets={name: dict(value_counts(found)) for name, found in answer.get("aggregations", {}).items()},
                open=[texts[part["part"]] for part in summary.get("parts", ()) if part.get("open")],
                hits=[_document(hit, names, passages, characters, texts) for hit in hits],
            )

    async def read(
        context: Context,
        index: Annotated[str, Field(description="Name of the index, from a search.")],
        id: Annotated[str, Field(description="The document's id, from a search.")],  # noqa: A002 - the engines' own word
        field: Annotated[str | None, Field(description="The text field to read; default: all of them.")] = None,
        start: Annotated[int, Field(ge=0, description="First character, e.g. the `end` of an excerpt.")] = 0,
        before: Annotated[int, Field(ge=0, description="Characters before `start` to read too.")] = 0,
        max_tokens: Budget = 2000,
    ) -> ReadDocument:
        """Read a document: all of it, the text around a passage, or the text after an excerpt, within a budget."""
        with _readable_errors():
            requests = gateway(context)
            await require_fields(requests, index, None, field=() if field is None else (field,))
            names = await text_fields_of(requests, index) if field is None else [field]
            if start and len(names) > 1:
                raise InvalidRequest(f"[start] needs [field], one of [{', '.join(names)}]")
            hit = await _only_document(requests, index, id)
            source = hit.get("_source") or {}
            return ReadDocument(
                index=hit["_index"],
                id=hit["_id"],
                texts=list(_texts(source, names, max(0, start - before), max_tokens * CHARACTERS_PER_TOKEN)),
                values={name: value for name, value in source.items() if name not in names and _is_short(value)},
            )

    async def explain(
        context: Context,
        index: Annotated[str, Field(description="Name of the index.")],
        query: Annotated[str, Field(description="The query of the search.")],
        id: Annotated[str, Field(description="The document's id, from a search.")],  # noqa: A002 - the engines' own word
        method: Annotated[str, Field(description="Ranking method.")] = "blend",
    ) -> ExplanationWithPassage:
        """Say why a document ranks where it does, or is not found: ranks, signals, words that it lacks, the passage."""
        with _readable_errors():
            requests = gateway(context)
            names = await text_fields_of(requests, index)
            only = {"ids": {"values": [id]}}
            alone = await _search(requests, index, _body([query], method, 1, names, only, None, 1))
            search = {"query": matching(query, names), "rescore": {"ttc": {"method": method, "query_text": query}}}
            body = {"index": index, "id": id, "search": search}
            what = "the document could not be explained"
            explanation = await requests.json("POST", b"/_ttc/explain", body=body, failing=what, in_own_words=True)
            [hit] = alone["hits"]["hits"] or [{}]
            passage = next(iter(best_passages(hit, names, 1, _MAX_PASSAGE)), None)
            return ExplanationWithPassage(**explanation, passage=passage)

    return _Server(
        "es-ttc",
        instructions=_INSTRUCTIONS,
        version=__version__,
        tools=[_tool(one) for one in (list_indices, list_methods, search, read, explain)],
        lifespan=connected,
        log_level="WARNING",
    )


class _Server(MCPServer[Any]):
    """A server whose errors about arguments are a sentence."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> Any:
        """Call a tool."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"tool [{name}]: {first_error(error.__cause__)}") from error
            raise


def _body(
    texts: Sequence[str],
    method: str,
    size: int,
    fields: Sequence[str],
    filters: Mapping[str, Any] | None,
    min_relevance: float | None,
    passages: int,
) -> dict[str, Any]:
    """Return the body of a search for one or more texts."""
    matches = [matching(text, fields) for text in texts]
    match = matches[0] if len(matches) == 1 else {"dis_max": {"queries": matches}}
    read = min(MAX_PASSAGES, passages + _IN_TITLES)
    # With a bound, hits of the engine's own ranking would be taken for relevant ones.
    least = {} if min_relevance is None else {"min_relevance": min_relevance, "on_error": "fail"}
    each = {"parts": "each"} if len(texts) > 1 and method not in STRATEGIES else {}
    return {
        "query": match if filters is None else {"bool": {"must": [match], "filter": [filters]}},
        "size": size,
        "_source": [*fields],
        "rescore": {
            "window_size": max(size, AGENT_WINDOW),
            "ttc": {"method": method, "query_texts": [*texts], "detail": True, "passages": read, **least, **each},
        },
    }


async def _search(gateway: EngineClient, index: str, body: Mapping[str, Any]) -> dict[str, Any]:
    path = f"/{quote(index, safe=',*')}/_search".encode()
    answer: dict[str, Any] = await gateway.json("POST", path, body=body, failing="the search failed", in_own_words=True)
    return answer


def _nothing_here(summary: Mapping[str, Any]) -> str | None:
    """Return why a least relevance leaves no document; None if there are some, or none is asked."""
    relevance = summary.get("relevance") or {}
    if relevance.get("hits") != 0:
        return None
    greatest = "no document was found" if relevance["greatest"] is None else f"the greatest is {relevance['greatest']}"
    return f"no document reaches a relevance of {relevance['min']}: {greatest}"


def _document(
    hit: Mapping[str, Any], fields: Sequence[str], passages: int, characters: int, texts: Sequence[str]
) -> FoundDocument:
    """Return a hit of a search for texts with its title and passages, which have a number of characters together."""
    title, quoted = "", fields
    if len(fields) > 1:
        first = text_of(hit.get("_source") or {}, fields[0])
        title = excerpt(fields[0], first, 0, min(_TITLE_CHARACTERS, characters // 3)).text
        if len(title) == len(first):
            quoted = fields[1:]
    details = hit.get("_ttc") or {}
    return FoundDocument(
        index=hit["_index"],
        id=hit["_id"],
        score=hit.get("_score"),
        relevance=details.get("relevance"),
        title=title or None,
        answers=[texts[part] for part in details.get("parts") or ()],
        passages=best_passages(hit, quoted, passages, min(_MAX_PASSAGE * passages, characters - len(title))),
    )


async def _only_document(gateway: EngineClient, index: str, id: str) -> dict[str, Any]:  # noqa: A002 - as the tools
    """Return the document with an id; an error if there is none or several."""
    body = {"query": {"ids": {"values": [id]}}, "size": 2}
    hits: list[dict[str, Any]] = (await _search(gateway, index, body))["hits"]["hits"]
    if not hits:
        raise InvalidRequest(f"there is no document [{id}] in index [{index}] that you may read")
    if len(hits) > 1:
        raise InvalidRequest(f"[{id}] is in [{hits[0]['_index']}] and in [{hits[1]['_index']}]: name one [index]")
    return hits[0]


def _texts(source: Mapping[str, Any], fields: Sequence[str], start: int, characters: int) -> Iterator[Excerpt]:
    """Yield text fields of a document from a character on, one after the other, up to a number of characters."""
    for field in fields:
        text = text_of(source, field)
        if not text:
            continue
        shown = excerpt(field, text, start, start + characters)
        characters = max(0, characters - len(shown.text))
        yield shown


def _is_short(value: Any) -> bool:
    return len(json.dumps(value, ensure_ascii=False, default=str)) <= _MAX_VALUE


def _tool(function: Callable[..., Any]) -> Tool:
    """Return a tool that refuses unknown arguments: an agent must not take a misspelt filter for an applied one."""
    tool = Tool.from_function(function, annotations=_READ_ONLY)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turn errors into answers that an agent reads."""
    try:
        yield
    except EsTtcError as error:
        raise ToolError(str(error)) from error
