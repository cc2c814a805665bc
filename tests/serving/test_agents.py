"""The tools for agents, used by the SDK's own client: over standard input and output, and over HTTP."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.settings import GatewaySettings
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.serving.corpus import corpus
from tests.serving.test_engine_requests_of_a_search import attached

if TYPE_CHECKING:
    from mcp import Client

ON_ONE_ENGINE = True

COMMAND = ["-m", "es_ttc", "mcp"]


def agent_of(gateway: str) -> "Client":
    """The SDK's client of the tools for a gateway. The SDK takes seconds to import."""
    from mcp import Client

    from es_ttc.agents import make_server

    return Client(make_server(GatewaySettings(engine=gateway), forwards=False))


async def ask(client: "Client", tool: str, **arguments: Any) -> Any:
    """Return a tool's answer, or its error's text."""
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        return result.content[0].text  # type: ignore[union-attr]
    found = result.structured_content or {}
    return found.get("result", found)


@contextlib.contextmanager
def over_http(gateway: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, *COMMAND, "--gateway", gateway, "--http", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


async def test_an_agent_searches_and_asks_why(stack: SearchStack) -> None:
    async with agent_of(stack.gateway) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"list_indices", "list_methods", "search", "explain"}
        assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in tools)

        (index,) = [one for one in await ask(client, "list_indices") if one["name"] == stack.index]
        assert index == {"name": stack.index, "documents": 60, "text_fields": ["title", "text"]}
        assert "spectral" in (await ask(client, "list_methods"))["methods"]

        found = await ask(client, "search", index=stack.index, query="a cat drinks milk", size=3)
        assert (found["ranked_by"], found["reason"], len(found["hits"])) == ("blend", None, 3)
        best = found["hits"][0]
        assert "drinks milk" in best["passage"]
        assert set(best["fields"]) <= {"title", "text"}
        assert best["fields"]["text"]

        term = {"term": {"group": "g3"}}
        filtered = await ask(client, "search", index=stack.index, query="a cat drinks milk", size=50, filter=term)
        assert {int(hit["id"][1:]) % 7 for hit in filtered["hits"]} == {3}

        why = await ask(client, "explain", index=stack.index, query="a cat drinks milk", id=best["id"])
        assert why["rank"] == 1
        assert {"lexical", "dense", "spectral", "late_interaction"} <= set(why["signals"])
        assert why["passage"] == best["passage"]


async def test_an_attached_index_is_found_by_its_name_and_by_an_alias(
    stack: SearchStack, encoder: Encoder, index_name: str
) -> None:
    lines = [line for one in corpus() for line in ({"index": {"_id": one.pop("_id")}}, one)]
    call(stack.engine, "POST", f"/{index_name}/_bulk?refresh=true", lines)
    call(stack.engine, "PUT", f"/{index_name}/_alias/{index_name}-alias")
    await attached(stack.engine, index_name, stack.spec, encoder)
    try:
        async with agent_of(stack.gateway) as client:
            (index,) = [one for one in await ask(client, "list_indices") if index_name in one["name"]]
            assert index == {"name": index_name, "documents": 60, "text_fields": ["title", "text"]}
            for name in (index_name, f"{index_name}-alias"):
                found = await ask(client, "search", index=name, query="a cat drinks milk", size=3)
                assert (found["ranked_by"], found["reason"], len(found["hits"])) == ("blend", None, 3)
                best = found["hits"][0]
                assert "drinks milk" in best["passage"]
                why = await ask(client, "explain", index=name, query="a cat drinks milk", id=best["id"])
                assert (why["rank"], why["passage"]) == (1, best["passage"])
    finally:
        call(stack.engine, "DELETE", f"/ttc-*-{index_name}")


async def test_agent_invalid_calls_are_refused_with_the_reason(stack: SearchStack) -> None:
    async with agent_of(stack.gateway) as client:
        assert "no such index [nosuch]" in await ask(client, "search", index="nosuch", query="x")
        assert "unknown method [nosuch]" in await ask(client, "search", index=stack.index, query="x", method="nosuch")
        assert "there is no document [d999]" in await ask(client, "explain", index=stack.index, query="cat", id="d999")
        assert "[size]" in await ask(client, "search", index=stack.index, query="x", size=51)
        for tool, given in (("search", {"query": "x", "filters": {}}), ("list_indices", {"index": "x"})):
            unknown = await ask(client, tool, **{"index": stack.index, **given})
            assert f"[{next(iter(given.keys() - {'query'}))}]" in str(unknown)
        assert all(tool.input_schema["additionalProperties"] is False for tool in (await client.list_tools()).tools)


@pytest.mark.slow
async def test_over_standard_input_and_over_http(stack: SearchStack) -> None:
    from mcp import Client, StdioServerParameters

    command = StdioServerParameters(
        command=sys.executable, args=[*COMMAND, "--gateway", stack.gateway], env=dict(os.environ)
    )
    with over_http(stack.gateway) as url:
        for server in (command, url):
            async with Client(server) as client:
                found = await ask(client, "search", index=stack.index, query="a cat drinks milk", size=2)
                assert found["ranked_by"] == "blend"
