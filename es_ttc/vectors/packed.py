"""The binary container of all stored bytes: token vectors, norms, offsets.

All numbers are little-endian. A blob is a header of 16 bytes, a small JSON object (the meta), padding up to a multiple
of 16, then the data up to the very end::

    0   4  magic "TTC" 0x02 (the last byte is the layout's version)
    4   1  kind: 1 token vectors, 2 scale norms, 3 offsets
    5   1  codec: 1 float32, 2 float16, 3 int8, 4 int4, 5 int2, 6 steps of one byte
    6   2  bytes of the meta
    8   4  rows
    12  4  columns
    16     meta, spaces as padding, data

Token vectors: the float32 factors of the rows (int8, int4, int2), then the matrix in row order; int4 and int2 as
:mod:`es_ttc.vectors.codes` packs them, where the columns are components. The meta says which share of the text they
were made from, where that is not all of it.

Norms: for each scale the root of the least norm and the root's step, float32; then a byte for each scale and token.

Offsets: a row for each token, and as many columns as tokens whose place is written in full, as three int32: ordinal of
the field, first character, end character. Then two bytes for each token: characters from the end of the one before to
its first, 255 for a place in full; and its number of characters.

Unpacking validates every blob: if header and length disagree, it raises a ValueError. Vectors and norms are read-only
views of the blob.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from es_ttc.vectors.tokens import CODE_BITS, CODECS, ScaleNorms, TokenVectors, code_bytes

MAGIC = b"TTC\x02"

_HEADER = struct.Struct("<4sBBHII")
_ALIGNMENT = 16
_MEAN = "mean"
_READ = "read"
_IN_FULL = 255

Blob = bytes | memoryview  # the bytes of a container, or a view of them


class OtherLayout(ValueError):
    """The blob is of another version of the layout than this release's."""


class _Kind(IntEnum):
    TOKENS = 1
    NORMS = 2
    OFFSETS = 3


_CODEC_NUMBERS = {codec: number for number, codec in enumerate(CODECS, start=1)}
_STEPS = 6


def pack_tokens(tokens: TokenVectors) -> bytes:
    """Return the blob of one document's token vectors."""
    values = tokens.values.astype(tokens.values.dtype.newbyteorder("<"), copy=False)
    factors = b"" if tokens.scales is None else tokens.scales.astype("<f4", copy=False).tobytes()
    meta: dict[str, object] = {} if tokens.read == 1 else {_READ: tokens.read}
    number = _CODEC_NUMBERS[tokens.codec]
    return _pack(_Kind.TOKENS, number, len(tokens), tokens.dims, meta, factors, values.tobytes())


def unpack_tokens(blob: Blob) -> TokenVectors:
    """Return the token vectors of a blob; OtherLayout for another version's, ValueError for an invalid one."""
    number, rows, columns, encoded, data = _unpack(blob, _Kind.TOKENS)
    if not 1 <= number <= len(CODECS):
        raise ValueError(f"packed tokens: unknown codec {number}")
    if columns == 0:
        raise ValueError("packed tokens: 0 columns")
    codec = CODECS[number - 1]
    bits = CODE_BITS.get(codec)
    width = code_bytes(columns, bits) if bits else columns
    dtype = np.dtype("u1" if bits else codec).newbyteorder("<")
    factors = 4 * rows if dtype.itemsize == 1 else 0
    _require_size(data, factors + rows * width * dtype.itemsize, f"packed tokens: {rows} x {columns} of {codec}")
    matrix = np.frombuffer(data, dtype, rows * width, factors).reshape(rows, width)
    scales = np.frombuffer(data, "<f4", rows) if dtype.itemsize == 1 else None
    if dtype == np.float16:
        # As integers without the sign: everything from 0x7c00 on is an infinity or NaN.
        finite = not matrix.size or int(np.max(matrix.view(np.uint16) & np.uint16(0x7FFF))) < 0x7C00
    else:
        finite = bool(np.isfinite(matrix if scales is None else scales).all())
    if not finite:
        raise ValueError("packed tokens: a value is not finite")
    return TokenVectors(matrix, scales, _read_of(encoded), columns if bits else 0)


def pack_norms(norms: ScaleNorms) -> bytes:
    """Return the blob of one document's scale norms, which are in steps."""
    if len(norms.scales) != len(norms.values):
        raise ValueError(f"one row of norms a scale: {len(norms.scales)} scales, norms of shape {norms.values.shape}")
    if norms.ranges is None:
        raise ValueError("norms are stored in steps")
    scales = [_MEAN if np.isinf(scale) else scale for scale in norms.scales]
    ranges = norms.ranges.astype("<f4", copy=False).tobytes()
    rows, columns = norms.values.shape
    return _pack(_Kind.NORMS, _STEPS, rows, columns, {"scales": scales}, ranges, norms.values.tobytes())


def unpack_norms(blob: Blob) -> ScaleNorms:
    """Return the norms of a blob; OtherLayout for another version's, ValueError for an invalid or empty one."""
    number, rows, columns, encoded, data = _unpack(blob, _Kind.NORMS)
    scales = _scales_of(encoded, rows)
    if number != _STEPS:
        raise ValueError(f"packed norms: unknown codec {number}")
    _require_size(data, rows * (8 + columns), f"packed norms: {columns} of {rows} scales")
    ranges = np.frombuffer(data, "<f4", 2 * rows).reshape(rows, 2)
    if not np.isfinite(ranges).all() or (ranges < 0).any():
        raise ValueError("packed norms: a norm is negative or not finite")
    values = np.frombuffer(data, np.uint8, rows * columns, 8 * rows).reshape(rows, columns)
    return ScaleNorms(scales, values, ranges)


