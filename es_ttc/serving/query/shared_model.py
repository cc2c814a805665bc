"""The gateway's language model: each question asked once, its answer kept, whoever has stopped waiting for it.

An answer depends on the prompt alone, which holds the query's text and nothing of any document; so it serves every
caller who asks the same.
"""

import asyncio
import hashlib
from collections.abc import Sequence

import orjson

from es_ttc.common.caches import LruCache
from es_ttc.errors import InvalidRequest, LlmError, TooManyRequests
from es_ttc.llm import JsonSchema, LlmClient
from es_ttc.serving.logs import log
from es_ttc.settings import LlmSettings

_KEPT_BYTES = 32 * 2**20
_WAITING_A_PLACE = 8  # questions that wait for each one that may be in flight


class SharedModel:
    """Asks the configured model. Use as an async context manager.

    Args:
        settings: Of the model; without an address there is none.

    Raises:
        ConfigurationError: The address is no URL.
    """

    def __init__(self, settings: LlmSettings) -> None:
        self._client = None if settings.llm_url is None else LlmClient(settings)
        self._most = settings.llm_concurrency * (1 + _WAITING_A_PLACE)
        self._kept: LruCache[str, str] = LruCache(_KEPT_BYTES)
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
    def configured(self) -> bool:
        """Whether there is a model."""
        return self._client is not None

    @property
    def continues(self) -> bool:
        """Whether it continues texts, in place of answering as an assistant."""
        return self._client is not None and self._client.api == "completions"

    def require(self, method: str) -> None:
        """Refuse a method that needs a model where there is none.

        Raises:
            InvalidRequest: There is none.
        """
        if self._client is None:
            raise InvalidRequest(
                f"method [{method}] asks a language model, and this gateway has none: start it with ES_TTC_LLM_URL "
                "(llm_url) set to an OpenAI-compatible endpoint"
            )

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return the answer to a prompt: the kept one, that of a question under way, or a new one.

        A question whose asker has gone is answered all the same, and the answer kept: the next one has it at once.

        Raises:
            LlmError: There is no answer.
            TooManyRequests: Too many questions wait already.
        """
        asked = [prompt, max_tokens, list(stop), None if schema is None else schema.key]
        key = hashlib.sha256(orjson.dumps(asked)).hexdigest()
        kept = self._kept.get(key)
        if kept is not None:
            return kept
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
            raise RuntimeError("there is no model: require() tells who asks for one")
        reply = await self._client.ask(prompt, max_tokens=max_tokens, stop=stop, schema=schema)
        self._kept.put(key, reply.text, len(reply.text) + len(key))
        return reply.text

    def _ended(self, key: str, task: "asyncio.Task[str]") -> None:
        self._under_way.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()  # looked at here, for nobody may wait any more
        if isinstance(error, LlmError):
            log.warning("language model gave no answer", failure=error.failure.value)
