"""Side indices, graphs, judgements, jobs and writes of a secured engine: whose credentials are used."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.errors import EngineError
from es_ttc.index.attach import attach_beside, attach_on_demand
from es_ttc.index.attach.source import settled_writes
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph
from es_ttc.reranking.index_graph.store import nodes, write_nodes
from es_ttc.retrievers import registry
from es_ttc.settings import EngineSettings
from tests.attach.conftest import wait_for
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING, corpus, ttc_rescore
from tests.serving.security.conftest import ANN, HIDDEN_FROM, INDEX, MAY_SEE, ROLES, api_key, settle
from tests.serving.test_agents import agent_of, ask
from tests.serving.writes.conftest import follow
from tests.support.gateway import gateway_to
from tests.support.llm import scripted_model_beside
from tests.support.secured_node import ADMIN, PASSWORD, SUPERUSER, basic

pytestmark = pytest.mark.engine


def test_judgements_are_read_and_written_with_the_callers_rights(secured: SearchStack) -> None:
    base = f"/_ttc/judgements/{INDEX}"
    seen, hidden = min(MAY_SEE), f"d{HIDDEN_FROM}"
    pool = {"queries": [{"id": "q", "text": "cats", "runs": [[seen, hidden]]}], "methods": [{"method": "bm25"}]}
    assert call(secured.gateway, "POST", f"{base}/pool", pool, ADMIN).status == 200
    grades = {"judge": "Ann", "judgements": [{"query": "q", "document": seen, "grade": 3}]}

    def key(*privileges: str) -> dict[str, str]:
        low = {"names": [INDEX], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}
        kept = {"names": ["ttc-judgements"], "privileges": list(privileges)}
        return api_key(secured.engine, {"one": {"indices": [low, kept]}})

    judge, reader = key("read", "write", "view_index_metadata", "maintenance"), key("read", "view_index_metadata")
    for headers, may_read, may_write in (
        (judge, 200, 200),
        (reader, 200, 403),
        (ANN, 403, 403),
        (basic(SUPERUSER, "wrong"), 401, 401),
        ({}, 401, 401),
    ):
        got = call(secured.gateway, "GET", f"{base}/queries/q?judge=Ann", headers=headers)
        put = call(secured.gateway, "POST", base, grades, headers)
        assert (got.status, put.status) == (may_read, may_write), (got.body, put.body)
        for reply in (got, put):
            if reply.status >= 400:
                assert reply.json()["error"]["type"] == "security_exception"
    shown = {
        one["id"]: one["source"]
        for one in call(secured.gateway, "GET", f"{base}/queries/q?judge=Ann", headers=judge).json()["documents"]
    }
    assert shown[seen] is not None
    assert shown[hidden] is None
    # A judge gets no scores: signals are in an index of their own, and the weights that they choose are not told.
    kept = {"query": {"term": {"index": INDEX}}}
    pools = call(secured.engine, "POST", "/ttc-judgements/_search", kept, judge).json()["hits"]["hits"]
    assert all("signals" not in hit["_source"].get("pool", {}) for hit in pools)
    logged = call(secured.engine, "POST", "/ttc-signals/_search", kept, ADMIN).json()["hits"]["hits"]
    assert {*logged[0]["_source"]["signals"]["documents"]} >= {hidden}
    assert call(secured.engine, "POST", "/ttc-signals/_search", kept, judge).status == 403
    standing = call(secured.gateway, "GET", f"{base}/standing", headers=judge)
    assert (standing.status, standing.json()["tuned"]) == (200, None)
    assert "ttc-signals" in standing.json()["why"]
    again = call(secured.gateway, "POST", f"{base}/pool", pool, judge)
    assert (again.status, "ttc-signals" in again.json()["note"]) == (200, True)


def test_documents_are_written_with_the_callers_rights(secured: SearchStack) -> None:
    index, text = "written-by-many", {"text": "The cat drinks milk."}
    asyncio.run(follow(secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@"), index, secured.spec, "now"))

    def key(*privileges: str) -> dict[str, str]:
        return api_key(secured.engine, {"one": {"indices": [{"names": [index], "privileges": list(privileges)}]}})

    writer, unseeing = key("index", "view_index_metadata"), key("index")
    reader = key("read", "view_index_metadata")
    for headers, status, encoded in (
        (writer, 201, "true"),
        (unseeing, 201, None),  # the gateway has no account of its own that may read the mapping
        ({}, 401, None),
        (basic(SUPERUSER, "wrong"), 401, None),
        (reader, 403, None),
        (reader, 403, None),  # nothing is encoded again for one who was refused
        (writer, 201, "true"),
    ):
        through = call(secured.gateway, "POST", f"/{index}/_doc", text, headers)
        assert (through.status, through.headers.get("x-ttc-encoded")) == (status, encoded)
        if status != 201:
            assert through.body == call(secured.engine, "POST", f"/{index}/_doc", text, headers).body
    call(secured.engine, "POST", f"/{index}/_refresh", headers=ADMIN)
    body = {"size": 0, "aggs": {"states": {"terms": {"field": "ttc.state"}}}}
    found = call(secured.engine, "POST", f"/{index}/_search", body, ADMIN).json()["aggregations"]["states"]["buckets"]
    assert {one["key"]: one["doc_count"] for one in found} == {"ready": 2, "pending": 1}


def test_an_engine_whose_licence_lets_it_calls_us_as_its_reranker(secured: SearchStack) -> None:
    """The JSON is that of the how-to page; Elasticsearch itself sends the request and reads the answer."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "rerank-endpoint.md").read_text("utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    service = next(block for block in blocks if block.get("service") == "custom")
    service["service_settings"]["url"] = f"{secured.gateway}/_ttc/rerank"
    made = call(secured.engine, "PUT", "/_inference/rerank/es-ttc", service, ADMIN)
    assert made.status == 200, made.body
    texts = ["Our trout swims.", 'Which "cat" drinks milk? Ours does.', "Nothing\nat all \\ here"]
    asked_of_us = {"query": CATS, "documents": texts}
    own = {
        result["index"]: result["relevance_score"]
        for result in call(secured.gateway, "POST", "/_ttc/rerank", asked_of_us).json()["results"]
    }
    answer = settle(secured.engine, "/_inference/rerank/es-ttc", {"query": CATS, "input": texts})
    assert {result["index"]: result["relevance_score"] for result in answer["rerank"]} == pytest.approx(own)
    hugging_face = {
        "service": "hugging_face",
        "service_settings": {"api_key": "none", "url": f"{secured.gateway}/_ttc/rerank"},
    }
    made = call(secured.engine, "PUT", "/_inference/rerank/tei", hugging_face, ADMIN)
    assert made.status == 200, made.body
    answer = settle(secured.engine, "/_inference/rerank/tei", {"query": CATS, "input": texts})
    assert {result["index"]: result["relevance_score"] for result in answer["rerank"]} == pytest.approx(own)
    retriever = next(block for block in blocks if "retriever" in block)
    reranker = retriever["retriever"]["text_similarity_reranker"]
    reranker["retriever"]["standard"]["query"] = EVERYTHING
    reranker |= {"inference_text": CATS, "rank_window_size": 60}
    found = call(secured.engine, "POST", f"/{INDEX}/_search", retriever | {"size": 60}, ADMIN)
    assert found.status == 200, found.body
    documents = {document["_id"]: document["text"] for document in corpus()}
    scores = call(
        secured.gateway, "POST", "/_ttc/rerank", {"query": CATS, "documents": [documents[one] for one in found.ids]}
    ).json()["results"]
    assert [result["index"] for result in scores[:5]] == [0, 1, 2, 3, 4]


