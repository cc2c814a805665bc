"""`POST /_ttc/score`: score a window that an engine with the plugin has found, in the same way as the gateway.

Request and response are one CBOR frame each; docs/reference/sidecar-protocol.md describes them. Documents are
identified by content hash. If the feature cache lacks some of them, the response lists these, and the engine repeats
the request with their blobs from its shards.
"""

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from es_ttc.errors import DeadlineExceeded, EncoderMismatch, InvalidRequest, MissingFeature, MissingText
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.admin.frames import PROTOCOL_VERSION, read_frame, require_token
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.keys import DocumentKey, is_mark
from es_ttc.serving.features.scores import Method, ScoringRequest, SuppliedDocuments, Timings, WindowScores
from es_ttc.serving.features.skip_reasons import NoFeatures
from es_ttc.serving.features.store import MissingFeatures
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.request.section import DEFAULT_METHOD, Section, parse_section, texts_in
from es_ttc.serving.rescore.page import pinned_count, ranking_of

_KIND = "score"
_MOST_MS = 3_600_000


Hash = Annotated[str, Field(min_length=1, max_length=200)]


class ScoreRequestDocument(BaseModel):
    """One document of the first pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: Hash | None = Field(description="Its `ttc.hash`; null for a document without features.")
    encoder: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(description="Its `ttc.encoder`.")
    score: float = Field(ge=0, allow_inf_nan=False, description="The engine's score of it.")
    index: Annotated[str, Field(min_length=1, max_length=255)] = Field(description="Its concrete index.")


class ScoreRequest(BaseModel):
    """A score request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(description="Of the protocol.")
    ttc: dict[str, Any] = Field(description="The section of the search; it names its text.")
    deadline_ms: float = Field(gt=0, le=_MOST_MS, description="What is left of the time for this answer, in ms.")
    block: int = Field(ge=1, description="Ranks of a block: no document leaves its block.")
    documents: list[ScoreRequestDocument] = Field(min_length=1, description="The first pass, best first.")
    features: dict[Hash, dict[str, bytes]] = Field(
        default_factory=dict, description="Blobs by content hash and field, as they are stored."
    )


class SidecarService:
    """Answers score requests."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._scorer = gateway.scorer
        self._tuned = gateway.tuned
        self._metrics = gateway.metrics
        self._token = settings.sidecar_token
        self._offload = gateway.offload
        self._max_body = settings.max_body_mb * 2**20
        self._max_documents = settings.max_window
        self._caller = Caller(gateway.upstream.service_headers())
        self._requests = EndpointRunner(_KIND, gateway.metrics, settings.max_concurrent_requests)

    async def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Answer one request: return its status and body; errors have the engines' format."""
        return await self._requests.answered(self._score(request))

    async def _score(self, request: Request) -> dict[str, Any]:
        require_token(request.headers.get("authorization", ""), self._token)
        raw = await RawRequest(request.scope, request.receive).read(self._max_body)
        frame = await self._offload.run(len(raw), read_frame, ScoreRequest, raw)
        if len(frame.documents) > self._max_documents:
            raise InvalidRequest(
                f"Rescore window [{len(frame.documents)}] is too large: it must be at most [{self._max_documents}], "
                "the sidecar's limit (max_window)"
            )
        section = parse_section(frame.ttc, default_method=DEFAULT_METHOD)
        if section.candidates is not None and section.candidates.knn:
            raise InvalidRequest(
                "[ttc.candidates] needs a search through the gateway: the engine's plugin sees the window alone"
            )
        texts = _texts(section)
        if section.method in STRATEGIES:
            raise InvalidRequest(
                f"method [{section.method}] goes beyond the window, which an engine's rescorer cannot: search through "
                "the gateway"
            )
        rescorer = registry.load(section.method)
        params, tuned = self._tuned.parse(rescorer, section.params)
        method = Method(rescorer, params, bool(section.detail))
        if method.fields:
            raise InvalidRequest(
                f"method [{section.method}] reads the numeric fields [{', '.join(method.fields)}], which the engine's "
                "plugin does not send: search through the gateway"
            )
        documents = _sent(frame)
        timings = Timings()
        try:
            async with asyncio.timeout(frame.deadline_ms / 1000):
                begun = self._scorer.begin_encoding(method, texts)
                scoring = ScoringRequest(method, texts, begun, self._caller, timings)
                pinned = pinned_count(documents.first_pass[: frame.block])
                scored = await self._scorer.score_sent(documents, scoring, pinned=pinned)
        except (MissingFeature, EncoderMismatch) as problem:
            raise NoFeatures(str(problem)) from problem  # for which the plugin answers the first pass
        except TimeoutError:
            raise DeadlineExceeded(f"scoring took longer than its budget of {frame.deadline_ms:.0f} ms") from None
        for stage, ms in timings.as_dict().items():
            if stage != "first_pass":
                self._metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(scored, MissingFeatures):
            return {"version": PROTOCOL_VERSION, "missing": list(scored.hashes), "fields": list(scored.fields)}
        self._metrics.skipped(scored.skipped.values())
        return _answer(section, frame, documents, scored, timings, tuned)


def _texts(section: Section) -> tuple[str, ...]:
    texts = texts_in(section)
    if not texts:
        raise MissingText("[ttc.query_text] is missing: inside the engine the text must be given here")
    return texts


def _sent(frame: ScoreRequest) -> SuppliedDocuments:
    keys = [
        None
        if one.hash is None or one.encoder is None or not is_mark(one.hash, one.encoder)
        else DocumentKey(one.index, one.encoder, one.hash)
        for one in frame.documents
    ]
    return SuppliedDocuments(keys, np.array([one.score for one in frame.documents], dtype=np.float32), frame.features)


def _answer(
    section: Section,
    frame: ScoreRequest,
    documents: SuppliedDocuments,
    scored: WindowScores,
    timings: Timings,
    tuned: Any,
) -> dict[str, Any]:
    pinned = pinned_count(documents.first_pass[: frame.block])
    ranking = ranking_of(section, documents.first_pass, scored.values, scored.mask, frame.block, pinned)
    answer: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "scores": [
            value if present else None
            for value, present in zip(scored.values.tolist(), scored.mask.tolist(), strict=True)
        ],
        "order": ranking.order.tolist(),
        "final": ranking.scores.tolist(),
        "from_memory": scored.from_memory,
        "took": timings.as_dict(),
    }
    if tuned:
        answer["tuned"] = dict(tuned)
    if scored.encoder is not None:
        answer["encoder"] = scored.encoder
    if scored.skipped:
        answer["skipped"] = skip_reasons.summary(scored.skipped.values())
    return answer
