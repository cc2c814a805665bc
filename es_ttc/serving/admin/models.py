"""The gateway as a model server: `POST /_ttc/rerank` and `POST /_ttc/v1/embeddings`, from the encoders of its searches.

OpenSearch's ml-commons (a remote model behind a connector) and Elasticsearch's inference (the service `custom`) send a
query and the texts of their own first pass, and expect an index and a score for each. The gateway's first encoder
encodes the texts at query time, so every search encodes its whole window: an index with stored features is much faster.
Rerank requests have the form of Cohere (v1 and v2) and Jina (`documents`), or that of Hugging Face's
text-embeddings-inference (`texts`). What these clients send and the gateway has no use for is accepted, and so is the
name of any model; an unknown key is an error. Embeddings have OpenAI's form.
"""

import asyncio
import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from es_ttc.common.validation import did_you_mean, nearest, shown, validated
from es_ttc.encoders.base import Encoder
from es_ttc.errors import DeadlineExceeded, InvalidRequest, MissingFeature, NotSignedIn
from es_ttc.reranking.rerankers import Passage, PointwiseCalls
from es_ttc.reranking.strategies.base import PartialScores
from es_ttc.reranking.strategies.methods import AUTO, MSMARCO_MINILM
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, Window
from es_ttc.rescorers.blend.normalise import logistic
from es_ttc.rescorers.programs.primitives.lexical import bm25
from es_ttc.serving.admin.endpoint import EndpointRunner, carries_one_of, json_object, received
from es_ttc.serving.features.scores import Method, Timings
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.raw_request import MAX_BODY, RawRequest
from es_ttc.serving.request.response import shortest
from es_ttc.serving.request.section import DEFAULT_METHOD
from es_ttc.vectors.tokens import Float32, TokenVectors

MAX_CHARACTERS = 100_000
"""Of a text; far more than the encoder's token limit."""
MAX_TEXTS = 2048
"""OpenAI's own limit of texts in a request."""
_RERANK, _EMBEDDINGS = "rerank", "embeddings"
_AT_ONCE = 16
_MAX_TOKENS = 1024
_PARAMS: Mapping[str, Mapping[str, Any]] = {
    "blend": {"signals": {"lexical": 0.5, "dense": 0.5, "spectral": 1.0, "late_interaction": 1.0}}
}
"""Parameters of methods: how rare a word is, is counted among the texts alone, so words have half of their weight.

nDCG@10 of 80 queries over 50 texts, with half the weight, the whole weight, and by spectral alone: .362, .350 and .356
on what BM25 finds in Cranfield, .373, .354 and .344 on the nearest texts there, .515, .516 and .492 on NPL.
"""
_AVAILABLE = frozenset({Feature.FIRST_PASS, Feature.POOLED, Feature.REVERSED, Feature.TOKENS, Feature.QUERY_TOKENS})
_QUERIES = frozenset({"query", "search_query"})
_UNUSED = frozenset(
    {
        "max_chunks_per_doc", "max_tokens_per_doc", "priority",  # Cohere's
        "return_embeddings", "truncation",  # Jina's
        "truncate", "truncation_direction",  # TEI's
        "user",
    }
)  # fmt: skip
"""Keys of the clients that change nothing here: texts are always cut at the encoder's length."""


def _with_unused(schema: dict[str, Any]) -> None:
    """Add the unused keys to the JSON Schema of a request."""
    schema["properties"] |= {key: {"description": "Accepted, not used."} for key in sorted(_UNUSED)}


