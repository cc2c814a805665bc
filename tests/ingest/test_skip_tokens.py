"""Tokens that get no vector: which ones, and what stands for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram

from es_ttc.encoders.base import Encoder
from es_ttc.encoders.stop_words import NEGATIONS, stop_words
from es_ttc.index.ingest.compose import FieldSpan, compose
from es_ttc.index.ingest.skip_tokens import without_skipped
from es_ttc.vectors.codecs import SkipTokens

STOP_WORDS = frozenset({"the", "of", "and", "is", "it", "a"})


def spans_of(encoder: Encoder, document: dict[str, str], skip: SkipTokens) -> list[str]:
    """Return the texts of the tokens that keep a vector, of a document of two fields."""
    text, fields = compose(document, ("title", "body"))
    [rows], [offsets] = (found := encoder.encode([text])).tokens, found.offsets
    kept, spans, share = without_skipped(rows, offsets, text, fields, skip, encoder.stop_words)
    assert (share < 1) == (skip == "repeated_words")
    assert np.linalg.norm(kept, axis=1) == pytest.approx(1, abs=1e-5)
    return [text[start:end] for start, end in spans.tolist()]


@pytest.mark.parametrize(
    ("document", "skip", "kept"),
    [
        ({"title": "A cat, 5 $!"}, "none", ["", "A", "cat", ",", "5", "$", "!", ""]),
        ({"title": "A cat, 5 $!"}, "punctuation", ["", "A", "cat", "5", "$", ""]),
        ({"title": "A cat, 5 $!"}, "stop_words", ["", "A cat", "5", "$", ""]),
        ({"title": "price of it, and the colour"}, "stop_words", ["", "price of it", "and the colour", ""]),
        ({"title": "not without the nicotine"}, "stop_words", ["", "not", "without", "the nico", "tine", ""]),
        ({"title": "of all", "body": "the cat"}, "stop_words", ["", "of", "all", "the cat", ""]),
        ({"title": "cat", "body": "the..."}, "stop_words", ["", "cat", "the", ".", ".", ".", ""]),
        ({"title": "..."}, "stop_words", ["", ".", ".", ".", ""]),
        ({"title": ""}, "stop_words", []),
        (
            {"title": "Cat, the cat", "body": "a nicotine cat"},
            "repeated_words",
            ["", "Cat", "a nico", "tine", ""],
        ),
    ],
)
def test_tokens_that_keep_a_vector(
    encoder: Encoder, document: dict[str, str], skip: SkipTokens, kept: list[str]
) -> None:
    assert spans_of(encoder, document, skip) == kept


@given(
    st.lists(st.sampled_from(["the", "of", "a", "cat", "dogs", ",", ".", "", "not"]), max_size=30),
    st.integers(0, 30),
    st.integers(0, 2**32 - 1),
)
def test_every_word_is_under_one_span_and_no_span_reaches_another_field(
    tokens: list[str], first_field: int, seed: int
) -> None:
    text, places, parts = "", [], dict[int, list[tuple[int, int]]]()
    for number, token in enumerate(tokens):
        start = len(text) + bool(text) if token else 0
        text += f" {token}" if text and token else token
        places.append((start, start + len(token)))
        if token:
            parts.setdefault(int(number >= first_field), []).append(places[-1])
    offsets = np.array(places, np.int32).reshape(-1, 2)
    fields = [FieldSpan(field, own[0][0], own[-1][1]) for field, own in sorted(parts.items())]
    rows = np.random.default_rng(seed).normal(size=(len(tokens), 4)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    kept, spans, share = without_skipped(rows, offsets, text, fields, "stop_words", STOP_WORDS)
    assert share == 1
    assert len(kept) == len(spans)
    with_text = spans[spans[:, 1] > spans[:, 0]]
    assert (with_text[1:, 0] >= with_text[:-1, 1]).all()  # in order, without overlaps
    for start, end in with_text.tolist():
        assert sum(field.start <= start and end <= field.end for field in fields) == 1
    for token, (start, end) in zip(tokens, offsets.tolist(), strict=True):
        covered = sum(one <= start and end <= other for one, other in with_text.tolist())
        assert covered == 1 if token not in (",", ".", "") else covered <= 1
    assert (spans[:, 0] == spans[:, 1]).sum() == tokens.count("")


def test_stop_words_are_the_most_frequent_words_without_negations(encoder: Encoder) -> None:
    assert {"the", "of", "and", "a", "is"} <= encoder.stop_words
    assert not encoder.stop_words & (NEGATIONS | {"school", "city", "x", "##s"})
    by_probability = [
        ("<unk>", 0.0),
        (",", -3.0),
        ("▁der", -7.0),
        ("▁и", -7.5),
        ("s", -8.0),
        ("▁nicht", -9.0),
        ("▁Haus", -12.0),
    ]
    assert stop_words(Tokenizer(Unigram(by_probability, 0))) == {"der", "и"}
    by_order = {piece: number for number, piece in enumerate(["a", "b", "Ġ", "in", "Ġthe", "Ġnot", "ĠOf", "Ġ5"])}
    assert stop_words(Tokenizer(BPE(by_order, []))) == {"a", "the", "of"}
