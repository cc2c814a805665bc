"""Blend on real engines: its scores, the documents that join a window, what binds them, and pages."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest import encode_documents
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend import BlendRescorer, HybridRescorer
from es_ttc.rescorers.blend.hybrid import HybridParams
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.blend.weights import share_read
from es_ttc.serving.plan.plan import plan_search
from es_ttc.serving.request.request import url_params
from es_ttc.serving.rescore.candidates import unsupported_reason
from tests.conftest import PRODUCTS
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index, write
from tests.serving.corpus import CATS, WITHOUT_TEXT, by_id, corpus

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

BY_WORDS = {"match": {"text": "the farmer watches before rain"}}
"""Words that lead elsewhere than the question: nearest documents have to join."""
WINDOW = 6


def blended(query: dict[str, Any] = BY_WORDS, window: int = WINDOW, size: int = 5, **section: Any) -> dict[str, Any]:
    return {"query": query, "size": size, "rescore": {"window_size": window, "ttc": {"query_text": CATS, **section}}}


def first_pass(stack: SearchStack, size: int) -> Reply:
    return search(stack.engine, stack.index, {"query": BY_WORDS, "size": size, "_source": False})


def union_in_memory(encoder: Encoder, stack: SearchStack, size: int) -> tuple[Query, Window]:
    """The window of the engine's own first pass, joined by the documents nearest to the query, all from scratch."""
    found = first_pass(stack, size)
    documents = [document for document in corpus() if document["_id"] != WITHOUT_TEXT]
    encoded = dict(
        zip([document["_id"] for document in documents], encode_documents(documents, stack.spec, encoder), strict=True)
    )
    query = encoder.encode([CATS], role="query")
    cosines = {name: float(one.pooled @ query.pooled[0]) for name, one in encoded.items() if one.pooled is not None}
    nearest = sorted(cosines, key=lambda name: -cosines[name])[:size]
    joined = [name for name in nearest if name not in found.ids]
    assert joined
    every = first_pass(stack, 60)
    scores = dict(zip(every.ids, every.scores, strict=True))
    assert {name in scores for name in joined} == {True, False}
    names = [*found.ids, *joined]
    tokens = [encoded[name].tokens for name in names]
    window = Window(
        ids=names,
        first_pass=np.array([scores.get(name, 0.0) for name in names], np.float32),
        pooled=np.stack([pooled for name in names if (pooled := encoded[name].pooled) is not None]),
        tokens=[one.vectors for one in tokens if one is not None],
        norms=[one.norms for one in tokens if one is not None],
        present={Feature.FIRST_PASS: np.arange(len(names)) < len(found.ids)},
    )
    return Query(CATS, query.pooled, query.tokens[0]), window


@on_both
@pytest.mark.parametrize("method", [None, "hybrid"])
def test_the_ranking_is_the_rescorers_own_over_the_union(
    stack: SearchStack, encoder: Encoder, method: str | None
) -> None:
    query, window = union_in_memory(encoder, stack, WINDOW)
    if method is None:
        values = BlendRescorer().score(query, window, BlendParams())
    else:
        values = HybridRescorer().score(query, window, HybridParams())
    expected = dict(zip(window.ids, values.tolist(), strict=True))
    section: dict[str, Any] = {} if method is None else {"method": method}
    for _ in range(2):  # the second time candidates are looked for beside the first pass
        got: dict[str, float] = {}
        for start in range(0, len(expected), WINDOW):
            reply = search(stack.gateway, stack.index, blended(size=WINDOW, **section) | {"from": start})
            assert reply.status == 200, reply.body
            got |= dict(zip(reply.ids, reply.scores, strict=True))
        assert {name: got[name] for name in expected} == pytest.approx(expected, abs=1e-4)
        assert list(got)[: len(expected)] == sorted(expected, key=lambda name: -expected[name])
        assert list(got.values()) == sorted(got.values(), reverse=True)
        told = search(stack.gateway, stack.index, blended(**section)).json()["ttc"]
        assert told["method"] == (method or "blend")
        assert told["candidates"] == {"knn": WINDOW, "joined": len(expected) - WINDOW}
        assert told["window"] == WINDOW
        assert told["scored"] == len(expected)
        assert "without_features" not in told
        wanted = ["lexical", "dense", "spectral", "late_interaction"] if method is None else ["lexical", "dense"]
        assert told["signals"] == wanted