class _Texts(BaseModel):
    """A query and texts; `field` is the key of the texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_with_unused)

    field: ClassVar[str]
    query: str = Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S", description="The query's text.")
    model: str = Field(
        AUTO,
        min_length=1,
        max_length=1000,
        description="Name of the method, or `msmarco-minilm`. Any other model's name means `blend`. `auto`: "
        "`msmarco-minilm` where es-ttc[cross-encoder] is installed, else `blend`.",
    )
    top_n: int | None = Field(None, ge=1, description="Results that are returned, the best ones; all where left out.")


class RerankRequest(_Texts):
    """A rerank request in Cohere's and Jina's form."""

    field: ClassVar[str] = "documents"
    documents: tuple[str | dict[str, Any], ...] = Field(
        min_length=1, description='The texts to be scored, each a string or {"text": ...}, perhaps with other keys.'
    )
    rank_fields: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Keys of documents whose values are the text, joined by a space."
    )
    return_documents: bool = Field(False, description="Whether a result holds its document again.")

    @cached_property
    def passages(self) -> list[str]:
        """The texts, in the order of the request."""
        return [self._text(place, document) for place, document in enumerate(self.documents)]

    def _text(self, place: int, document: str | dict[str, Any]) -> str:
        if isinstance(document, str):
            return document
        texts = [value for key in self.rank_fields if (value := document.get(key)) is not None]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InvalidRequest(
                f"[{_RERANK}.documents] {place} is {shown(document)}: it must be a string, or an object with a text in "
                f"[{', '.join(self.rank_fields)}]"
            )
        return " ".join(texts)

    def answer(self, scores: Float32, method: str) -> dict[str, object]:
        """Return the best results, best first."""
        results: list[dict[str, object]] = []
        for place in _best_first(scores)[: self.top_n]:
            result: dict[str, object] = {"index": place, "relevance_score": shortest(scores[place])}
            if self.return_documents:
                document = self.documents[place]
                result["document"] = {"text": document} if isinstance(document, str) else document
            results.append(result)
        usage = {"total_tokens": 0}  # nothing is charged
        named = {"id": str(uuid.uuid4()), "model": self.model, "ttc": {"method": method}}
        return {**named, "usage": usage, "results": results}


class TextsRequest(_Texts):
    """A rerank request in the form of text-embeddings-inference."""

    field: ClassVar[str] = "texts"
    texts: tuple[str, ...] = Field(min_length=1, description="The texts to be scored.")
    raw_scores: bool = Field(False, description="Accepted; scores are the method's own either way.")
    return_text: bool = Field(False, description="Whether a result holds its text again.")

    @property
    def passages(self) -> list[str]:
        """The texts, in the order of the request."""
        return list(self.texts)

    def answer(self, scores: Float32, method: str) -> list[dict[str, object]]:  # noqa: ARG002
        """Return the best results, best first; this form has no room for the method."""
        results: list[dict[str, object]] = []
        for place in _best_first(scores)[: self.top_n]:
            result: dict[str, object] = {"index": place, "score": shortest(scores[place])}
            results.append(result | {"text": self.texts[place]} if self.return_text else result)
        return results


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


class ModelServer:
    """Answers requests to rerank and to embed texts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._encoders = gateway.encoders
        self._reranking = EndpointRunner(_RERANK, gateway.metrics, _AT_ONCE)
        self._embedding = EndpointRunner(_EMBEDDINGS, gateway.metrics, _AT_ONCE)

    async def rerank(self, request: Request) -> Response:
        """Score texts, in Cohere's and Jina's form, or in that of text-embeddings-inference."""
        return await self._reranking.json(request, self._rerank(request))

    async def embed(self, request: Request) -> Response:
        """Return the vectors of texts, in OpenAI's form."""
        return await self._embedding.json(request, self._embed(request))

    async def _read(self, incoming: RawRequest) -> dict[str, Any]:
        """Return the JSON object in the body of a request that carries a token, if one is configured."""
        tokens = [token for token in (self._settings.model_token, self._settings.admin_token) if token is not None]
        if tokens and not carries_one_of(incoming, *tokens):
            raise NotSignedIn(
                "the token is missing or wrong: send `Authorization: Bearer`, and the gateway's model_token"
            )
        return await json_object(incoming, MAX_BODY, self._gateway.offload)

    async def _rerank(self, request: Request) -> object:
        incoming = received(request)
        body = await self._read(incoming)
        async with incoming.ended_by_disconnect():
            return await self._reranked(parse_rerank(body))

    async def _reranked(self, asked: RerankRequest | TextsRequest) -> object:
        if len(asked.passages) > self._settings.max_window:
            raise InvalidRequest(
                f"[{_RERANK}.{asked.field}] holds {len(asked.passages)} texts: send at most "
                f"[{self._settings.max_window}], the gateway's limit (max_window)"
            )
        _require_short(asked.passages, f"{_RERANK}.{asked.field}")
        name = self._method_name(asked.model)
        if name == MSMARCO_MINILM:
            return asked.answer(await self._cross_encoded(asked.query, asked.passages), name)
        rescorer = registry.load(name)
        method = Method(
            rescorer, registry.parse_params(rescorer, _PARAMS.get(name, {}), self._gateway.served), detail=False
        )
        lacking = {*(rescorer.needs(method.params) - _AVAILABLE), *method.fields}
        if lacking:
            raise MissingFeature(
                f"method [{rescorer.name}] needs [{', '.join(sorted(lacking))}], which texts of a request do not have: "
                "take another [model], or rescore a search of an index that has it"
            )
        try:
            async with asyncio.timeout(self._settings.rerank_timeout_ms / 1000):
                scores = await self._scores(method, asked.query, asked.passages)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(asked.passages)}] texts took longer than {self._settings.rerank_timeout_ms:.0f} ms to encode "
                "and score: send fewer or shorter ones, or raise rerank_timeout_ms"
            ) from None
        return asked.answer(scores, name)

    def _method_name(self, model: str) -> str:
        """Return the method that a model's name means."""
        name = self._settings.model_names.get(model, model)
        if name == AUTO:
            return MSMARCO_MINILM if MSMARCO_MINILM in self._gateway.rerankers.names else DEFAULT_METHOD
        if name == MSMARCO_MINILM or nearest(name, registry.names()):  # a misspelt method is an error that names it
            return name
        return DEFAULT_METHOD

    async def _cross_encoded(self, query: str, texts: Sequence[str]) -> Float32:
        """Return ``(n,)`` scores by the cross-encoder, in (0, 1)."""
        calls = self._gateway.rerankers.named(MSMARCO_MINILM)
        assert isinstance(calls, PointwiseCalls)  # noqa: S101 - it returns scores
        passages = [Passage(hashlib.sha256(text.encode()).hexdigest(), text) for text in texts]
        try:
            scores = await calls.scores(query, passages, seconds=self._settings.rerank_timeout_ms / 1000)
        except PartialScores as partial:
            raise partial.cause from None
        return logistic(np.array(scores))

    async def _scores(self, method: Method, query: str, texts: Sequence[str]) -> Float32:
        """Return ``(n,)`` scores for the response; 0 for a text without tokens."""
        encoder = await self._encoders.first()
        encoded = await self._encoders.encode(encoder, (query,), tokens=method.features.query_tokens)
        with_tokens = Feature.TOKENS in method.features.stored
        batches = await self._encoders.encode_texts(
            encoder, texts, role="document", tokens=with_tokens, max_tokens=_MAX_TOKENS
        )
        pooled = np.concatenate([batch.pooled for batch in batches])
        as_queries = None
        if Feature.REVERSED in method.features.required and encoder.distinguishes_roles:
            as_queries = await self._vectors(encoder, texts, "query", _MAX_TOKENS)
        scores = np.zeros(len(texts), dtype=np.float32)
        places = np.flatnonzero(pooled.any(axis=1))
        if len(places):
            by_words = np.zeros(len(places), dtype=np.float32)  # in place of a first pass
            if Feature.FIRST_PASS in method.features.required:
                by_words = await self._gateway.scoring.run(bm25, query, [texts[place] for place in places.tolist()])
            order = np.argsort(-by_words, kind="stable")
            places, by_words = places[order], by_words[order]
            matrices = [matrix for batch in batches for matrix in batch.tokens]
            window = Window(
                ids=[str(place) for place in places],
                first_pass=by_words,
                pooled=pooled[places],
                tokens=[TokenVectors(matrices[place]) for place in places] if with_tokens else None,
                reversed=None if as_queries is None else as_queries[places],
            )
            scores[places], _ = await self._gateway.scorer.run(method, encoded.query, window, Timings())
        return scores

    async def _embed(self, request: Request) -> dict[str, object]:
        incoming = received(request)
        body = await self._read(incoming)
        async with incoming.ended_by_disconnect():
            return await self._embedded(validated(EmbeddingsRequest, body, _EMBEDDINGS))

    async def _embedded(self, parsed: EmbeddingsRequest) -> dict[str, object]:
        texts = [parsed.input] if isinstance(parsed.input, str) else list(parsed.input)
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"[{_EMBEDDINGS}.input] holds {len(texts)} texts: send 1 to {MAX_TEXTS}")
        _require_short(texts, f"{_EMBEDDINGS}.input")
        try:
            async with asyncio.timeout(self._settings.rerank_timeout_ms / 1000):
                encoder = await self._encoder(parsed.model)
                if parsed.dimensions not in (None, encoder.identity.dims):
                    raise InvalidRequest(
                        f"[{_EMBEDDINGS}.dimensions] is {parsed.dimensions}, and vectors of [{parsed.model}] have "
                        f"{encoder.identity.dims}: send that, or leave it out"
                    )
                role: Literal["query", "document"] = "query" if parsed.input_type in _QUERIES else "document"
                vectors = await self._vectors(encoder, texts, role, 1)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(texts)}] texts took longer than {self._settings.rerank_timeout_ms:.0f} ms to encode: send "
                "fewer or shorter ones, or raise rerank_timeout_ms"
            ) from None
        for place, vector in enumerate(vectors):
            if not vector.any():
                raise InvalidRequest(f"[{_EMBEDDINGS}.input] {place} has no token: it has no vector")
        shown = [_base64(vector) if parsed.encoding_format == "base64" else vector.tolist() for vector in vectors]
        return {
            "object": "list",
            "model": parsed.model,
            "data": [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(shown)],
            "usage": {"prompt_tokens": 0, "total_tokens": 0},  # nothing is charged
        }

    async def _encoder(self, model: str) -> Encoder:
        names, encoders = self._settings.model_names, self._encoders.names
        name = names.get(model, model)
        if name not in encoders:
            known = (*encoders, *(other for other, meant in names.items() if meant in encoders))
            raise InvalidRequest(f"[{_EMBEDDINGS}.model] unknown model [{model}]{did_you_mean(model, known)}")
        return await self._encoders.named(name)

    async def _vectors(
        self, encoder: Encoder, texts: Sequence[str], role: Literal["query", "document"], max_tokens: int
    ) -> Float32:
        """Return ``(n, d)`` unit rows; zero for a text without tokens."""
        batches = await self._encoders.encode_texts(encoder, texts, role=role, tokens=False, max_tokens=max_tokens)
        return np.concatenate([batch.pooled for batch in batches])


def parse_rerank(body: Mapping[str, Any]) -> RerankRequest | TextsRequest:
    """Return a request in the form that its keys show, or raise an InvalidRequest."""
    used = {key: value for key, value in body.items() if key not in _UNUSED and value is not None}
    if "texts" in used and "documents" not in used:
        return validated(TextsRequest, used, _RERANK)
    return validated(RerankRequest, used, _RERANK)


def _best_first(scores: Float32) -> list[int]:
    """Return the places of scores from the greatest to the least; equal ones keep their order."""
    places: list[int] = np.argsort(-scores, kind="stable").tolist()
    return places


def _base64(vector: Float32) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _require_short(texts: list[str], field: str) -> None:
    for place, one in enumerate(texts):
        if len(one) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"[{field}] {place} has {len(one)} characters: send at most {MAX_CHARACTERS} of a text"
            )
