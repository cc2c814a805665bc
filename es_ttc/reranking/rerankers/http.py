"""An HTTP endpoint with Cohere's API: ``{model, query, documents}`` in, ``{results: [{index, relevance_score}]}`` out.

Cohere, Jina, vLLM's `/rerank`, Infinity and the `POST /_ttc/rerank` of another gateway have this API.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
import orjson
import stamina
from pydantic import Field, HttpUrl, SecretStr

from es_ttc.errors import ConfigurationError
from es_ttc.reranking.rerankers.base import Passage, RerankerError, RerankerSettings
from es_ttc.reranking.rerankers.cost import tell
from es_ttc.settings import HeaderSecret, header_secret

_ATTEMPTS = 3
_FIRST_WAIT_SECONDS = 0.2
_BUSY = frozenset({429, 502, 503, 504})
_MAX_BYTES = 8 * 2**20
_MAX_EXCERPT_BYTES = 200
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


class _RetryableError(Exception):
    """The request may succeed if it is sent again."""


class HttpReranker:
    """Sends a few texts at a time to an endpoint for scores."""

    def __init__(self, settings: HttpSettings, key: SecretStr | None) -> None:
        self.settings: RerankerSettings = settings
        self.identity = f"http:{settings.url}:{settings.model or ''}:{settings.max_characters}"
        self._url = str(settings.url)
        self._model = settings.model
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return one score for each passage.

        After busy responses (429, 502, 503, 504) and broken connections the request is repeated until the timeout.
        """
        body: dict[str, Any] = {"query": query, "documents": [passage.text for passage in passages]}
        if self._model is not None:
            body["model"] = self._model
        attempts = stamina.retry_context(
            on=_RetryableError, attempts=_ATTEMPTS, timeout=None, wait_initial=_FIRST_WAIT_SECONDS, wait_jitter=0.2
        )
        try:
            async for attempt in attempts:
                with attempt:
                    answer = await self._post(orjson.dumps(body))
                    _report_cost(answer)
                    return _scores(answer, len(passages))
        except _RetryableError as error:
            raise RerankerError(f"the reranker's endpoint does not answer: {error}") from None
        raise AssertionError("stamina ends in an answer or in an error")

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, body: bytes) -> Any:
        if self._session is None:
            headers = {"content-type": "application/json", "accept": "application/json"}
            if self._key is not None:
                headers["authorization"] = f"Bearer {self._key.get_secret_value()}"
            connector = aiohttp.TCPConnector(limit=self.settings.at_once)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                raw = await response.content.read(_MAX_BYTES)
                while not response.content.at_eof() and len(raw) < _MAX_BYTES:
                    raw += await response.content.read(_MAX_BYTES - len(raw))
                status = response.status
        except aiohttp.ClientError as error:
            raise _RetryableError(f"{type(error).__name__}") from error
        if status in _BUSY:
            raise _RetryableError(f"it answered {status}")
        if status != 200:
            raise RerankerError(f"the reranker's endpoint answered {status}: {_excerpt(raw)}")
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise RerankerError(
                f"the reranker's endpoint answered with something that is not JSON: {_excerpt(raw)}"
            ) from None


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


def _excerpt(raw: bytes) -> str:
    text = raw[:_MAX_EXCERPT_BYTES].decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text)
