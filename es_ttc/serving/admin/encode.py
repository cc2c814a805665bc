"""`POST /_ttc/encode`: the features of documents that an engine is about to index, for its ingest processor.

It is the second part of the sidecar protocol (docs/reference/sidecar-protocol.md). The features of an index are read
from its mapping, so a document gets the fields that `es-ttc ingest` would write.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from es_ttc.common.caches import ExpiringCache
from es_ttc.encoders.base import Encoder
from es_ttc.errors import DeadlineExceeded, EncoderError, EngineError, InvalidRequest
from es_ttc.index.ingest.compose import document_hash, document_json
from es_ttc.index.ingest.encode import encode_documents, feature_fields
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.admin.frames import PROTOCOL_VERSION, read_frame, require_token
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.pool import slices

MOST_DOCUMENTS = 64

_KIND = "encode"
_AT_ONCE = 4
_TOGETHER = 8
_CHARACTERS_TOGETHER = 8192
"""Maximum number of documents, and of their characters, per call of the encoder: after a timeout no more work than this
remains, and searches are encoded in between."""
_SPEC_SECONDS = 60.0
_MAX_CACHED_SPECS = 256
_MOST_MS = 3_600_000


class EncodeRequest(BaseModel):
    """An encode request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(description="Of the protocol.")
    deadline_ms: float = Field(gt=0, le=_MOST_MS, description="What is left of the time for this answer, in ms.")
    index: Annotated[str, Field(min_length=1, max_length=255)] = Field(description="Where they are to be indexed.")
    documents: list[dict[str, Any]] = Field(
        min_length=1, max_length=MOST_DOCUMENTS, description="Their `_source`, without anything of ours."
    )


class DocumentEncodingService:
    """Answers encode requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._upstream = gateway.upstream
        self._encoders = gateway.encoders
        self._pool = gateway.encoding
        self._token = gateway.settings.sidecar_token
        self._offload = gateway.offload
        self._max_body = gateway.settings.max_body_mb * 2**20
        self._requests = EndpointRunner(_KIND, gateway.metrics, _AT_ONCE)
        self._specs: ExpiringCache[str, IndexSpec] = ExpiringCache(_MAX_CACHED_SPECS, _SPEC_SECONDS)

    async def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Answer one request: return its status and body; errors have the engines' format."""
        return await self._requests.answered(self._encode(request))

    async def _encode(self, request: Request) -> dict[str, Any]:
        require_token(request.headers.get("authorization", ""), self._token)
        raw = await RawRequest(request.scope, request.receive).read(self._max_body)
        frame = await self._offload.run(len(raw), read_frame, EncodeRequest, raw)
        if any(ROOT in document for document in frame.documents):
            raise InvalidRequest(f"field [{ROOT}] is reserved for es-ttc's own features: send documents without it")
        try:
            async with asyncio.timeout(frame.deadline_ms / 1000):
                spec = await self._spec(frame.index)
                encoder = await self._encoders.serving(spec.encoder.key, frame.index)
                encoded: list[dict[str, Any]] = []
                sizes = [_characters(document, spec) for document in frame.documents]
                for some in slices(sizes, most=_TOGETHER, weight=_CHARACTERS_TOGETHER):
                    encoded += await self._pool.run(_features, frame.documents[some], spec, encoder)
        except TimeoutError:
            raise DeadlineExceeded(
                f"[{len(frame.documents)}] documents took longer than {frame.deadline_ms:.0f} ms to encode"
            ) from None
        return {"version": PROTOCOL_VERSION, "documents": encoded}

    async def _spec(self, index: str) -> IndexSpec:
        cached = self._specs.get(index)
        if cached is not None:
            return cached.value
        spec = await self._read_spec(index)
        self._specs.put(index, spec)
        return spec

    async def _read_spec(self, index: str) -> IndexSpec:
        caller = Caller(self._upstream.service_headers())
        async for written in meta_of(self._upstream, index, None, caller):
            if len(written) > 1:
                raise InvalidRequest(f"[{index}] stands for {len(written)} indices: name one")
            meta = written[0] if written else None
            if meta is not None and "version" not in meta:
                raise InvalidRequest(f"features of index [{index}] are attached: `es-ttc fill` brings them up to date")
            return IndexSpec.from_mapping(index, {"_meta": {ROOT: meta}} if meta is not None else {})
        raise EngineError(f"the mapping of index [{index}] could not be read: is it there, and may the gateway see it?")


def _characters(document: dict[str, Any], spec: IndexSpec) -> int:
    """Return the approximate number of characters of a document that are encoded."""
    found = (document.get(name) for name in spec.text_fields)
    return sum(len(value) if isinstance(value, str) else len(str(value)) for value in found if value is not None)


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
        return [one for document in documents for one in _features([document], spec, encoder)]


def _plain(fields: dict[str, object], document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with arrays as lists, and with the document's hash."""
    digest = document_hash(document_json(document))
    plain: dict[str, Any] = orjson.loads(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))
    return plain | {"document": digest}
