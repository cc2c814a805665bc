"""Every property that an encoder promises, on every backend and arithmetic.

sentence-transformers takes seconds to import, so it is imported where it is asked.
"""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from es_ttc.encoders import Encoder, Encodings, load_encoder
from es_ttc.errors import ConfigurationError, EncoderError, InvalidRequest
from tests.encoders.conftest import LONG, SENTENCES, MakeFolder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

QUERY_PROMPTS = {"prompts": {"query": "search for: ", "document": "text: "}}


def pooling(mode: str, **more: Any) -> dict[str, Any]:
    return {"1_Pooling/config.json": {"word_embedding_dimension": 384, "pooling_mode": mode, **more}}


def library(folder: Path) -> "SentenceTransformer":
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def assert_same(one: Encodings, other: Encodings) -> None:
    assert np.array_equal(one.pooled, other.pooled)
    for pair in zip([*one.tokens, *one.offsets], [*other.tokens, *other.offsets], strict=True):
        assert np.array_equal(*pair)


def test_shapes_and_units(any_encoder: Encoder) -> None:
    result = any_encoder.encode(SENTENCES)
    assert result.pooled.shape == (len(SENTENCES), any_encoder.identity.dims)
    assert result.pooled.dtype == np.float32
    for rows, spans in zip(result.tokens, result.offsets, strict=True):
        assert rows.dtype == np.float32
        assert spans.dtype == np.int32
        assert spans.shape == (len(rows), 2)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result.pooled, axis=1), 1, atol=1e-6)
    assert not result.truncated.any()


def test_a_text_has_the_same_vectors_whatever_its_neighbours(any_encoder: Encoder) -> None:
    texts = [*SENTENCES, LONG[:2200], "", *(f"{text} {number}" for text in SENTENCES for number in range(3))]
    together = any_encoder.encode(texts)
    order = list(range(len(texts)))
    random.Random(7).shuffle(order)
    shuffled = any_encoder.encode([texts[index] for index in order])
    for place, index in enumerate(order):
        assert np.array_equal(shuffled.tokens[place], together.tokens[index])
        assert np.array_equal(shuffled.pooled[place], together.pooled[index])
    for index in (0, 5):
        alone = any_encoder.encode([texts[index]])
        assert np.array_equal(alone.tokens[0], together.tokens[index])
        assert np.array_equal(alone.pooled[0], together.pooled[index])


