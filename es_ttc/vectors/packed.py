"""The binary container of all stored bytes: token vectors, norms, offsets, codebooks.

All numbers are little-endian. A blob is a header of 16 bytes, a small JSON object (the meta), padding up to a multiple
of 16, then the data up to the very end::

    0   4  magic "TTC" 0x01 (the last byte is the layout's version)
    4   1  kind: 1 token vectors, 2 scale norms, 3 offsets, 4 codebook
    5   1  codec: 1 float32, 2 float16, 3 int8 with float32 row factors, 4 int32, 5 residuals with float32 row factors
    6   2  bytes of the meta
    8   4  rows
    12  4  columns
    16     meta, spaces as padding, data

Data is the matrix in row order, with the row factors before it. Residuals are 16-bit words: a row is its centroid and
the words of its codes, and the meta names the codebook that they are read with. The meta of token vectors also says
which share of the text they were made from, where that is not all of it.

Unpacking validates every blob: if header and length disagree, it raises a ValueError. It copies nothing (the arrays are
read-only views of the blob), except for residuals, which are decoded to int8.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from hashlib import sha256
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from es_ttc.vectors.residual import Codebook, Residuals, decode
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

MAGIC = b"TTC\x01"

_HEADER = struct.Struct("<4sBBHII")
_ALIGNMENT = 16
_MEAN = "mean"
_CODEBOOK = "codebook"
_WEIGHTS = "weights"
_READ = "read"

Blob = bytes | memoryview
"""The bytes of a container, or a view of them."""
Codebooks = Mapping[str, Codebook]
"""Codebooks by their :func:`codebook_id`."""
NO_CODEBOOKS: Codebooks = {}


class UnknownCodebook(LookupError):
    """Residuals cannot be read without their codebook.

    Attributes:
        identifier: Its :func:`codebook_id`.
    """

    def __init__(self, identifier: str) -> None:
        super().__init__(f"residuals of codebook {identifier!r:.80}, which is not at hand")
        self.identifier = identifier


class _Kind(IntEnum):
    TOKENS = 1
    NORMS = 2
    OFFSETS = 3
    CODEBOOK = 4


class _Codec(IntEnum):
    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3
    INT32 = 4
    RESIDUALS = 5


_DTYPES: dict[_Codec, np.dtype[Any]] = {
    _Codec.FLOAT32: np.dtype("<f4"),
    _Codec.FLOAT16: np.dtype("<f2"),
    _Codec.INT8: np.dtype("i1"),
    _Codec.INT32: np.dtype("<i4"),
    _Codec.RESIDUALS: np.dtype("<u2"),
}
_CODECS = {dtype: codec for codec, dtype in _DTYPES.items()}
_WITH_FACTORS = frozenset({_Codec.INT8, _Codec.RESIDUALS})
_ALLOWED: dict[_Kind, frozenset[_Codec]] = {
    _Kind.TOKENS: frozenset({_Codec.FLOAT32, _Codec.FLOAT16, _Codec.INT8, _Codec.RESIDUALS}),
    _Kind.NORMS: frozenset({_Codec.FLOAT32}),
    _Kind.OFFSETS: frozenset({_Codec.INT32}),
    _Kind.CODEBOOK: frozenset({_Codec.INT8}),
}


def pack_tokens(tokens: TokenVectors) -> bytes:
    """Return the blob of one document's token vectors."""
    return _pack(_Kind.TOKENS, tokens.values, _read_meta(tokens.read), row_factors=tokens.scales)


def pack_residuals(residuals: Residuals, identifier: str, read: float = 1.0) -> bytes:
    """Return the blob of one document's token vectors, encoded with the codebook of a :func:`codebook_id`.

    Args:
        residuals: The vectors.
        identifier: Names the codebook.
        read: The share of the text that they cover; see :class:`TokenVectors`.
    """
    rows = np.column_stack((residuals.centroids, residuals.words))
    return _pack(_Kind.TOKENS, rows, {_CODEBOOK: identifier, **_read_meta(read)}, row_factors=residuals.factors)


