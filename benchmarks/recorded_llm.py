"""An OpenAI-compatible endpoint that remembers: asks the real one once for each question, and replays its answers.

A benchmark asks the same questions for many settings, and the small model here needs seconds for each. Answers stand in
the user's cache folder as JSON lines; latencies measured through this endpoint are not the model's.
"""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from es_ttc.settings import Settings

_SECONDS = 600.0


class Recording:
    """Questions and answers on disk.

    Args:
        name: Of the file in the cache folder; one model a file.
    """

    def __init__(self, name: str) -> None:
        self.path = Settings().cache_dir / "recorded-llm" / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        self._answers: dict[str, Any] = {one["key"]: one["answer"] for one in map(orjson.loads, lines)}

    def __len__(self) -> int:
        return len(self._answers)

    @staticmethod
    def key(path: str, body: bytes) -> str:
        """Return what stands for a question, whichever model it is put to."""
        question = {key: value for key, value in orjson.loads(body).items() if key != "model"}
        return hashlib.sha256(orjson.dumps([path, question], option=orjson.OPT_SORT_KEYS)).hexdigest()

    def get(self, key: str) -> Any:
        """Return the recorded answer, or None."""
        return self._answers.get(key)

    def put(self, key: str, answer: Any) -> None:
        """Record an answer."""
        self._answers[key] = answer
        with self.path.open("ab") as file:
            file.write(orjson.dumps({"key": key, "answer": answer}) + b"\n")


Answer = Callable[[str, bytes], Awaitable[tuple[int, Any]]]
"""From a path and a question's body to status and answer."""


@contextmanager
def recorded_llm(recording: Recording, real: str | None) -> Iterator[str]:
    """Run the endpoint on a free port and give its base URL.

    Args:
        recording: What is known.
        real: Base URL of the real endpoint; None to know nothing beyond the recording (503 for what it lacks).
    """

    async def answer(path: str, body: bytes) -> tuple[int, Any]:
        key = recording.key(path, body)
        found = recording.get(key)
        if found is not None:
            return 200, found
        if real is None:
            return 503, {"error": {"message": "not recorded"}}
        headers = {"content-type": "application/json"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session,
            session.post(f"{real}/{path}", data=body, headers=headers) as response,
        ):
            found = await response.json()
            if response.status == 200:
                recording.put(key, found)
            return response.status, found

    with _serving(answer) as url:
        yield url


@contextmanager
def model_endpoint(model: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    """Run an endpoint whose answers a function gives: a model of known quality, for simulations."""

    async def answer(_: str, body: bytes) -> tuple[int, Any]:
        text = model(orjson.loads(body))
        return 200, {"model": "simulated", "choices": [{"message": {"role": "assistant", "content": text}}]}

    with _serving(answer) as url:
        yield url


@contextmanager
def _serving(answer: Answer) -> Iterator[str]:
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
        status, body = await answer(request.match_info["path"], await request.read())
        return web.json_response(body, status=status)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "recorded"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/{path:.*}", ask)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
