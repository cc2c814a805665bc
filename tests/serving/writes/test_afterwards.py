"""Writes whose documents are encoded right after them: attached indices, aliases, updates; what is not, is pending."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.followed_writes import follow_writes
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call, search
from tests.serving.relay import relay
from tests.serving.writes.conftest import JSON, NDJSON, Servers, encoded, states
from tests.support.gateway import gateway_to

pytestmark = pytest.mark.processors

MAPPING = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}, "price": {"type": "integer"}}}


def put(servers: Servers, index: str, name: str, **document: Any) -> Reply:
    reply = call(servers.gateway, "PUT", f"/{index}/_doc/{name}", orjson.dumps(document), JSON)
    assert reply.status in (200, 201), reply.body
    return reply


def bulk(servers: Servers, index: str, *lines: dict[str, Any]) -> Reply:
    reply = call(servers.gateway, "POST", f"/{index}/_bulk", lines)
    assert reply.json()["errors"] is False, reply.body
    return reply


def scored(servers: Servers, index: str) -> int:
    """Return how many documents a rescored search finds features of."""
    call(servers.engine, "POST", f"/{index}/_refresh")
    call(servers.engine, "POST", "/ttc-*/_refresh?expand_wildcards=all")
    section = {"window_size": 100, "ttc": {"method": "spectral", "query_text": "an owl"}}
    reply = search(servers.gateway, index, {"size": 50, "query": {"match_all": {}}, "rescore": section})
    found: int = reply.json()["ttc"]["scored"]
    return found


@pytest.fixture
def attached(servers: Servers, index_name: str, spec: IndexSpec, encoder: Encoder) -> Iterator[str]:
    """An index of somebody else with attached features, whose writes are followed."""

    async def attach() -> None:
        async with connected(EngineSettings(engine=servers.engine)) as engine:
            await engine.create_index(index_name, {"settings": {"number_of_replicas": 0}, "mappings": MAPPING})
            [source] = await Index.behind(engine, index_name)
            await attach_beside(engine, source, spec, encoder)
            await follow_writes(engine, (await Indices.behind(engine, index_name)).only(), "now", enrich=False)

    asyncio.run(attach())
    yield index_name
    call(servers.engine, "DELETE", f"/{index_name}")
    for found in call(servers.engine, "GET", f"/ttc-*-{index_name}?expand_wildcards=all").json():
        call(servers.engine, "DELETE", f"/{found}")


def test_write_to_an_attached_index_is_encoded(servers: Servers, attached: str) -> None:
    index_name = attached
    direct = call(servers.engine, "PUT", f"/{index_name}/_doc/before", orjson.dumps({"text": "An owl."}), JSON)
    assert direct.status == 201
    reply = put(servers, index_name, "one", title="The owl", text="It hunts at night.", price=1)
    assert encoded(reply) == "true"
    assert (reply.json()["_version"], reply.json()["result"]) == (1, "created")
    assert scored(servers, index_name) == 1  # the gateway has encoded what it has seen
    assert encoded(put(servers, index_name, "one", title="The trout", text="It swims.", price=2)) == "true"
    several = bulk(
        servers,
        index_name,
        {"index": {"_id": "two"}},
        {"text": "A cat."},
        {"create": {"_id": "three"}},
        {"text": "A dog."},
    )
    assert encoded(several) == "true"
    assert scored(servers, index_name) == 3
    update = bulk(servers, index_name, {"update": {"_id": "two"}}, {"doc": {"text": "A lynx."}})
    assert encoded(update) == "true"
    assert scored(servers, index_name) == 3


def test_a_refresh_includes_the_features(servers: Servers, attached: str) -> None:
    index_name = attached
    body = b'{"index":{"_id":"one"}}\n{"text":"An owl."}\n{"index":{"_id":"two"}}\n{"text":"A cat."}\n'
    section = {"window_size": 100, "ttc": {"method": "spectral", "query_text": "an owl"}}

    def scored_now() -> int:
        search_for = {"size": 50, "query": {"match_all": {}}, "rescore": section}
        found: int = search(servers.gateway, index_name, search_for).json()["ttc"]["scored"]
        return found

    for refresh in ("refresh=true", "refresh", "refresh=wait_for"):
        reply = call(servers.gateway, "POST", f"/{index_name}/_bulk?{refresh}", body, NDJSON)
        assert (encoded(reply), scored_now()) == ("true", 2)
    target = f"/{index_name}/_doc/three?refresh=true"
    assert encoded(call(servers.gateway, "PUT", target, b'{"text":"A dog."}', JSON)) == "true"
    assert scored_now() == 3


def test_a_bulk_to_several_indices(servers: Servers, followed: Any, index_name: str, attached: str) -> None:
    own = followed("now", suffix="-own")
    text = {"text": "An owl hunts."}
    other = {"_index": f"{index_name}-none", "require_alias": True}  # such an item is refused, so no index is made
    many = [line for number in range(60) for line in ({"index": {**other, "_index": f"{index_name}-{number}"}}, text)]
    long = [{"index": other}, {"text": "x" * 100_000}]
    first, second = ([{"index": {"_index": index, "_id": "one"}}, text] for index in (index_name, own))
    for refused, good in (
        ([], [*first, *second]),
        (long, first),  # named after what is read before the engine is asked
        (long, second),
        (many, first),
    ):
        reply = call(servers.gateway, "POST", "/_bulk?refresh=true", [*refused, *good])
        assert (encoded(reply), reply.json()["errors"]) == ("true", bool(refused))
        assert scored(servers, index_name) == (first[0] in good)
        assert states(servers.engine, own) == ({"one": "ready"} if second[0] in good else {})
        call(servers.engine, "POST", f"/{index_name},{own}/_delete_by_query?refresh=true", {"query": {"match_all": {}}})


def test_a_response_of_which_parts_are_asked_for(servers: Servers, index_name: str, attached: str) -> None:
    lines = [{"index": {"_id": "one"}}, {"text": "An owl."}, {"create": {"_id": "one"}}, {"text": "A cat."}] * 20
    body, headers = b"".join(orjson.dumps(line) + b"\n" for line in lines), NDJSON | {"accept-encoding": "gzip"}
    for target, sent in (("_bulk?filter_path=errors,items.*.error.type,-items.create.status", body),
                         ("_doc/two?filter_path=res*&pretty", b'{"text":"An owl."}')):  # fmt: skip
        urls = (servers.engine, servers.engine, servers.gateway)  # the first one creates the document
        _, direct, through = (call(url, "POST", f"/{index_name}/{target}", sent, headers) for url in urls)
        assert encoded(through) == "true"
        assert (through.json(), through.headers.get("content-encoding")) == (
            direct.json(),
            direct.headers.get("content-encoding"),
        )


def test_write_through_an_alias_is_encoded(servers: Servers, followed: Any, index_name: str) -> None:
    index = followed("now")
    alias = f"{index_name}-alias"
    assert call(servers.gateway, "PUT", f"/{index}/_alias/{alias}").status == 200
    reply = put(servers, alias, "one", text="An owl hunts.")
    assert (encoded(reply), reply.json()["_index"]) == ("true", index)
    assert encoded(bulk(servers, alias, {"index": {"_id": "two"}}, {"text": "A cat."})) == "true"
    assert encoded(bulk(servers, alias, {"update": {"_id": "two"}}, {"doc": {"text": "A lynx."}})) == "false"
    assert states(servers.engine, index) == {"one": "ready", "two": None}
    assert call(servers.gateway, "DELETE", f"/{alias}/_doc/two").headers.get("x-ttc-encoded") is None


def test_a_written_name_is_looked_up_once_for_some_seconds(
    engine_url: str, followed: Any, index_name: str, encoder: Encoder
) -> None:
    index, alias = followed("now"), f"{index_name}-alias"
    call(engine_url, "PUT", f"/{index}/_alias/{alias}")
    with relay(engine_url) as seen, gateway_to(seen.url, encoder, write_timeout_ms=60_000) as gateway:

        def lookups(name: str, *callers: str) -> list[str]:
            seen.passed.clear()
            for caller in callers:
                headers = JSON | {"x-caller": caller}
                reply = call(gateway, "PUT", f"/{name}/_doc/one", b'{"text":"An owl."}', headers)
                assert encoded(reply) == "true"
            reads = [one for one in seen.passed if one.method == "GET" and one.target.startswith(f"/{name}?")]
            return [one.headers.get("x-caller", "the gateway") for one in reads]

        assert lookups(index, "ann", "ann", "bob") == ["ann", "bob"]  # inline: as each caller
        assert lookups(alias, "ann", "ann", "bob") == ["ann", "the gateway", "bob"]


def test_an_update_has_the_features_of_the_whole_document(
    servers: Servers, followed: Any, encoder: Encoder, spec: IndexSpec
) -> None:
    index = followed("now")
    assert encoded(put(servers, index, "one", title="The owl", text="It hunts.")) == "true"

    def update(name: str, **body: Any) -> Reply:
        return call(servers.gateway, "POST", f"/{index}/_update/{name}", orjson.dumps(body), JSON)

    assert encoded(update("one", doc={"text": "It sleeps."})) == "true"
    assert encoded(update("new", doc={"title": "The cat", "text": "It drinks."}, doc_as_upsert=True)) == "true"
    assert encoded(update("script", script="ctx._source.text = 'no'", upsert={"text": "A dog."})) == "true"
    nothing = update("new", doc={"text": "It drinks."})
    assert (nothing.json()["result"], encoded(nothing)) == ("noop", None)
    assert update("absent", doc={"text": "x"}).status == 404
    assert states(servers.engine, index) == dict.fromkeys(("one", "new", "script"), "ready")
    assert scored(servers, index) == 3


def test_write_encoded_too_late_is_pending(engine_url: str, followed: Any, index_name: str, encoder: Encoder) -> None:
    index = followed("now")
    call(engine_url, "PUT", f"/{index}/_alias/{index_name}-alias")
    with gateway_to(engine_url, encoder, write_timeout_ms=1) as gateway:
        reply = put(Servers(engine_url, gateway), f"{index_name}-alias", "one", text="An owl hunts.")
    assert encoded(reply) == "false"
    assert states(engine_url, index) == {"one": "pending"}


def test_write_to_another_index_has_no_encoded_header(servers: Servers, followed: Any, index_name: str) -> None:
    index = followed("later")
    assert encoded(put(servers, index, "one", text="An owl.")) is None
    other = f"{index_name}-other"
    try:
        reply = put(servers, other, "one", text="An owl.")
        assert (reply.status, encoded(reply)) == (201, None)
    finally:
        call(servers.engine, "DELETE", f"/{other}")


@pytest.fixture
def stream(servers: Servers, index_name: str, spec: IndexSpec, encoder: Encoder) -> Iterator[str]:
    """A data stream with attached features whose writes are followed; on the tests' Elasticsearch, which has none, an
    alias that rolls over."""
    name = f"{index_name}-stream"

    async def make() -> None:
        async with connected(EngineSettings(engine=servers.engine)) as engine:
            streams = (await engine.capabilities()).product == "opensearch"
            template = {
                "index_patterns": [name, f"{name}-0*"],
                "priority": 500,
                **({"data_stream": {}} if streams else {}),
                "template": {"settings": {"number_of_replicas": 0}, "mappings": MAPPING},
            }
            await engine.request("PUT", f"/_index_template/{name}", body=template)
            if streams:
                await engine.request("PUT", f"/_data_stream/{name}")
            else:
                await engine.create_index(f"{name}-000001", {"aliases": {name: {"is_write_index": True}}})
            await attach_and_follow(engine, name, spec, encoder)

    asyncio.run(make())
    yield name
    call(servers.engine, "DELETE", f"/_data_stream/{name}")
    for pattern in (f"{name}-0*", f"ttc-*{name}*"):
        for found in call(servers.engine, "GET", f"/{pattern}?expand_wildcards=all").json():
            call(servers.engine, "DELETE", f"/{found}")
    call(servers.engine, "DELETE", f"/_index_template/{name}")
    call(servers.engine, "DELETE", f"/_ingest/pipeline/ttc-*{name}*")


async def attach_and_follow(engine: Engine, name: str, spec: IndexSpec, encoder: Encoder) -> None:
    """Attach the newest index behind a name, and follow its writes."""
    source = (await Index.behind(engine, name))[-1]
    await attach_beside(engine, source, spec, encoder)
    await follow_writes(engine, (await Indices.behind(engine, source.index)).only(), "now", enrich=False)


def test_a_data_stream_and_its_next_index(servers: Servers, stream: str, spec: IndexSpec, encoder: Encoder) -> None:
    def add(name: str) -> Reply:
        document = {"@timestamp": "2026-11-23T00:00:00Z", "text": f"About {name}."}
        reply = call(servers.gateway, "PUT", f"/{stream}/_create/{name}", orjson.dumps(document), JSON)
        assert reply.status == 201, reply.body
        return reply

    first = add("owls")
    assert encoded(first) == "true"
    lines = ({"create": {"_id": "cats"}}, {"@timestamp": "2026-11-23T00:00:00Z", "text": "About cats."})
    assert encoded(bulk(servers, stream, *lines)) == "true"
    assert scored(servers, stream) == 2
    assert call(servers.gateway, "POST", f"/{stream}/_rollover").json()["rolled_over"]
    second = add("trout")  # a worker attaches the new index with its next look; until then nothing is encoded there
    assert second.json()["_index"] != first.json()["_index"]
    assert encoded(second) in (None, "false")
    assert scored(servers, stream) == 2

    async def attach_next() -> None:
        async with connected(EngineSettings(engine=servers.engine)) as engine:
            await attach_and_follow(engine, stream, spec, encoder)

    asyncio.run(attach_next())
    # what the gateway knows of a name is kept for some seconds, or until a request may have changed it
    assert call(servers.gateway, "PUT", f"/{stream}/_mapping", b"{}", JSON).status == 200
    assert encoded(add("eels")) == "true"
    assert scored(servers, stream) == 4  # with the one that attaching has found
