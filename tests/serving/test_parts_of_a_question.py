"""Parts of a question on real engines: their turns, their own words and candidates, and what binds them."""

from typing import Any

import pytest

from tests.conftest import PRODUCTS
from tests.serving.client import Reply, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

BIRDS = "an owl sings before rain"
PARTS = (CATS, BIRDS)


def by_parts(*parts: str, window: int = 100, **section: Any) -> dict[str, Any]:
    asked = {"query_texts": [*parts], "parts": "each", "on_error": "fail", "timeout": "60s", **section}
    return {"window_size": window, "ttc": asked}


def matching_all(text: str) -> dict[str, Any]:
    """Every document, scored by the words of a text."""
    return {"bool": {"filter": [EVERYTHING], "should": [{"match": {"text": text}}, {"match": {"number": 7}}]}}


def answered(stack: SearchStack, body: dict[str, Any]) -> Reply:
    reply = search(stack.gateway, stack.index, body)
    assert reply.status == 200, reply.body
    return reply


@on_both
def test_parts_take_turns_in_the_rankings_that_each_has_by_itself(stack: SearchStack) -> None:
    rankings = [
        answered(stack, {"query": matching_all(part), "size": 60, "rescore": {"ttc": {"query_text": part}}}).ids
        for part in PARTS
    ]
    expected: list[str] = []
    for round_of_hits in zip(*rankings, strict=True):
        expected += [name for name in dict.fromkeys(round_of_hits) if name not in expected]
    body = {"query": matching_all("a question of two parts"), "size": 60, "rescore": by_parts(*PARTS)}
    whole = answered(stack, body)
    assert whole.ids == expected
    pages = [answered(stack, body | {"from": start, "size": 20}) for start in (0, 20, 40)]
    assert [name for page in pages for name in page.ids] == expected
    assert all(page.json()["ttc"]["parts"] == whole.json()["ttc"]["parts"] for page in pages)
    print(whole.json()["ttc"], [h["_ttc"] for h in whole.json()["hits"]["hits"]][:10])
