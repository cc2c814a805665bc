"""`POST /_ttc/v1/embeddings`: pooled vectors of texts in OpenAI's form, from the gateway's encoders.

Inference connectors of the engines, and frameworks, then get vectors of the same encoder that ingest and searches use.
"""

import asyncio
import base64
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from es_ttc.common.validation import did_you_mean, validated
from es_ttc.encoders.base import Encoder
from es_ttc.errors import DeadlineExceeded, InvalidRequest
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.admin.model_body import model_tokens, read_body, require_short
from es_ttc.serving.gateway import Gateway
from es_ttc.vectors.tokens import Float32

MOST_TEXTS = 2048
"""OpenAI's own limit of texts in a request."""

_KIND = "embeddings"
_AT_ONCE = 16
_QUERIES = frozenset({"query", "search_query"})


class EmbeddingsRequest(BaseModel):
    """A request for embeddings in OpenAI's form, with the `input_type` that other services add."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str | tuple[str, ...] = Field(description="One text or several.")
    model: str = Field(min_length=1, max_length=1000, description="Name of an encoder of the gateway.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Numbers, or float32 bytes in base64.")
    dimensions: int | None = Field(None, ge=1, description="Dimensions of the vectors, those of the encoder.")
    input_type: Literal["document", "query", "passage", "search_document", "search_query"] = Field(
        "document", description="Whether the texts are documents or queries: some encoders tell them apart."
    )
    user: str | None = Field(None, description="Accepted, not used.")

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of the request."""
        return [self.input] if isinstance(self.input, str) else list(self.input)


class EmbeddingsService:
    """Answers requests for embeddings."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._encoders = gateway.encoders
        self._models = settings.embedding_models
        self._offload = gateway.offload
        self._tokens = model_tokens(settings)
        self._max_body = settings.max_body_mb * 2**20
        self._timeout_ms = settings.rerank_timeout_ms
        self._requests = EndpointRunner(_KIND, gateway.metrics, _AT_ONCE)

    async def answer(self, request: Request) -> tuple[int, Any]:
        """Answer one request: return its status and body; errors have the engines' format."""
        return await self._requests.answered(self._embed(request))

    async def _embed(self, request: Request) -> dict[str, object]:
        parsed = validated(
            EmbeddingsRequest, await read_body(request, self._tokens, self._offload, self._max_body), _KIND
        )
        texts = parsed.texts
        if not 1 <= len(texts) <= MOST_TEXTS:
            raise InvalidRequest(f"[{_KIND}.input] holds {len(texts)} texts: send 1 to {MOST_TEXTS}")
        require_short(texts, f"{_KIND}.input")
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                encoder = await self._encoder(parsed.model)
                if parsed.dimensions not in (None, encoder.identity.dims):
                    raise InvalidRequest(
                        f"[{_KIND}.dimensions] is {parsed.dimensions}, and vectors of [{parsed.model}] have "
                        f"{encoder.identity.dims}: send that, or leave it out"
                    )
                vectors = await self._vectors(encoder, texts, query=parsed.input_type in _QUERIES)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(texts)}] texts took longer than {self._timeout_ms:.0f} ms to encode: send fewer or shorter "
                "ones, or raise rerank_timeout_ms"
            ) from None
        for place, vector in enumerate(vectors):
            if not vector.any():
                raise InvalidRequest(f"[{_KIND}.input] {place} has no token: it has no vector")
        return response(vectors, parsed)

    async def _encoder(self, model: str) -> Encoder:
        name = self._models.get(model, model)
        if name not in self._encoders.names:
            known = (*self._encoders.names, *self._models)
            raise InvalidRequest(f"[{_KIND}.model] unknown model [{model}]{did_you_mean(model, known)}")
        return await self._encoders.named(name)

    async def _vectors(self, encoder: Encoder, texts: list[str], *, query: bool) -> Float32:
        """Return ``(n, d)`` unit rows; zero for a text without tokens."""
        role: Literal["query", "document"] = "query" if query else "document"
        batches = await self._encoders.encode_texts(encoder, texts, role=role, tokens=False, max_tokens=1)
        return np.concatenate([batch.pooled for batch in batches])


def response(vectors: Float32, parsed: EmbeddingsRequest) -> dict[str, object]:
    """Return the response; nothing is charged, so `usage` counts no tokens."""
    shown = [_base64(vector) if parsed.encoding_format == "base64" else vector.tolist() for vector in vectors]
    return {
        "object": "list",
        "model": parsed.model,
        "data": [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(shown)],
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


def _base64(vector: Float32) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
