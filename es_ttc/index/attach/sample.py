"""The codebook of residual codecs, learned from the index to which features are attached."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.sample import DOCUMENTS, learn_codebook
from es_ttc.index.mappings.indices import Index, all_sides_of
from es_ttc.vectors.residual import Bits

_AT_ONCE = 100


async def first_codebook(
    engine: Engine,
    sources: Sequence[Index],
    text_fields: Sequence[str],
    encoder: Encoder,
    bits: Bits,
    report: Callable[[int], None] = lambda _done: None,
) -> bytes:
    """Return a packed codebook, learned from the first documents of some indices.

    Raises:
        InvalidRequest: None of these documents has text.
        EncoderError: A text could not be encoded.
        EngineError: The engine returned an error.
    """
    documents: list[Mapping[str, Any]] = []
    for source in sources:
        found = engine.scan(source.index, {"match_all": {}}, source=list(text_fields), batch=_AT_ONCE)
        async for hit in found:
            if len(documents) == DOCUMENTS:
                break
            documents.append(hit.get("_source") or {})
    return await asyncio.to_thread(learn_codebook, documents, text_fields, encoder, bits, report)


async def kept_codebook(engine: Engine, sources: Sequence[Index], encoder: Encoder, chosen: Mapping[str, Any]) -> bytes:
    """Return the codebook of a side index with the same encoder and options, unfinished or not; else b""."""
    for source in sources:
        for side in await all_sides_of(engine, source.index):
            spec = side.spec
            same = all(getattr(spec, name) == value for name, value in chosen.items())
            if spec.codebook and same and spec.encoder == encoder.identity:
                return spec.codebook
    return b""
