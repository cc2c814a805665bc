"""Documents to features, and features to the lines of a bulk.

Evaluation in memory uses the same features as the index, rounding included, so both compute the same scores.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import orjson
from numpy.typing import NDArray

from es_ttc.common.markup import blanked
from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.errors import EncoderError
from es_ttc.index.ingest.compose import FieldSpan, SourceDocument, compose, content_hash, locate
from es_ttc.index.ingest.skip_tokens import without_skipped
from es_ttc.index.mappings.fields import EMPTY, READY, stored_scales
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.rescorers.programs.interface import TOPIC_LENGTH
from es_ttc.rescorers.programs.splitting import split
from es_ttc.rescorers.spectral.evidence import characters_under, main_lobe
from es_ttc.rescorers.spectral.norms import scale_norms
from es_ttc.rescorers.spectral.spans import span_vectors
from es_ttc.vectors.chunks import GRANULARITIES, DocumentChunks, pack_chunks
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens
from es_ttc.vectors.quantise import as_stored, dequantise, quantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors


@dataclass(frozen=True, slots=True)
class TokenFeatures:
    """The stored features of a document's n tokens: vectors, norms of these as stored, ``(n, 3)`` offsets in fields."""

    vectors: TokenVectors
    norms: ScaleNorms
    offsets: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanFeatures:
    """The stored features of a document's m spans, of all grids."""

    vectors: Float32  # (m, d) float32 unit rows
    scales: Sequence[float]
    positions: Sequence[int]  # the token at the centre of each span
    # The field ordinal at its centre, and the characters under its main lobe; None without any text
    offsets: Sequence[tuple[int, int, int] | None]


Composed = tuple[str, Sequence[FieldSpan]]  # a document's text for the encoder, and the positions of its fields


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of texts, encoded: whole, as chunks if the index has any, as ``(n, d)`` queries if it stores them."""

    encodings: Encodings
    chunks: Sequence[DocumentChunks] = ()
    reversed: Float32 | None = None
    # For each text the share of its words whose vectors are kept where those of repeated words are not; empty for all
    shares: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class DocumentFeatures:
    """The stored features of one document; None where it has no text, or the index does not store them."""

    hash: str  # content hash of its text fields
    pooled: Float32 | None  # (d,) float32 unit vector
    tokens: TokenFeatures | None
    truncated: bool  # whether its text has more tokens than are read
    spans: SpanFeatures | None = None
    chunks: DocumentChunks | None = None
    reversed: Float32 | None = None  # (d,) float32 unit vector of the document as a query


def encode_documents(documents: Sequence[SourceDocument], spec: IndexSpec, encoder: Encoder) -> list[DocumentFeatures]:
    """Return the features of documents, in order."""
    composed = [compose(document, spec.text_fields) for document in documents]
    encoded = encode_texts(composed, spec, encoder)
    hashes = [content_hash(text, spans, spec) for text, spans in composed]
    return document_features(encoded, [spans for _, spans in composed], hashes, spec)


def encode_texts(composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder) -> Encoded:
    """Encode documents' texts for an index, without the vectors of tokens that get none there."""
    return with_tokens_skipped(encode_whole_texts(composed, spec, encoder), composed, spec, encoder)


def encode_whole_texts(composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder) -> Encoded:
    """Encode documents' texts, every token."""
    texts = _read(composed, spec)
    encodings = encoder.encode(texts, role="document", tokens=spec.encodes_tokens, max_tokens=spec.max_tokens)
    chunks = encode_chunks(texts, [spans for _, spans in composed], spec, encoder) if spec.chunks else ()
    as_queries = encoder.encode(texts, role="query", tokens=False).pooled if spec.reversed else None
    return Encoded(encodings, chunks, as_queries)


def with_tokens_skipped(encoded: Encoded, composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder) -> Encoded:
    """Return encoded texts without the vectors of the tokens that get none in an index."""
    if not spec.encodes_tokens or spec.skip_tokens == "none":
        return encoded
    kept = [
        without_skipped(rows, offsets, text, fields, spec.skip_tokens, encoder.stop_words)
        for rows, offsets, text, (_, fields) in zip(
            encoded.encodings.tokens, encoded.encodings.offsets, _read(composed, spec), composed, strict=True
        )
    ]
    tokens, offsets, shares = [[*column] for column in zip(*kept, strict=True)] if kept else ([], [], [])
    return replace(encoded, encodings=replace(encoded.encodings, tokens=tokens, offsets=offsets), shares=shares)


def stored_without_skipped(
    rows: Float32, located: NDArray[np.int32], composed: Composed, spec: IndexSpec, encoder: Encoder
) -> tuple[Float32, NDArray[np.int32], float]:
    """Return what :func:`without_skipped` does, of stored vectors ``(n, d)`` and their ``(n, 3)`` places."""
    _, fields = composed
    starts = np.zeros(len(spec.text_fields), np.int32)
    for span in fields:
        starts[span.field] = span.start
    offsets = located[:, 1:] + starts[located[:, 0], None]
    offsets[located[:, 2] <= located[:, 1]] = 0
    [read] = _read([composed], spec)
    kept, spans, share = without_skipped(rows, offsets, read, fields, spec.skip_tokens, encoder.stop_words)
    return kept, locate(spans, fields), share