def test_a_side_index_is_read_in_the_callers_name_or_the_gateways_own(secured: SearchStack, encoder: Encoder) -> None:
    """Only for documents that the caller has just been shown: what he may not see is neither scored nor counted."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_attach_shop(as_admin, encoder))
    shop = [{"names": ["shop"], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    sides = [{"names": ["ttc-*"], "privileges": ["read", "view_index_metadata"]}]
    without, within = (api_key(secured.engine, {"all": {"indices": names}}) for names in (shop, shop + sides))
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    with gateway_to(as_admin, encoder, side_index_auth="gateway") as with_own:
        for _ in range(2):  # what one caller's search has read serves another caller with the same rights only
            refused = call(secured.gateway, "POST", "/shop/_search", body, without)
            assert refused.json()["ttc"]["applied"] is False
            assert "es-ttc attach" in refused.json()["ttc"]["reason"]
            scored = [
                call(gateway, "POST", "/shop/_search", body, headers)
                for gateway, headers in ((secured.gateway, within), (with_own, without))
            ]
            for reply in scored:
                assert set(reply.ids) == MAY_SEE
                assert reply.json()["ttc"]["scored"] == len(MAY_SEE) - 1  # one has no text
            assert scored[0].scores == scored[1].scores
        assert call(with_own, "POST", "/shop/_search", body, {}).status == 401
        for method in registry.names():
            for told in ({}, {"filter": {"range": {"number": {"gte": 3}}}}):
                clause = {"field": "ttc.vector", "query_text": CATS, "k": 60, "ttc": {"method": method}, **told}
                asked_for = {"knn": clause, "size": 60}
                refused = call(secured.gateway, "POST", "/shop/_search", asked_for, without)
                assert (refused.status, "es-ttc attach" in refused.reason) == (400, True)
                first, second = (
                    call(gateway, "POST", "/shop/_search", asked_for, headers)
                    for gateway, headers in ((secured.gateway, within), (with_own, without))
                )
                assert 0 < len(first.ids) <= len(MAY_SEE)
                assert set(first.ids) <= MAY_SEE
                assert (first.ids, first.scores) == (second.ids, second.scores)
                assert call(with_own, "POST", "/shop/_search", asked_for, {}).status == 401


async def test_agents_list_search_and_read_what_their_user_may_see(secured: SearchStack, encoder: Encoder) -> None:
    """Also a user without rights on side indices, of which the gateway reads then."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    await _attach_shop(as_admin, encoder)
    names = {"own": [INDEX], "attached": ["shop", "ttc-*"], "without": ["shop"]}
    with gateway_to(as_admin, encoder, side_index_auth="gateway") as gateway:
        for kind, (index, *sides) in names.items():
            rights = {"privileges": ["read", "view_index_metadata"]}
            granted = [
                {"names": [index], **rights, **ROLES["low_numbers"]},
                *({"names": [one], **rights} for one in sides),
            ]
            key = api_key(secured.engine, {"all": {"indices": granted}})["authorization"].removeprefix("ApiKey ")
            async with agent_of(gateway, api_key=key) as client:
                listed = await ask(client, "list_indices")
                assert [one["name"] for one in listed] == ([] if kind == "without" else [index])
                assert all((one["documents"], one["encoded"]) == (HIDDEN_FROM, 1) for one in listed)
                found = await ask(client, "search", index=index, query=CATS, size=50, fields=["title", "text"])
                assert (found["ranked_by"], found["reason"]) == ("blend", None)
                assert {hit["id"] for hit in found["hits"]} <= MAY_SEE
                for one, seen in (("d3", True), (f"d{HIDDEN_FROM + 1}", False)):
                    read = await ask(client, "read", index=index, id=one, field="text")
                    assert (f"there is no document [{one}]" in read) is not seen


