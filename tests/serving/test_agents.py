"""The tools for agents, used by the SDK's own client: over standard input and output, and over HTTP."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack, fill
from tests.serving.corpus import by_id, corpus
from tests.serving.relay import relay
from tests.serving.test_engine_requests_of_a_search import attached
from tests.support.encoders import Renamed

if TYPE_CHECKING:
    from mcp import Client

ON_ONE_ENGINE = True
on_both_engines = pytest.mark.parametrize("engine_url", ["opensearch", "elasticsearch"], indirect=True)

COMMAND = ["-m", "es_ttc", "mcp"]


def agent_of(gateway: str, **credentials: Any) -> "Client":
    """The SDK's client of the tools for a gateway. The SDK takes seconds to import."""
    from mcp import Client

    from es_ttc.agents import make_server

    return Client(make_server(GatewaySettings(engine=gateway, **credentials), forwards=False))


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


@on_both_engines
async def test_an_agent_searches_reads_and_asks_why(stack: SearchStack) -> None:
    async with agent_of(stack.gateway) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"list_indices", "list_methods", "search", "read", "explain"}
        assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in tools)

        listed = await ask(client, "list_indices")
        assert isinstance(listed, list), listed
        assert stack.index in [one["name"] for one in listed]
        [index] = await ask(client, "list_indices", index=stack.index)
        fields = {one.pop("name"): one for one in index.pop("filter_fields")}
        expected = {"documents": 60, "encoded": 1, "text_fields": ["title", "text"], "aliases": []}
        assert index.pop("languages") == ["English"]
        assert index == {"name": stack.index, **expected}
        assert fields["group.keyword"]["type"] == "keyword"
        assert set(fields["group.keyword"]["examples"]) < {f"g{number}" for number in range(7)}
        assert set(fields) == {"number", "kind.keyword", "group.keyword"}
        assert "spectral" in (await ask(client, "list_methods"))["methods"]

        found = await ask(client, "search", index=stack.index, query="a cat drinks milk", size=3)
        assert (found["ranked_by"], found["reason"], len(found["hits"])) == ("blend", None, 3)
        best = found["hits"][0]
        [passage] = best["passages"]
        assert "drinks milk" in passage["text"]
        assert (best["title"], passage["field"]) == (by_id(best["id"])["title"], "text")

        term = {"bool": {"filter": [{"term": {"group.keyword": "g3"}}]}}
        asked = {"index": stack.index, "query": "a cat drinks milk", "size": 50, "filter": term}
        filtered = await ask(client, "search", **asked, facets=["group.keyword"])
        assert {int(hit["id"][1:]) % 7 for hit in filtered["hits"]} == {3}
        assert filtered["facets"] == {"group.keyword": {"g3": len(filtered["hits"])}}
        strange = "interest rates of the central bank of Brazil"
        parts = {"query": "drinks milk", "questions": ["sings before rain", strange], "size": 24}
        both = await ask(client, "search", index=stack.index, **parts)
        assert [hit["answers"][0] for hit in both["hits"][:2]] == ["drinks milk", "sings before rain"]
        assert both["open"] == [strange]
        assert best["answers"] == found["open"] == []
        shown = [passage["text"] for hit in both["hits"] for passage in hit["passages"]]
        assert all(any(part in text for text in shown) for part in ("drinks milk", "sings before rain"))

        why = await ask(client, "explain", index=stack.index, query="a cat drinks milk", id=best["id"])
        assert why["rank"] == 1
        assert {"lexical", "dense", "spectral", "late_interaction"} <= set(why["signals"])
        assert why["passage"] == passage

        document = await ask(client, "read", index=stack.index, id=best["id"])
        texts = {one["field"]: one["text"] for one in document["texts"]}
        assert texts == {name: text for name, text in by_id(best["id"]).items() if name in ("title", "text")}
        assert {"number", "group", "kind"} == set(document["values"])


async def test_rights_as_opensearchs_security_plugin_judges_them(stack: SearchStack) -> None:
    """It refuses a pattern that names indices without a right; with `do_not_fail_on_forbidden` not for reads."""
    error = {"reason": "no permissions for [indices:admin/mappings/get]"}
    refused = Reply(403, {"content-type": "application/json"}, json.dumps({"error": error, "status": 403}).encode())
    with relay(stack.gateway) as seen:
        async with agent_of(seen.url) as client:
            seen.before = lambda passed: refused if "*" in passed.target else None
            assert "name an [index] that you may read" in await ask(client, "list_indices")
            [index] = await ask(client, "list_indices", index=stack.index)
            found = await ask(client, "search", index=index["name"], query="a cat drinks milk", size=1)
            assert found["ranked_by"] == "blend"
            seen.before = lambda passed: refused if re.search(r"\*.*/_(mapping|alias)", passed.target) else None
            assert index["name"] in [one["name"] for one in await ask(client, "list_indices")]


