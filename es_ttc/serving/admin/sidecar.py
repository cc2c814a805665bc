"""The sidecar protocol for an engine with the plugin: `POST /_ttc/score` and `POST /_ttc/encode`, one CBOR frame each.

docs/reference/sidecar-protocol.md describes the frames. A window that the engine has found is scored as the gateway
scores its own: documents are identified by content hash, and if the feature cache lacks some, the response lists these,
and the engine repeats the request with their blobs from its shards. Documents that the engine is about to index get the
fields that `es-ttc ingest` would write; which these are is read from the index's mapping.
"""

import asyncio
import io
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import cbor2
import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from es_ttc.common.caches import ExpiringCache
from es_ttc.common.validation import Fault, read_object, sentence
from es_ttc.encoders.base import Encoder
from es_ttc.errors import (
    DeadlineExceeded,
    EncoderError,
    EncoderMismatch,
    EngineError,
    EsTtcError,
    InvalidRequest,
    MissingFeature,
    MissingText,
    NotSignedIn,
)
from es_ttc.index.ingest.compose import document_hash, document_json
from es_ttc.index.ingest.encode import encode_documents, feature_fields
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Window
from es_ttc.serving.admin.endpoint import EndpointRunner, carries, json_response
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.features.keys import DocumentKey, is_mark
from es_ttc.serving.features.missing import NoFeatures
from es_ttc.serving.features.reader import MissingFeatures
from es_ttc.serving.features.scorer import without_features
from es_ttc.serving.features.scores import (
    Method,
    PreparedWindow,
    SuppliedDocuments,
    Timings,
    WindowRequest,
    WindowScores,
    scaled_scores,
)
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.pool import slices
from es_ttc.serving.request.section import DEFAULT_METHOD, Section, parse_section, texts_in
from es_ttc.serving.rescore.ranking import pinned_count, ranking_of

PROTOCOL_VERSION = 1
MEDIA_TYPE = "application/cbor"
MAX_DOCUMENTS = 64
"""Documents of an encode request."""
_ENCODING_AT_ONCE = 4
_TOGETHER = 8
_CHARACTERS_TOGETHER = 8192
"""Maximum number of documents, and of their characters, per call of the encoder: after a timeout no more work than this
remains, and searches are encoded in between."""
_SPEC_SECONDS = 60.0
_MAX_CACHED_SPECS = 256
_MAX_MS = 3_600_000

F = TypeVar("F", bound=BaseModel)

Hash = Annotated[str, Field(min_length=1, max_length=200)]


class ProtocolError(EsTtcError):
    """A frame is invalid: a fault of the plugin, not of the search's caller."""

    status = 400
    type = "ttc_protocol_exception"


class ProtocolVersionError(ProtocolError):
    """A frame has another version of the protocol."""

    type = "ttc_protocol_version_exception"


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
    deadline_ms: float = Field(gt=0, le=_MAX_MS, description="What is left of the time for this answer, in ms.")
    window_size: int = Field(ge=1, description="Ranks of the window: documents after it keep their order.")
    documents: list[ScoreRequestDocument] = Field(min_length=1, description="The first pass, best first.")
    features: dict[Hash, dict[str, bytes]] = Field(
        default_factory=dict, description="Blobs by content hash and field, as they are stored."
    )