def _read(composed: Sequence[Composed], spec: IndexSpec) -> list[str]:
    """Return the texts that the encoder reads."""
    return [blanked(text) if spec.strip_html else text for text, _ in composed]


EncodedApart = tuple[Sequence[tuple[range, Encoded]], Sequence[tuple[int, EncoderError]]]
"""Ranges of positions with their encodings, in order; and positions of texts that cannot be encoded, with reasons."""


def encode_apart(composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder) -> EncodedApart:
    """Encode texts; after a failure, split them until the offending text is alone."""
    done: list[tuple[range, Encoded]] = []
    refused: list[tuple[int, EncoderError]] = []
    waiting = [range(len(composed))] if composed else []
    while waiting:
        part = waiting.pop()
        try:
            done.append((part, encode_texts(composed[part.start : part.stop], spec, encoder)))
        except EncoderError as error:
            if len(part) == 1:
                refused.append((part.start, error))
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return done, refused


def features_apart(
    apart: EncodedApart,
    composed: Sequence[Composed],
    hashes: Sequence[str],
    spec: IndexSpec,
) -> list[DocumentFeatures | EncoderError]:
    """Return the features of each of some texts after :func:`encode_apart`, or why it cannot be encoded, in order."""
    done, refused = apart
    results: dict[int, DocumentFeatures | EncoderError] = dict(refused)
    for part, encoded in done:
        some = slice(part.start, part.stop)
        results.update(
            zip(part, document_features(encoded, [own for _, own in composed[some]], hashes[some], spec), strict=True)
        )
    return [results[position] for position in range(len(composed))]


def document_features(
    encoded: Encoded, spans: Sequence[Sequence[FieldSpan]], hashes: Sequence[str], spec: IndexSpec
) -> list[DocumentFeatures]:
    """Assemble the features of a batch of texts, in order."""
    return [_features(encoded, position, spans[position], hashes[position], spec) for position in range(len(hashes))]


def _features(
    encoded: Encoded,
    position: int,
    spans: Sequence[FieldSpan],
    text_hash: str,
    spec: IndexSpec,
) -> DocumentFeatures:
    encodings = encoded.encodings
    pooled = encodings.pooled[position]
    if not pooled.any():
        return DocumentFeatures(text_hash, None, None, truncated=False)
    read = _share_read(encodings, position, spans, spec)
    chunks = encoded.chunks[position] if encoded.chunks else None
    as_query = None if encoded.reversed is None else encoded.reversed[position]
    features = DocumentFeatures(text_hash, pooled, None, read < 1, chunks=chunks, reversed=as_query)
    if not spec.encodes_tokens:
        return features
    offsets = locate(encodings.offsets[position], spans)
    matrix = encodings.tokens[position]
    read *= encoded.shares[position] if encoded.shares else 1.0
    tokens = None if spec.tokens == "none" else token_features(matrix, offsets, spec, read)
    if not spec.spans:
        return replace(features, tokens=tokens)
    # Spans are made from the stored vectors, as the norms are: a rescorer computes the same cosines.
    if tokens is not None:
        matrix = dequantise(tokens.vectors)
    return replace(features, tokens=tokens, spans=span_features(matrix, offsets, spec.spans))


def _share_read(encodings: Encodings, position: int, spans: Sequence[FieldSpan], spec: IndexSpec) -> float:
    """Return the share of a text that its token vectors are made from; without these, its pooled vector."""
    if not spec.encodes_tokens:
        return encodings.encoded_shares[position] if encodings.encoded_shares else 1.0
    return share_of_text_read(encodings.offsets[position], spans) if encodings.truncated[position] else 1.0


def share_of_text_read(offsets: NDArray[np.int32], spans: Sequence[FieldSpan]) -> float:
    """Return the share of a text's characters up to the last stored token, in (0, 1]."""
    end = int(offsets[:, 1].max(initial=0))
    return end / spans[-1].end if end else 1.0


def token_features(matrix: Float32, offsets: NDArray[np.int32], spec: IndexSpec, read: float = 1.0) -> TokenFeatures:
    """Return the stored features of a document's tokens, ``(n, d)`` unit rows with ``(n, 3)`` offsets."""
    vectors = replace(quantise(matrix, spec.codec if spec.tokens == "packed" else "float32"), read=read)
    # Norms of the stored vectors, not of the encoded ones: a rescorer that computes them gets the same values.
    norms = scale_norms(as_stored(vectors), stored_scales(spec)).in_steps()
    return TokenFeatures(vectors, norms, offsets)


