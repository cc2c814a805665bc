"""What the first documents of a file suggest: text fields, the id, HTML."""

from typing import Any

import pytest

from es_ttc.index.ingest.proposal import (
    describe,
    html_fields,
    languages,
    number_fields,
    propose_fields,
    values_of_labels,
)

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
ATTRIBUTES = [
    {"sku": f"A-{n}", "product": {"text": f"This kettle number {n} is made for daily use and easy to clean."},
     "product_name": f"Sturdy kettle with lid {n}", "brand_name": "Acme Power Tools", "size": f"{n} x 20 x 30 mm",
     "slug": f"sturdy-kettle-with-lid-number-{n}",
     "shipping": "Ships within two days from our warehouse in the north of the country",
     "attributes": [{"name": "Main colour of the item", "value": f"Deep sea blue {n} matte"}],
     "categories": [{"id": n, "name": f"Home and Garden number {n}"}]}
    for n in range(20)
]  # fmt: skip
TICKETS = [
    {"ticket": n, "label": ("bug report", "feature request")[n % 2], "status": "open and waiting for us",
     "summary": f"Login fails with error {n}", "reporter": {"name": ("Ada Byron King", "Alan M Turing")[n % 2]},
     "meta": f'{{"note": "some long text in a column of JSON, which nobody reads", "number": {n}}}',
     "description": f"When I click on button {n} the page shows an error and I start again.",
     "comments": [{"author": "Ada Byron King", "text": f"I can reproduce this with version {n}."}]}
    for n in range(20)
]  # fmt: skip
VARIANTS = [
    {"name": f"Shoe {n // 4}", "size": n % 4,
     "about": f"The light shoe number {n // 4} is made for summer days and for long walks."}
    for n in range(20)
]  # fmt: skip
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
        (ATTRIBUTES, ("product_name", "product.text"), "sku", ()),
        (TICKETS, ("summary", "description", "comments.text"), None, ()),
        (VARIANTS, ("name", "about"), None, ()),
        ([], (), None, ()),
    ],
    ids=[
        "shop",
        "mails",
        "japanese",
        "numbers",
        "ids",
        "no id",
        "nested",
        "attributes",
        "tickets",
        "variants",
        "nothing",
    ],
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
        (["Bohrer für Holz", "Kanne mit Deckel", "Schere mit Griff"], ("German",)),
        (["Wiertarka jest lekka i nie jest droga"], ("Polish",)),
        (["Borren är för trä och för metall"], ("Swedish",)),
        (["Matkap çok hafif ve ahşap için"], ("Turkish",)),
        (["12", ""], ()),
    ],
)  # fmt: skip
def test_languages_are_found_by_scripts_and_frequent_words(texts: list[str], expected: tuple[str, ...]) -> None:
    assert languages([{"t": text} for text in texts], ["t"]) == expected


def test_a_field_is_described() -> None:
    assert [*map(str, describe(MAILS, ["body"]))] == ["body (English, 10 words, HTML)"]


def test_numbers_are_no_texts() -> None:
    documents: list[dict[str, Any]] = [
        {"title": "Kettle", "price": 1.5, "old": "12,50", "year": 1984},
        {"title": "Pot", "old": None},
    ]
    assert number_fields(documents, ["title", "price", "old", "year", "nosuch"]) == ("price", "old", "year")


def test_names_of_attributes_have_values() -> None:
    fields = ["product_name", "attributes.name", "categories.name"]
    assert values_of_labels(ATTRIBUTES, fields) == {"attributes.name": "attributes.value"}
    assert values_of_labels(ATTRIBUTES, [*fields, "attributes.value"]) == {}