def pack_offsets(offsets: NDArray[np.int32], fields: Sequence[str]) -> bytes:
    """Return the blob of ``(n, 3)`` int32 offsets: field ordinal, first and end character, equal without text."""
    _check_offsets(offsets, len(fields))
    field, start, end = offsets.T.astype(np.int64)
    gaps = start - np.concatenate(([0], end[:-1]))
    lengths = end - start
    in_full = (gaps < 0) | (gaps >= _IN_FULL) | (lengths > 255) | (np.diff(field, prepend=-1) != 0)
    steps = np.stack([np.where(in_full, _IN_FULL, gaps), np.where(in_full, 0, lengths)], axis=1).astype(np.uint8)
    full = offsets[in_full].astype("<i4")
    meta = {"fields": list(fields)}
    return _pack(_Kind.OFFSETS, _STEPS, len(offsets), len(full), meta, full.tobytes(), steps.tobytes())


def unpack_offsets(blob: Blob) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return ``(n, 3)`` offsets and fields' names; OtherLayout for another version's, ValueError for an invalid one."""
    number, rows, count, encoded, data = _unpack(blob, _Kind.OFFSETS)
    fields = _meta(encoded, "packed offsets").get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise ValueError(f"packed offsets: the meta must name the fields, got {fields!r:.80}")
    if number != _STEPS:
        raise ValueError(f"packed offsets: unknown codec {number}")
    _require_size(data, 12 * count + 2 * rows, f"packed offsets: {rows}, {count} of them in full")
    full = np.frombuffer(data, "<i4", 3 * count).reshape(count, 3)
    steps = np.frombuffer(data, np.uint8, 2 * rows, 12 * count).reshape(rows, 2).astype(np.int64)
    in_full = steps[:, 0] == _IN_FULL
    if np.count_nonzero(in_full) != count or not in_full[:1].all():
        raise ValueError(f"packed offsets: {count} places in full, and marks of {np.count_nonzero(in_full)}")
    _check_offsets(full, len(fields))
    walked = np.cumsum(np.where(in_full, 0, steps.sum(axis=1)))
    last = np.cumsum(in_full) - 1
    ends = full[last, 2] + walked - walked[in_full][last]
    starts = np.where(in_full, full[last, 1], ends - steps[:, 1])
    if ends.max(initial=0) > np.iinfo(np.int32).max:
        raise ValueError("packed offsets: a span ends after 2**31 characters")
    return np.stack([full[last, 0], starts, ends], axis=1).astype(np.int32), tuple(fields)


def _read_of(encoded: bytes) -> float:
    read = _meta(encoded, "packed tokens").get(_READ, 1)
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


@lru_cache(maxsize=64)  # those of an index's documents are the same
def _scales_of(encoded: bytes, rows: int) -> tuple[float, ...]:
    """Return the scales that the meta of norms names."""
    scales = _meta(encoded, "packed norms").get("scales")
    if not isinstance(scales, list) or len(scales) != rows:
        raise ValueError(f"packed norms: the meta must name {rows} scales, got {scales!r:.80}")
    return tuple(map(_scale, scales))


def _scale(value: object) -> float:
    if value == _MEAN:
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        raise ValueError(f"packed norms: a scale is a number from 1 up or {_MEAN!r}, got {value!r:.80}")
    return float(value)


def _pack(kind: _Kind, codec: int, rows: int, columns: int, meta: Mapping[str, object], *data: bytes) -> bytes:
    encoded = orjson.dumps(meta) if meta else b""
    header = _HEADER.pack(MAGIC, kind, codec, len(encoded), rows, columns)
    padding = b" " * (-(len(header) + len(encoded)) % _ALIGNMENT)
    return b"".join((header, encoded, padding, *data))


def _unpack(blob: Blob, kind: _Kind) -> tuple[int, int, int, bytes, memoryview]:
    """Return codec, rows, columns, the meta's bytes and data."""
    what = f"packed {kind.name.lower()}"
    if len(blob) < _HEADER.size:
        raise ValueError(f"{what}: {len(blob)} bytes are less than a header of {_HEADER.size}")
    magic, stored, codec, meta_size, rows, columns = _HEADER.unpack_from(blob)
    if magic[:3] == MAGIC[:3] and magic != MAGIC:
        raise OtherLayout(f"{what}: layout {magic[3]}, and this release reads layout {MAGIC[3]}")
    if magic != MAGIC:
        raise ValueError(f"{what}: starts with {magic!r}, not with {MAGIC!r}")
    if stored != kind:
        raise ValueError(f"{what}: the blob holds kind {stored}, not {kind}")
    start = _HEADER.size + meta_size + -(_HEADER.size + meta_size) % _ALIGNMENT
    if len(blob) < start:
        raise ValueError(f"{what}: {len(blob)} bytes end in the meta")
    return codec, rows, columns, bytes(blob[_HEADER.size : _HEADER.size + meta_size]), memoryview(blob)[start:]


def _require_size(data: memoryview, expected: int, what: str) -> None:
    if len(data) != expected:
        raise ValueError(f"{what} make {expected} bytes, got {len(data)}")


def _meta(encoded: bytes, what: str) -> dict[str, Any]:
    if not encoded:
        return {}
    try:
        meta = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{what}: the meta is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{what}: the meta is not a JSON object")
    return meta
