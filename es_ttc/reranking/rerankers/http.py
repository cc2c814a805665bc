"""An HTTP endpoint with Cohere's API: ``{model, query, documents}`` in, ``{results: [{index, relevance_score}]}`` out.

Cohere, Jina, vLLM's `/rerank`, Infinity and the `POST /_ttc/rerank` of another gateway have this API.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, HttpUrl, SecretStr
from yarl import URL

from es_ttc.errors import ConfigurationError, LlmError
from es_ttc.llm.endpoint import Endpoint, EndpointSettings
from es_ttc.reranking.rerankers.base import Passage, RerankerError, RerankerSettings
from es_ttc.reranking.rerankers.cost import tell
from es_ttc.settings import HeaderSecret, header_secret

_ATTEMPTS = 3
_MAX_COUNTED = 2**53


class HttpSettings(RerankerSettings):
    """Settings of an endpoint."""

    url: HttpUrl = Field(description="URL of the endpoint, including the path: https://api.cohere.com/v2/rerank.")
    model: str | None = Field(None, description="Value of `model` in the request. Default: none is sent.")
    api_key: HeaderSecret | None = Field(None, description="Key, sent as `Authorization: Bearer ...`.")
    api_key_env: str | None = Field(None, description="Name of the environment variable that contains the key.")


class Http:
    """An HTTP endpoint with Cohere's rerank API."""

    name: ClassVar[str] = "http"
    Settings: ClassVar[type[RerankerSettings]] = HttpSettings

    def make(self, settings: HttpSettings) -> "HttpReranker":
        """Return a reranker that calls the endpoint; nothing is sent yet."""
        key = settings.api_key
        if settings.api_key_env is not None:
            if key is not None:
                raise ConfigurationError("a reranker takes [api_key] or [api_key_env], not both")
            if settings.api_key_env not in os.environ:
                raise ConfigurationError(f"[api_key_env] names the variable [{settings.api_key_env}], which is not set")
            try:
                key = header_secret(SecretStr(os.environ[settings.api_key_env]))
            except ValueError as error:
                raise ConfigurationError(f"the variable [{settings.api_key_env}] of [api_key_env] {error}") from error
        return HttpReranker(settings, key)


class HttpReranker:
    """Sends a few texts at a time to an endpoint for scores."""

    def __init__(self, settings: HttpSettings, key: SecretStr | None) -> None:
        self.settings: RerankerSettings = settings
        self.identity = f"http:{settings.url}:{settings.model or ''}:{settings.max_characters}"
        self._model = settings.model
        self._endpoint = Endpoint(
            EndpointSettings(
                url=URL(str(settings.url)),
                api_key=key,
                timeout=settings.timeout_ms / 1000,
                attempts=_ATTEMPTS,
                concurrency=settings.at_once,
                breaker_failures=sys.maxsize,  # a search's deadline bounds its calls, and its answer says why they fail
            )
        )

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return one score for each passage; a request that fails for the moment is repeated until the timeout."""
        body: dict[str, Any] = {"query": query, "documents": [passage.text for passage in passages]}
        if self._model is not None:
            body["model"] = self._model
        try:
            answer = await self._endpoint.post("", body)
        except LlmError as error:
            raise RerankerError(str(error)) from error
        _report_cost(answer)
        return _scores(answer, len(passages))

    async def close(self) -> None:
        """Close connections."""
        await self._endpoint.close()


def _scores(answer: Any, documents: int) -> list[float]:
    """Return the scores of Cohere's results, in the order of the documents."""
    try:
        found = {result["index"]: result["relevance_score"] for result in answer["results"]}
        results = len(answer["results"])
    except (KeyError, TypeError):
        raise RerankerError("the reranker's endpoint gave no [results] of [index] and [relevance_score]") from None
    if results != documents or found.keys() != set(range(documents)):
        raise RerankerError(f"the reranker's endpoint gave {results} results for {documents} documents, or some twice")
    return [found[place] for place in range(documents)]


def _report_cost(answer: Any) -> None:
    """Report the use that an answer contains, in Cohere's `meta` or in the `usage` of Jina, vLLM and Infinity."""
    usage, meta = _part(answer, "usage"), _part(answer, "meta")
    tokens, billed = _part(meta, "tokens"), _part(meta, "billed_units")
    written = _count(usage, "completion_tokens") or _count(tokens, "output_tokens")
    read = _count(usage, "prompt_tokens") or _count(tokens, "input_tokens") or _count(billed, "input_tokens")
    tell(
        prompt_tokens=read or max(0, _count(usage, "total_tokens") - written),
        completion_tokens=written,
        search_units=_count(billed, "search_units"),
    )


def _part(answer: Any, name: str) -> Mapping[str, Any]:
    found = answer.get(name) if isinstance(answer, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _count(answer: Mapping[str, Any], name: str) -> int:
    found = answer.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < _MAX_COUNTED:
        return 0
    return int(found)
