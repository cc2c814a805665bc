"""The client of a language model: completions and chat, with JSON schemas where the endpoint can enforce them."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from es_ttc.errors import ConfigurationError, LlmError, LlmFailure
from es_ttc.llm.base import JsonSchema, Message, Reply, Usage
from es_ttc.llm.endpoint import Endpoint, EndpointSettings, api_base
from es_ttc.settings import LlmSettings

logger = logging.getLogger(__name__)

_DEFAULT_TOKENS = 512
_MAY_BE_THE_SCHEMA = frozenset({400, 404, 415, 422, 501})


class LlmClient:
    """One model at one endpoint. Use as an async context manager, in one event loop."""

    def __init__(self, settings: LlmSettings) -> None:
        if settings.llm_url is None:
            raise ConfigurationError(
                "no language model is configured: set ES_TTC_LLM_URL (llm_url) to an OpenAI-compatible endpoint "
                "such as http://127.0.0.1:8000/v1"
            )
        self.endpoint = Endpoint(_endpoint_settings(settings, settings.llm_url))
        self.api: Literal["chat", "completions"] = settings.llm_api
        self._model = settings.llm_model
        self._extra = settings.llm_extra_body
        self._refused_schemas: set[str] = set()

    @property
    def url(self) -> str:
        """The endpoint's address."""
        return self.endpoint.url

    async def __aenter__(self) -> "LlmClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.endpoint.close()

    async def models(self, *, seconds: float | None = None) -> list[str]:
        """Return the names of the models that the endpoint serves; also used as a health check."""
        answer = await self.endpoint.get("models", seconds=seconds)
        listed = answer.get("data")
        if not isinstance(listed, list):
            raise _malformed(self.url, "models")
        return [str(one["id"]) for one in listed if isinstance(one, Mapping) and "id" in one]

    async def model(self, *, seconds: float | None = None) -> str:
        """Return the model's name: the configured one, or the only one that the endpoint serves."""
        if self._model is None:
            found = await self.models(seconds=seconds)
            if len(found) != 1:
                raise ConfigurationError(
                    f"the endpoint at [{self.url}] serves {len(found)} models ({', '.join(found[:10])}): "
                    "name one by ES_TTC_LLM_MODEL (llm_model)"
                )
            self._model = found[0]
        return self._model

    async def ask(
        self,
        prompt: str,
        *,
        max_tokens: int = _DEFAULT_TOKENS,
        temperature: float = 0.0,
        stop: Sequence[str] = (),
        schema: JsonSchema | None = None,
        seed: int | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """Send a prompt by the configured API (``llm_api``): as a user's message, or as a text to continue."""
        options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        options |= {"stop": list(stop)} if stop else {}
        options |= {"seed": seed} if seed is not None else {}
        if self.api == "chat":
            return await self.chat([Message("user", prompt)], schema=schema, seconds=seconds, **options)
        return await self.complete(prompt, schema=schema, seconds=seconds, **options)

    async def complete(
        self, prompt: str, *, schema: JsonSchema | None = None, seconds: float | None = None, **options: Any
    ) -> Reply:
        """Return the model's continuation of a text; ``options`` are added to the request."""
        return await self._answer("completions", {"prompt": prompt, **options}, schema, seconds)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonSchema | None = None,
        seconds: float | None = None,
        **options: Any,
    ) -> Reply:
        """Return the model's answer as an assistant; ``options`` are added to the request."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return await self._answer("chat/completions", {"messages": turns, **options}, schema, seconds)

    async def _answer(self, path: str, body: dict[str, Any], schema: JsonSchema | None, seconds: float | None) -> Reply:
        started = time.monotonic()
        body = {**self._extra, **body, "model": await self.model(seconds=seconds)}
        answer, held = await self._with_schema(path, body, schema, seconds)
        reply = _reply(answer, held, time.monotonic() - started, self.url, path)
        logger.debug(
            "model answered: %s tokens read, %s written, %.2f s",
            reply.usage.prompt_tokens,
            reply.usage.completion_tokens,
            reply.seconds,
        )
        return reply

    async def _with_schema(
        self, path: str, body: Mapping[str, Any], schema: JsonSchema | None, seconds: float | None
    ) -> tuple[dict[str, Any], bool]:
        """Send the request with the schema; without it if it is rejected, and then from the beginning."""
        if schema is None or schema.key in self._refused_schemas:
            return await self.endpoint.post(path, body, seconds=seconds), False
        try:
            return await self.endpoint.post(path, {**body, **_schema_fields(path, schema)}, seconds=seconds), True
        except LlmError as error:
            if error.failure is not LlmFailure.REFUSED or error.upstream_status not in _MAY_BE_THE_SCHEMA:
                raise
        # Errors differ between endpoints. The schema was the cause if the same request succeeds without it.
        answer = await self.endpoint.post(path, body, seconds=seconds)
        self._refused_schemas.add(schema.key)
        logger.warning("the endpoint at %s takes no JSON schema [%s]: asked without from now on", self.url, schema.name)
        return answer, False


def _schema_fields(path: str, schema: JsonSchema) -> dict[str, Any]:
    """Return the fields that request a schema: OpenAI's; for completions llama.cpp's too."""
    schema_field = {"name": schema.name, "schema": schema.schema, "strict": True}
    fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": schema_field}}
    return fields | ({"json_schema": schema.schema} if path == "completions" else {})


def _reply(answer: Mapping[str, Any], held: bool, seconds: float, url: str, path: str) -> Reply:
    """Parse an answer of either API."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        if not isinstance(text, str | None):
            raise TypeError("no text")
        usage = answer.get("usage") or {}
        return Reply(
            text=text or "",  # null if a model returned only reasoning, or called a tool
            finish=str(choice.get("finish_reason") or "stop"),
            usage=Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)),
            model=str(answer.get("model", "")),
            held=held,
            seconds=seconds,
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _malformed(url, path) from error


def _malformed(url: str, path: str) -> LlmError:
    return LlmError(
        f"the model at [{url}] answered [{path}] in another form than OpenAI's: is it an OpenAI-compatible endpoint?",
        LlmFailure.MALFORMED,
    )


def _endpoint_settings(settings: LlmSettings, url: str) -> EndpointSettings:
    return EndpointSettings(
        url=api_base(url, "llm_url"),
        api_key=settings.llm_api_key,
        ca_certs=settings.llm_ca_certs,
        timeout=settings.llm_timeout,
        attempts=settings.llm_attempts,
        concurrency=settings.llm_concurrency,
    )
