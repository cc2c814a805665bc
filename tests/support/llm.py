"""A language model's endpoint with faults, and a client for the real one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from es_ttc.settings import LlmSettings
from tests.support.servers import server_of

Answer = str | int | bytes | web.Response | None
"""What the next question meets: a text, a bare status, a raw body, a whole response, or nothing, for good."""


def settings_for(url: str, **settings: Any) -> LlmSettings:
    """Return settings for the base model of the fixture ``llm_url``, or a scripted one, whatever the machine's own."""
    return LlmSettings(**{"llm_url": url, "llm_api": "completions", "llm_model": None, "llm_api_key": None} | settings)


@dataclass
class ScriptedModel:
    """An endpoint that answers as a script says, for what no real one does on demand.

    Attributes:
        url: Its base URL.
        asked: Every question's body, in order.
        headers: Their headers.
        in_flight: Questions that wait for an answer.
        most: The most of them at once.
    """

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0


@asynccontextmanager
async def scripted_model(
    answers: Iterable[Answer] | Callable[[dict[str, Any]], Answer], *, seconds: float = 0.0
) -> AsyncIterator[ScriptedModel]:
    """Run the endpoint on a free port.

    Args:
        answers: What questions meet, in order, the last one for ever; or a function of the question's body.
        seconds: That each takes.
    """
    script = None if callable(answers) else list(answers)
    ended = asyncio.Event()

    def answer_to(body: dict[str, Any]) -> Answer:
        if script is None:
            return answers(body)  # type: ignore[operator]
        return script.pop(0) if len(script) > 1 else script[0]

    async def ask(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": [{"id": "scripted"}]})
        body = orjson.loads(await request.read())
        model.asked.append(body)
        model.headers.append(dict(request.headers))
        model.in_flight += 1
        model.most = max(model.most, model.in_flight)
        try:
            await asyncio.sleep(seconds)
            match answer_to(body):
                case str(text):
                    return web.json_response(reply(text, chat="messages" in body))
                case int(status):
                    return web.json_response({"error": {"message": "scripted"}}, status=status)
                case bytes(raw):
                    return web.Response(body=raw, content_type="application/json")
                case web.Response() as response:
                    return response
                case _:
                    await ended.wait()
                    return web.Response()
        finally:
            model.in_flight -= 1

    async with server_of(ask) as url:
        model = ScriptedModel(f"{url}/v1")
        try:
            yield model
        finally:
            ended.set()


def reply(text: str, *, chat: bool, finish: str = "stop") -> dict[str, Any]:
    """Return an answer in OpenAI's form; a token is a word."""
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    written = len(text.split())
    return {
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": finish, **said}],
        "usage": {"prompt_tokens": 10, "completion_tokens": written, "total_tokens": 10 + written},
    }


@contextmanager
def scripted_model_beside(answers: Callable[[dict[str, Any]], Answer]) -> Iterator[ScriptedModel]:
    """Run :func:`scripted_model` in a thread of its own, for tests that are not asynchronous themselves."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    model = scripted_model(answers)
    try:
        yield asyncio.run_coroutine_threadsafe(model.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(model.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
