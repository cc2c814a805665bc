"""Markup becomes blank and offsets stay."""

import html
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.common.markup import blanked, has_markup
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest import encode_documents
from es_ttc.index.mappings.spec import IndexSpec

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
def test_words_leaves_out_markup(text: str, read: str) -> None:
    assert words(text) == read
    assert has_markup(text) == (text != read)


@given(st.lists(st.sampled_from(["<p>", "</p>", "&amp;", "&", "<", ">", "a", " ", "<!--", "-->", "<script>", "é"])))
def test_every_character_stays_at_its_place(parts: list[str]) -> None:
    text = "".join(parts)
    result = blanked(text)
    assert len(result) == len(text)
    kept = zip(text, result, strict=True)
    assert all(after in (before, " ", "\N{SOFT HYPHEN}") or after in html.unescape(text) for before, after in kept)


def test_markup_is_left_out_of_what_is_encoded_and_offsets_stay(encoder: Encoder) -> None:
    html_text, plain = "<p>The caf&eacute; serves <b>herons</b> &amp; egrets</p>", "The café serves herons & egrets"
    spec = IndexSpec(encoder.identity, text_fields=("text",))
    [stripped] = encode_documents([{"text": html_text}], replace(spec, strip_html=True), encoder)
    [clean] = encode_documents([{"text": plain}], spec, encoder)
    [tagged] = encode_documents([{"text": html_text}], spec, encoder)
    assert stripped.pooled is not None
    assert clean.pooled is not None
    assert tagged.pooled is not None
    assert stripped.pooled @ clean.pooled > 0.999 > 0.9 > tagged.pooled @ clean.pooled
    assert stripped.hash != tagged.hash
    assert stripped.tokens is not None
    words = {html_text[start:end] for _, start, end in stripped.tokens.offsets.tolist() if end > start}
    assert "heron" in " ".join(words)
    assert not any("<" in word for word in words)
