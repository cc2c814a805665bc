"""Token pooling and dropped tokens: what is kept, what each vector covers, and that every way of encoding agrees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.map_vectors import can_carry
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, encode_documents, ingest
from es_ttc.index.ingest.fewer_tokens import ENGLISH, kept_tokens, reduced_tokens
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import DroppedTokens, IndexSpec
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.reduce import group_starts

TEXT = "In the insulin (of) the café."
WORDS = ["", "In", "the", "in", "sulin", "(", "of", ")", "the", "café", ".", ""]


def offsets_of(text: str, tokens: list[str]) -> np.ndarray:
    """Return the characters of tokens that follow each other in a text."""
    found, end = [], 0
    for token in tokens:
        start = text.index(token, end) if token else 0
        found.append([start, start + len(token)])
        end = start + len(token) if token else end
    return np.array(found, np.int32)


@pytest.mark.parametrize(
    ("dropped", "left"),
    [
        ("none", WORDS),
        ("punctuation", ["", "In", "the", "in", "sulin", "of", "the", "café", ""]),
        ("english", ["", "in", "sulin", "café", ""]),
        ("special", ["in", "sulin", "café"]),
    ],
)
def test_only_whole_words_are_stop_words(dropped: DroppedTokens, left: list[str]) -> None:
    offsets = offsets_of(TEXT, WORDS)
    kept = kept_tokens(TEXT, offsets, dropped)
    assert [token for token, stays in zip(WORDS, kept, strict=True) if stays] == left


@pytest.mark.parametrize("dropped", ["punctuation", "english", "special"])
def test_a_text_of_nothing_else_keeps_all(dropped: DroppedTokens) -> None:
    offsets = offsets_of("...", [".", ".", "."])
    assert kept_tokens("...", offsets, dropped).all()


def test_the_stop_words_are_lucenes() -> None:
    assert len(ENGLISH) == 33


@given(st.text(alphabet="ab .,", max_size=30), st.integers(1, 6), st.sampled_from(["none", "punctuation", "special"]))
def test_what_is_kept_is_covered(text: str, factor: int, dropped: DroppedTokens) -> None:
    spans = [[place, place + 1] for place, character in enumerate(text) if character != " "]
    offsets = np.array([[0, 0], *spans, [0, 0]], np.int32)
    rows = np.random.default_rng(0).normal(size=(len(offsets), 4)).astype(np.float32)
    kept = kept_tokens(text, offsets, dropped)
    vectors, ranges = reduced_tokens(text, rows, offsets, dropped, factor)
    assert len(vectors) == len(ranges) == -(-int(kept.sum()) // factor)
    own = {place for start, end in offsets[kept].tolist() for place in range(start, end)}
    covered = {place for start, end in ranges.tolist() for place in range(start, end)}
    assert own <= covered
    ordered = ranges[ranges[:, 0] < ranges[:, 1]]
    assert (ordered[1:, 0] >= ordered[:-1, 1]).all()


def test_an_index_of_pooled_tokens_is_encoded_again_for_a_trained_encoder(encoder: Encoder) -> None:
    spec = IndexSpec(encoder.identity, token_pooling=2)
    assert not can_carry(spec, spec, encoder)
    assert replace(spec, token_pooling=1).storage != spec.storage != replace(spec, drop_tokens="english").storage


async def test_an_engine_holds_pooled_tokens_with_their_characters(
    engine: Engine, index_name: str, encoder: Encoder
) -> None:
    spec = IndexSpec(encoder.identity, ("title", "text"), codec="float16", token_pooling=3, drop_tokens="special")
    await create_index(engine, index_name, spec)
    document = {"_id": "1", "title": "Bread", "text": "It is baked from flour, water and salt. " * 4}
    letters = DeadLetterList()
    await ingest(engine, index_name, Inputs([Documents([document])]), encoder, dead_letters=letters)
    assert not letters.letters
    reader = reader_of(spec.layout)
    body = {"query": {"match_all": {}}, **reader.request([Feature.TOKENS, Feature.OFFSETS])}
    [hit] = (await engine.search(index_name, body))["hits"]["hits"]
    tokens, offsets = reader.read(hit, Feature.TOKENS), reader.read(hit, Feature.OFFSETS)
    assert tokens is not None
    assert offsets is not None
    [features] = encode_documents([document], spec, encoder)
    assert features.tokens is not None
    np.testing.assert_array_equal(tokens.value.values, features.tokens.vectors.values)
    np.testing.assert_array_equal(offsets.value[0], features.tokens.offsets)

    # By hand: the tokens with text of their own, but punctuation and stop words, in thirds.
    text = f"Bread {document['text']}"
    encoded = encoder.encode([text])
    kept = kept_tokens(text, encoded.offsets[0], "special")
    rows, own = encoded.tokens[0][kept], encoded.offsets[0][kept]
    starts = group_starts(rows, -(-len(rows) // 3))
    assert len(tokens.value) == len(starts) < len(encoded.tokens[0]) / 4
    for vector, part in zip(tokens.value.values, np.split(rows, starts[1:]), strict=True):
        mean = part.mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-3)
    fields = [document["title"], document["text"]]
    for (field, start, end), covered in zip(offsets.value[0].tolist(), np.split(own, starts[1:]), strict=True):
        last = text[covered[-1][0] : covered[-1][1]]
        assert fields[field][start:end].endswith(last)
