"""An OpenAI-compatible endpoint that remembers: asks the real one once for each question, and replays its answers.

A benchmark asks the same questions for many settings, and the small model here needs seconds for each. Answers stand in
the user's cache folder as JSON lines; latencies measured through this endpoint are not the model's.
"""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
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
        self.asked = 0
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


@contextmanager
def recorded_llm(recording: Recording, real: str | None) -> Iterator[str]:
    """Run the endpoint on a free port and give its base URL.

    Args:
        recording: What is known.
        real: Base URL of the real endpoint; None to know nothing beyond the recording (503 for what it lacks).
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, url = asyncio.run_coroutine_threadsafe(_start(recording, real), loop).result(30)
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _start(recording: Recording, real: str | None) -> tuple[web.AppRunner, str]:
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))

    async def ask(request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.read()
        key = recording.key(path, body)
        answer = recording.get(key)
        if answer is None:
            if real is None:
                return web.json_response({"error": {"message": "not recorded"}}, status=503)
            async with session.post(f"{real}/{path}", data=body, headers={"content-type": "application/json"}) as found:
                answer = await found.json()
                if found.status != 200:
                    return web.json_response(answer, status=found.status)
            recording.asked += 1
            recording.put(key, answer)
        return web.json_response(answer)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "recorded"}]})

    async def close(_: web.Application) -> None:
        await session.close()

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/{path:.*}", ask)])
    app.on_cleanup.append(close)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
