"""A server before a real engine that kills a process right after a request of its that changes something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.support.servers import server_of

_NOT_PASSED_ON = ("host", "content-length", "transfer-encoding", "content-encoding")
_CHANGING_POSTS = ("_bulk", "_aliases")


@dataclass
class KillingRelay:
    """What the server did.

    Attributes:
        url: Its address.
        process: Who is killed, and how often that may happen still.
        steps: The requests after which it was killed: method and last part of the path.
    """

    url: str = ""
    process: asyncio.subprocess.Process | None = None
    steps: list[str] = field(default_factory=list)


@asynccontextmanager
async def killing_relay(engine_url: str) -> AsyncIterator[KillingRelay]:
    """Run the server on a free port; it kills :attr:`KillingRelay.process`, once after each step."""
    state = KillingRelay()
    killed_after: set[tuple[str, str]] = set()

    async def handle(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON}
        url = f"{engine_url}{request.path_qs}"
        async with session.request(request.method, url, data=await request.read(), headers=headers) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED_ON}
        last = request.path.rpartition("/")[2]
        changes = request.method in ("PUT", "DELETE") or last in _CHANGING_POSTS
        again = (request.method, request.path) in killed_after and last != "_bulk"  # which each run begins with
        if changes and not again and answer.status < 300 and state.process is not None:
            killed_after.add((request.method, request.path))
            state.process.kill()
            state.process = None
            state.steps.append(f"{request.method} {last if last.startswith('_') else ''}".strip())
        return web.Response(status=answer.status, body=content, headers=kept)

    async with aiohttp.ClientSession() as session, server_of(handle) as state.url:
        yield state
