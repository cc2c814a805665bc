"""`POST /_ttc/rerank`: score texts in the request, for engines and clients that call a reranker themselves.

OpenSearch's ml-commons (a remote model behind a connector) and Elasticsearch's inference (the service `custom`) send a
query and the texts of their own first pass, and expect an index and a score for each. The gateway's first encoder
encodes the texts at query time, so every search encodes its whole window: an index with stored features is much faster.
This endpoint is for installations in which clients cannot use the gateway's address.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.errors import DeadlineExceeded, InvalidRequest, MissingFeature
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, Window
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.admin.model_body import model_tokens, read_body, require_short
from es_ttc.serving.admin.rerank_request import KIND, RerankRequest, TextsRequest, parsed
from es_ttc.serving.features.scores import Method, Timings
from es_ttc.serving.gateway import Gateway
from es_ttc.vectors.tokens import Float32, TokenVectors

_MAX_TOKENS = 1024
_AT_ONCE = 16
_AVAILABLE = frozenset({Feature.POOLED, Feature.REVERSED, Feature.TOKENS, Feature.QUERY_TOKENS})


class RerankService:
    """Answers rerank requests."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._encoders = gateway.encoders
        self._scorer = gateway.scorer
        self._models = settings.rerank_models
        self._offload = gateway.offload
        self._tokens = model_tokens(settings)
        self._max_body = settings.max_body_mb * 2**20
        self._max_documents = settings.max_window
        self._timeout_ms = settings.rerank_timeout_ms
        self._requests = EndpointRunner(KIND, gateway.metrics, _AT_ONCE)

    async def answer(self, request: Request) -> tuple[int, Any]:
        """Answer one request: return its status and body; errors have the engines' format."""
        return await self._requests.answered(self._rerank(request))

    async def _rerank(self, request: Request) -> object:
        asked = await self._read(request)
        rescorer = registry.load(self._models.get(asked.model, asked.model))
        method = Method(rescorer, registry.parse_params(rescorer, {}), detail=False)
        lacking = {*(rescorer.needs(method.params) - _AVAILABLE), *method.fields}
        if lacking:
            raise MissingFeature(
                f"method [{rescorer.name}] needs [{', '.join(sorted(lacking))}], which texts of a request do not have: "
                "take another [model], or rescore a search of an index that has it"
            )
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                scores = await self._scores(method, asked.query, asked.passages)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(asked.passages)}] texts took longer than {self._timeout_ms:.0f} ms to encode and score: send "
                "fewer or shorter ones, or raise rerank_timeout_ms"
            ) from None
        return asked.answer(scores)

    async def _read(self, request: Request) -> RerankRequest | TextsRequest:
        asked = parsed(await read_body(request, self._tokens, self._offload, self._max_body))
        if len(asked.passages) > self._max_documents:
            raise InvalidRequest(
                f"[{KIND}.{asked.field}] holds {len(asked.passages)} texts: send at most [{self._max_documents}], the "
                "gateway's limit (max_window)"
            )
        require_short(asked.passages, f"{KIND}.{asked.field}")
        return asked

    async def _scores(self, method: Method, query: str, texts: Sequence[str]) -> Float32:
        """Return ``(n,)`` scores for the response; 0 for a text without tokens."""
        encoder = await self._encoders.first()
        encoded = await self._encoders.encode(encoder, (query,), tokens=method.query_tokens)
        with_tokens = Feature.TOKENS in method.needs
        batches = await self._encoders.encode_texts(
            encoder, texts, role="document", tokens=with_tokens, max_tokens=_MAX_TOKENS
        )
        pooled = np.concatenate([batch.pooled for batch in batches])
        places = np.flatnonzero(pooled.any(axis=1))
        as_queries = await self._as_queries(encoder, texts) if method.reads_reversed else None
        scores = np.zeros(len(texts), dtype=np.float32)
        if len(places):
            window = _window(batches, pooled, places.tolist(), tokens=with_tokens)
            window = replace(window, reversed=None if as_queries is None else as_queries[places])
            scores[places] = await self._scorer.run(method, encoded.query, window, Timings())
        return scores

    async def _as_queries(self, encoder: Encoder, texts: Sequence[str]) -> Float32 | None:
        """Return the texts' pooled vectors as queries; None for an encoder that does not distinguish roles."""
        if not encoder.distinguishes_roles:
            return None
        batches = await self._encoders.encode_texts(encoder, texts, role="query", tokens=False, max_tokens=_MAX_TOKENS)
        return np.concatenate([batch.pooled for batch in batches])


def _window(batches: Sequence[Encodings], pooled: Float32, places: Sequence[int], *, tokens: bool) -> Window:
    """Return the texts that have tokens as a window without first-pass scores."""
    matrices = [matrix for batch in batches for matrix in batch.tokens]
    return Window(
        ids=[str(place) for place in places],
        first_pass=np.zeros(len(places), dtype=np.float32),
        pooled=pooled[places],
        tokens=[TokenVectors(matrices[place]) for place in places] if tokens else None,
    )
