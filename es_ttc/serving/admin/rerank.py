"""`POST /_ttc/rerank`: score texts in the request, in Cohere's format, for engines that call a reranker themselves.

OpenSearch's ml-commons (a remote model behind a connector) and Elasticsearch's inference (the service `custom`) send a
query and the texts of their own first pass, and expect an index and a score for each. The gateway's first encoder
encodes the texts at query time, so every search encodes its whole window: an index with stored features is much faster.
This endpoint is for installations in which clients cannot use the gateway's address.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from es_ttc.common.validation import validated
from es_ttc.encoders.base import Encodings
from es_ttc.errors import DeadlineExceeded, InvalidRequest, MissingFeature
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, Window
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.features.scores import Method, Timings
from es_ttc.serving.features.scoring import WindowScorer
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.pool import Offload
from es_ttc.serving.rescore.page import shortest
from es_ttc.vectors.tokens import Float32, TokenVectors

MAX_CHARACTERS = 100_000
"""Of the query, and of each text; far more than the encoder's token limit."""

_MAX_TOKENS = 1024
_AT_ONCE = 16
_AVAILABLE = frozenset({Feature.POOLED, Feature.TOKENS, Feature.QUERY_TOKENS})
_KIND = "rerank"


class RerankDocument(BaseModel):
    """A text as an object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(max_length=MAX_CHARACTERS, description="The text.")


class RerankRequest(BaseModel):
    """A rerank request in Cohere's format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str = Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S", description="The query's text.")
    documents: tuple[str | RerankDocument, ...] = Field(
        min_length=1, description='The texts to be scored, each a string or {"text": ...}.'
    )
    top_n: int | None = Field(None, ge=1, description="Results that are returned, the best ones; all where left out.")
    return_documents: bool = Field(False, description="Whether a result holds its text again.")
    model: str = Field("spectral", min_length=1, max_length=100, description="Name of the method.")

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of the request."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class RerankService:
    """Answers rerank requests.

    Args:
        encoders: The encoders; the first one is used.
        scorer: Runs methods.
        metrics: Receives every request.
        offload: Decodes long requests.
        max_body: Maximum size of a body, in bytes.
        max_documents: Maximum number of texts in a request.
        timeout_ms: Timeout of a request.
    """

    def __init__(
        self,
        encoders: Encoders,
        scorer: WindowScorer,
        metrics: Metrics,
        offload: Offload,
        *,
        max_body: int,
        max_documents: int,
        timeout_ms: float,
    ) -> None:
        self._encoders = encoders
        self._scorer = scorer
        self._offload = offload
        self._max_body = max_body
        self._max_documents = max_documents
        self._timeout_ms = timeout_ms
        self._requests = EndpointRunner(_KIND, metrics, _AT_ONCE)

    async def answer(self, request: Request) -> tuple[int, dict[str, object]]:
        """Answer one request: return its status and body; errors have the engines' format."""
        return await self._requests.answered(self._rerank(request))

    async def _rerank(self, request: Request) -> dict[str, object]:
        parsed = await self._read(request)
        rescorer = registry.load(parsed.model)
        method = Method(rescorer, registry.parse_params(rescorer, {}), detail=False)
        lacking = rescorer.needs(method.params) - _AVAILABLE
        if lacking:
            raise MissingFeature(
                f"method [{parsed.model}] needs [{', '.join(sorted(lacking))}], which texts that are sent along do not "
                "have: take another [model], or rescore a search of an index that has it"
            )
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                scores = await self._scores(method, parsed.query, parsed.texts)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(parsed.documents)}] texts took longer than {self._timeout_ms:.0f} ms to encode and score: send "
                "fewer or shorter ones, or raise rerank_timeout_ms"
            ) from None
        return {"results": results(parsed, scores)}

    async def _read(self, request: Request) -> RerankRequest:
        incoming = RawRequest(request.scope, request.receive)
        body = await incoming.read(self._max_body)
        encoding = incoming.header(b"content-encoding")
        text = await self._offload.run(len(body), decompressed, body, encoding, self._max_body)
        if text is None:
            raise InvalidRequest("the body's Content-Encoding is unknown: send gzip, or no encoding")
        parsed = await self._offload.run(len(text), _decoded, text)
        if len(parsed.documents) > self._max_documents:
            raise InvalidRequest(
                f"[{_KIND}.documents] holds {len(parsed.documents)} texts: send at most [{self._max_documents}], the "
                "gateway's limit (max_window)"
            )
        for place, one in enumerate(parsed.texts):
            if len(one) > MAX_CHARACTERS:
                raise InvalidRequest(
                    f"[{_KIND}.documents] {place} has {len(one)} characters: send at most {MAX_CHARACTERS} of a text"
                )
        return parsed

    async def _scores(self, method: Method, query: str, texts: Sequence[str]) -> Float32:
        """Return ``(n,)`` scores for the response; 0 for a text without tokens."""
        encoder = await self._encoders.first()
        encoded = await self._encoders.encode(encoder, (query,), tokens=method.query_tokens)
        with_tokens = Feature.TOKENS in method.needs
        batches = await self._encoders.encode_documents(encoder, texts, tokens=with_tokens, max_tokens=_MAX_TOKENS)
        pooled = np.concatenate([batch.pooled for batch in batches])
        places = np.flatnonzero(pooled.any(axis=1))
        scores = np.zeros(len(texts), dtype=np.float32)
        if len(places):
            window = _window(batches, pooled, places.tolist(), tokens=with_tokens)
            scores[places] = await self._scorer.run(method, encoded.query, window, Timings())
        return scores


def _decoded(text: bytes) -> RerankRequest:
    return validated(RerankRequest, jsonio.loads_object(text, "the body"), _KIND)


def results(parsed: RerankRequest, scores: Float32) -> list[dict[str, object]]:
    """Return the best results, best first; equal ones in the order of the request."""
    found: list[dict[str, object]] = []
    texts = parsed.texts
    for place in np.argsort(-scores, kind="stable")[: parsed.top_n].tolist():
        result: dict[str, object] = {"index": place, "relevance_score": shortest(scores[place])}
        if parsed.return_documents:
            result["document"] = {"text": texts[place]}
        found.append(result)
    return found


def _window(batches: Sequence[Encodings], pooled: Float32, places: Sequence[int], *, tokens: bool) -> Window:
    """Return the texts that have tokens as a window without first-pass scores."""
    matrices = [matrix for batch in batches for matrix in batch.tokens]
    return Window(
        ids=[str(place) for place in places],
        first_pass=np.zeros(len(places), dtype=np.float32),
        pooled=pooled[places],
        tokens=[TokenVectors(matrices[place]) for place in places] if tokens else None,
    )
