"""A side index: searched like an index with features of its own, never stale, and gone without a trace."""

from dataclasses import replace
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import fill_attached
from es_ttc.index.attach.feature_locations import Indices, written_since_fill
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import MAPPING, SETTINGS, attach, corpus, put, remove_traces, update
from tests.serving.client import Reply, search
from tests.serving.corpus import CATS
from tests.serving.relay import relay
from tests.support.gateway import gateway_to


def ask(gateway: str, index: str, method: str = "spectral", size: int = 40, **body: Any) -> Reply:
    ours = {"window_size": size, "ttc": {"method": method, "query_text": CATS, "detail": True, "on_error": "fail"}}
    return search(gateway, index, {"query": {"match_all": {}}, "size": size, "rescore": ours, **body})


def ask_for_page(gateway: str, index: str) -> Reply:
    """Ask as people do: a small page of a wide window, without detail."""
    ours = {"window_size": 40, "ttc": {"method": "spectral", "query_text": CATS, "on_error": "fail"}}
    return search(gateway, index, {"query": {"match_all": {}}, "size": 3, "rescore": ours})


def encoded_in_part(reply: Reply) -> dict[str, float]:
    hits = reply.json()["hits"]["hits"]
    return {hit["_id"]: hit["_ttc"]["encoded_share"] for hit in hits if "encoded_share" in hit["_ttc"]}


def scores(reply: Reply) -> dict[str, float]:
    assert reply.status == 200, reply.body
    return dict(zip(reply.ids, reply.scores, strict=True))


async def native(engine: Engine, name: str, spec: IndexSpec, encoder: Encoder) -> None:
    await create_index(engine, name, spec, IndexOptions(shards=2, replicas=0))
    documents = [{"_id": identifier, **document} for identifier, document in corpus().items()]
    await ingest(engine, name, Inputs([Documents(documents)]), encoder, dead_letters=DeadLetterList())
    await engine.refresh(name)


