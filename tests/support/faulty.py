"""A small HTTP server before a real engine that makes it answer as a busy or broken one does."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web

from tests.support.servers import server_of

Fault = Literal["busy items", "busy", "unavailable", "hang up", "too large", "forbidden item"]


@dataclass
class FaultyEngine:
    """What the server did.

    Attributes:
        url: Its address.
        faults: What the next bulks meet, in order; none left means they are passed on.
        bulks: The ids of every bulk that came in.
    """

    url: str
    faults: Iterator[Fault]
    bulks: list[list[str]] = field(default_factory=list)


@asynccontextmanager
async def faulty_engine(engine_url: str, faults: Iterator[Fault]) -> AsyncIterator[FaultyEngine]:
    """Run the server on a free port."""
    state = FaultyEngine("", faults)

    async def pass_on(request: web.Request, body: bytes) -> web.Response:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        url = f"{engine_url}{request.path_qs}"
        async with session.request(request.method, url, data=body, headers=headers) as answer:
            content = await answer.read()
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("content-length", "transfer-encoding", "content-encoding")
            }
            return web.Response(status=answer.status, body=content, headers=kept)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not request.path.endswith("/_bulk"):
            return await pass_on(request, body)
        lines = body.splitlines()
        ids = [json.loads(line)["index"]["_id"] for line in lines[::2]]
        state.bulks.append(ids)
        fault = next(state.faults, None)
        match fault:
            case "busy":
                return _error(429, "es_rejected_execution_exception")
            case "unavailable":
                return _error(503, "cluster_block_exception")
            case "too large":
                return _error(413, "too_large")
            case "hang up":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            case "busy items" | "forbidden item":
                return await _refuse_every_other(request, lines, 429 if fault == "busy items" else 403)
        return await pass_on(request, body)

    async def _refuse_every_other(request: web.Request, lines: list[bytes], status: int) -> web.Response:
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        passed = [pair for position, pair in enumerate(pairs) if position % 2]
        taken = iter(())
        headers = {}
        if passed:
            answer = await pass_on(request, b"".join(line + b"\n" for pair in passed for line in pair))
            assert isinstance(answer.body, bytes)
            taken = iter(json.loads(answer.body)["items"])
            headers = {name: value for name, value in answer.headers.items() if name.startswith("X-")}
        items: list[dict[str, Any]] = []
        for position, (action, _) in enumerate(pairs):
            if position % 2:
                items.append(next(taken))
            else:
                error = {"type": "es_rejected_execution_exception", "reason": "queue capacity 0"}
                items.append({"index": {"_id": json.loads(action)["index"]["_id"], "status": status, "error": error}})
        return web.json_response({"took": 1, "errors": True, "items": items}, headers=_PRODUCT | headers)

    async with aiohttp.ClientSession(auto_decompress=True) as session, server_of(handle) as state.url:
        yield state


_PRODUCT = {"X-Elastic-Product": "Elasticsearch"}


def _error(status: int, kind: str) -> web.Response:
    cause = {"type": kind, "reason": kind}
    return web.json_response(
        {"error": {"root_cause": [cause], **cause}, "status": status}, status=status, headers=_PRODUCT
    )
