"""An OpenAI-compatible endpoint whose answers a function gives: a model of known quality, for simulations."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], str]
"""From the body of a question to the text of the answer."""


@contextmanager
def model_endpoint(answer: Answer) -> Iterator[str]:
    """Run the endpoint on a free port, and give its base URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, url = asyncio.run_coroutine_threadsafe(_start(answer), loop).result(30)
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _start(answer: Answer) -> tuple[web.AppRunner, str]:
    async def ask(request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": answer(await request.json())}
        return web.json_response({"model": "simulated", "choices": [{"message": message}]})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "simulated"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/{path:.*}", ask)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