@pytest.mark.parametrize(("device", "count"), [("cpu", 36), *([("cuda", 600)] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_without_padding_gives_what_one_with_padding_gives(device: str, count: int, dtype: str) -> None:
    encoder = load_encoder(f"minilm@torch:{dtype}", device=device)
    # 32 tokens with the two markers, the padded length; enough of them to fill the device's batch and begin another.
    texts = [" ".join(["dog"] * 29 + [word]) for word in ("cat", "bird", "fish", "horse")] * (count // 4)
    together = encoder.encode(texts)
    assert {len(rows) for rows in together.tokens} == {32}
    for position, text in enumerate(texts[:4]):
        alone = encoder.encode([text])
        for index in range(position, len(texts), 4):
            assert np.array_equal(together.tokens[index], alone.tokens[0])
            assert np.array_equal(together.pooled[index], alone.pooled[0])


def test_query_vectors_do_not_depend_on_their_batch(any_encoder: Encoder) -> None:
    together = any_encoder.encode(SENTENCES, role="query")
    for position, text in enumerate(SENTENCES):
        alone = any_encoder.encode([text], role="query", tokens=False)
        assert np.array_equal(alone.pooled[0], together.pooled[position])
        assert alone.tokens == []
        assert alone.offsets == []


def test_threads_get_what_one_caller_gets(any_encoder: Encoder) -> None:
    expected = any_encoder.encode(SENTENCES, role="query")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: any_encoder.encode(SENTENCES, role="query"), range(8)))
    for result in results:
        assert_same(result, expected)


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x1f\x7f", "\ud800\udfff"])
def test_a_text_without_tokens_has_a_zero_row_and_no_token_rows(any_encoder: Encoder, text: str) -> None:
    result = any_encoder.encode(["before", text, "after"])
    assert not result.pooled[1].any()
    assert result.tokens[1].shape == (0, 384)
    assert result.offsets[1].shape == (0, 2)
    assert result.tokens[0].shape == (3, 384)
    assert result.pooled[2].any()


@pytest.mark.parametrize(
    "text",
    [
        "ภาษาไทยไม่มีช่องว่าง",
        "مرحبا بالعالم",
        "👩‍👩‍👧 and 🏳️‍🌈!",
        "tab\tbell\x07null\x00end",
        "half \ud83d pair",
        "e\u0301" * 20,
        "א" * 500,
    ],
)
def test_every_script_is_encoded_with_offsets_inside_the_text(encoder: Encoder, text: str) -> None:
    result = encoder.encode([text])
    assert np.isfinite(result.tokens[0]).all()
    assert result.pooled[0].any()
    assert result.offsets[0].max() <= len(text)
    own = result.offsets[0][1:-1]
    assert (own[:, 0] < own[:, 1]).all()


def test_a_long_text_is_read_in_windows(encoder: Encoder) -> None:
    limit = encoder.identity.max_length
    result = encoder.encode([LONG], max_tokens=10_000)
    rows, spans = result.tokens[0], result.offsets[0]
    assert len(rows) > 2 * limit
    # The second window is read as if it stood alone: the model sees the same tokens.
    begin, end = spans[limit + 1, 0], spans[2 * limit - 2, 1]
    alone = encoder.encode([LONG[begin:end]])
    assert np.array_equal(alone.tokens[0], rows[limit : 2 * limit])
    assert np.array_equal(alone.offsets[0][1:-1] + begin, spans[limit + 1 : 2 * limit - 1])


def test_pooled_is_the_first_window_whatever_is_kept(any_encoder: Encoder) -> None:
    reference = any_encoder.encode([LONG], max_tokens=10_000)
    for max_tokens in (1, 300):
        result = any_encoder.encode([LONG], max_tokens=max_tokens)
        assert np.array_equal(result.pooled, reference.pooled)
        assert np.array_equal(result.tokens[0], reference.tokens[0][:max_tokens])
        assert np.array_equal(result.offsets[0], reference.offsets[0][:max_tokens])
        assert result.truncated.all()
    assert not reference.truncated.any()


def test_a_hundred_thousand_tokens(encoder: Encoder) -> None:
    result = encoder.encode(["dog cat " * 50_000], max_tokens=300)
    assert result.tokens[0].shape == (300, 384)
    assert result.truncated.tolist() == [True]


def test_encode_no_texts_gives_no_vectors(any_encoder: Encoder) -> None:
    result = any_encoder.encode([])
    assert result.pooled.shape == (0, 384)
    assert result.tokens == []


def test_impossible_arguments(encoder: Encoder) -> None:
    with pytest.raises(InvalidRequest, match=r"max_tokens.*\[0\]"):
        encoder.encode(["x"], max_tokens=0)
    with pytest.raises(EncoderError, match=r"text 1.*int"):
        encoder.encode(["x", 3])  # type: ignore[list-item]


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_parity_with_the_library(make_folder: MakeFolder, mode: str) -> None:
    folder = make_folder(configs=pooling(mode) | {"config_sentence_transformers.json": QUERY_PROMPTS})
    own = load_encoder(f"{folder}@torch:float32")
    reference = library(folder)
    texts = [*SENTENCES[:3], LONG]
    for role, prompt in (("document", "text: "), ("query", "search for: ")):
        result = own.encode(texts, role=role, max_tokens=own.identity.max_length)  # type: ignore[arg-type]
        pooled = reference.encode(texts, prompt=prompt)
        np.testing.assert_allclose(result.pooled, unit(pooled), atol=1e-5)
        tokens = reference.encode(texts, prompt=prompt, output_value="token_embeddings")
        for mine, other in zip(result.tokens, tokens, strict=True):
            np.testing.assert_allclose(mine, unit(other.numpy()), atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "max"])
def test_both_backends_agree(make_folder: MakeFolder, mode: str) -> None:
    folder = make_folder(configs=pooling(mode) | {"config_sentence_transformers.json": QUERY_PROMPTS})
    on_torch, on_onnx = load_encoder(f"{folder}@torch:float32"), load_encoder(f"{folder}@onnx")
    assert on_torch.identity == on_onnx.identity
    expected, result = on_torch.encode(SENTENCES), on_onnx.encode(SENTENCES)
    # int8 weights: rounding of the weights, nothing else.
    assert (expected.pooled * result.pooled).sum(axis=1).min() > 0.99
    for mine, other, spans, other_spans in zip(
        result.tokens, expected.tokens, result.offsets, expected.offsets, strict=True
    ):
        assert (mine * other).sum(axis=1).min() > 0.99
        assert np.array_equal(spans, other_spans)


def test_prompt_tokens_stay_out_of_the_pooling_where_the_model_says_so(make_folder: MakeFolder) -> None:
    configs = pooling("mean", include_prompt=False) | {"config_sentence_transformers.json": QUERY_PROMPTS}
    folder = make_folder(configs=configs)
    on_torch, on_onnx = load_encoder(f"{folder}@torch:float32"), load_encoder(f"{folder}@onnx")
    expected = unit(library(folder).encode(SENTENCES, prompt="text: "))
    np.testing.assert_allclose(on_torch.encode(SENTENCES).pooled, expected, atol=1e-5)
    assert (on_onnx.encode(SENTENCES).pooled * expected).sum(axis=1).min() > 0.99


def test_arithmetics_differ_by_rounding_only(
    float32: Encoder, bfloat16: Encoder, onnxruntime: Encoder, encoder: Encoder
) -> None:
    assert float32.identity == bfloat16.identity == onnxruntime.identity == encoder.identity
    expected = float32.encode([*SENTENCES, LONG])
    for other, floor in ((bfloat16, 0.998), (onnxruntime, 0.99), (encoder, 0.99)):
        result = other.encode([*SENTENCES, LONG])
        cosines = [(mine * its).sum(axis=1) for mine, its in zip(expected.tokens, result.tokens, strict=True)]
        assert np.concatenate(cosines).min() > floor
        assert (expected.pooled * result.pooled).sum(axis=1).min() > floor


def test_encoder_with_fewer_dimensions_cuts_vectors(float32: Encoder) -> None:
    short = load_encoder("minilm@torch:float32", dims=64)
    assert short.identity.dims == 64
    assert short.identity.key != float32.identity.key
    expected, result = float32.encode(SENTENCES), short.encode(SENTENCES)
    np.testing.assert_allclose(result.pooled, unit(expected.pooled[:, :64]), atol=1e-6)
    np.testing.assert_allclose(result.tokens[4], unit(expected.tokens[4][:, :64]), atol=1e-6)


def test_encoder_with_max_length_reads_less(encoder: Encoder) -> None:
    short = load_encoder("minilm@onnx", max_length=32)
    assert short.identity.max_length == 32
    assert short.identity.key != encoder.identity.key
    assert short.encode([LONG], max_tokens=64).offsets[0].tolist()[31:33] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("options", [{"dims": 385}, {"dims": 0}, {"max_length": 257}, {"max_length": 2}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(ConfigurationError, match=option):
        load_encoder("minilm@onnx", **options)


def test_a_projection_after_the_pooling_is_applied_to_the_tokens_too(make_folder: MakeFolder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(0)
    source = str(make_folder())
    dense = Dense(384, 96, activation_function=torch.nn.Identity())
    SentenceTransformer(modules=[Transformer(source), Pooling(384), dense, Normalize()], device="cpu").save(
        str(tmp_path / "projected"), create_model_card=False
    )
    encoder = load_encoder(f"{tmp_path / 'projected'}@torch:float32")
    assert encoder.identity.dims == 96
    result = encoder.encode(SENTENCES)
    plain = library(Path(source)).encode(SENTENCES, output_value="token_embeddings")
    with torch.inference_mode():
        expected = [unit((rows @ dense.linear.weight.cpu().T + dense.linear.bias.cpu()).numpy()) for rows in plain]
    for mine, other in zip(result.tokens, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    with pytest.raises(ConfigurationError, match="@torch"):
        load_encoder(f"{tmp_path / 'projected'}@onnx")


def test_two_poolings_side_by_side_have_no_token_space(make_folder: MakeFolder) -> None:
    config = {"word_embedding_dimension": 384, "pooling_mode": ["mean", "max"]}
    folder = make_folder(configs={"1_Pooling/config.json": config})
    for backend, message in (("torch", "768"), ("onnx", "pools by")):
        with pytest.raises(ConfigurationError, match=message):
            load_encoder(f"{folder}@{backend}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 amx_bf16\n", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512_bf16\n", "bfloat16"),
        ("flags\t\t: fpu avx2\n", "float32"),
        ("Features\t: fp asimd\n", "float32"),
        (None, "float32"),
    ],
)
def test_arithmetic_follows_the_processor(tmp_path: Path, content: str | None, expected: str) -> None:
    from es_ttc.encoders.sentence_transformers import choose_dtype

    cpuinfo = tmp_path / "cpuinfo"
    if content is not None:
        cpuinfo.write_text(content)
    assert choose_dtype(torch.device("cpu"), cpuinfo) == expected


def test_offsets_of_all_windows_grow(encoder: Encoder) -> None:
    spans = encoder.encode([LONG], max_tokens=10_000).offsets[0]
    own = spans[spans[:, 1] > 0]
    assert all(before[0] < after[0] for before, after in itertools.pairwise(own.tolist()))
