import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from es_ttc.vectors.packed import (
    MAGIC,
    OtherLayout,
    pack_norms,
    pack_offsets,
    pack_tokens,
    unpack_norms,
    unpack_offsets,
    unpack_tokens,
)
from es_ttc.vectors.quantise import quantise
from es_ttc.vectors.tokens import CODECS, Codec, ScaleNorms, TokenVectors

UNPACK: tuple[Callable[[bytes], object], ...] = (unpack_tokens, unpack_norms, unpack_offsets)


def tokens(codec: Codec, rows: int = 5, dims: int = 7) -> TokenVectors:
    matrix = np.random.default_rng(rows).standard_normal((rows, dims)).astype(np.float32)
    return quantise(matrix, codec)


def norms(rows: int = 5) -> ScaleNorms:
    return ScaleNorms((1.5, 30.0, np.inf), np.random.default_rng(rows).random((3, rows), np.float32)).in_steps()


def offsets() -> NDArray[np.int32]:
    return np.array([[0, 0, 0], [0, 0, 5], [1, 6, 9]], np.int32)


BLOBS = (
    *(pack_tokens(tokens(codec)) for codec in CODECS),
    pack_norms(norms()),
    pack_offsets(offsets(), ["title", "text"]),
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_tokens_round_trip(codec: Codec, rows: int) -> None:
    before = tokens(codec, rows)
    after = unpack_tokens(pack_tokens(before))
    assert after.values.dtype == before.values.dtype
    np.testing.assert_array_equal(after.values, before.values)
    assert (after.scales is None) == (before.scales is None)
    if before.scales is not None:
        np.testing.assert_array_equal(after.scales, before.scales)


@pytest.mark.parametrize("read", [0.25, 1.0])
def test_the_share_of_the_text_that_was_read_round_trips(read: float) -> None:
    assert unpack_tokens(pack_tokens(replace(tokens("int8"), read=read))).read == read


def test_norms_round_trip_with_the_mean_endpoint() -> None:
    before = norms()
    after = unpack_norms(pack_norms(before))
    assert after.scales == before.scales
    np.testing.assert_array_equal(after.values, before.values)
    np.testing.assert_array_equal(after.lengths(), before.lengths())


@given(hnp.arrays(np.float32, (2, 30), elements=st.floats(0, 2, width=32)))
def test_norms_in_steps_are_near_the_norms(values: NDArray[np.float32]) -> None:
    found = ScaleNorms((3.0, 5.0), values).in_steps().lengths()
    steps = (np.sqrt(values.max(axis=1)) - np.sqrt(values.min(axis=1))) / 255
    assert (np.abs(np.sqrt(found) - np.sqrt(values)) <= 0.51 * steps[:, None] + 1e-6).all()


def test_norms_of_no_scale_and_of_no_token() -> None:
    for scales, shape in (((), (0, 4)), ((3.0,), (1, 0))):
        empty = ScaleNorms(scales, np.empty(shape, np.float32)).in_steps()
        assert unpack_norms(pack_norms(empty)).values.shape == shape


def test_offsets_round_trip() -> None:
    after, fields = unpack_offsets(pack_offsets(offsets(), ["title", "Ťext 名"]))
    np.testing.assert_array_equal(after, offsets())
    assert fields == ("title", "Ťext 名")


@st.composite
def spans(draw: st.DrawFn) -> NDArray[np.int32]:
    """Tokens as they come, one after the other in their fields, and some that stand anywhere."""
    rows, field, end = [], 0, 0
    for kind in draw(st.lists(st.sampled_from(["next", "next", "next", "far", "special", "field"]), max_size=40)):
        if kind == "field":
            field, end = field + 1, 0
        start = draw(st.integers(0, 2**20)) if kind == "far" else end + draw(st.integers(0, 2))
        end = start + draw(st.integers(0, 300))
        rows.append((0, 0, 0) if kind == "special" else (field, start, end))
    return np.array(rows, np.int32).reshape(-1, 3)


@given(spans())
def test_any_offsets_round_trip(rows: NDArray[np.int32]) -> None:
    after, _ = unpack_offsets(pack_offsets(rows, [str(number) for number in range(41)]))
    np.testing.assert_array_equal(after, rows)
    assert after.dtype == np.int32


def test_a_token_that_follows_another_takes_two_bytes() -> None:
    rows = np.array([[0, 5 * place, 5 * place + 4] for place in range(100)], np.int32)
    assert len(pack_offsets(rows, ["text"])) == len(pack_offsets(rows[:1], ["text"])) + 2 * 99


def test_unpacking_copies_nothing_and_data_stands_aligned() -> None:
    blob = pack_tokens(tokens("int8"))
    after = unpack_tokens(blob)
    assert not after.values.flags.owndata
    assert not after.values.flags.writeable
    assert (len(blob) - after.nbytes) % 16 == 0


@pytest.mark.parametrize("blob", BLOBS)
def test_every_truncation_and_every_excess_is_refused(blob: bytes) -> None:
    for unpack in UNPACK:
        for end in range(len(blob)):
            with pytest.raises(ValueError, match="packed"):
                unpack(blob[:end])
        with pytest.raises(ValueError, match="packed"):
            unpack(blob + b"\0")


def test_a_blob_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        unpack_norms(pack_tokens(tokens("float32")))


@pytest.mark.parametrize(("rows", "columns"), [(2**32 - 1, 2**32 - 1), (2**32 - 1, 0), (0, 2**32 - 1), (2**31, 2)])
def test_sizes_in_the_header_are_not_believed(rows: int, columns: int) -> None:
    for kind, codec, unpack in ((1, 1, unpack_tokens), (1, 5, unpack_tokens), (3, 6, unpack_offsets)):
        header = struct.pack("<4sBBHII", MAGIC, kind, codec, 0, rows, columns)
        if unpack is unpack_tokens and rows == 0:
            assert len(unpack_tokens(header)) == 0  # an empty document of any width takes no bytes
            continue
        with pytest.raises(ValueError, match="packed"):
            unpack(header)


def meta_blob(meta: bytes, kind: int, codec: int, data: bytes, rows: int, columns: int) -> bytes:
    header = struct.pack("<4sBBHII", MAGIC, kind, codec, len(meta), rows, columns) + meta
    return header + b" " * (-len(header) % 16) + data


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"[",
        b"[" * 60_000,
        b"\xff",
        b"[3]",
        b"{}",
        b'{"scales": 3}',
        b'{"scales": []}',
        b'{"scales": [0.5]}',
        b'{"scales": [true]}',
        b'{"scales": ["max"]}',
        b'{"scales": [1e999]}',
        b'{"scales": [3, 5]}',
    ],
)
def test_hostile_meta_of_norms(meta: bytes) -> None:
    with pytest.raises(ValueError, match="packed norms"):
        unpack_norms(meta_blob(meta, 2, 6, struct.pack("<2f2B", 0.5, 0.5, 1, 2), 1, 2))


