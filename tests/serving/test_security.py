"""A secured engine: credentials as they are, nobody is shown or scored what he may not see; and it calls us itself."""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import NodeFolder
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.errors import ConfigurationError, EngineError
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.source import settled_writes
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.playground import playground_routes
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph
from es_ttc.reranking.index_graph.store import nodes, write_nodes
from es_ttc.retrievers import registry
from es_ttc.settings import EngineSettings, Settings
from tests.rescorers.test_learned import stump, written
from tests.serving.client import Reply, call
from tests.serving.conftest import Behind, corpus, fill
from tests.serving.test_rescore import CATS, EVERYTHING, ours
from tests.serving.writes.conftest import follow
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to
from tests.support.learned import gateway_with
from tests.support.llm import scripted_model_beside
from tests.support.memory import data_folder

SUPERUSER = "admin"
PASSWORD = "correct-horse-battery-staple"
_ITERATIONS = 1000  # the fewest that the engine reads
_SALT = b"one salt for a throw-away node!!"


class SecuredElasticsearch(ElasticsearchDistribution):
    """Elasticsearch with security on, one superuser in a file, and document-level security in its licence."""

    def settings(self) -> Mapping[str, str]:
        """Ask for credentials; who has none may see the cluster's health, by which a node is known to be up."""
        return {
            "xpack.security.enabled": "true",
            "xpack.security.http.ssl.enabled": "false",
            "xpack.security.transport.ssl.enabled": "false",
            "xpack.license.self_generated.type": "trial",
            "xpack.security.authc.anonymous.roles": "health",
            "xpack.security.authc.anonymous.authz_exception": "false",
        }

    def configure(self, home: Path, folder: NodeFolder) -> None:
        """Write the superuser and the role of those without credentials beside the JVM's options."""
        super().configure(home, folder)
        (folder.config / "users").write_text(f"{SUPERUSER}:{password_hash(PASSWORD)}\n")
        (folder.config / "users_roles").write_text(f"superuser:{SUPERUSER}\n")
        (folder.config / "roles.yml").write_text('health:\n  cluster: ["cluster:monitor/health"]\n')


def password_hash(password: str) -> str:
    """Return a password as the file realm reads it."""
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), _SALT, _ITERATIONS, dklen=32)
    return f"{{PBKDF2}}{_ITERATIONS}${base64.b64encode(_SALT).decode()}${base64.b64encode(derived).decode()}"


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of basic authentication."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


INDEX = "creatures"
HIDDEN_FROM = 30
MAY_SEE = {document["_id"] for document in corpus() if document["number"] < HIDDEN_FROM}
pytestmark = pytest.mark.engine

ADMIN = basic(SUPERUSER, PASSWORD)
ANN = basic("ann", "password-of-ann")
BEN = basic("ben", "password-of-ben")
ROLES: dict[str, dict[str, Any]] = {
    "low_numbers": {"query": {"range": {"number": {"lt": HIDDEN_FROM}}}},
    "no_features": {"field_security": {"grant": ["*"], "except": ["ttc.*"]}},
}


@pytest.fixture(scope="module")
def secured(encoder: Encoder) -> Iterator[Behind]:
    """An engine that asks for credentials, with two users who may not see everything."""
    name = f"tests-{os.getpid()}-secured"
    spec = NodeSpec(
        cache_dir=Settings().cache_dir,
        name=name,
        port=0,
        data_dir=data_folder(name),
        heap="512m",
        owned=True,
        short_lived=True,
        keep_data=False,
    )
    try:
        node = process.start_node(spec, distribution=SecuredElasticsearch())
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Elasticsearch must be tested on CI: {error}")
        pytest.skip(f"no Elasticsearch: {error}")
    with node, gateway_to(node.url, encoder, further=playground_routes, write_timeout_ms=60_000, ui=True) as gateway:
        index = IndexSpec(encoder.identity, codec="float16", max_tokens=64)
        asyncio.run(fill(node.url.replace("//", f"//{SUPERUSER}:{PASSWORD}@"), INDEX, index, encoder, corpus()))
        for (role, rights), user in zip(ROLES.items(), ("ann", "ben"), strict=True):
            indices = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **rights}]
            settle(node.url, f"/_security/role/{role}", {"indices": indices})
            settle(node.url, f"/_security/user/{user}", {"password": f"password-of-{user}", "roles": [role]})
        yield Behind(node.url, gateway, INDEX, index)


