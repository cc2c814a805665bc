"""Documents that are encoded right after the engine has written them, before its response is sent on.

Where features cannot travel with a document, the engine's response says what was written: in an attached index, whose
features are in another place; behind an alias or a data stream, which may stand for another index at any moment; after
an `_update`, whose result only the engine knows. The gateway's own account reads these documents and writes their
features. What is not done in time is pending as before, and a worker does it.
"""

import asyncio
import gzip
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson
from starlette.types import Message, Send

from es_ttc.encoders.base import Encoder
from es_ttc.index.attach.encode_by_id import WrittenDocument, encode_just_written
from es_ttc.index.attach.fill import encode_items
from es_ttc.index.attach.target import FeatureWrite
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.logs import log
from es_ttc.serving.pool import work_of
from es_ttc.serving.request.response import compressed
from es_ttc.serving.writes.targets import Locations

_KIND = "write"
_MAX_TOGETHER = 32
_MAX_RESPONSE = 8 * 2**20
_CHANGED = ("created", "updated")
_WITH_PIPELINE = ("index", "create")
"""Operations of a `_bulk` that pass the index's pipeline."""


class BufferedResponse:
    """A response that is kept until :meth:`release`, unless it is too long: then it is passed on as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self.size = 0
        self._passing = False

    async def __call__(self, message: Message) -> None:
        """Keep a message."""
        self._held.append(message)
        self.size += len(message.get("body", b""))
        if self._passing or self.size > _MAX_RESPONSE:
            await self.release([])

    async def release(self, headers: RawHeaders) -> None:
        """Send what was kept, with further headers unless it has begun."""
        if not self._passing and self._held:
            self._held[0]["headers"] = [*self._held[0]["headers"], *headers]
        self._passing = True
        held, self._held = self._held, []
        for message in held:
            await self._send(message)

    def replace(self, make: Callable[[], bytes]) -> None:
        """Replace the body of a complete response, and compress it if it was compressed."""
        body = compressed(make()) if self._is_compressed else make()
        start = self._held[0]
        headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        start["headers"] = [*headers, (b"content-length", b"%d" % len(body))]
        self._held[1:] = [{"type": "http.response.body", "body": body, "more_body": False}]

    def decoded(self) -> Any:
        """Return the JSON of a complete response; None if it is none, or has begun."""
        if self._passing or not self._held:
            return None
        body = b"".join(message.get("body", b"") for message in self._held[1:])
        with suppress(ValueError, OSError, zlib.error, EOFError):
            return orjson.loads(gzip.decompress(body) if self._is_compressed else body)
        return None

    @property
    def _is_compressed(self) -> bool:
        return any(name.lower() == b"content-encoding" for name, _ in self._held[0]["headers"])


class PostWriteEncoder:
    """Encodes written documents, with the gateway's own account."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._engine = gateway.engine.as_gateway().protocol()

    async def encode(
        self, answer: Any, locations: Locations, seconds: float, *, refresh: bool = False
    ) -> tuple[int, int]:
        """Encode what a response names; return the number of documents with features, and of the others."""
        written, unknown = _written_in(answer, locations)
        total = unknown + sum(map(len, written.values()))
        done = 0
        try:
            async with asyncio.timeout(seconds):
                for index, by_id in written.items():
                    held, documents = locations[index], [*by_id.values()]
                    encoder = await self._gateway.encoders.serving(held.spec.encoder.key, index)
                    for start in range(0, len(documents), _MAX_TOGETHER):
                        part = documents[start : start + _MAX_TOGETHER]
                        done += await encode_just_written(self._engine, held, part, encoder, self._encode)
                    if refresh:
                        await self._engine.refresh(held.index)
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever fails, the documents are written, and pending
            log.warning("documents could not be encoded", problem=f"{type(error).__name__}: {error}")
        return done, total - done

    async def _encode(self, documents: Sequence[Any], spec: IndexSpec, encoder: Encoder) -> list[FeatureWrite]:
        with work_of(_KIND):
            return await self._gateway.encoding.run(encode_items, documents, spec, encoder)


def _written_in(answer: Any, locations: Locations) -> tuple[dict[str, dict[str, WrittenDocument]], int]:
    """Return the documents that a response names, by index and id, and the number of those that cannot be encoded now.

    Of several writes of one document the last one counts.
    """
    written: dict[str, dict[str, WrittenDocument]] = defaultdict(dict)
    unknown = 0
    if not isinstance(answer, dict):
        return written, 1
    items = [(next(iter(item)), next(iter(item.values()))) for item in answer.get("items", ())] or [("index", answer)]
    for operation, item in items:
        if item.get("result", "created") not in _CHANGED or item.get("error") is not None:
            continue
        try:
            document = WrittenDocument(item["_id"], item["_seq_no"], item["_primary_term"])
            held = locations.get(item["_index"])
        except KeyError:  # `filter_path` has left it out
            unknown += 1
            continue
        if held is not None and (held.side or operation in _WITH_PIPELINE):
            written[held.source.index][document.id] = document
        elif held is not None:
            unknown += 1
    return written, unknown
