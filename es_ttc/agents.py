"""What an agent may ask, as a server of the Model Context Protocol over standard input and output or over HTTP.

The tools tell which indices there are, search, and explain a document's rank. Every request is a standard one to the
gateway, with the caller's credentials, and only reads.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from es_ttc import __version__
from es_ttc.common.validation import first_error
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.queries import matching
from es_ttc.serving.admin.explain import Explanation
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.index_meta import features_of
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import GatewaySettings

AGENT_WINDOW = 100
MAX_HITS = 50
_TEXT_CHARACTERS = 600
_PASSAGE_CHARACTERS = 300  # on each side of the place that matched best
_COUNTS = urlencode({"format": "json", "h": "index,docs.count"}).encode()
_READ_ONLY = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
_INSTRUCTIONS = (
    "Search Elasticsearch or OpenSearch indices by meaning and by words. Begin with list_indices, then search; explain "
    "says why a document ranks where it does. Nothing is ever written."
)


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
    relevance: float | None = Field(description="Probability that it is relevant, if the index has a calibration.")
    passage: str | None = Field(description="The part of the text that matched best, if the method tells.")
    fields: dict[str, str] = Field(description="The beginning of each text field.")


class SearchResult(BaseModel):
    """The answer to a search."""

    ranked_by: str = Field(description="The method; the engine's own ranking if it could not be applied.")
    reason: str | None = Field(description="Why the method was not applied.")
    total: int | None
    nothing_here: str | None = Field(description="Why there is no document: none is relevant enough.")
    hits: list[FoundDocument]


class ExplanationWithPassage(Explanation):
    """Why a document ranks where it does, or is not found."""

    passage: str | None = Field(description="The part of the text that matched best.")


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

    async def list_indices(context: Context) -> list[IndexInfo]:
        """List the indices that can be searched, with their text fields and sizes."""
        with _readable_errors():
            return await _indices(gateway(context))

    async def list_methods(context: Context) -> Methods:
        """List the ranking methods that search takes. The default, blend, is best unless you know better."""
        with _readable_errors():
            info = await gateway(context).json("GET", b"/_ttc/", failing="the gateway did not tell its methods")
            return Methods(default="blend", methods=info["methods"])

    async def search(
        context: Context,
        index: Annotated[str, Field(description="Name of an index or alias.")],
        query: Annotated[str, Field(description="What to look for, in plain words.")],
        size: Annotated[int, Field(ge=1, le=MAX_HITS, description="Number of documents.")] = 10,
        method: Annotated[str, Field(description="Ranking method.")] = "blend",
        fields: Annotated[list[str] | None, Field(description="Text fields; default: those of the index.")] = None,
        filter: Annotated[  # noqa: A002 - the engines' own word
            dict[str, Any] | None,
            Field(description='A query that documents must match, e.g. {"term": {"lang": "en"}}.'),
        ] = None,
        min_relevance: Annotated[
            float | None,
            Field(ge=0, le=1, description="Minimum relevance of a document, for an index with a calibration."),
        ] = None,
    ) -> SearchResult:
        """Search an index; each hit has the passage that matched best, and its relevance if the index has one."""
        with _readable_errors():
            requests = gateway(context)
            names = tuple(fields or ()) or await _text_fields(requests, index)
            answer = await _rank(requests, index, query, method, size, names, filter, min_relevance)
            summary = answer.get("ttc") or {}
            return SearchResult(
                ranked_by=method if summary.get("applied") else "bm25",
                reason=summary.get("reason"),
                total=(answer["hits"].get("total") or {}).get("value"),
                nothing_here=_nothing_here(summary),
                hits=[_document(hit, names) for hit in answer["hits"]["hits"]],
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
            names = await _text_fields(requests, index)
            alone = await _rank(requests, index, query, method, 1, names, {"ids": {"values": [id]}})
            search = {"query": matching(query, names), "rescore": {"ttc": {"method": method, "query_text": query}}}
            body = {"index": index, "id": id, "search": search}
            what = "the document could not be explained"
            explanation = await requests.json("POST", b"/_ttc/explain", body=body, failing=what, in_own_words=True)
            [hit] = alone["hits"]["hits"] or [{}]
            return ExplanationWithPassage(**explanation, passage=_passage(hit))

    return _Server(
        "es-ttc",
        instructions=_INSTRUCTIONS,
        version=__version__,
        tools=[_tool(one) for one in (list_indices, list_methods, search, explain)],
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


async def _indices(gateway: EngineClient) -> list[IndexInfo]:
    """Return the indices that have features, of their own or in a side index."""
    what = "the indices could not be listed"
    features = await features_of(gateway, failing=what)
    counts = await gateway.json("GET", b"/_cat/indices", _COUNTS, failing=what, form=list)
    documents = {row["index"]: row.get("docs.count") for row in counts}
    return [
        IndexInfo(
            name=name,
            documents=None if documents[name] is None else int(documents[name]),
            text_fields=meta.get("text_fields", []),
        )
        for name, meta in sorted(features.items())
        if name in documents  # a side index may outlive its source
    ]


async def _text_fields(gateway: EngineClient, index: str) -> tuple[str, ...]:
    """Return the text fields of an index; those that have features, of an alias."""
    features = await features_of(gateway, quote(index, safe=",*"), failing=f"index [{index}] could not be read")
    names = tuple(dict.fromkeys(name for meta in features.values() for name in meta.get("text_fields", ())))
    if not names:
        raise InvalidRequest(f"index [{index}] has no features: name the text [fields] to search")
    return names


async def _rank(
    gateway: EngineClient,
    index: str,
    query: str,
    method: str,
    size: int,
    fields: Sequence[str],
    filters: Mapping[str, Any] | None,
    min_relevance: float | None = None,
) -> dict[str, Any]:
    match = matching(query, fields)
    # With a bound, hits of the engine's own ranking would be taken for relevant ones.
    least = {} if min_relevance is None else {"min_relevance": min_relevance, "on_error": "fail"}
    body = {
        "query": match if filters is None else {"bool": {"must": [match], "filter": [filters]}},
        "size": size,
        "_source": [*fields],
        "rescore": {
            "window_size": max(size, AGENT_WINDOW),
            "ttc": {"method": method, "query_text": query, "detail": True, **least},
        },
    }
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


def _document(hit: Mapping[str, Any], fields: Sequence[str]) -> FoundDocument:
    texts = {name: compose(hit.get("_source") or {}, [name])[0] for name in fields}
    return FoundDocument(
        index=hit["_index"],
        id=hit["_id"],
        score=hit.get("_score"),
        relevance=(hit.get("_ttc") or {}).get("relevance"),
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
