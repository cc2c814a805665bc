import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.programs.splitting import split


def cut(text: str, granularity: str, most: int = 64) -> list[str]:
    return [text[start:end] for start, end in getattr(split(text, most=most), granularity)]


def test_sentences_pairs_and_paragraphs() -> None:
    text = "Dr. Smith came, e.g. by car. He left! Why?\n\nNobody knows."
    assert cut(text, "sentences") == ["Dr. Smith came, e.g. by car.", "He left!", "Why?", "Nobody knows."]
    assert cut(text, "pairs")[1] == "He left! Why?"
    assert cut(text, "paragraphs") == ["Dr. Smith came, e.g. by car. He left! Why?", "Nobody knows."]
    assert cut("one\ntwo", "paragraphs") == ["one", "two"]
    assert cut("alone", "pairs") == ["alone"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("今天天气很好。我们去公园吧！你好吗？", ["今天天气很好。", "我们去公园吧！", "你好吗？"]),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("هذه جملة. هل هذه جملة أخرى؟ نعم.", ["هذه جملة.", "هل هذه جملة أخرى؟", "نعم."]),
        ("", []),
        (" \n ", []),
        ("...", ["..."]),
    ],
)
def test_scripts_and_edges(text: str, sentences: list[str]) -> None:
    assert cut(text, "sentences") == sentences


def test_no_chunk_crosses_a_field() -> None:
    text = "A title without a stop And then the text."
    chunks = split(text, [(0, 22), (23, len(text))])
    assert [text[a:b] for a, b in chunks.sentences] == ["A title without a stop", "And then the text."]
    assert len(chunks.paragraphs) == 2


@given(st.text(alphabet="ab .!?\n中。é𝄞", max_size=200), st.integers(1, 6))
def test_every_character_but_white_space_is_in_one_sentence_and_no_list_is_too_long(text: str, most: int) -> None:
    chunks = split(text, most=most)
    for spans in (chunks.sentences, chunks.paragraphs):
        assert len(spans) <= most
        inside = [place for start, end in spans for place in range(start, end)]
        assert len(inside) == len(set(inside))
        assert {place for place, char in enumerate(text) if not char.isspace()} <= set(inside)
    assert len(chunks.pairs) == (max(1, len(chunks.sentences) - 1) if chunks.sentences else 0)


def test_runs_of_a_long_document_are_of_about_equal_length() -> None:
    text = " ".join(f"Sentence number {number} ends here." for number in range(1000))
    lengths = [end - start for start, end in split(text).sentences]
    assert len(lengths) == 64
    assert max(lengths) < 1.2 * min(lengths)