def unpack_tokens(blob: Blob, codebooks: Codebooks = NO_CODEBOOKS) -> TokenVectors:
    """Return the token vectors in a blob of :func:`pack_tokens` or :func:`pack_residuals`.

    Raises:
        UnknownCodebook: The codebook of residuals is not available.
        ValueError: The blob is invalid, truncated or too long, or contains a value that is not finite.
    """
    matrix, row_factors, meta = _unpack(blob, _Kind.TOKENS)
    if matrix.shape[1] == 0:
        raise ValueError("packed tokens: 0 columns")
    if matrix.dtype == np.float16:
        # As integers without the sign: everything from 0x7c00 on is an infinity or NaN.
        finite = not matrix.size or int(np.max(matrix.view(np.uint16) & np.uint16(0x7FFF))) < 0x7C00
    else:
        finite = bool(np.isfinite(matrix if row_factors is None else row_factors).all())
    if not finite:
        raise ValueError("packed tokens: a value is not finite")
    if matrix.dtype == np.uint16:
        assert row_factors is not None  # noqa: S101 - residuals have them
        identifier = meta.get(_CODEBOOK)
        if not isinstance(identifier, str):
            raise ValueError(f"packed tokens: the meta must name the codebook, got {identifier!r:.80}")
        if identifier not in codebooks:
            raise UnknownCodebook(identifier)
        decoded = decode(Residuals(matrix[:, 0], matrix[:, 1:], row_factors), codebooks[identifier])
        return replace(decoded, read=_read_of(meta))
    return TokenVectors(matrix, row_factors, _read_of(meta))


def pack_codebook(codebook: Codebook) -> bytes:
    """Return the blob of a codebook."""
    steps = np.full(len(codebook.centroids), codebook.step, dtype=np.float32)
    return _pack(_Kind.CODEBOOK, codebook.centroids, {_WEIGHTS: codebook.weights.tolist()}, row_factors=steps)


def unpack_codebook(blob: bytes) -> Codebook:
    """Return the codebook in a blob of :func:`pack_codebook`.

    Raises:
        ValueError: The blob is invalid, truncated or too long, or contains no codebook.
    """
    centroids, steps, meta = _unpack(blob, _Kind.CODEBOOK)
    weights = meta.get(_WEIGHTS)
    if not isinstance(weights, list) or len(weights) not in (4, 16) or weights != sorted(weights):
        raise ValueError(f"packed codebook: the meta must hold 4 or 16 ascending weights, got {weights!r:.80}")
    if not all(isinstance(weight, int) and abs(weight) <= 127 for weight in weights):
        raise ValueError("packed codebook: a weight is no whole number from -127 to 127")
    if steps is None or not centroids.size or not np.isfinite(steps).all() or (steps <= 0).any():
        raise ValueError("packed codebook: it has no centroid, or a step is not above 0")
    return Codebook(centroids, np.array(weights, dtype=np.int8), float(steps[0]))


def codebook_id(blob: bytes) -> str:
    """Return the id of the codebook in a blob: the first 8 bytes of its SHA-256 as 16 hex digits."""
    return sha256(blob).hexdigest()[:16]


def pack_norms(norms: ScaleNorms) -> bytes:
    """Return the blob of one document's scale norms."""
    if len(norms.scales) != len(norms.values):
        raise ValueError(f"one row of norms a scale: {len(norms.scales)} scales, norms of shape {norms.values.shape}")
    scales = [_MEAN if np.isinf(scale) else scale for scale in norms.scales]
    return _pack(_Kind.NORMS, norms.values, {"scales": scales})


def unpack_norms(blob: Blob) -> ScaleNorms:
    """Return the norms in a blob of :func:`pack_norms`.

    Raises:
        ValueError: The blob is invalid, truncated or too long, or contains no norms.
    """
    values, _, meta = _unpack(blob, _Kind.NORMS)
    scales = meta.get("scales")
    if not isinstance(scales, list) or len(scales) != len(values):
        raise ValueError(f"packed norms: the meta must name {len(values)} scales, got {scales!r:.80}")
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("packed norms: a norm is negative or not finite")
    return ScaleNorms(tuple(_scale(scale) for scale in scales), values)


def pack_offsets(offsets: NDArray[np.int32], fields: Sequence[str]) -> bytes:
    """Return the blob of the position of each token in a document's text.

    Args:
        offsets: ``(n, 3)`` int32: ordinal of the field, first character, end character; a token without text (a special
            one) has an empty span.
        fields: The names of the fields, by ordinal.
    """
    _check_offsets(offsets, len(fields))
    return _pack(_Kind.OFFSETS, offsets, {"fields": list(fields)})


