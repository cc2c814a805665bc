"""Token pooling: what each vector covers, and that every way of encoding agrees."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.map_vectors import heads_between
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, encode_documents, ingest
from es_ttc.index.ingest.encode import pool_tokens
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.reduce import group_starts


@given(st.text(alphabet="ab .,", max_size=30), st.integers(1, 6))
def test_every_character_of_a_token_is_covered(text: str, factor: int) -> None:
    spans = [[place, place + 1] for place, character in enumerate(text) if character != " "]
    offsets = np.array([[0, 0], *spans, [0, 0]], np.int32)
    rows = np.random.default_rng(0).normal(size=(len(offsets), 4)).astype(np.float32)
    pooled = pool_tokens(Encodings(rows[:1], [rows], [offsets], np.zeros(1, np.bool_)), factor)
    [vectors], [ranges] = pooled.tokens, pooled.offsets
    assert len(vectors) == len(ranges) == -(-len(offsets) // factor)
    covered = {place for start, end in ranges.tolist() for place in range(start, end)}
    assert {start for start, _ in spans} <= covered
    ordered = ranges[ranges[:, 0] < ranges[:, 1]]
    assert (ordered[1:, 0] >= ordered[:-1, 1]).all()


def test_an_index_of_pooled_tokens_is_encoded_again_for_a_trained_encoder(encoder: Encoder) -> None:
    spec = IndexSpec(encoder.identity, token_pooling=2)
    assert heads_between(spec, spec, encoder) is None


async def test_an_engine_holds_pooled_tokens_with_their_characters(
    engine: Engine, index_name: str, encoder: Encoder
) -> None:
    spec = IndexSpec(encoder.identity, ("title", "text"), codec="float16", token_pooling=3)
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

    # By hand: the tokens in thirds.
    text = f"Bread {document['text']}"
    encoded = encoder.encode([text])
    rows, own = encoded.tokens[0], encoded.offsets[0]
    starts = group_starts(rows, -(-len(rows) // 3))
    assert len(tokens.value) == len(starts) < len(rows) / 2
    for vector, part in zip(tokens.value.values, np.split(rows, starts[1:]), strict=True):
        mean = part.mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-3)
    fields = [document["title"], document["text"]]
    for (field, start, end), covered in zip(offsets.value[0].tolist(), np.split(own, starts[1:]), strict=True):
        if not (with_text := covered[covered[:, 0] < covered[:, 1]]).size:
            continue
        last = text[with_text[-1][0] : with_text[-1][1]]
        assert fields[field][start:end].endswith(last)