class EncodeRequest(BaseModel):
    """An encode request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(description="Of the protocol.")
    deadline_ms: float = Field(gt=0, le=_MAX_MS, description="What is left of the time for this answer, in ms.")
    index: Annotated[str, Field(min_length=1, max_length=255)] = Field(description="Where they are to be indexed.")
    documents: list[dict[str, Any]] = Field(
        min_length=1, max_length=MAX_DOCUMENTS, description="Their `_source`, without anything of ours."
    )


class Sidecar:
    """Answers the requests of an engine with the plugin."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._caller = gateway.upstream.gateway_caller()
        self._scoring = EndpointRunner("score", gateway.metrics, gateway.settings.max_concurrent_requests)
        self._encoding = EndpointRunner("encode", gateway.metrics, _ENCODING_AT_ONCE)
        self._specs: ExpiringCache[str, IndexSpec] = ExpiringCache(_MAX_CACHED_SPECS, _SPEC_SECONDS)

    async def score(self, request: Request) -> Response:
        """Score a window that an engine with the plugin has found (docs/reference/sidecar-protocol.md)."""
        return await _framed(request, self._scoring, self._score(request))

    async def encode(self, request: Request) -> Response:
        """Return the features of documents that an engine with the plugin is about to index."""
        return await _framed(request, self._encoding, self._encode(request))

    async def _read(self, model: type[F], request: Request) -> F:
        """Return the frame of a request that carries the token."""
        token = self._settings.sidecar_token
        if token is None:
            raise NotSignedIn("this gateway serves no engines: start it with a sidecar_token (ES_TTC_SIDECAR_TOKEN)")
        if not carries(request.headers.get("authorization", ""), token):
            raise NotSignedIn("the token is missing or wrong: give the engine's node the gateway's sidecar_token")
        raw = await RawRequest(request.scope, request.receive).read()
        return await self._gateway.offload.run(len(raw), read_frame, model, raw)

    async def _score(self, request: Request) -> dict[str, Any]:
        frame = await self._read(ScoreRequest, request)
        if len(frame.documents) > self._settings.max_window:
            raise InvalidRequest(
                f"Rescore window [{len(frame.documents)}] is too large: it must be at most "
                f"[{self._settings.max_window}], the sidecar's limit (max_window)"
            )
        section = parse_section(frame.ttc, default_method=DEFAULT_METHOD)
        if section.candidates is not None and section.candidates.knn:
            raise InvalidRequest(
                "[ttc.candidates] needs a search through the gateway: the engine's plugin sees the window alone"
            )
        for key in (section.relevance_key, section.parts and "parts"):
            if key is not None:
                raise InvalidRequest(f"[ttc.{key}] needs a search through the gateway")
        if not (texts := texts_in(section)):
            raise MissingText("[ttc.query_text] is missing: inside the engine the text must be given here")
        if section.method in STRATEGIES:
            raise InvalidRequest(
                f"method [{section.method}] goes beyond the window, which an engine's rescorer cannot: search through "
                "the gateway"
            )
        rescorer = registry.load(section.method)
        params, tuned = self._gateway.tuned.parse(rescorer, section.params)
        method = Method(rescorer, params, bool(section.detail))
        if method.fields:
            raise InvalidRequest(
                f"method [{section.method}] reads the numeric fields [{', '.join(method.fields)}], which the engine's "
                "plugin does not send: search through the gateway"
            )
        documents, timings = _window_of(frame), Timings()
        pinned = pinned_count(documents.first_pass)
        try:
            async with asyncio.timeout(frame.deadline_ms / 1000):
                caller = replace(self._caller, indices=_indices_of(frame))
                begun = self._gateway.scorer.begin_encoding(method, texts, caller)
                window = WindowRequest(texts, begun, caller, timings)
                scored = await self._scored(documents, method, window, pinned)
        except (MissingFeature, EncoderMismatch) as problem:
            raise NoFeatures(str(problem)) from problem  # for which the plugin answers the first pass
        except TimeoutError:
            raise DeadlineExceeded(f"scoring took longer than its budget of {frame.deadline_ms:.0f} ms") from None
        for stage, ms in timings.as_dict().items():
            if stage != "first_pass":
                self._gateway.metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(scored, MissingFeatures):
            return {"version": PROTOCOL_VERSION, "missing": list(scored.hashes), "fields": list(scored.fields)}
        self._gateway.metrics.skipped(scored.skipped.values())
        return _answer(section, frame, pinned, scored, timings, tuned)

    async def _scored(
        self, documents: SuppliedDocuments, method: Method, request: WindowRequest, pinned: int
    ) -> WindowScores | MissingFeatures:
        """Return the scores of documents that the plugin reads, or the features that it must send."""
        scorer, names = self._gateway.scorer, [str(place) for place in range(len(documents.keys))]
        bare = Window(names, scaled_scores(documents.first_pass, pinned, 0))
        prepared: PreparedWindow | MissingFeatures = without_features(bare, request)
        if method.features.encodes:
            prepared = await scorer.reader.read_sent(documents, bare, method.features, request)
        if isinstance(prepared, MissingFeatures):
            return prepared
        return await scorer.score_read(prepared, documents.first_pass, method, request.timings)

    async def _encode(self, request: Request) -> dict[str, Any]:
        frame = await self._read(EncodeRequest, request)
        if any(ROOT in document for document in frame.documents):
            raise InvalidRequest(f"field [{ROOT}] is reserved for es-ttc's own features: send documents without it")
        try:
            async with asyncio.timeout(frame.deadline_ms / 1000):
                spec = await self._spec(frame.index)
                encoder = await self._gateway.encoders.serving(spec.encoder.key, frame.index)
                encoded: list[dict[str, Any]] = []
                sizes = [_characters(document, spec) for document in frame.documents]
                for some in slices(sizes, most=_TOGETHER, weight=_CHARACTERS_TOGETHER):
                    encoded += await self._gateway.encoding.run(_features, frame.documents[some], spec, encoder)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(frame.documents)}] documents took longer than {frame.deadline_ms:.0f} ms to encode"
            ) from None
        return {"version": PROTOCOL_VERSION, "documents": encoded}

    async def _spec(self, index: str) -> IndexSpec:
        cached = self._specs.get(index)
        if cached is not None:
            return cached.value
        async for written in meta_of(self._gateway.engine.as_caller(self._caller), index, None):
            if len(written) > 1:
                raise InvalidRequest(f"[{index}] stands for {len(written)} indices: name one")
            meta = written[0] if written else None
            if meta is not None and "version" not in meta:
                raise InvalidRequest(f"features of index [{index}] are attached: `es-ttc fill` brings them up to date")
            spec = IndexSpec.from_mapping(index, {"_meta": {ROOT: meta}} if meta is not None else {})
            self._specs.put(index, spec)
            return spec
        raise EngineError(f"the mapping of index [{index}] could not be read: is it there, and may the gateway see it?")


