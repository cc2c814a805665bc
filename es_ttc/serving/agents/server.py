"""The tools as a server of the Model Context Protocol, over standard input and output or over HTTP."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

from es_ttc import __version__
from es_ttc.errors import EsTtcError
from es_ttc.serving.agents.tools import MAX_HITS, Explanation, IndexInfo, Methods, SearchResult, SearchTools
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import GatewaySettings

_READ_ONLY = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
_INSTRUCTIONS = (
    "Search Elasticsearch or OpenSearch indices by meaning and by words. Begin with list_indices, then search; explain "
    "says why a document ranks where it does. Nothing is ever written."
)


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

    def tools(context: Context) -> SearchTools:
        requests = EngineRequests(upstream)
        if not forwards:
            return SearchTools(requests.as_gateway())
        given = {name.lower(): value for name, value in (context.headers or {}).items()}
        own = [(b"authorization", given["authorization"].encode())] if "authorization" in given else []
        return SearchTools(requests.as_caller(Caller(own)))

    async def list_indices(context: Context) -> list[IndexInfo]:
        """List the indices that can be searched, with their text fields and sizes."""
        with _told():
            return await tools(context).indices()

    async def list_methods(context: Context) -> Methods:
        """List the ranking methods that search takes. The default, blend, is best unless you know better."""
        with _told():
            return await tools(context).methods()

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
    ) -> SearchResult:
        """Search an index; each hit has the passage that matched best."""
        with _told():
            return await tools(context).search(
                index, query, method=method, size=size, fields=fields or (), filters=filter
            )

    async def explain(
        context: Context,
        index: Annotated[str, Field(description="Name of the index.")],
        query: Annotated[str, Field(description="The query of the search.")],
        id: Annotated[str, Field(description="The document's id, from a search.")],  # noqa: A002 - the engines' own word
        method: Annotated[str, Field(description="Ranking method.")] = "blend",
    ) -> Explanation:
        """Say why a document ranks where it does: its rank by BM25, each signal's score, the passage that matched."""
        with _told():
            return await tools(context).explain(index, query, id, method=method)

    return MCPServer(
        "es-ttc",
        instructions=_INSTRUCTIONS,
        version=__version__,
        tools=[_tool(one) for one in (list_indices, list_methods, search, explain)],
        lifespan=connected,
        log_level="WARNING",
    )


def _tool(function: Callable[..., Any]) -> Tool:
    """Return a tool that refuses unknown arguments: an agent must not take a misspelt filter for an applied one."""
    tool = Tool.from_function(function, annotations=_READ_ONLY)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors into answers that an agent reads."""
    try:
        yield
    except EsTtcError as error:
        raise ToolError(str(error)) from error