@on_both_engines
async def test_attached_indices_are_found_by_their_names_and_by_an_alias(
    stack: SearchStack, encoder: Encoder, index_name: str
) -> None:
    """Two, of two encoders, with a document that came later."""
    other_encoder, alias = Renamed(encoder), f"{index_name}-alias"
    names = {index_name: encoder, f"{index_name}-other": other_encoder}
    settings = GatewaySettings(engine=stack.engine, port=0, scoring_timeout_ms=20_000, encoders=("another",))
    try:
        for name, own in names.items():
            lines = [line for one in corpus()[:30] for line in ({"index": {"_id": one.pop("_id")}}, one)]
            call(stack.engine, "POST", f"/{name}/_bulk?refresh=true", lines)
            await attached(stack.engine, name, replace(stack.spec, encoder=own.identity), own)
        unfinished = {"_meta": {"ttc": {"source": index_name, "text_fields": ["other"]}}}
        call(stack.engine, "PUT", f"/ttc-0123abcd-{index_name}", {"mappings": unfinished})
        call(stack.engine, "PUT", f"/{index_name}/_alias/{alias}")
        call(stack.engine, "PUT", f"/{index_name}/_doc/late?refresh=true", {"text": "A cow."})
        known = {"another": other_encoder}
        with running_gateway(settings, load=lambda name, _: known.get(name, encoder)) as gateway:
            async with agent_of(gateway) as client:
                listed = await ask(client, "list_indices", index=f"{index_name}*")
                assert [(one["name"], one["documents"], one["encoded"], one["aliases"]) for one in listed] == [
                    (index_name, 31, 0.968, [alias]),
                    (f"{index_name}-other", 30, 1, []),
                ]
                assert all(one["text_fields"] == ["title", "text"] and one["filter_fields"] for one in listed)
                for name in (*names, alias):
                    found = await ask(client, "search", index=name, query="a cat drinks milk", size=3)
                    assert (found["ranked_by"], found["reason"], len(found["hits"])) == ("blend", None, 3)
                    best = found["hits"][0]
                    assert "drinks milk" in best["passages"][0]["text"]
                    why = await ask(client, "explain", index=name, query="a cat drinks milk", id=best["id"])
                    assert (why["rank"], why["passage"]) == (1, best["passages"][0])
                    document = await ask(client, "read", index=name, id=best["id"])
                    assert document["texts"][-1]["text"] == by_id(best["id"])["text"]
                in_two = await ask(client, "read", index=f"{index_name},{index_name}-other", id="d1")
                assert f"[d1] is in [{index_name}" in in_two
    finally:
        for name in names:
            call(stack.engine, "DELETE", f"/ttc-*-{name},{name}")


async def test_answers_fit_a_budget_and_a_long_text_is_read_in_parts(
    stack: SearchStack, encoder: Encoder, index_name: str
) -> None:
    sentences = [f"Sentence {number} tells of animals that rest." for number in range(400)]
    sentences[200] = "A cat drinks milk from the blue bowl."
    text = " ".join(sentences)
    spec = IndexSpec(encoder.identity, text_fields=("text",))
    documents = [{"_id": f"long{number}", "text": text} for number in range(5)]
    await fill(stack.engine, index_name, spec, encoder, documents)
    async with agent_of(stack.gateway) as client:
        asked = {"index": index_name, "query": "animals that rest"}
        for passages in (1, 3):
            found = await ask(client, "search", **asked, max_tokens=250, passages=passages)
            shown = [passage for hit in found["hits"] for passage in hit["passages"]]
            assert len(shown) >= 5
            assert 500 < sum(len(passage["text"]) for passage in shown) < 1000 + 20 * len(shown)
            for passage in shown:
                assert passage["text"] == text[passage["start"] : passage["end"]]
                assert passage["text"].split() == text[passage["start"] :].split()[: len(passage["text"].split())]
        read, parts, start = {"index": index_name, "id": "long3", "field": "text", "max_tokens": 2000}, [], 0
        while start < len(text):
            [part] = (await ask(client, "read", **read, start=start))["texts"]
            parts.append(part["text"])
            start = part["end"]
        assert (" ".join(parts), len(parts)) == (text, 3)
        bowl = text.index("blue bowl")
        [part] = (await ask(client, "read", **read | {"max_tokens": 50}, start=bowl, before=30))["texts"]
        assert "drinks milk from the blue bowl" in part["text"]
        assert len(part["text"]) < 240


async def test_agent_invalid_calls_are_refused_with_the_reason(stack: SearchStack) -> None:
    async with agent_of(stack.gateway) as client:
        assert "no such index [nosuch]" in await ask(client, "search", index="nosuch", query="x")
        assert "unknown method [nosuch]" in await ask(client, "search", index=stack.index, query="x", method="nosuch")
        assert "there is no document [d999]" in await ask(client, "explain", index=stack.index, query="cat", id="d999")
        assert "[size]" in await ask(client, "search", index=stack.index, query="x", size=51)
        misspelt: list[tuple[str, Any]] = [
            ("filter", {"bool": {"must": [{"range": {"numbr": {"gt": 3}}}]}}),
            ("filter", {"exists": {"field": "numbr"}}),
            ("fields", ["numbr"]),
            ("facets", ["numbr"]),
        ]
        for argument, value in misspelt:
            said = await ask(client, "search", index=stack.index, query="x", **{argument: value})
            assert said.endswith(f"[{argument}] index [{stack.index}] has no field [numbr]: did you mean [number]?")
        assert "there is no document [d999]" in await ask(client, "read", index=stack.index, id="d999")
        assert "[start] needs [field]" in await ask(client, "read", index=stack.index, id="d1", start=5)
        for tool, given in (("search", {"query": "x", "filters": {}}), ("list_methods", {"index": "x"})):
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
