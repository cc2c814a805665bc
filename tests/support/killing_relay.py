"""A server before a real engine that kills a process right after a request of its that changes something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

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

    application = web.Application(client_max_size=2**30)
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            state.url = f"http://{host}:{port}"
            yield state
        finally:
            await runner.cleanup()