def test_texts_that_the_encoder_read_in_part_make_vectors_count_less(
    stack: SearchStack, index_name: str, encoder: Encoder
) -> None:
    spec = make_index(stack.engine, index_name, encoder, max_tokens=8)
    cut = replace(stack, index=index_name, spec=spec)
    query, window = union_in_memory(encoder, cut, WINDOW)
    expected = BlendRescorer().score(query, window, BlendParams())
    reply = search(cut.gateway, cut.index, blended(size=WINDOW, detail=True))
    best = dict(sorted(zip(window.ids, expected.tolist(), strict=True), key=lambda one: -one[1])[:WINDOW])
    assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(best, abs=1e-4)
    assert 0.2 < share_read(window) < 0.9
    assert reply.json()["ttc"]["encoded_share"] == pytest.approx(share_read(window), abs=1e-4)
    assert window.tokens is not None
    read = {name: tokens.read for name, tokens in zip(window.ids, window.tokens, strict=True)}
    shown = {hit["_id"]: hit["_ttc"]["encoded_share"] for hit in reply.json()["hits"]["hits"]}
    assert shown == pytest.approx({name: read[name] for name in reply.ids}, abs=1e-4)
    long = f"{CATS} " + "the farmer sleeps " * 200
    asked = {"index": cut.index, "id": reply.ids[0], "search": blended(query_text=long)}
    reasons = call(cut.gateway, "POST", "/_ttc/explain", asked).json()["reasons"]
    assert any(f"are made from {read[reply.ids[0]]:.0%} of its" in reason for reason in reasons)
    assert any("of the query" in reason for reason in reasons)


@pytest.mark.parametrize(
    "section",
    [{"method": "blend"}, {"method": "dense"}, {"method": "rr", "params": {"reranker": "spectral"}}],
    ids=lambda section: section["method"],
)
def test_a_query_that_the_encoder_reads_in_part_is_named(stack: SearchStack, section: dict[str, Any]) -> None:
    texts = [CATS, f"{CATS} " + "the farmer sleeps on the sofa " * 80]
    told = search(stack.gateway, stack.index, blended(**section, query_text=None, query_texts=texts)).json()["ttc"]
    whole, part = told["query_encoded_share"]
    assert whole == 1
    assert 0.3 < part < 0.7
    assert "query_encoded_share" not in search(stack.gateway, stack.index, blended(**section)).json()["ttc"]


def test_blend_without_lexical_hits_has_exact_totals(stack: SearchStack) -> None:
    found = search(stack.gateway, stack.index, blended({"match": {"text": "牛乳"}}, query_text="牛乳を飲む猫")).json()
    assert found["hits"]["total"] == {"value": len(found["hits"]["hits"]) + 1, "relation": "eq"}
    assert found["hits"]["max_score"] == found["hits"]["hits"][0]["_score"]
    nowhere = search(stack.gateway, f"{stack.index}-no-such*", blended()).json()
    assert (nowhere["hits"]["hits"], nowhere["hits"]["max_score"]) == ([], 0.0)
    assert nowhere["ttc"]["candidates"]["joined"] == 0
    assert "reason" not in nowhere["ttc"]


@pytest.fixture
def own_index(stack: SearchStack, index_name: str, encoder: Encoder) -> Iterator[str]:
    """An index of the corpus that a test may change."""
    make_index(stack.engine, index_name, encoder)
    yield index_name
    call(stack.engine, "DELETE", f"/{index_name}")


