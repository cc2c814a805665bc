"""What the first documents of a file suggest: text fields, the id, HTML."""

from typing import Any

import pytest

from es_ttc.index.ingest.proposal import describe, html_fields, languages, propose_fields

SHOP = [
    {"sku": f"A-{n}", "name": f"Red shoe {n}", "brand": "Acme", "price": 10.5 + n, "url": f"https://shop/{n}",
     "details": {"description": f"A light running shoe for summer, size {n}, with a soft sole."}}
    for n in range(20)
]  # fmt: skip
MAILS = [
    {"message_id": n, "from": f"ada{n}@example.org", "subject": f"Re: Meeting {n}",
     "body": f"<p>Dear all,</p><p>we meet on day {n} at the usual place.</p>", "tags": ["work", "inbox"]}
    for n in range(20)
]  # fmt: skip
JAPANESE = [
    {"Nr.": f"{n:03}", "name": f"赤い靴{n}", "本文": f"夏に履く軽いランニングシューズです。サイズは{n}です。"}
    for n in range(20)
]  # fmt: skip
NUMBERS = [{"station": n, "year": 1990 + n, "value": n / 7} for n in range(20)]
OWN_IDS = [{"_id": "a", "headline": "Two words"}, {"_id": "b", "headline": "Three short words"}]
EQUAL_IDS = [{"id": 1, "text": "the same id in two documents"}, {"id": 1, "text": "is none of the ids"}]
COMMENTS = [{"comments": [{"text": "first of several comments"}, {"text": "and another of them"}]}]


@pytest.mark.parametrize(
    ("documents", "fields", "id_field", "html"),
    [
        (SHOP, ("name", "details.description"), "sku", ()),
        (MAILS, ("subject", "body"), "message_id", ("body",)),
        (JAPANESE, ("name", "本文"), "Nr.", ()),
        (NUMBERS, (), None, ()),
        (OWN_IDS, ("headline",), None, ()),
        (EQUAL_IDS, ("text",), None, ()),
        (COMMENTS, ("comments.text",), None, ()),
        ([], (), None, ()),
    ],
    ids=["shop", "mails", "japanese", "numbers", "ids", "no id", "nested", "nothing"],
)
def test_text_fields_and_ids_are_proposed(
    documents: list[dict[str, Any]], fields: tuple[str, ...], id_field: str | None, html: tuple[str, ...]
) -> None:
    proposal = propose_fields(documents)
    assert (proposal.text_fields, proposal.id_field) == (fields, id_field)
    assert html_fields(documents, fields) == html


def test_the_options_take_the_proposal() -> None:
    assert propose_fields(SHOP).options == "--text-fields name,details.description --id-field sku"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["The drill is for wood and for metal"], ("English",)),
        (["Der Bohrer ist für Holz und für Metall"] * 2 + ["The drill is for wood and for metal"],
         ("German", "English")),
        (["Der Bohrer ist für Holz und für Metall"] + ["The drill is for wood and for metal"] * 9, ("English",)),
        (["La perceuse est pour le bois et le métal"], ("French",)),
        (["夏に履く軽いシューズです", "赤い靴です", "緑茶"], ("Japanese",)),
        (["高性能无线耳机"], ("Chinese",)),
        (["무선 이어폰"], ("Korean",)),
        (["Дрель для дерева"], ("Cyrillic",)),
        (["مثقاب للخشب"], ("Arabic",)),
        (["Bosch GSR 12"], ("Latin",)),
        (["12", ""], ()),
    ],
)  # fmt: skip
def test_languages_are_found_by_scripts_and_frequent_words(texts: list[str], expected: tuple[str, ...]) -> None:
    assert languages([{"t": text} for text in texts], ["t"]) == expected


def test_a_field_is_described() -> None:
    assert describe(MAILS, ["body"]) == "body (English, 10 words, HTML)"