def settle(url: str, target: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = call(url, "POST", target, body, ADMIN)
    assert reply.status == 200, reply.body
    settled: dict[str, Any] = reply.json()
    return settled


def asked(url: str, headers: dict[str, str], **changes: Any) -> Reply:
    return call(url, "POST", f"/{INDEX}/_search", {"query": EVERYTHING, "size": 60} | changes, headers)


def api_key(url: str, roles: dict[str, Any]) -> dict[str, str]:
    made = settle(url, "/_security/api_key", {"name": "key", "role_descriptors": roles})
    return {"authorization": f"ApiKey {made['encoded']}"}


@pytest.mark.parametrize("rescore", [{}, {"rescore": ours()}])
def test_credentials_are_the_engines_to_judge(secured: Behind, rescore: dict[str, Any]) -> None:
    key = api_key(secured.engine, {"all": {"indices": [{"names": [INDEX], "privileges": ["read"]}]}})
    elsewhere = api_key(secured.engine, {"other": {"indices": [{"names": ["others"], "privileges": ["read"]}]}})
    for headers, status in (
        (ADMIN, 200),
        (ANN, 200),
        (key, 200),
        (ADMIN | {"es-security-runas-user": "ann"}, 200),
        ({}, 401),
        (basic(SUPERUSER, "wrong"), 401),
        (basic("nobody", PASSWORD), 401),
        ({"authorization": "ApiKey " + base64.b64encode(b"no:key").decode()}, 401),
        ({"authorization": "Bearer nothing"}, 401),
        (elsewhere, 403),
        (ANN | {"es-security-runas-user": SUPERUSER}, 403),
    ):
        direct, through = asked(secured.engine, headers), asked(secured.gateway, headers, **rescore)
        assert through.status == direct.status == status, through.body
        assert set(direct.headers) - set(through.headers) <= {"content-length", "transfer-encoding"}
        if status == 200:
            assert set(through.ids) == set(direct.ids)
        else:
            assert through.json() == direct.json()
            assert through.headers.get("www-authenticate") == direct.headers.get("www-authenticate")


def test_judgements_are_read_and_written_with_the_callers_rights(secured: Behind) -> None:
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


def test_documents_are_written_with_the_callers_rights(secured: Behind) -> None:
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


def test_hidden_documents_are_not_seen_nor_counted_nor_scored(secured: Behind) -> None:
    everything = asked(secured.gateway, ADMIN, rescore=ours())  # and now the memory holds all of them
    assert len(everything.ids) == 60
    visible = [(one, score) for one, score in zip(everything.ids, everything.scores, strict=True) if one in MAY_SEE]
    aggregation = {"all": {"global": {}}, "most": {"max": {"field": "number"}}}
    runs_as_ann = ADMIN | {"es-security-runas-user": "ann"}
    key = api_key(
        secured.engine, {"low": {"indices": [{"names": [INDEX], "privileges": ["read"], **ROLES["low_numbers"]}]}}
    )
    for headers in (ANN, runs_as_ann, key):
        reply = asked(secured.gateway, headers, rescore=ours(), aggs=aggregation)
        assert list(zip(reply.ids, reply.scores, strict=True)) == visible
        answer = reply.json()
        assert answer["ttc"]["window"] == answer["hits"]["total"]["value"] == len(MAY_SEE)
        assert answer["aggregations"]["most"]["value"] < HIDDEN_FROM
        pages = [
            asked(secured.gateway, headers, rescore=ours(), size=7, **{"from": start}) for start in range(0, 35, 7)
        ]
        assert sorted(one for page in pages for one in page.ids) == sorted(MAY_SEE)
        detail = asked(secured.gateway, headers, rescore=ours("mmr", detail=True))
        nearest = {hit["_ttc"].get("nearest") for hit in detail.json()["hits"]["hits"]}
        assert nearest - {None} <= MAY_SEE
        grouped = asked(secured.gateway, headers, rescore=ours(), collapse={"field": "group.keyword"})
        assert set(grouped.ids) <= MAY_SEE


HIDDEN = {document["_id"] for document in corpus()} - MAY_SEE
EVERYTHING_THAT_COUNTS = {
    "aggs": {"numbers": {"terms": {"field": "number", "size": 60}}, "best": {"top_hits": {"size": 60}}},
    "collapse": {"field": "group.keyword", "inner_hits": {"name": "members", "size": 60}},
    "explain": True,
    "track_total_hits": True,
}


def assert_nothing_hidden(reply: Reply) -> None:
    """Check that no count, bucket, inner hit or explanation is of a document that the caller may not see."""
    answer = reply.json()
    buckets = answer["aggregations"]["numbers"]["buckets"]
    members = [hit["inner_hits"]["members"]["hits"]["hits"] for hit in answer["hits"]["hits"]]
    assert answer["ttc"]["candidates"]["joined"] > 0
    assert {bucket["key"] for bucket in buckets} == {int(one["_id"][1:]) for hits in members for one in hits}
    assert sum(bucket["doc_count"] for bucket in buckets) == answer["hits"]["total"]["value"] <= len(MAY_SEE)
    assert all(f'"{name}"'.encode() not in reply.body for name in HIDDEN)


def test_hidden_documents_do_not_join_a_window(secured: Behind) -> None:
    """What only kNN finds is bound by rights too: words of a document that hides lead to others that do not."""
    words = {"match": {"text": "the farmer watches before rain"}}
    blend = {"window_size": 8, "ttc": {"query_text": "snow and rain", "detail": True}}

    def blended(headers: dict[str, str], query: Any = words, **more: Any) -> Reply:
        return call(
            secured.gateway,
            "POST",
            f"/{INDEX}/_search",
            {"query": query, "size": 8, "rescore": blend, "_source": ["number"], **more},
            headers,
        )

    everything = {one for start in (0, 8) for one in blended(ADMIN, **{"from": start}).ids}
    assert not everything <= MAY_SEE  # without rights hidden ones would join
    for headers in (ANN, ADMIN | {"es-security-runas-user": "ann"}):
        for query in (words, {"match": {"text": "zebra"}}):
            for _ in range(2):  # the second search for candidates goes out beside the first pass
                pages = [blended(headers, query, **{"from": start}) for start in (0, 8)]
                told = pages[0].json()["ttc"]["candidates"]
                assert told["joined"] > 0, told
                assert {one for page in pages for one in page.ids} <= MAY_SEE
                assert_nothing_hidden(blended(headers, query, size=60, **EVERYTHING_THAT_COUNTS))
                body = {"query": query, "size": 8, "rescore": blend, **EVERYTHING_THAT_COUNTS}
                several = call(secured.gateway, "POST", "/_msearch", [{"index": INDEX}, body], headers)
                assert {hit["_id"] for hit in several.json()["responses"][0]["hits"]["hits"]} <= MAY_SEE
                assert all(f'"{name}"'.encode() not in several.body for name in HIDDEN)
    blind = blended(BEN)  # may not see the fields of features: no vector of his is searched
    assert blind.status in (200, 400)
    if blind.status == 200:
        assert blind.json()["ttc"].get("candidates", {"joined": 0})["joined"] == 0
    elsewhere = api_key(secured.engine, {"other": {"indices": [{"names": ["others"], "privileges": ["read"]}]}})
    assert blended(elsewhere).status == 403
    assert blended({}).status == 401


def test_a_filtered_alias_and_rights_bind_what_joins_together(secured: Behind) -> None:
    alias, odd = f"{INDEX}-odd", {"terms": {"number": list(range(1, 60, 2))}}
    settle(secured.engine, "/_aliases", {"actions": [{"add": {"index": INDEX, "alias": alias, "filter": odd}}]})
    indices = [{"names": [alias], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    alone = api_key(secured.engine, {"odd": {"indices": indices}})  # without any right on the index itself
    indices[0]["names"].append(INDEX)
    both = api_key(secured.engine, {"odd": {"indices": indices}})
    body = {
        "query": {"match": {"text": "the farmer watches before rain"}},
        "size": 16,
        "rescore": {"window_size": 8, "ttc": {"query_text": "snow and rain"}},
    }
    permitted = {
        document["_id"] for document in corpus() if document["number"] < HIDDEN_FROM and document["number"] % 2
    }
    try:
        for headers in (both, alone):
            for _ in range(2):  # the second search for candidates goes out beside the first pass
                reply = call(secured.gateway, "POST", f"/{alias}/_search", body, headers)
                assert reply.status == 200, reply.body
                assert reply.json()["ttc"]["candidates"]["joined"] > 0
                assert set(reply.ids) <= permitted
    finally:
        settle(secured.engine, "/_aliases", {"actions": [{"remove": {"index": INDEX, "alias": alias}}]})


def test_a_model_reads_numbers_with_the_callers_rights(secured: Behind, encoder: Encoder, tmp_path: Path) -> None:
    fields = [{"name": "number"}]
    written(tmp_path, "mine", {**stump(feature=[4], threshold=[14.5], default_left=[False]), "fields": fields})
    with gateway_with(tmp_path, secured.engine, encoder) as gateway:
        learned = {"window_size": 60, "ttc": {"method": "learned", "query_text": CATS, "detail": True}}
        everything = asked(gateway, ADMIN, rescore=learned)
        assert len(everything.ids) == 60
        reply = asked(gateway, ANN, rescore=learned)
        assert set(reply.ids) == MAY_SEE
        above = {one for one, score in zip(reply.ids, reply.scores, strict=True) if score > 0.5}
        assert above == {document["_id"] for document in corpus() if 15 <= document["number"] < HIDDEN_FROM}
        without = {"field_security": {"grant": ["*"], "except": ["number"]}}
        indices = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **without}]
        blind = api_key(secured.engine, {"blind": {"indices": indices}})
        for _ in range(2):  # whatever others have been answered
            refused = asked(gateway, blind, rescore=learned)
            assert refused.json()["ttc"]["applied"] is False, refused.body
            assert "[number], and there is none that this caller may read" in refused.json()["ttc"]["reason"]
        opened = call(gateway, "POST", f"/{INDEX}/_pit?keep_alive=1m", headers=blind).json()
        body = {"query": EVERYTHING, "size": 60, "rescore": learned, "pit": {"id": opened["id"]}}
        inside = call(gateway, "POST", "/_search", body, blind)
        assert inside.json()["ttc"]["applied"] is False, inside.body


def test_hidden_documents_stay_hidden_in_several_searches_and_points_in_time(secured: Behind) -> None:
    asked(secured.gateway, ADMIN, rescore=ours())
    lines: list[dict[str, Any]] = [{"index": INDEX}, {"query": EVERYTHING, "size": 60, "rescore": ours()}]
    several = call(secured.gateway, "POST", "/_msearch", lines * 2, ANN)
    for response in several.json()["responses"]:
        assert {hit["_id"] for hit in response["hits"]["hits"]} == MAY_SEE
    opened = call(secured.gateway, "POST", f"/{INDEX}/_pit?keep_alive=1m", headers=ANN).json()
    body = {"query": EVERYTHING, "size": 60, "rescore": ours(), "pit": {"id": opened["id"]}}
    reply = call(secured.gateway, "POST", "/_search", body, ANN)
    assert set(reply.ids) == MAY_SEE
    assert reply.json()["ttc"]["applied"] is True


def test_features_that_a_caller_may_not_read_do_not_serve_him_from_memory(secured: Behind) -> None:
    assert asked(secured.gateway, ADMIN, rescore=ours()).json()["ttc"]["applied"] is True
    for target in (INDEX, "_all", "*"):
        reply = call(secured.gateway, "POST", f"/{target}/_search", {"query": EVERYTHING, "rescore": ours()}, BEN)
        assert (reply.json()["ttc"]["applied"], reply.json()["ttc"]["scored"]) == (False, 0), reply.body


def test_an_engine_whose_licence_lets_it_calls_us_as_its_reranker(secured: Behind) -> None:
    """The JSON is that of the how-to page; Elasticsearch itself sends the request and reads the answer."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "rerank-endpoint.md").read_text("utf-8")
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


def test_a_side_index_is_read_in_the_callers_name_or_the_gateways_own(secured: Behind, encoder: Encoder) -> None:
    """Only for documents that the caller has just been shown: what he may not see is neither scored nor counted."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_attach_shop(as_admin, encoder))
    shop = [{"names": ["shop"], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    sides = [{"names": ["ttc-*"], "privileges": ["read", "view_index_metadata"]}]
    without, within = (api_key(secured.engine, {"all": {"indices": names}}) for names in (shop, shop + sides))
    body = {"query": EVERYTHING, "size": 60, "rescore": ours()}
    with gateway_to(as_admin, encoder, side_credentials="gateway") as with_own:
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


def test_a_walk_neither_shows_nor_passes_through_what_its_caller_may_not_see(secured: Behind, encoder: Encoder) -> None:
    """A chain of neighbours d0, d40, d5, of which d40 is hidden: who may not see it never comes to d5."""
    as_admin = secured.engine.replace("//", f"//{SUPERUSER}:{PASSWORD}@")
    asyncio.run(_chain(as_admin, {"d0": ("d40", "d1"), "d40": ("d5",)}))
    creatures = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    graphs = [{"names": ["ttc-graph-*"], "privileges": ["read"]}]
    without, within = (
        api_key(secured.engine, {"all": {"indices": names}}) for names in (creatures, creatures + graphs)
    )
    with gateway_to(as_admin, encoder, side_credentials="gateway") as with_own:
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


def test_jobs_are_in_the_callers_name(secured: Behind, encoder: Encoder) -> None:
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


async def _attach_shop(url: str, encoder: Encoder) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        for document in corpus():
            body = {key: value for key, value in document.items() if key != "_id"}
            await engine.request("PUT", f"/shop/_doc/{document['_id']}", body=body)
        await engine.refresh("shop")
        [source] = await Index.behind(engine, "shop")
        spec = IndexSpec(encoder.identity, max_tokens=64, spans=(SpanGrid(5, 3),))
        await attach_beside(engine, source, spec, encoder)


async def test_commands_need_no_rights_on_the_cluster_but_to_read_its_version(
    secured: Behind, encoder: Encoder
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
        attached = IndexSpec(encoder.identity, text_fields=("text",), codec="float16", max_tokens=64)
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
