"""Any HTTP endpoint of Cohere's shape: ``{model, query, documents}`` in, ``{results: [{index, relevance_score}]}`` out.

Cohere's own, Jina's, vLLM's `/rerank`, Infinity's, and `POST /_ttc/rerank` of another gateway have it.
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

_ATTEMPTS = 3
_FIRST_WAIT_SECONDS = 0.2
_BUSY = frozenset({429, 502, 503, 504})
_MOST_BYTES = 8 * 2**20
_SHOWN = 200
_MOST_COUNTED = 2**53


class HttpSettings(RerankerSettings):
    """Settings of an endpoint."""

    url: HttpUrl = Field(description="Where it is asked, the path included: https://api.cohere.com/v2/rerank.")
    model: str | None = Field(None, description="The `model` that it is asked for; none is sent where left out.")
    api_key: SecretStr | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds the key.")


class Http:
    """An endpoint of Cohere's shape."""

    name: ClassVar[str] = "http"
    Settings: ClassVar[type[RerankerSettings]] = HttpSettings

    def make(self, settings: HttpSettings) -> "HttpReranker":
        """Return a reranker that asks the endpoint; nothing is sent yet.

        Raises:
            ConfigurationError: The variable that is to hold the key does not exist, or the key is given twice.
        """
        key = settings.api_key
        if settings.api_key_env is not None:
            if key is not None:
                raise ConfigurationError("a reranker takes [api_key] or [api_key_env], not both")
            if settings.api_key_env not in os.environ:
                raise ConfigurationError(f"[api_key_env] names the variable [{settings.api_key_env}], which is not set")
            key = SecretStr(os.environ[settings.api_key_env])
        return HttpReranker(settings, key)


class _RetryableError(Exception):
    """The endpoint may answer if it is asked again."""


class HttpReranker:
    """Asks an endpoint for the scores of a few texts at a time.

    Args:
        settings: Where it is, and how it is called.
        key: Its key.
    """

    def __init__(self, settings: HttpSettings, key: SecretStr | None) -> None:
        self.settings: RerankerSettings = settings
        self.identity = f"http:{settings.url}:{settings.model or ''}:{settings.max_characters}"
        self._url = str(settings.url)
        self._model = settings.model
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return one score a passage.

        Busy answers (429, 502, 503, 504) and broken connections are repeated as long as the caller waits.

        Raises:
            RerankerError: The endpoint refused, or its answer is not one score for each document.
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
                    answer = await self._ask(orjson.dumps(body))
                    _tell_cost(answer)
                    return _scores(answer, len(passages))
        except _RetryableError as error:
            raise RerankerError(f"the reranker's endpoint does not answer: {error}") from None
        raise AssertionError("stamina ends in an answer or in an error")

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, body: bytes) -> Any:
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
                raw = await response.content.read(_MOST_BYTES)
                while not response.content.at_eof() and len(raw) < _MOST_BYTES:
                    raw += await response.content.read(_MOST_BYTES - len(raw))
                status = response.status
        except aiohttp.ClientError as error:
            raise _RetryableError(f"{type(error).__name__}") from error
        if status in _BUSY:
            raise _RetryableError(f"it answered {status}")
        if status != 200:
            raise RerankerError(f"the reranker's endpoint answered {status}: {_shown(raw)}")
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise RerankerError(
                f"the reranker's endpoint answered with something that is not JSON: {_shown(raw)}"
            ) from None


def _scores(answer: Any, documents: int) -> list[float]:
    """Return the scores of Cohere's results, in the documents' order.

    Raises:
        RerankerError: A document has no score, or two, or there are results of something else.
    """
    try:
        found = {result["index"]: result["relevance_score"] for result in answer["results"]}
        results = len(answer["results"])
    except (KeyError, TypeError):
        raise RerankerError("the reranker's endpoint gave no [results] of [index] and [relevance_score]") from None
    if results != documents or found.keys() != set(range(documents)):
        raise RerankerError(f"the reranker's endpoint gave {results} results for {documents} documents, or some twice")
    return [found[place] for place in range(documents)]


def _tell_cost(answer: Any) -> None:
    """Tell what an answer says of its cost, in Cohere's `meta` or in the `usage` of Jina, vLLM and Infinity."""
    usage, meta = _part(answer, "usage"), _part(answer, "meta")
    tokens, billed = _part(meta, "tokens"), _part(meta, "billed_units")
    written = _count(usage, "completion_tokens") or _count(tokens, "output_tokens")
    read = _count(usage, "prompt_tokens") or _count(tokens, "input_tokens") or _count(billed, "input_tokens")
    tell(
        prompt_tokens=read or max(0, _count(usage, "total_tokens") - written),
        completion_tokens=written,
        search_units=_count(billed, "search_units"),
    )


def _part(told: Any, name: str) -> Mapping[str, Any]:
    found = told.get(name) if isinstance(told, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _count(told: Mapping[str, Any], name: str) -> int:
    found = told.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < _MOST_COUNTED:
        return 0
    return int(found)


def _shown(raw: bytes) -> str:
    text = raw[:_SHOWN].decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text)
