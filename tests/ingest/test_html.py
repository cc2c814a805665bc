"""Markup becomes blank and offsets stay."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.index.ingest.html import blanked, has_markup

TEXTS = [
    ("<p>Dear all,</p>", "Dear all,"),
    ("caf&eacute;s &amp; bars", "cafés & bars"),
    ("a<br/>b", "a b"),
    ("<style>p { color: red }</style>red <!-- a < b --> wine", "red wine"),
    ("<SCRIPT src='x'>if (a < b) {}</SCRIPT>text", "text"),
    ("a < b and c > d", "a < b and c > d"),
    ("price&nbsp;5&#8364;", "price 5€"),
    ("https://x.org/?a=1&copyright=2&unknown;", "https://x.org/?a=1&copyright=2&unknown;"),
    ("<!DOCTYPE html><b>bold</b>face", "bold face"),
    ("no markup", "no markup"),
]


def words(text: str) -> str:
    return " ".join(blanked(text).replace("\N{SOFT HYPHEN}", "").split())


@pytest.mark.parametrize(("text", "read"), TEXTS)
def test_what_is_read_of_a_text(text: str, read: str) -> None:
    assert words(text) == read
    assert has_markup(text) == (text != read)


@given(st.lists(st.sampled_from(["<p>", "</p>", "&amp;", "&", "<", ">", "a", " ", "<!--", "-->", "<script>", "é"])))
def test_every_character_stays_at_its_place(parts: list[str]) -> None:
    text = "".join(parts)
    result = blanked(text)
    assert len(result) == len(text)
    kept = zip(text, result, strict=True)
    assert all(after in (before, " ", "\N{SOFT HYPHEN}") or after in html.unescape(text) for before, after in kept)