def test_of_two_documents_with_the_same_text_only_the_permitted_one_joins(
    stack: SearchStack, own_index: str, encoder: Encoder
) -> None:
    """The page's hits are read by content, which both have."""
    twins = [
        {"_id": name, "number": number, "kind": "animal", "title": "", "text": CATS}
        for name, number in (("first", 1000), ("second", 1001))
    ]
    asyncio.run(write(stack.engine, own_index, encoder, twins))
    for hidden, shown in ((1000, "second"), (1001, "first")):
        query = {"bool": {"must": BY_WORDS, "must_not": {"term": {"number": hidden}}}}
        for more in ({}, {"size": 2}):  # in one request, and in two
            reply = search(stack.gateway, own_index, blended(query, size=6) | more)
            assert reply.json()["ttc"]["candidates"]["joined"] > 0
            assert {"first", "second"} & set(reply.ids) == {shown}


@on_both
def test_a_point_in_time_binds_what_joins(stack: SearchStack, own_index: str, encoder: Encoder) -> None:
    before = search(stack.gateway, own_index, blended(size=12))
    joined = before.json()["ttc"]["candidates"]["joined"]
    assert joined > 0
    path = "_pit" if stack.product == "elasticsearch" else "_search/point_in_time"
    opened = call(stack.gateway, "POST", f"/{own_index}/{path}?keep_alive=1m").json()
    late = {"_id": "late", "number": 1000, "kind": "animal", "title": "", "text": CATS}
    asyncio.run(write(stack.engine, own_index, encoder, [late]))
    assert search(stack.gateway, own_index, blended(size=12)).ids[0] == "late"
    inside = call(
        stack.gateway, "POST", "/_search", {**blended(size=12), "pit": {"id": opened.get("id") or opened["pit_id"]}}
    )
    assert inside.ids == before.ids
    assert inside.json()["ttc"]["candidates"]["joined"] == joined


@pytest.mark.parametrize(
    ("more", "url", "words"),
    [
        ({"knn": {}}, "", "[knn] of the search"),
        ({"slice": {}}, "", "[slice] of the search"),
        ({"query": {"hybrid": {}}}, "", "[hybrid] query"),
        ({}, "search_pipeline=p", "URL parameter [search_pipeline]"),
    ],
)
def test_candidates_beside_unsupported_options_are_left_out_with_the_reason(
    more: dict[str, Any], url: str, words: str
) -> None:
    plan = plan_search(blended() | more, url_params(url), max_window=1000)
    assert plan is not None
    assert words in str(unsupported_reason(plan))


@on_both
def test_a_url_parameter_that_decides_nothing_of_matching_leaves_candidates(stack: SearchStack) -> None:
    params = {"elasticsearch": "?force_synthetic_source=false", "opensearch": "?verbose_pipeline=false"}
    told = search(stack.gateway, stack.index, blended(), params[stack.product]).json()["ttc"]
    assert told["candidates"]["joined"] > 0


@on_both
def test_a_search_with_vectors_of_its_own_has_the_window_alone(stack: SearchStack) -> None:
    if stack.product == "elasticsearch":
        clause = {"field": "ttc.vector", "query_text": CATS, "k": 3}
        told = search(stack.gateway, stack.index, blended() | {"knn": clause}).json()["ttc"]
        assert (told["applied"], told["candidates"]["joined"]) == (True, 0)
        assert "[knn]" in told["candidates"]["reason"]