def span_features(matrix: Float32, offsets: NDArray[np.int32], grids: Sequence[SpanGrid]) -> SpanFeatures:
    """Return the spans of a document, from its stored token vectors and the tokens' offsets."""
    vectors: list[Float32] = []
    scales: list[float] = []
    positions: list[int] = []
    places: list[tuple[int, int, int] | None] = []
    for grid in grids:
        centres, rows = span_vectors(matrix, grid.scale, grid.stride)
        vectors.append(rows)
        for centre in map(int, centres):
            scales.append(grid.scale)
            positions.append(centre)
            text = characters_under(offsets, *main_lobe(len(matrix), grid.scale, centre), centre)
            places.append((text["field"], text["start"], text["end"]) if text else None)
    return SpanFeatures(np.concatenate(vectors), scales, positions, places)


def action_lines(
    identifier: str, source: bytes, digest: str, features: DocumentFeatures, spec: IndexSpec, key: str = ""
) -> tuple[bytes, bytes]:
    """Return a document's two lines of a bulk: the action and the source with its features."""
    fields = {**feature_fields(features, spec), "document": digest, **({"key": key} if key else {})}
    ours = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    comma = b"" if source == b"{}" else b","
    action = orjson.dumps({"index": {"_id": identifier}})
    return action, b"".join((source[:-1], comma, b'"ttc":', ours, b"}"))


def feature_fields(features: DocumentFeatures, spec: IndexSpec) -> dict[str, object]:
    """Return the fields below ``ttc`` of one document; arrays are left to the JSON encoder."""
    stored: dict[str, object] = {
        "hash": features.hash,
        "encoder": spec.encoder.key,
        "state": EMPTY if features.pooled is None else READY,
    }
    if features.pooled is not None:
        stored["vector"] = features.pooled
        stored["pooled"] = _base64(_row_blob(features.pooled))
    if features.tokens is not None:
        stored["tokens"] = _tokens(features.tokens, spec)
        stored["offsets"] = _base64(pack_offsets(features.tokens.offsets, spec.text_fields))
        if stored_scales(spec):
            stored["norms"] = _base64(pack_norms(features.tokens.norms))
    if features.chunks is not None:
        stored["chunks"] = _base64(pack_chunks(features.chunks))
    if features.reversed is not None:
        stored["reversed"] = _base64(_row_blob(features.reversed))
    if features.spans is not None:
        stored["spans"] = span_objects(features.spans, spec)
    return stored


def _row_blob(vector: Float32) -> bytes:
    """Return the blob of one pooled vector."""
    return pack_tokens(TokenVectors(vector[np.newaxis]))


def _tokens(tokens: TokenFeatures, spec: IndexSpec) -> object:
    match spec.tokens:
        case "nested":
            return [{"v": vector} for vector in tokens.vectors.values]
        case "rank_vectors":
            return tokens.vectors.values
        case _:
            return _base64(pack_tokens(tokens.vectors))


def span_objects(spans: SpanFeatures, spec: IndexSpec) -> list[dict[str, object]]:
    """Return spans as they are stored."""
    objects: list[dict[str, object]] = []
    for vector, scale, position, place in zip(spans.vectors, spans.scales, spans.positions, spans.offsets, strict=True):
        span: dict[str, object] = {"v": vector, "scale": scale, "position": position}
        if place is not None:
            field, start, end = place
            span |= {"field": spec.text_fields[field], "start": start, "end": end}
        objects.append(span)
    return objects


def _base64(blob: bytes) -> str:
    return base64.b64encode(blob).decode("ascii")


def encode_chunks(
    texts: Sequence[str], fields: Sequence[Sequence[FieldSpan]], spec: IndexSpec, encoder: Encoder
) -> list[DocumentChunks]:
    """Return the chunks of documents, in order, as float16 if tokens are, else as int8."""
    codec = spec.codec if spec.codec == "float16" else "int8"
    splits = [split(text, [(span.start, span.end) for span in own]) for text, own in zip(texts, fields, strict=True)]
    topics = encoder.shortened(TOPIC_LENGTH).encode(texts, role="document", tokens=False).pooled
    spans = {name: [own.of(name) for own in splits] for name in GRANULARITIES}
    vectors = {}
    for name in GRANULARITIES:
        chunks = [text[start:end] for text, own in zip(texts, spans[name], strict=True) for start, end in own]
        encoded = encoder.encode(chunks, role="document", tokens=False).pooled
        bounds = np.concatenate(([0], np.cumsum([len(own) for own in spans[name]], dtype=np.intp)))
        vectors[name] = [quantise(encoded[start:end], codec) for start, end in pairwise(bounds)]
    return [
        DocumentChunks(
            text,
            {name: np.array(spans[name][place], np.int32).reshape(-1, 2) for name in GRANULARITIES},
            {name: vectors[name][place] for name in GRANULARITIES},
            quantise(topics[place : place + 1], codec),
        )
        for place, text in enumerate(texts)
    ]
