"""The mean of a text's words, for encoders whose pooled vector is another: against the literal formula."""

import numpy as np
import pytest

from es_ttc.encoders import Encoder, load_encoder
from es_ttc.encoders.queries import encode, needs_words, word_means
from es_ttc.lab.evaluation.features import encode_queries
from tests.encoders.conftest import LONG, SENTENCES, MakeFolder

pytestmark = pytest.mark.slow

PROMPT = "Represent this: "


@pytest.fixture(scope="module")
def cls(make_folder: MakeFolder) -> Encoder:
    """MiniLM's tokens with the vector of the class token, and a prompt of queries."""
    configs = {
        "1_Pooling/config.json": {"pooling_mode": "cls"},
        "config_sentence_transformers.json": {"prompts": {"query": PROMPT}},
    }
    return load_encoder(f"{make_folder(configs=configs)}@onnx")


def test_special_tokens_and_the_prompt_are_no_words(cls: Encoder) -> None:
    texts = [*SENTENCES, LONG]
    encoded = cls.encode(texts, role="query")
    found = word_means(encoded)
    for place, text in enumerate(texts):
        rows = [
            row
            for row, (start, end) in zip(encoded.tokens[place], encoded.offsets[place].tolist(), strict=True)
            if text[start:end]
        ]
        mean = np.mean(np.array(rows, np.float64), axis=0)
        np.testing.assert_allclose(found[place], mean / np.linalg.norm(mean), atol=1e-6)


def test_a_text_without_words_has_its_pooled_vector(cls: Encoder) -> None:
    encoded = cls.encode(["", "dogs"], role="query")
    np.testing.assert_array_equal(word_means(encoded)[0], encoded.pooled[0])


def test_queries_carry_it_only_where_the_pooled_vector_is_no_mean(cls: Encoder, encoder: Encoder) -> None:
    assert cls.identity.pooling == "cls"
    assert cls.identity.as_dict()["pooling"] == "cls"
    assert needs_words(cls)
    (query,) = encode_queries([SENTENCES[0]], cls, tokens=False)
    assert query.tokens is None
    np.testing.assert_array_equal(query.of_tokens, word_means(cls.encode([SENTENCES[0]], role="query")))
    assert not needs_words(encoder)
    assert "pooling" not in encoder.identity.as_dict()
    (plain,) = encode_queries([SENTENCES[0]], encoder, tokens=False)
    assert plain.word_means is None
    np.testing.assert_array_equal(plain.of_tokens, plain.vectors)


def test_a_query_of_several_texts_has_that_of_each(cls: Encoder) -> None:
    texts = SENTENCES[:2]
    several, *each = encode([texts, *([text] for text in texts)], cls, tokens=True)
    assert [part.text for part in several.parts] == texts
    for part, alone in zip(several.parts, each, strict=True):
        assert not alone.parts
        for name in ("vectors", "tokens", "word_means", "token_spans"):
            np.testing.assert_allclose(getattr(part, name), getattr(alone, name), atol=1e-5)
    np.testing.assert_array_equal(several.of_tokens, np.concatenate([part.of_tokens for part in several.parts]))
