"""A document's stored chunks: its text, spans of it at three granularities, a vector for each span."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import cbor2
import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.packed import Blob, pack_tokens, unpack_tokens
from es_ttc.vectors.tokens import TokenVectors

Granularity = Literal["sentences", "pairs", "paragraphs"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)

_TOPIC = "topic"
_TEXT = "text"
_SPANS = "spans"


@dataclass(frozen=True, slots=True)
class DocumentChunks:
    """The chunks of one document.

    Attributes:
        text: The encoded text of the document.
        spans: By granularity ``(m, 2)`` int32: first and end character of each chunk.
        vectors: By granularity m unit rows, as stored.
        topic: One row: the vector of the document's first tokens (B.4 of the paper on programs).
    """

    text: str
    spans: Mapping[Granularity, NDArray[np.int32]]
    vectors: Mapping[Granularity, TokenVectors]
    topic: TokenVectors


def no_chunks(dims: int) -> DocumentChunks:
    """Return the chunks of a document without text."""
    empty = TokenVectors(np.zeros((0, dims), np.float32))
    return DocumentChunks(
        "",
        dict.fromkeys(GRANULARITIES, np.zeros((0, 2), np.int32)),
        dict.fromkeys(GRANULARITIES, empty),
        TokenVectors(np.zeros((1, dims), np.float32)),
    )


def pack_chunks(chunks: DocumentChunks) -> bytes:
    """Return the blob of one document's chunks: a CBOR map of packed matrices."""
    packed: dict[str, object] = {
        _TEXT: chunks.text,
        _TOPIC: pack_tokens(chunks.topic),
        _SPANS: {name: chunks.spans[name].astype("<i4").tobytes() for name in GRANULARITIES},
    }
    return cbor2.dumps(packed | {name: pack_tokens(chunks.vectors[name]) for name in GRANULARITIES})


def unpack_chunks(blob: Blob) -> DocumentChunks:
    """Return the chunks in a blob of :func:`pack_chunks`; ValueError if it is invalid or contradicts itself."""
    try:
        packed = cbor2.loads(blob)
        text, spans = packed[_TEXT], packed[_SPANS]
        chunks = DocumentChunks(
            text,
            {name: np.frombuffer(spans[name], "<i4").reshape(-1, 2) for name in GRANULARITIES},
            {name: unpack_tokens(packed[name]) for name in GRANULARITIES},
            unpack_tokens(packed[_TOPIC]),
        )
    except (cbor2.CBORError, LookupError, TypeError, AttributeError, EOFError) as error:
        raise ValueError(f"packed chunks: not the map that is expected ({type(error).__name__})") from error
    except ValueError as error:
        raise ValueError(f"packed chunks: {error}") from error
    if not isinstance(text, str) or len(chunks.topic) != 1:
        raise ValueError("packed chunks: no text, or not one topic vector")
    for name in GRANULARITIES:
        own = chunks.spans[name]
        if len(own) != len(chunks.vectors[name]):
            raise ValueError(f"packed chunks: {len(own)} spans and {len(chunks.vectors[name])} vectors of {name}")
        if own.size and (own[:, 0].min() < 0 or own[:, 1].max() > len(text) or (own[:, 0] >= own[:, 1]).any()):
            raise ValueError(f"packed chunks: a span of {name} lies outside the text")
    return chunks