@on_both
def test_documents_below_min_score_do_not_join(stack: SearchStack) -> None:
    scores = first_pass(stack, 60).scores
    least = scores[len(scores) // 2]
    reply = search(stack.gateway, stack.index, blended(size=60) | {"min_score": str(least)})
    plain = search(stack.engine, stack.index, {"query": BY_WORDS, "size": 60, "min_score": least})
    assert reply.json()["ttc"]["applied"]
    assert sorted(reply.ids) == sorted(plain.ids)
    assert reply.json()["hits"]["total"] == plain.json()["hits"]["total"]


@on_both
def test_a_query_in_the_url_finds_more_than_its_words(stack: SearchStack) -> None:
    body = {key: value for key, value in blended().items() if key != "query"}
    for url, query in (
        ("?q=text:farmer", {"query_string": {"query": "text:farmer"}}),
        ("?q=farmer&df=text&terminate_after=500&ignore_throttled=true", {"match": {"text": "farmer"}}),
    ):
        reply = search(stack.gateway, stack.index, body, url)
        assert reply.status == 200, reply.body
        assert reply.ids == search(stack.gateway, stack.index, blended(query)).ids
        assert "reason" not in reply.json()["ttc"]["candidates"]


def test_where_words_find_nothing_vectors_do(stack: SearchStack) -> None:
    nothing = {"match": {"text": "zebra"}}
    reply = search(stack.gateway, stack.index, blended(nothing))
    assert reply.json()["hits"]["total"]["value"] == WINDOW
    assert "cat" in by_id(reply.ids[0])["text"]
    without = search(stack.gateway, stack.index, blended(nothing, candidates={"knn": 0}))
    assert without.ids == []
    assert without.json()["ttc"]["applied"]


@pytest.mark.parametrize("method", ["dense", "spectral", "maxsim"])
def test_candidates_join_the_window_of_other_methods_where_asked(stack: SearchStack, method: str) -> None:
    alone = search(stack.gateway, stack.index, blended(method=method, size=40))
    assert "candidates" not in alone.json()["ttc"]
    joined = search(stack.gateway, stack.index, blended(method=method, candidates={"knn": 20}))
    told = joined.json()["ttc"]
    assert told["candidates"]["knn"] == 20
    assert told["candidates"]["joined"] > 0
    assert told["scored"] == WINDOW + told["candidates"]["joined"]
    assert joined.ids[0] == search(stack.gateway, stack.index, {
        "query": {"match": {"kind": "animal"}}, "size": 1,
        "rescore": {"window_size": 60, "ttc": {"method": method, "query_text": CATS}},
    }).ids[0]  # fmt: skip


@pytest.fixture
def with_a_new_document(stack: SearchStack) -> Iterator[str]:
    """A document written a moment ago: it has no features yet."""
    document = {"title": "Zanzibar", "text": "the farmer watches zanzibar", "kind": "animal"}
    written = call(stack.engine, "PUT", f"/{stack.index}/_doc/new?refresh=true", document)
    assert written.status == 201, written.body
    yield "new"
    call(stack.engine, "DELETE", f"/{stack.index}/_doc/new?refresh=true")


def test_a_new_document_without_features_keeps_a_place_by_its_words(
    stack: SearchStack, with_a_new_document: str
) -> None:
    by_words = {"match": {"text": "the farmer watches zanzibar"}}
    reply = search(stack.gateway, stack.index, blended(by_words, size=WINDOW))
    told = reply.json()["ttc"]
    assert told["without_features"] == 1, told
    assert told["scored"] == told["window"] + told["candidates"]["joined"]
    assert with_a_new_document in reply.ids
    strict = search(stack.gateway, stack.index, blended(by_words, size=WINDOW, method="spectral"))
    assert strict.ids[-1] == with_a_new_document  # other methods keep it below what they score


def test_a_signal_that_the_index_lacks_is_refused(stack: SearchStack) -> None:
    reply = search(stack.gateway, stack.index, blended(params={"signals": {"sentences": 1}}, on_error="fail"))
    assert (reply.status, reply.json()["error"]["type"]) == (400, "ttc_missing_feature_exception"), reply.body
    assert "--chunks" in reply.reason


def test_where_time_is_short_the_first_pass_answers(stack: SearchStack) -> None:
    reply = search(stack.gateway, stack.index, blended(timeout="1micros"))
    assert reply.status == 200
    assert not reply.json()["ttc"]["applied"]
    assert reply.ids == first_pass(stack, 5).ids


@on_both
def test_a_search_of_no_index_is_answered_as_by_the_engine(stack: SearchStack) -> None:
    counted = {"aggs": {"groups": {"terms": {"field": "group.keyword"}}}}
    for target, params in (("nothere*", ""), ("nothere", "?ignore_unavailable=true")):
        reply = search(stack.gateway, target, blended() | counted, params)
        native = search(stack.engine, target, {"query": BY_WORDS, **counted}, params).json()
        assert reply.status == 200, reply.body
        assert reply.json()["hits"] == native["hits"]
        assert reply.json().keys() - {"ttc"} == native.keys()