def unpack_offsets(blob: Blob) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the ``(n, 3)`` offsets and the fields' names in a blob of :func:`pack_offsets`.

    Raises:
        ValueError: The blob is invalid, truncated or too long, or contains an impossible span.
    """
    offsets, _, meta = _unpack(blob, _Kind.OFFSETS)
    fields = meta.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise ValueError(f"packed offsets: the meta must name the fields, got {fields!r:.80}")
    _check_offsets(offsets, len(fields))
    return offsets, tuple(fields)


def _read_meta(read: float) -> dict[str, object]:
    return {} if read == 1 else {_READ: read}


def _read_of(meta: Mapping[str, Any]) -> float:
    read = meta.get(_READ, 1)
    if isinstance(read, bool) or not isinstance(read, int | float) or not 0 < read <= 1:
        raise ValueError(f"packed tokens: the share that was read is above 0 and at most 1, got {read!r:.80}")
    return float(read)


def _check_offsets(offsets: NDArray[np.int32], fields: int) -> None:
    if offsets.ndim != 2 or offsets.shape[1] != 3:
        raise ValueError(f"packed offsets: expected three columns (field, start, end), got shape {offsets.shape}")
    ordinal, start, end = offsets.T
    if (ordinal < 0).any() or (ordinal >= fields).any():
        raise ValueError(f"packed offsets: a field's ordinal is outside 0..{fields - 1}")
    if (start < 0).any() or (end < start).any():
        raise ValueError("packed offsets: a span starts before 0 or ends before it starts")


def _scale(value: object) -> float:
    if value == _MEAN:
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        raise ValueError(f"packed norms: a scale is a number from 1 up or {_MEAN!r}, got {value!r:.80}")
    return float(value)


def _pack(
    kind: _Kind, matrix: NDArray[Any], meta: Mapping[str, object], *, row_factors: Float32 | None = None
) -> bytes:
    codec = _CODECS.get(matrix.dtype.newbyteorder("<"))
    if matrix.ndim != 2 or codec not in _ALLOWED[kind]:
        raise ValueError(f"packed {kind.name.lower()}: cannot hold {matrix.dtype} of shape {matrix.shape}")
    encoded = orjson.dumps(meta) if meta else b""
    header = _HEADER.pack(MAGIC, kind, codec, len(encoded), *matrix.shape)
    padding = b" " * (-(len(header) + len(encoded)) % _ALIGNMENT)
    factors = b"" if row_factors is None else row_factors.astype("<f4", copy=False).tobytes()
    return b"".join((header, encoded, padding, factors, matrix.astype(_DTYPES[codec], copy=False).tobytes()))


def _unpack(blob: Blob, kind: _Kind) -> tuple[NDArray[Any], Float32 | None, dict[str, Any]]:
    """Return the matrix, its row factors (int8 only) and the meta, after a check of all lengths."""
    what = f"packed {kind.name.lower()}"
    if len(blob) < _HEADER.size:
        raise ValueError(f"{what}: {len(blob)} bytes are less than a header of {_HEADER.size}")
    magic, found, codec, meta_size, rows, columns = _HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise ValueError(f"{what}: starts with {magic!r}, not with {MAGIC!r}")
    if found != kind:
        raise ValueError(f"{what}: the blob holds kind {found}, not {kind}")
    if codec not in _ALLOWED[kind]:
        raise ValueError(f"{what}: unknown codec {codec}")
    dtype = _DTYPES[_Codec(codec)]
    factors_size = 4 * rows if codec in _WITH_FACTORS else 0
    start = _HEADER.size + meta_size + -(_HEADER.size + meta_size) % _ALIGNMENT
    expected = start + factors_size + rows * columns * dtype.itemsize
    if len(blob) != expected:
        raise ValueError(f"{what}: {rows} x {columns} {dtype.name} make {expected} bytes, got {len(blob)}")
    meta = _meta(blob[_HEADER.size : _HEADER.size + meta_size], what)
    matrix = np.frombuffer(blob, dtype, rows * columns, start + factors_size).reshape(rows, columns)
    row_factors = np.frombuffer(blob, "<f4", rows, start) if codec in _WITH_FACTORS else None
    return matrix, row_factors, meta


def _meta(encoded: Blob, what: str) -> dict[str, Any]:
    if not encoded:
        return {}
    try:
        meta = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{what}: the meta is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{what}: the meta is not a JSON object")
    return meta