@pytest.mark.parametrize("meta", [b'{"read": 0}', b'{"read": 1.5}', b'{"read": true}', b'{"read": "all"}'])
def test_hostile_meta_of_tokens(meta: bytes) -> None:
    with pytest.raises(ValueError, match="share that was read"):
        unpack_tokens(meta_blob(meta, 1, 1, struct.pack("<2f", 0.5, 0.5), 1, 2))


@pytest.mark.parametrize("meta", [b"", b'{"fields": "text"}', b'{"fields": [1]}', b'{"fields": []}'])
def test_hostile_meta_of_offsets(meta: bytes) -> None:
    with pytest.raises(ValueError, match="packed offsets"):
        unpack_offsets(meta_blob(meta, 3, 6, struct.pack("<3i2B", 0, 0, 1, 255, 0), 1, 1))


@pytest.mark.parametrize("row", [(1, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 5, 4)])
def test_impossible_spans_are_refused_both_ways(row: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="packed offsets"):
        unpack_offsets(meta_blob(b'{"fields": ["text"]}', 3, 6, struct.pack("<3i2B", *row, 255, 0), 1, 1))
    with pytest.raises(ValueError, match="packed offsets"):
        pack_offsets(np.array([row], np.int32), ["text"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_values_that_are_not_finite_are_refused(value: float, dtype: str) -> None:
    data = np.array([0.5, value], dtype).tobytes()
    with pytest.raises(ValueError, match="finite"):
        unpack_tokens(meta_blob(b"", 1, 1 if dtype == "<f4" else 2, data, 1, 2))


@pytest.mark.parametrize(("codec", "size"), [(3, 2), (4, 32), (5, 16)])
def test_factors_that_are_not_finite_are_refused(codec: int, size: int) -> None:
    with pytest.raises(ValueError, match="finite"):
        unpack_tokens(meta_blob(b"", 1, codec, struct.pack("<f", float("nan")) + bytes(size), 1, 2))


@pytest.mark.parametrize(("steps", "count"), [((255, 0, 255, 0), 1), ((255, 0, 0, 1), 2), ((0, 1, 255, 0), 1)])
def test_places_in_full_must_be_as_many_as_marked_and_the_first_one_of_them(steps: tuple[int, ...], count: int) -> None:
    data = struct.pack(f"<{3 * count}i4B", *[0] * 3 * count, *steps)
    with pytest.raises(ValueError, match="packed offsets"):
        unpack_offsets(meta_blob(b'{"fields": ["text"]}', 3, 6, data, 2, count))


@pytest.mark.parametrize("blob", BLOBS)
def test_another_version_of_the_layout_is_named(blob: bytes) -> None:
    with pytest.raises(OtherLayout, match=r"layout 1.*layout 2"):
        unpack_tokens(b"TTC\x01" + blob[4:])


@pytest.mark.parametrize("value", [-0.5, np.nan, np.inf])
def test_norms_that_are_no_lengths_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="negative or not finite"):
        unpack_norms(meta_blob(b'{"scales": [3]}', 2, 6, struct.pack("<2fB", value, 0, 1), 1, 1))


@given(st.sampled_from(BLOBS), st.integers(0, 79), st.integers(0, 255))
@example(BLOBS[0], 4, 9)
@example(BLOBS[0], 5, 9)
def test_a_changed_byte_gives_a_value_error_or_arrays_of_the_blobs_own_size(blob: bytes, at: int, byte: int) -> None:
    at %= len(blob)
    changed = blob[:at] + bytes([byte]) + blob[at + 1 :]
    for unpack in UNPACK:
        try:
            read = unpack(changed)
        except ValueError:
            continue
        if isinstance(read, TokenVectors):
            assert read.nbytes <= len(changed)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_give_nothing_but_value_errors(blob: bytes) -> None:
    for unpack in UNPACK:
        with pytest.raises(ValueError, match="packed"):
            unpack(MAGIC + blob[:40])
        with pytest.raises(ValueError, match="packed"):
            unpack(blob)


def test_packing_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="in steps"):
        pack_norms(ScaleNorms((3.0,), np.ones((1, 2), np.float32)))
    with pytest.raises(ValueError, match="row of norms"):
        pack_norms(ScaleNorms((3.0, 5.0), np.ones((1, 2), np.float32)).in_steps())