def test_what_a_caller_does_not_find_is_not_encoded_on_demand(secured: SearchStack, encoder: Encoder) -> None:
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_attach_shop(as_admin, encoder, "stall", on_demand=True))
    stall = [{"names": ["stall"], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    key = api_key(secured.engine, {"all": {"indices": stall}})
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}

    def asked(headers: dict[str, str]) -> Reply:
        return call(gateway, "POST", "/stall/_search", body, headers)

    with gateway_to(as_admin, encoder, side_index_auth="gateway", on_demand_share=1) as gateway:
        assert asked({}).status == 401
        assert asked(api_key(secured.engine, {"none": {"indices": []}})).status == 403
        assert asked(key).json()["ttc"]["queued"] == len(MAY_SEE)  # the first ones
        wait_for(lambda: asked(key).json()["ttc"]["encoded"] == len(MAY_SEE))
    encoded = call(secured.engine, "POST", "/ttc-side-stall/_search?size=100", {"_source": False}, ADMIN)
    assert set(encoded.ids) == MAY_SEE


def test_a_walk_neither_shows_nor_passes_through_what_its_caller_may_not_see(
    secured: SearchStack, encoder: Encoder
) -> None:
    """A chain of neighbours d0, d40, d5, of which d40 is hidden: who may not see it never comes to d5."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_chain(as_admin, {"d0": ("d40", "d1"), "d40": ("d5",)}))
    creatures = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    graphs = [{"names": ["ttc-graph-*"], "privileges": ["read"]}]
    without, within = (
        api_key(secured.engine, {"all": {"indices": names}}) for names in (creatures, creatures + graphs)
    )
    with gateway_to(as_admin, encoder, side_index_auth="gateway") as with_own:
        for method in ("rgs", "gar", "slidegar"):
            section = {"method": method, "query_text": CATS, "params": {"reranker": "dense"}, "detail": True}
            body = {"query": {"match": {"text": "1"}}, "size": 30, "rescore": {"ttc": section}}
            free, *held, refused = (
                call(gateway, "POST", f"/{INDEX}/_search", body, headers)
                for gateway, headers in (
                    (secured.gateway, ADMIN), (secured.gateway, within), (with_own, without), (secured.gateway, without)
                )
            )  # fmt: skip
            assert set(free.ids) == {"d0", "d1", "d40", "d5"}, free.body
            for reply in held:
                assert set(reply.ids) == {"d0", "d1"}, reply.body
                assert b"d40" not in reply.body
                assert "partial" not in reply.json()["ttc"]
            assert refused.ids == ["d0"]
            assert "may not read the neighbour graph" in refused.json()["ttc"]["reason"]


async def _chain(url: str, neighbours: dict[str, tuple[str, ...]]) -> None:
    """Give the index a graph with these edges alone."""
    async with connected(EngineSettings(engine=url)) as engine:
        graph = (await build_graph(engine, INDEX, GraphParams(degree=4, candidates=8))).graph
        kept = await nodes(engine, graph, [document["_id"] for document in corpus()], vectors=True)
        chained = [replace(one, neighbours=neighbours.get(one.id, ())) for one in kept.values()]
        await write_nodes(engine, graph, chained)
        await engine.refresh(graph)


def test_jobs_are_in_the_callers_name(secured: SearchStack, encoder: Encoder) -> None:
    """Who may read and write the records decides the engine; who may do neither learns nothing of them."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_enrichable(as_admin))
    may_run = [{"names": ["ttc-jobs*"], "privileges": ["all"]}, {"names": [INDEX], "privileges": ["read", "manage"]}]
    may_look = [{"names": ["ttc-jobs*"], "privileges": ["read", "maintenance", "view_index_metadata"]}, may_run[1]]
    operator, onlooker = (api_key(secured.engine, {"one": {"indices": rights}}) for rights in (may_run, may_look))
    wrong = {**basic(SUPERUSER, "wrong")}
    with (
        scripted_model_beside(lambda _: "{}") as model,
        gateway_to(secured.engine, encoder, llm_url=model.url) as gateway,
    ):

        def status(headers: dict[str, str], method: str, target: str, **body: Any) -> int:
            reply = call(gateway, method, f"/_ttc/jobs{target}", body or None, headers)
            if reply.status in (401, 403):
                assert reply.json()["error"]["type"] == "security_exception"
            return reply.status

        assert [status(one, "POST", "", index=INDEX) for one in ({}, wrong, ANN)] == [401, 401, 403]
        submitted = call(gateway, "POST", "/_ttc/jobs", {"index": INDEX}, operator)
        assert submitted.status == 200, submitted.body
        job = submitted.json()["id"]
        for headers, seen, changed in (({}, 401, 401), (wrong, 401, 401), (ANN, 403, 403), (onlooker, 200, 403)):
            assert [status(headers, "GET", target) for target in ("", f"/{job}")] == [seen, seen]
            for change in ("_pause", "_cancel"):
                assert status(headers, "POST", f"/{job}/{change}") == changed
            assert status(headers, "POST", "", index=INDEX) == changed
        assert call(gateway, "GET", f"/_ttc/jobs/{job}", headers=operator).json()["state"] == "running"
        assert status(operator, "POST", f"/{job}/_cancel") == 200
        assert not model.asked


async def _enrichable(url: str) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await add_enrichment(engine, INDEX)


async def _attach_shop(url: str, encoder: Encoder, shop: str = "shop", *, on_demand: bool = False) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        for document in corpus():
            body = {key: value for key, value in document.items() if key != "_id"}
            await engine.request("PUT", f"/{shop}/_doc/{document['_id']}", body=body)
        await engine.refresh(shop)
        [source] = await Index.behind(engine, shop)
        spec = IndexSpec(encoder.identity, max_tokens=64, spans=(SpanGrid(5, 3),))
        if on_demand:
            await attach_on_demand(engine, source, spec)
        else:
            await attach_beside(engine, source, spec, encoder)


async def test_commands_need_no_rights_on_the_cluster_but_to_read_its_version(
    secured: SearchStack, encoder: Encoder
) -> None:
    indices = [{"names": ["rights*", "ttc-*"], "privileges": ["all"]}]
    users = {"blind": [], "sees_version": ["cluster:monitor/main"]}
    for user, cluster in users.items():
        settle(secured.engine, f"/_security/role/{user}", {"cluster": cluster, "indices": indices})
        settle(secured.engine, f"/_security/user/{user}", {"password": PASSWORD, "roles": [user]})
    with pytest.raises(EngineError, match=r"403: .* the user needs the cluster privilege \[monitor\]"):
        await connect(EngineSettings(engine=secured.engine, username="blind", password=SecretStr(PASSWORD)))
    own = EngineSettings(engine=secured.engine, username="sees_version", password=SecretStr(PASSWORD))
    engine = await connect(own)
    try:
        found = await engine.capabilities()
        assert (found.licence, found.nodes, found.max_content_length) == ("unknown", 1, 100 * 2**20)
        await create_index(engine, "rights-own", secured.spec, IndexOptions(shards=1, replicas=0))
        await ingest(engine, "rights-own", Inputs([Documents(corpus())]), encoder, dead_letters=DeadLetterList())
        assert (await contents(engine, "rights-own", secured.spec)).states["ready"] > 50
        await engine.create_index("rights-shop", {"mappings": {"properties": {"text": {"type": "text"}}}})
        await engine.bulk("rights-shop", [b'{"index":{"_id":"1"}}', b'{"text":"a cat that drinks milk"}'])
        [source] = await Index.behind(engine, "rights-shop")
        attached = IndexSpec(encoder.identity, text_fields=("text",), max_tokens=64)
        await attach_beside(engine, source, attached, encoder)
        with gateway_to(secured.engine, encoder) as gateway:
            for index in ("rights-own", "rights-shop"):
                reply = call(
                    gateway,
                    "POST",
                    f"/{index}/_search",
                    {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {"query_text": "a cat"}}},
                    basic("sees_version", PASSWORD),
                )
                assert reply.json()["ttc"]["applied"] is True, reply.body
        # Who may not see statistics is told which right is missing; sizes are left out.
        settle(
            secured.engine,
            "/_security/role/sees_version",
            {
                "cluster": users["sees_version"],
                "indices": [indices[0] | {"privileges": ["read", "view_index_metadata"]}],
            },
        )
        assert (await contents(engine, "rights-own", secured.spec)).bytes is None
        with pytest.raises(EngineError, match=r"the user needs the index privilege \[monitor\]"):
            await settled_writes(engine, source)
    finally:
        await engine.close()
        for index in ("rights-own", "rights-shop", "ttc-side-rights-shop"):
            call(secured.engine, "DELETE", f"/{index}", headers=ADMIN)
