import cbor2
import numpy as np
import pytest

from es_ttc.vectors.chunks import GRANULARITIES, DocumentChunks, no_chunks, pack_chunks, unpack_chunks
from es_ttc.vectors.packed import pack_tokens
from es_ttc.vectors.quantise import quantise
from es_ttc.vectors.tokens import Codec
from tests.rescorers.windows import unit_rows


def chunks(codec: Codec) -> DocumentChunks:
    random = np.random.default_rng(3)
    spans = np.array([[0, 4], [5, 9]], np.int32)
    return DocumentChunks(
        "Fünf. 五",
        dict.fromkeys(GRANULARITIES, np.minimum(spans, 7)),
        {name: quantise(unit_rows(random, 2, 8), codec) for name in GRANULARITIES},
        quantise(unit_rows(random, 1, 8), codec),
    )


@pytest.mark.parametrize("codec", ["int8", "float16"])
def test_chunks_are_read_back(codec: Codec) -> None:
    written = chunks(codec)
    read = unpack_chunks(pack_chunks(written))
    assert read.text == written.text
    for name in GRANULARITIES:
        np.testing.assert_array_equal(read.spans[name], written.spans[name])
        np.testing.assert_array_equal(read.vectors[name].values, written.vectors[name].values)
    np.testing.assert_array_equal(read.topic.values, written.topic.values)
    assert unpack_chunks(pack_chunks(no_chunks(8))).text == ""


def test_damage_is_a_value_error() -> None:
    blob = pack_chunks(chunks("int8"))
    whole = cbor2.loads(blob)
    damaged = [
        b"",
        blob[: len(blob) // 2],
        cbor2.dumps([1]),
        cbor2.dumps({**whole, "text": "short"}),
        cbor2.dumps({**whole, "text": 3}),
        cbor2.dumps({**whole, "topic": pack_tokens(quantise(unit_rows(np.random.default_rng(1), 2, 8), "int8"))}),
        cbor2.dumps({**whole, "pairs": pack_tokens(quantise(unit_rows(np.random.default_rng(1), 1, 8), "int8"))}),
        cbor2.dumps({**whole, "spans": dict.fromkeys(GRANULARITIES, b"abc")}),
        cbor2.dumps({name: value for name, value in whole.items() if name != "spans"}),
    ]
    for one in damaged:
        with pytest.raises(ValueError, match="packed"):
            unpack_chunks(one)
