"""Blend over attached indices: the same ranking as with features of their own, and nothing past filter and source."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import detach, traces_of
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import MAPPING, SETTINGS, attach, corpus, put, update
from tests.attach.test_beside import native, scores
from tests.serving.client import Reply, search
from tests.serving.corpus import CATS

WORDS: dict[str, Any] = {"match": {"body": "our trout hunts at night"}}
"""Lead elsewhere than the question."""
DEAREST: dict[str, Any] = {
    "bool": {
        "must": [{"match_all": {}}],
        "should": [{"constant_score": {"filter": {"range": {"price": {"gte": price}}}}} for price in range(1, 20)],
    }
}
"""Scores that do not depend on how often words were overwritten."""
WINDOW = 5


def blended(
    gateway: str,
    index: str,
    query: dict[str, Any] = WORDS,
    size: int = WINDOW,
    texts: Sequence[str] = (CATS,),
    section: Mapping[str, Any] | None = None,
    **body: Any,
) -> Reply:
    rescore = {"window_size": WINDOW, "ttc": {"query_texts": [*texts], "on_error": "fail", **(section or {})}}
    return search(gateway, index, {"query": query, "size": size, "rescore": rescore, **body})


async def test_the_ranking_is_that_of_an_index_with_features_of_its_own(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await native(engine, f"{shop}-native", spec, encoder)
    await attach(engine, shop, spec, encoder)
    two = (CATS, "a dog sleeps in the snow")
    for start, texts, section in ((0, (CATS,), {}), (WINDOW, (CATS,), {}), (0, two, {}), (0, two, {"parts": "each"})):
        page: dict[str, Any] = {"from": start, "_source": ["title"], "texts": texts, "section": section}
        expected, got = (blended(gateway, index, DEAREST, **page) for index in (f"{shop}-native", shop))
        assert got.status == 200, got.body
        assert got.ids == expected.ids
        assert scores(got) == pytest.approx(scores(expected), abs=1e-4)
        assert got.json()["ttc"]["candidates"] == expected.json()["ttc"]["candidates"]
        assert got.json()["ttc"]["candidates"]["joined"] > 0
        assert got.json()["hits"]["hits"][0]["_source"] == expected.json()["hits"]["hits"][0]["_source"]
        assert got.json()["ttc"].get("parts") == expected.json()["ttc"].get("parts")
    nothing = blended(gateway, shop, {"match": {"body": "zebra"}})
    assert "cat" in nothing.json()["hits"]["hits"][0]["_source"]["body"]
    of_both = blended(gateway, shop, texts=two, section={"parts": "each"}).json()["hits"]["hits"]
    assert all(word in hit["_source"]["body"] for word, hit in zip(("milk", "dog"), of_both, strict=False))


async def test_filters_and_aliases_bind_what_a_side_index_proposes(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    dear = {"range": {"price": {"gte": 10}}}
    body = {"actions": [{"add": {"index": shop, "alias": f"{shop}-dear", "filter": dear}}]}
    await engine.request("POST", "/_aliases", body=body)
    by_alias = blended(gateway, f"{shop}-dear")
    by_query = blended(gateway, shop, {"bool": {"must": [WORDS], "filter": [dear]}})
    for reply in (by_alias, by_query):
        assert reply.json()["ttc"]["candidates"]["joined"] > 0
        assert all(hit["_source"]["price"] >= 10 for hit in reply.json()["hits"]["hits"])
    assert by_alias.ids == by_query.ids


async def test_vectors_of_another_text_do_not_join(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    best = blended(gateway, shop, {"match": {"body": "zebra"}}).ids[0]
    await update(engine, shop, best, {"body": "Nothing at all about animals."})
    await engine.refresh(shop)
    assert best not in blended(gateway, shop, {"match": {"body": "zebra"}}, size=20).ids
    await put(engine, shop, {"new": {"title": "A new one", "body": "Our trout hunts at night, every night."}})
    await engine.refresh(shop)
    reply = blended(gateway, shop)
    assert "new" in reply.ids  # it has no features yet, and keeps a place by its words
    assert reply.json()["ttc"]["without_features"] == 1


async def test_what_is_known_of_an_index_does_not_outlive_it(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """A search is made twice: by the second one everything is known. An index made anew has the same `_seq_no`s."""
    await attach(engine, shop, spec, encoder)
    zebra: dict[str, Any] = {"match": {"body": "zebra"}}
    for query in (WORDS, zebra, WORDS, zebra):
        best, *others = blended(gateway, shop, query, size=20).ids
    changed = corpus()
    changed[best]["body"] = "Nothing at all about animals."
    await engine.delete_index(shop)
    await engine.create_index(shop, {"settings": SETTINGS, "mappings": MAPPING})
    await put(engine, shop, changed)
    assert sorted(blended(gateway, shop, zebra, size=20).ids) == sorted(others)
    for traces in await traces_of(engine, shop):
        await detach(engine, traces)
    refused = blended(gateway, shop, {"match_all": {}}, size=20)
    assert (refused.status, "es-ttc attach" in refused.reason) == (400, True)


async def test_a_changed_text_has_no_passages_of_the_earlier_one(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    changed = blended(gateway, shop).ids[0]
    await update(engine, shop, changed, {"body": "Our trout hunts at night."})
    rescore = {"window_size": WINDOW, "ttc": {"query_text": CATS, "passages": 1}}
    marked = {"fields": {"body": {"type": "ttc"}}}
    reply = search(gateway, shop, {"query": WORDS, "size": WINDOW, "rescore": rescore, "highlight": marked}).json()
    shown = {hit["_id"]: hit for hit in reply["hits"]["hits"]}
    assert shown[changed]["_ttc"]["passages"] == []
    assert "highlight" not in shown.pop(changed)
    for hit in shown.values():
        [passage] = hit["_ttc"]["passages"]
        assert hit["_source"][passage["field"]][passage["start"] : passage["end"]]


async def test_an_alias_that_moves_to_features_elsewhere_keeps_its_candidates(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    alias, own = f"{shop}-alias", f"{shop}-native"
    await native(engine, own, spec, encoder)
    await attach(engine, shop, spec, encoder)

    async def point(to: str, *, leave: str = "") -> None:
        actions: list[dict[str, Any]] = [{"add": {"index": to, "alias": alias}}]
        actions += [{"remove": {"index": leave, "alias": alias}}] if leave else []
        await engine.request("POST", "/_aliases", body={"actions": actions})

    await point(own)
    assert blended(gateway, alias).json()["ttc"]["candidates"]["joined"] > 0
    await point(shop, leave=own)
    for query in (WORDS, {"match": {"body": "zebra"}}):
        moved, named = blended(gateway, alias, query), blended(gateway, shop, query)
        assert moved.json()["ttc"]["candidates"] == named.json()["ttc"]["candidates"]
        assert (moved.ids, moved.json()["ttc"]["candidates"]["joined"] > 0) == (named.ids, True)
    await point(own, leave=shop)
    assert blended(gateway, alias).ids == blended(gateway, own).ids


async def test_an_alias_that_moves_takes_nothing_known_of_its_former_index_along(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    alias, other = f"{shop}-alias", f"{shop}-native"
    await attach(engine, shop, spec, encoder)
    await native(engine, other, spec, encoder)
    zebra: dict[str, Any] = {"match": {"body": "zebra"}}  # no document has it: all hits join
    for index, query in ((shop, WORDS), (shop, zebra), (other, zebra), (shop, WORDS), (other, WORDS)):
        moved = [
            {"remove": {"index": "*", "alias": alias, "must_exist": False}},
            {"add": {"index": index, "alias": alias}},
        ]
        await engine.request("POST", "/_aliases", body={"actions": moved})
        for _ in range(2):
            reply = blended(gateway, alias, query)
            assert reply.json()["ttc"]["candidates"]["joined"] > 0
            assert {hit["_index"] for hit in reply.json()["hits"]["hits"]} == {index}


async def test_counts_of_some_shards_are_not_reused_for_the_whole_index(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await put(
        engine, shop, {f"r{number}": {"body": f"Our cat drinks milk {number}."} for number in range(40)}, routing="a"
    )
    await attach(engine, shop, spec, encoder)
    body = {"query": {"match": {"body": "zebra"}}, "size": 60, "rescore": {"ttc": {"query_text": CATS}}}
    expected = search(gateway, shop, body).ids
    assert len(expected) > 50
    for number, params in enumerate(("?preference=_shards:0", "?preference=_shards:1", "?routing=a")):
        alias = f"{shop}-{number}"  # of which nothing is known yet
        await engine.request("PUT", f"/{shop}/_alias/{alias}")
        assert len(search(gateway, alias, body, params).ids) < len(expected)
        assert search(gateway, alias, body).ids == expected
