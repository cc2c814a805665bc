"""The gateway's language model: each prompt is sent once and its answer is cached, even if the caller has disconnected.

An answer depends only on the prompt, which contains the query's text and nothing from a document. So it serves every
caller with the same text.
"""

import asyncio
import hashlib
from collections.abc import Sequence

import orjson

from es_ttc.common.caches import LruCache
from es_ttc.errors import ConfigurationError, LlmError, TooManyRequests
from es_ttc.llm import JsonSchema, LlmClient
from es_ttc.serving.logs import log
from es_ttc.settings import LlmSettings

_MAX_CACHED_BYTES = 32 * 2**20
_WAITING_A_PLACE = 8  # waiting requests for each one that may be in flight


class SharedModel:
    """Calls the configured model. Use as an async context manager."""

    def __init__(self, settings: LlmSettings) -> None:
        self._client = None if settings.llm_url is None else LlmClient(settings)
        self._most = settings.llm_concurrency * (1 + _WAITING_A_PLACE)
        self._answers: LruCache[str, str] = LruCache(_MAX_CACHED_BYTES)
        self._under_way: dict[str, asyncio.Task[str]] = {}

    async def __aenter__(self) -> "SharedModel":
        if self._client is not None:
            await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        if self._client is not None:
            await self._client.__aexit__(*exc)

    @property
    def breaker_open(self) -> bool:
        """Whether the model has failed so often that it is not contacted."""
        return self._client is not None and self._client.endpoint.breaker_open

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, or answers as an assistant."""
        return self._client is not None and self._client.api == "completions"

    def require(self, method: str) -> None:
        """Raise an error for a method that needs a model if none is configured."""
        if self._client is None:
            raise ConfigurationError(
                f"method [{method}] asks a language model, and this gateway has none: start it with ES_TTC_LLM_URL "
                "(llm_url) set to an OpenAI-compatible endpoint"
            )

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return the answer to a prompt: from the cache, from a running request, or from a new one.

        If the caller disconnects, the request continues, and its answer is cached for the next one.
        """
        key_parts = [prompt, max_tokens, list(stop), None if schema is None else schema.key]
        key = hashlib.sha256(orjson.dumps(key_parts)).hexdigest()
        cached = self._answers.get(key)
        if cached is not None:
            return cached
        if key not in self._under_way:
            if len(self._under_way) >= self._most:
                raise TooManyRequests(f"{len(self._under_way)} questions wait for the language model already")
            task = asyncio.create_task(self._answer(key, prompt, max_tokens, stop, schema))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(self._under_way[key])

    async def _answer(
        self, key: str, prompt: str, max_tokens: int, stop: Sequence[str], schema: JsonSchema | None
    ) -> str:
        if self._client is None:
            raise RuntimeError("there is no model: call require() first")
        reply = await self._client.ask(prompt, max_tokens=max_tokens, stop=stop, schema=schema)
        self._answers.put(key, reply.text, len(reply.text) + len(key))
        return reply.text

    def _ended(self, key: str, task: "asyncio.Task[str]") -> None:
        self._under_way.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()  # retrieved here, because no caller may be waiting any more
        if isinstance(error, LlmError):
            log.warning("language model gave no answer", failure=error.failure.value)
