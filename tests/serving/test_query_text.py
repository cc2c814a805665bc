"""The text of a query string: its words, without what its syntax says of them."""

import pytest

from es_ttc.serving.request.body import texts_of


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("query_string", "which cat drinks milk?", "which cat drinks milk?"),
        (
            "query_string",
            "well-known e-mail at 3:30, note: this - AT&T",
            "well-known e-mail at 3:30, note: this - AT&T",
        ),
        ("query_string", "see http://example.org/a", "see http://example.org/a"),
        ("query_string", "pollination AND tenant:acme", "pollination acme"),
        ("query_string", "text:milk AND number:>10", "milk"),
        ("query_string", 'milk number:[1 TO 5] NOT title:"an owl"', "milk"),
        ("query_string", "(cat OR dog)^2 && +milk~1 !owl -(bee trout)", "cat dog milk"),
        ("query_string", "-owl", None),
        ("simple_query_string", '"drinks milk" -owl', "drinks milk"),
        ("simple_query_string", "cat | dog NOT here", "cat dog NOT here"),
        ("simple_query_string", "牛乳を飲む猫 -犬", "牛乳を飲む猫"),
    ],
)
def test_words_of_a_query_string(kind: str, text: str, words: str | None) -> None:
    assert list(texts_of({kind: {"query": text}})) == ([] if words is None else [words])
