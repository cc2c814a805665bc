"""A session of an agent with an attached index, by the MCP SDK's own client. Needs a running engine.

    python -m benchmarks.agent_session --engine http://127.0.0.1:9200

The index holds the how-to and reference pages of this repository, without the one that shows the session. The agent's
calls are written down here; what the tools answer is real, and shortened. It ends with an error if the quotation is not
in the document that it cites.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import orjson
from mcp import Client, StdioServerParameters

from benchmarks.served import bulk, delete, opened
from es_ttc.index.ingest.titled_texts import markdown

INDEX = "manual"
DOCS = Path(__file__).parents[1] / "docs"
PARTS = ("how-to", "reference")
SHOWN_IN = "search-from-an-agent.md"
QUESTION = "which documents are encoded again after a reindex?"
NOT_HERE = "who won the football cup last year?"
QUOTED = "Only documents whose text has changed or is new are encoded."
_SHOWN = 150  # characters of a text
_UNSHOWN = ("index", "length", "nothing_here", "reason", "relevance", "score")


def main() -> None:
    """Print the session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    asyncio.run(_write(url))
    try:
        _command(url, "attach", INDEX, "--text-fields", "title,text", "--yes")
        asyncio.run(_session(url))
    finally:
        _command(url, "detach", INDEX, "--yes")
        asyncio.run(_delete(url))


async def _session(url: str) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "es_ttc", "mcp", "--engine", url],
        env=os.environ | {"ES_TTC_SCORING_TIMEOUT_MS": "5000"},
    )
    async with Client(server) as client:
        await _ask(client, "What is there?", "list_indices", index=INDEX)
        asked = {"index": INDEX, "query": QUESTION, "size": 3, "max_tokens": 300}
        await _ask(client, "Find, and count where.", "search", **asked, facets=["part.keyword"])
        narrow = {"filter": {"term": {"part.keyword": "how-to"}}, "passages": 2}
        found = await _ask(client, "Only instructions, two passages of each.", "search", **asked, **narrow)
        best = found["hits"][0]
        passage = best["passages"][0]
        place = {"index": INDEX, "id": best["id"], "field": passage["field"], "start": passage["start"]}
        [part] = (await _ask(client, "Read on from the passage.", "read", **place, max_tokens=150))["texts"]
        if QUOTED not in part["text"]:
            raise SystemExit(f"[{best['id']}] does not say: {QUOTED}")
        start = part["start"] + part["text"].index(QUOTED)
        parts = {"query": f"{QUESTION} {NOT_HERE}", "questions": [QUESTION, NOT_HERE]}
        found = await _ask(client, "A question of two parts.", "search", **asked | parts)
        if found["open"] != [NOT_HERE]:
            raise SystemExit(f"open: {found['open']}")
        print(f"Answer, cited: {QUOTED} ({best['id']}, {part['field']}, characters {start} to {start + len(QUOTED)})")


async def _ask(client: Client, why: str, tool: str, **arguments: Any) -> Any:
    answer = await _call(client, tool, **arguments)
    print(f"{why}\n\n```\n{tool} {json.dumps(arguments)}\n")
    for name, value in _short(answer if isinstance(answer, dict) else {tool: answer}).items():
        print(
            f"{name}: {_json(value)}" if not isinstance(value, list) else "\n ".join([f"{name}:", *map(_json, value)])
        )
    print("```\n")
    return answer


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


async def _call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        raise SystemExit(f"{tool}: {result.content}")
    return result.structured_content.get("result", result.structured_content)


def _short(part: Any) -> Any:
    """Return an answer with short texts and without parts that the session does not use."""
    if isinstance(part, list):
        return [_short(one) for one in part]
    if isinstance(part, dict):
        return {name: _short(value) for name, value in part.items() if value and name not in _UNSHOWN}
    return textwrap.shorten(part, _SHOWN, placeholder=" ...") if isinstance(part, str) else part


async def _write(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)
        await engine.create_index(INDEX, {"settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0}}})
        lines: list[bytes] = []
        for part in PARTS:
            for page in sorted(set((DOCS / part).glob("*.md")) - {DOCS / part / SHOWN_IN}):
                title, text = markdown(page.read_text())
                lines.append(orjson.dumps({"index": {"_id": f"{part}/{page.name}"}}))
                lines.append(orjson.dumps({"title": title, "text": text, "part": part}))
        await bulk(engine, INDEX, lines)
        await engine.refresh(INDEX)


async def _delete(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def _command(url: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "es_ttc", *arguments, "--engine", url]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