async def test_scores_are_those_of_an_index_with_features_of_its_own(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    spec = replace(spec, max_tokens=9)  # some texts are longer
    await native(engine, f"{shop}-native", spec, encoder)
    before = await engine.request("GET", f"/{shop}")
    filled = await attach(engine, shop, spec, encoder)
    assert (filled.written, filled.empty, filled.failed, filled.removed) == (20, 1, 0, 0)
    assert 0 < filled.truncated < 19
    assert await engine.request("GET", f"/{shop}") == before
    for method in ("spectral", "maxsim", "dense"):
        expected = ask(gateway, f"{shop}-native", method)
        got = ask(gateway, shop, method)
        assert got.status == 200, got.body
        assert got.json()["ttc"]["scored"] == 19
        assert "stale" not in got.json()["ttc"]
        assert dict(zip(got.ids, got.scores, strict=True)) == pytest.approx(
            dict(zip(expected.ids, expected.scores, strict=True)), abs=1e-4
        )
        assert got.ids[0] == expected.ids[0]
        in_part = encoded_in_part(got)
        assert in_part == encoded_in_part(expected)
        assert len(in_part) == (0 if method == "dense" else filled.truncated)
        assert not {"_seq_no", "_primary_term", "_version"} & got.json()["hits"]["hits"][0].keys()


async def test_half_a_surrogate_pair_stops_no_attach(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """Both engines keep one in a document; Elasticsearch returns it as it was sent."""
    [written] = await engine.bulk(shop, [b'{"index": {"_id": "half"}}', b'{"body": "the cat \\ud800 drinks"}'])
    assert written.ok
    filled = await attach(engine, shop, spec, encoder)
    assert (filled.written, filled.failed) == (21, 0)
    assert "half" in ask(gateway, shop, _source=False).ids[:20]


async def test_a_rewritten_query_searches_the_fields_that_were_encoded(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """The target is an index, an alias of it, or several indices of which one is not attached."""
    await attach(engine, shop, spec, encoder)
    await engine.request("PUT", f"/{shop}/_alias/{shop}-alias")
    await engine.request("PUT", f"/{shop}-other")
    query = {"ttc": {"method": "rm3", "query_text": CATS, "on_error": "fail"}}
    for target in (shop, f"{shop}-alias", f"{shop},{shop}-other"):
        reply = search(gateway, target, {"query": query})
        assert reply.status == 200, reply.body
        assert reply.ids


async def test_attached_changed_documents_stay_below_scored_ones_until_filled(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    before = scores(ask(gateway, shop))
    # A new price leaves the features right; a new text does not, and a new document has none.
    await update(engine, shop, "d1", {"price": 99})
    await update(engine, shop, "d2", {"body": "Our cat drinks milk, every day and every night."})
    await put(engine, shop, {"new": {"title": "The cat", "body": "It drinks milk."}})
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"]["stale"]) == (18, 1)
    assert set(reply.ids[18:]) == {"d2", "d7", "new"}
    stale = [hit["_id"] for hit in reply.json()["hits"]["hits"] if hit["_ttc"].get("stale")]
    assert stale == ["d2"]
    assert scores(reply)["d1"] == pytest.approx(before["d1"], abs=1e-6)
    assert scores(ask_for_page(gateway, shop)) == pytest.approx(
        {name: score for name, score in scores(reply).items() if name in reply.ids[:3]}
    )
    held = (await Indices.behind(engine, shop)).only()
    assert held.side
    assert await written_since_fill(engine, held) == 3
    await engine.request("DELETE", f"/{shop}/_doc/d3", params={"refresh": "true"})
    [filled] = await fill_attached(engine, shop, encoder)
    assert await written_since_fill(engine, held) == 0
    assert (filled.written, filled.unchanged, filled.failed, filled.removed) == (2, 1, 0, 1)
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    assert scores(reply)["d2"] != pytest.approx(before["d2"], abs=1e-4)
    [filled] = await fill_attached(engine, shop, encoder)
    assert (filled.written, filled.seen, filled.removed) == (0, 0, 0)


async def test_an_index_made_anew_is_not_taken_for_the_old_one(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """It counts from the beginning: the same ids may get the same seq_nos with other texts."""
    await attach(engine, shop, spec, encoder)
    old = scores(ask(gateway, shop))
    changed = corpus()
    changed["d0"] = {"title": "Milk", "body": "A cat drinks milk."}
    await engine.delete_index(shop)
    await engine.create_index(shop, {"settings": SETTINGS, "mappings": MAPPING})
    await put(engine, shop, changed)
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"]["stale"]) == (18, 1)
    assert set(reply.ids[18:]) == {"d0", "d7"}
    assert {name: score for name, score in scores(reply).items() if name not in ("d0", "d7")} == pytest.approx(
        {name: score for name, score in old.items() if name not in ("d0", "d7")}
    )
    [filled] = await fill_attached(engine, shop, encoder)
    assert (filled.written, filled.unchanged) == (1, 19)
    assert scores(ask(gateway, shop))["d0"] > max(old.values())


async def test_documents_of_one_shard_are_named_by_their_writes(
    engine: Engine, engine_url: str, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """To read ids takes longer than the search; a write that is not known, or of an index made anew, names nothing."""
    other, alias = f"{index_name}-other", f"{index_name}-alias"
    one_shard = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}, "mappings": MAPPING}
    await engine.create_index(index_name, one_shard)
    await put(engine, index_name, corpus())
    await engine.request("PUT", f"/{index_name}/_alias/{alias}")
    await attach(engine, index_name, spec, encoder)
    with relay(engine_url) as seen, gateway_to(seen.url, encoder) as gateway:

        def page(target: str) -> list[tuple[str, dict[str, Any]]]:
            reply = ask_for_page(gateway, target)
            assert reply.status == 200, reply.body
            hits = [(hit["_id"], hit["_source"]) for hit in reply.json()["hits"]["hits"]]
            assert hits == [(hit["_id"], hit["_source"]) for hit in ask(gateway, target).json()["hits"]["hits"][:3]]
            return hits

        first = page(index_name)
        for target in (index_name, alias) * 3:
            seen.passed.clear()
            assert page(target) == first
        assert b'"stored_fields":"_none_"' in seen.passed[0].body
        await update(engine, index_name, first[0][0], {"price": 99})
        await put(engine, index_name, {"new": {"title": "The cat", "body": "It drinks milk."}})
        changed = page(index_name)
        assert changed == [(first[0][0], first[0][1] | {"price": 99}), *first[1:]]
        assert page(index_name) == changed
        await engine.delete_index(index_name)
        await engine.create_index(index_name, one_shard)
        await put(engine, index_name, dict(reversed(corpus().items())))
        assert page(index_name) == first
        await engine.request("PUT", f"/{index_name}/_alias/{alias}")
        assert page(alias) == first
        await put(engine, other, {"new": {"title": "The cat", "body": "It drinks milk."}})
        await engine.request("PUT", f"/{other}/_alias/{alias}")
        assert [page(alias) for _ in range(2)] == [first, first]
        await engine.delete_index(index_name)
        await engine.create_index(index_name, {"settings": SETTINGS, "mappings": MAPPING})
        await put(engine, index_name, corpus())
        for _ in range(3):
            seen.passed.clear()
            assert page(index_name) == first
        assert b'"stored_fields":"_none_"' not in seen.passed[0].body  # in two shards two writes have one `_seq_no`
    await remove_traces(engine, index_name)


async def test_routing_filters_and_several_indices(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """Documents of one id apart by their routing, an alias that hides some, a wildcard over attached and other ones."""
    lines: dict[str, dict[str, str]] = {"a": {"title": "one", "body": "The cat drinks milk."}}
    await put(engine, shop, lines, routing="left")
    await put(engine, shop, {"a": {"title": "two", "body": "A horse runs."}}, routing="right7")
    await attach(engine, shop, spec, encoder)
    twins = [hit for hit in ask(gateway, shop).json()["hits"]["hits"] if hit["_id"] == "a"]
    assert len(twins) == 2
    by_routing = {hit["_routing"]: hit["_score"] for hit in twins}
    assert by_routing["left"] > by_routing["right7"]
    alias = f"{shop}-cheap"
    cheap = {"add": {"index": shop, "alias": alias, "filter": {"range": {"price": {"lt": 5}}}}}
    await engine.request("POST", "/_aliases", body={"actions": [cheap]})
    reply = ask(gateway, alias)
    assert set(reply.ids) == {f"d{number}" for number in range(5)}
    assert reply.json()["ttc"]["scored"] == 5
    await update(engine, shop, "d1", {"price": 2})  # its text is compared through the alias, as its users see it
    assert ask(gateway, alias).json()["ttc"]["scored"] == 5
    await native(engine, f"{shop}-native", spec, encoder)
    reply = ask(gateway, f"{shop}*", size=42)
    ttc = reply.json()["ttc"]
    assert (ttc["window"], ttc["scored"]) == (42, 40)
    assert {hit["_index"] for hit in reply.json()["hits"]["hits"]} == {shop, f"{shop}-native"}
