"""The best passages of a document: at the greatest cosines, apart from each other, each in one field."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral.passages import MATCH_SCALE, PASSAGE_SCALE, best_passages
from es_ttc.vectors.quantise import quantise
from tests.rescorers.reference import cosines
from tests.rescorers.spectral.test_evidence import planted, words
from tests.rescorers.windows import unit_rows


@given(st.integers(1, 150), st.integers(0, 150), st.integers(1, 10), st.integers(0, 2**16))
def test_passages_lie_apart_in_one_field_each_and_the_first_is_the_best(
    length: int, title: int, count: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    tokens, query = unit_rows(random, length, 16), unit_rows(random, 2, 16)
    fields = [0] * min(title, length) + [1] * max(0, length - title)
    passages = best_passages(query, quantise(tokens, "float32"), None, words(fields), count)
    assert 1 <= len(passages) <= count
    ends = [5 * fields.count(field) - 1 for field in (0, 1)]
    for number, one in enumerate(passages):
        assert 0 <= one.start <= one.match[0] < one.match[1] <= one.end <= ends[one.field]
        assert one.end - one.start <= 5 * 2 * PASSAGE_SCALE
        assert one.match[1] - one.match[0] <= 5 * 2 * MATCH_SCALE
        for other in passages[:number]:
            assert other.score >= one.score
            assert other.field != one.field or other.end <= one.start or one.end <= other.start
    assert {one.field for one in passages} == set(fields) or count == 1 or len(passages) == count
    best = max(max(cosines(row.astype(float), tokens.astype(float), PASSAGE_SCALE)) for row in query)
    assert abs(passages[0].score - best) < 1e-4


def test_planted_passages_are_found_with_the_words_that_match() -> None:
    random = np.random.default_rng(3)
    vector = unit_rows(random, 1, 64)
    tokens = planted(random, vector, 300, slice(60, 67))
    tokens[200:204] = planted(random, vector, 4, slice(0, 4))
    first, second = best_passages(vector, quantise(tokens, "int8"), None, words([0] * 300), 2)
    assert first.start <= 5 * 61 <= first.match[0] + 15
    assert first.match[1] <= 5 * 69 <= first.end + 15
    assert second.start <= second.match[0] <= 5 * 202 <= second.match[1] <= second.end


def test_a_passage_begins_at_a_word_where_there_are_words() -> None:
    random = np.random.default_rng(3)
    vector = unit_rows(random, 1, 64)
    tokens = quantise(planted(random, vector, 300, slice(60, 67)), "int8")
    starts = 4 * np.arange(300)
    parts = np.stack([np.zeros(300, np.int64), starts, starts + 4], axis=1).astype(np.int32)  # of one endless word
    [endless] = best_passages(vector, tokens, None, parts, 1)
    parts[::5, 1] += 1  # each word has five tokens
    [spaced] = best_passages(vector, tokens, None, parts, 1)
    assert (spaced.start - 1) % 20 == 0
    assert 0 <= endless.start - spaced.start < 20


def test_a_document_without_text_has_none() -> None:
    random = np.random.default_rng(5)
    query = unit_rows(random, 1, 8)
    empty = quantise(np.empty((0, 8), np.float32), "float32")
    assert best_passages(query, empty, None, np.empty((0, 3), np.int32), 3) == []
    special = quantise(unit_rows(random, 2, 8), "float32")
    assert best_passages(query, special, None, np.zeros((2, 3), np.int32), 3) == []