def read_frame(model: type[F], raw: bytes) -> F:
    """Decode and validate a frame from an engine."""
    stream = io.BytesIO(raw)
    try:
        data = cbor2.load(stream)
    except Exception as error:  # noqa: BLE001 - damaged bytes make the decoder raise nearly anything
        raise ProtocolError(f"the frame is no CBOR, or ends too early: {error}") from None
    if stream.read(1):
        raise ProtocolError("the frame is followed by further bytes")
    if not isinstance(data, dict):
        raise ProtocolError("the frame must be a map with the keys of the protocol")
    version = data.get("version")
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise ProtocolVersionError(
            f"the frame is of version [{version!r:.20}] of the protocol, and this gateway speaks [{PROTOCOL_VERSION}]: "
            "use a plugin and a gateway of the same release"
        )
    try:
        return read_object(model, data)
    except Fault as fault:
        raise ProtocolError(sentence(fault, "frame")) from None


async def _framed(request: Request, runner: EndpointRunner, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """Return a CBOR response; an error as JSON, unless the engine accepts CBOR."""
    status, body = await runner.answered(work)
    if status >= 400 and MEDIA_TYPE not in request.headers.get("accept", ""):
        return json_response(request, body, status)
    return Response(cbor2.dumps(body), status, media_type=MEDIA_TYPE)


def _indices_of(frame: ScoreRequest) -> str:
    """Return the indices of a window as in a request's path."""
    return quote(",".join(sorted({document.index for document in frame.documents})), safe=",")


def _window_of(frame: ScoreRequest) -> SuppliedDocuments:
    """Return the documents that are scored."""
    window = frame.documents[: frame.window_size]
    keys = [
        None
        if one.hash is None or one.encoder is None or not is_mark(one.hash, one.encoder)
        else DocumentKey(one.index, one.encoder, one.hash)
        for one in window
    ]
    return SuppliedDocuments(keys, np.array([one.score for one in window], dtype=np.float32), frame.features)


def _answer(
    section: Section,
    frame: ScoreRequest,
    pinned: int,
    scored: WindowScores,
    timings: Timings,
    tuned: Any,
) -> dict[str, Any]:
    first_pass = np.array([document.score for document in frame.documents], dtype=np.float32)
    ranking = ranking_of(section, first_pass, scored.values, scored.mask, pinned)
    after = [None] * (len(frame.documents) - len(scored.mask))
    answer: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "scores": [
            *(
                value if present else None
                for value, present in zip(scored.values.tolist(), scored.mask.tolist(), strict=True)
            ),
            *after,
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
        answer["skipped"] = skip_reasons.skipped_summary(scored.skipped.values())
    return answer


def _characters(document: dict[str, Any], spec: IndexSpec) -> int:
    """Return the approximate number of characters of a document that are encoded."""
    values = (document.get(name) for name in spec.text_fields)
    return sum(len(str(value)) for value in values if value is not None)


def _features(documents: Sequence[dict[str, Any]], spec: IndexSpec, encoder: Encoder) -> list[dict[str, Any]]:
    """Return for each document its fields below ``ttc``, or why it has none; a failure concerns that document only."""
    try:
        return [
            {"ttc": _plain(feature_fields(features, spec), document)}
            for document, features in zip(documents, encode_documents(documents, spec, encoder), strict=True)
        ]
    except (InvalidRequest, EncoderError) as error:
        if len(documents) == 1:
            return [{"error": str(error)}]
        return [feature for document in documents for feature in _features([document], spec, encoder)]


def _plain(fields: dict[str, object], document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with arrays as lists, and with the document's hash."""
    digest = document_hash(document_json(document))
    plain: dict[str, Any] = orjson.loads(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))
    return plain | {"document": digest}
