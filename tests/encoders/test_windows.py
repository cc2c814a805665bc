import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from es_ttc.encoders.base import Role
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm
from es_ttc.encoders.windows import Reader, role_prompts
from es_ttc.errors import ConfigurationError, EncoderError
from tests.encoders.conftest import LONG, SENTENCES

NO_PROMPTS: dict[Role, str] = {"query": "", "document": ""}
CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def tokenizer(hashes: FileHashes) -> Tokenizer:
    return Tokenizer.from_file(str(minilm(hashes).folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer) -> Reader:
    return Reader(tokenizer, max_length=16, prompts=NO_PROMPTS)


def test_offsets_cut_the_tokens_out_of_the_text(reader: Reader, tokenizer: Tokenizer) -> None:
    text = "  The Café (near Zürich)\topened — at 7:30!"
    (reading,) = reader.read([text], "document", 1024)
    for window in reading.windows:
        for token, (start, end) in zip(window.ids, window.offsets.tolist(), strict=True):
            if token in (CLS, SEP):
                assert (start, end) == (0, 0)
            else:
                piece = str(tokenizer.id_to_token(token)).removeprefix("##")
                assert piece == text[start:end].lower().replace("é", "e").replace("ü", "u")
    (marked,) = reader.read(["cafe\u0301\u0323 au lait"], "document", 1024)  # the tokenizer drops the marks
    assert marked.windows[0].offsets.tolist()[1:3] == [[0, 6], [7, 9]]


def test_windows_follow_each_other_without_gap_or_overlap(reader: Reader, tokenizer: Tokenizer) -> None:
    (reading,) = reader.read([LONG], "document", 100_000)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    whole = tokenizer.encode(LONG, add_special_tokens=False)
    assert len(reading.windows) > 10
    assert not reading.truncated
    assert [token for window in reading.windows for token in window.ids[1:-1]] == whole.ids
    spans = np.concatenate([window.offsets[1:-1] for window in reading.windows])
    assert spans.tolist() == [list(span) for span in whole.offsets]
    assert all(window.ids[0] == CLS and window.ids[-1] == SEP for window in reading.windows)
    assert all(len(window.ids) == 16 for window in reading.windows[:-1])


@pytest.mark.parametrize(
    ("words", "max_tokens", "truncated"), [(14, 16, False), (15, 16, True), (28, 32, False), (29, 32, True)]
)
def test_truncated_says_whether_rows_are_missing(reader: Reader, words: int, max_tokens: int, truncated: bool) -> None:
    (reading,) = reader.read(["dog " * words], "document", max_tokens)
    assert reading.truncated is truncated
    assert len(reading.windows) == max_tokens // 16


@pytest.mark.parametrize("text", ["", "   \n\t ", "\x00\x07\x1b", "\ud800", "\u200b\u200e"])
def test_texts_without_a_token_of_their_own_have_no_window(reader: Reader, text: str) -> None:
    (reading,) = reader.read([text], "document", 10)
    assert reading.windows == []
    assert not reading.truncated


def test_every_window_begins_with_the_prompt(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, max_length=16, prompts={"query": "", "document": "passage: "})
    plain, prompted = (reader.read([LONG], role, 10_000)[0] for role in ("query", "document"))
    prompt = tokenizer.encode("passage:", add_special_tokens=False).ids
    for window in prompted.windows:
        assert window.lead == 1 + len(prompt)
        assert window.ids[1 : window.lead] == prompt
        assert not window.offsets[: window.lead].any()
    spans = [np.concatenate([w.offsets[w.lead : -1] for w in reading.windows]) for reading in (plain, prompted)]
    assert np.array_equal(spans[0], spans[1])
    assert reader.read([""], "document", 10)[0].windows == []


def test_a_prompt_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=r"max_length \[8\]"):
        Reader(tokenizer, max_length=8, prompts={"query": "", "document": "one two three four five six"})


def test_a_text_that_is_no_string_is_named_by_its_position(reader: Reader) -> None:
    with pytest.raises(EncoderError, match=r"text 1.*NoneType"):
        reader.read(["fine", None], "document", 10)  # type: ignore[list-item]


@given(texts=st.lists(st.text(st.characters(), max_size=80), max_size=4), max_tokens=st.integers(1, 60))
def test_any_text_is_read(reader: Reader, texts: list[str], max_tokens: int) -> None:
    for text, reading in zip(texts, reader.read(texts, "document", max_tokens), strict=True):
        rows = sum(len(window.ids) for window in reading.windows)
        assert rows >= max_tokens or not reading.truncated
        for window in reading.windows:
            assert len(window.ids) == len(window.type_ids) == len(window.offsets) <= 16
            assert (window.offsets[:, 0] <= window.offsets[:, 1]).all()
            assert window.offsets.min() >= 0
            assert window.offsets.max() <= len(text)


def test_reading_does_not_depend_on_the_other_texts(reader: Reader) -> None:
    together = reader.read([*SENTENCES, LONG], "document", 64)
    for text, reading in zip([*SENTENCES, LONG], together, strict=True):
        (alone,) = reader.read([text], "document", 64)
        assert [window.ids for window in alone.windows] == [window.ids for window in reading.windows]


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, ("", "")),
        ({"query": "q: ", "passage": "p: "}, None, ("q: ", "p: ")),
        ({"query": "q: ", "document": "", "passage": "p: "}, None, ("q: ", "")),
        ({"sts": "s: "}, "sts", ("s: ", "s: ")),
        ({"sts": "s: ", "query": "q: "}, "sts", ("q: ", "s: ")),
        ({"query": None}, None, ("", "")),
    ],
)
def test_prompts_are_found_as_sentence_transformers_finds_them(
    prompts: dict[str, str | None], default: str | None, expected: tuple[str, str]
) -> None:
    found = role_prompts(prompts, default)
    assert (found["query"], found["document"]) == expected
