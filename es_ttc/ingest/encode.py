"""From documents to features, and from features to the lines of a bulk.

Evaluation in memory takes the same features as the index is given, rounding included, so both paths score alike.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.errors import EncoderError
from es_ttc.ingest.compose import Document, Span, compose, content_hash, locate
from es_ttc.mappings.fields import EMPTY, READY, stored_scales
from es_ttc.mappings.spec import IndexSpec
from es_ttc.rescorers.spectral.norms import scale_norms
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors


@dataclass(frozen=True, slots=True)
class TokenFeatures:
    """What is stored of a document's tokens; n tokens.

    Attributes:
        vectors: ``(n, d)``, in the index's storage type.
        norms: Of the vectors as stored, at the index's scales.
        offsets: ``(n, 3)`` int32: ordinal of the text field, first and end character of each token.
    """

    vectors: TokenVectors
    norms: ScaleNorms
    offsets: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DocumentFeatures:
    """What is stored of one document.

    Attributes:
        hash: Content hash of its text fields.
        pooled: ``(d,)`` float32 unit vector; None for a document without text.
        tokens: None for a document without text, and where the index stores no tokens.
        truncated: Whether its text has more tokens than the index keeps.
    """

    hash: str
    pooled: Float32 | None
    tokens: TokenFeatures | None
    truncated: bool


def encode_documents(documents: Sequence[Document], spec: IndexSpec, encoder: Encoder) -> list[DocumentFeatures]:
    """Return the features of documents, in order.

    Raises:
        InvalidRequest: A text field holds no text.
        EncoderError: A text could not be encoded.
    """
    composed = [compose(document, spec.text_fields) for document in documents]
    encodings = encode_texts([text for text, _ in composed], spec, encoder)
    return [
        features_of(encodings, position, spans, content_hash(text, spans, spec), spec)
        for position, (text, spans) in enumerate(composed)
    ]


def encode_texts(texts: Sequence[str], spec: IndexSpec, encoder: Encoder) -> Encodings:
    """Encode documents' texts as the index wants them."""
    return encoder.encode(texts, role="document", tokens=spec.tokens != "none", max_tokens=spec.max_tokens)


def encode_apart(
    texts: Sequence[str], spec: IndexSpec, encoder: Encoder
) -> tuple[list[tuple[range, Encodings]], list[tuple[int, EncoderError]]]:
    """Encode texts; where that fails, halve them until the text to blame stands alone.

    Returns:
        Ranges of positions with their encodings, in order; and positions of the texts that cannot be encoded, with
        the reason.
    """
    done: list[tuple[range, Encodings]] = []
    refused: list[tuple[int, EncoderError]] = []
    waiting = [range(len(texts))]
    while waiting:
        part = waiting.pop()
        try:
            done.append((part, encode_texts(texts[part.start : part.stop], spec, encoder)))
        except EncoderError as error:
            if len(part) == 1:
                refused.append((part.start, error))
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return done, refused


def features_of(
    encodings: Encodings, position: int, spans: Sequence[Span], text_hash: str, spec: IndexSpec
) -> DocumentFeatures:
    """Put together the features of one text of a batch.

    Args:
        encodings: The batch.
        position: Which text of it.
        spans: Where the document's fields stand in the text.
        text_hash: The document's content hash.
        spec: What the index stores.
    """
    pooled = encodings.pooled[position]
    if not pooled.any():
        return DocumentFeatures(text_hash, None, None, truncated=False)
    tokens = None
    if spec.tokens == "packed":
        vectors = quantise(encodings.tokens[position], spec.codec)
        # Norms of what is stored, not of what was encoded: a rescorer that computes them itself finds the same.
        norms = scale_norms(dequantise(vectors), stored_scales(spec))
        tokens = TokenFeatures(vectors, norms, locate(encodings.offsets[position], spans))
    return DocumentFeatures(text_hash, pooled, tokens, bool(encodings.truncated[position]))


def action_lines(
    identifier: str, source: bytes, digest: str, features: DocumentFeatures, spec: IndexSpec
) -> tuple[bytes, bytes]:
    """Return a document's two lines of a bulk: the action and the source with its features.

    Args:
        identifier: The document's id.
        source: Its JSON object.
        digest: Hash of ``source``.
        features: What is stored beside it.
        spec: What the index stores.
    """
    ours = orjson.dumps({**feature_fields(features, spec), "document": digest}, option=orjson.OPT_SERIALIZE_NUMPY)
    comma = b"" if source == b"{}" else b","
    action = orjson.dumps({"index": {"_id": identifier}})
    return action, b"".join((source[:-1], comma, b'"ttc":', ours, b"}"))


def feature_fields(features: DocumentFeatures, spec: IndexSpec) -> dict[str, object]:
    """Return what is written below ``ttc`` for one document; arrays are left to the JSON encoder."""
    stored: dict[str, object] = {
        "hash": features.hash,
        "encoder": spec.encoder.key,
        "state": EMPTY if features.pooled is None else READY,
    }
    if features.pooled is not None:
        stored["vector"] = features.pooled
        stored["pooled"] = _base64(pack_tokens(TokenVectors(features.pooled[np.newaxis])))
    if features.tokens is not None:
        stored["tokens"] = _base64(pack_tokens(features.tokens.vectors))
        stored["offsets"] = _base64(pack_offsets(features.tokens.offsets, spec.text_fields))
        if stored_scales(spec):
            stored["norms"] = _base64(pack_norms(features.tokens.norms))
    return stored


def _base64(blob: bytes) -> str:
    return base64.b64encode(blob).decode("ascii")
