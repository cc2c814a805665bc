"""Documents that clients write through the gateway are encoded on their way, or go in as they came, pending."""

import asyncio
import gzip
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import cbor2
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EncoderError
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.writes import answers
from tests.conftest import PRODUCTS
from tests.serving.client import call, search
from tests.serving.conftest import fill
from tests.serving.corpus import corpus
from tests.serving.writes.conftest import JSON, NDJSON, Servers, encoded, gateway_of, states, stored
from tests.support.encoders import Wrapped
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

pytestmark = pytest.mark.processors

Followed = Callable[..., str]


def lines_of(documents: Sequence[dict[str, Any]], operation: str = "index", **meta: Any) -> bytes:
    lines: list[Any] = []
    for document in documents:
        lines += [{operation: {"_id": document["_id"], **meta}}, {k: v for k, v in document.items() if k != "_id"}]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


@on_both
def test_a_bulk_gets_what_an_ingest_writes(
    servers: Servers, followed: Followed, encoder: Encoder, spec: IndexSpec, index_name: str
) -> None:
    index, ingested = followed(), f"{index_name}-ingested"
    asyncio.run(fill(servers.engine, ingested, spec, encoder, corpus(), 1))
    reply = call(servers.gateway, "POST", f"/{index}/_bulk?refresh=true", lines_of(corpus()), NDJSON)
    assert (reply.status, encoded(reply), reply.json()["errors"]) == (200, "true", False)
    written, expected = stored(servers.engine, index), stored(servers.engine, ingested)
    assert written == expected
    assert "ttc" not in written["d1"]["source"]
    for method in ("blend", "spectral"):
        body = {
            "query": {"match": {"text": "cat"}},
            "size": 20,
            "rescore": {"window_size": 60, "ttc": {"method": method, "query_text": "which cat drinks milk"}},
        }
        own, reference = search(servers.gateway, index, body), search(servers.gateway, ingested, body)
        assert own.json()["ttc"]["applied"] is True
        assert dict(zip(own.ids, own.scores, strict=True)) == pytest.approx(
            dict(zip(reference.ids, reference.scores, strict=True)), abs=1e-5
        )


SINGLE = [
    ("PUT", "_doc/a%2Fb?refresh=true"),
    ("POST", "_doc/1?routing=x&version=7&version_type=external"),
    ("PUT", "_create/2?pretty"),
    ("PUT", "_create/2?pretty"),
    ("PUT", "_doc/3?op_type=create&pipeline=_none"),
    ("POST", "_doc/4?filter_path=result,_seq_no"),
    ("PUT", "_doc/4?if_seq_no=4&if_primary_term=1"),
    ("PUT", "_doc/4?if_seq_no=4&if_primary_term=1"),
    ("PUT", "_doc/5?require_alias=true"),
    ("PUT", "_doc/6?version=x"),
]


@on_both
def test_single_documents(servers: Servers, followed: Followed) -> None:
    index, direct = followed(), followed("later", suffix="-direct")
    text = b' {"text" : "The cat.",\n "n": 1e2, "big": 9223372036854775807, "x": 0.12345678901234567890 }\n'
    for method, target in SINGLE:
        through = call(servers.gateway, method, f"/{index}/{target}", text, JSON)
        directly = call(servers.engine, method, f"/{direct}/{target}", text, JSON)
        assert through.status == directly.status
        assert _named(through.body, index) == _named(directly.body, direct)
        assert encoded(through) == ("true" if through.status < 400 else None)
    without_id = call(servers.gateway, "POST", f"/{index}/_doc?refresh=wait_for", text, JSON)
    assert (without_id.status, encoded(without_id)) == (201, "true")
    found, same = stored(servers.engine, index), stored(servers.engine, direct)
    assert {one["ttc.state"][0] for one in found.values()} == {"ready"}
    assert found.pop(without_id.json()["_id"])["source"] == same["1"]["source"]
    assert {name: one["source"] for name, one in found.items()} == {name: one["source"] for name, one in same.items()}


def _named(answer: bytes, index: str) -> bytes:
    """Return an answer with another name of the index, without times and UUIDs."""
    for name in (index, index.removesuffix("-direct")):
        answer = answer.replace(name.encode(), b"INDEX")
    answer = re.sub(rb'"(took|ingest_took)" ?: ?\d+', b"", answer)
    return re.sub(rb'"index_uuid" ?: ?"[^"]*"', b"", answer)


class Failing(Wrapped):
    """Fails with all documents, in one way or another."""

    def __init__(self, encoder: Encoder, error: Exception | None) -> None:
        super().__init__(encoder)
        self._error = error
        self.over = threading.Event()

    def before(self, texts: Sequence[str]) -> None:
        if [*texts] == ["a first query"]:
            return
        if self._error is not None:
            raise self._error
        self.over.wait(20)


@pytest.mark.parametrize("error", [EncoderError("none today"), RuntimeError("a defect"), None], ids=str)
def test_without_an_encoding_nothing_is_lost(
    servers: Servers, followed: Followed, encoder: Encoder, error: Exception | None
) -> None:
    index, failing = followed(), Failing(encoder, error)
    with gateway_to(servers.engine, failing, write_timeout_ms=200) as gateway:
        bulk = call(gateway, "POST", "/_bulk", lines_of(corpus(), _index=index), NDJSON)
        one = call(gateway, "PUT", f"/{index}/_doc/one", {"text": "The cat."})
        metrics = call(gateway, "GET", "/_ttc/metrics").body.decode()
        failing.over.set()
    assert (bulk.status, bulk.json()["errors"], one.status) == (200, False, 201)
    assert encoded(bulk) == encoded(one) == "false"
    assert set(states(servers.engine, index).values()) == {"pending"}
    sources = {name: document["source"] for name, document in stored(servers.engine, index).items()}
    assert sources.pop("one") == {"text": "The cat."}
    assert sources == {one["_id"]: {k: v for k, v in one.items() if k != "_id"} for one in corpus()}
    assert 'es_ttc_written_documents_total{outcome="' in metrics


class Held(Wrapped):
    """Holds its first documents until it is told to go on, and counts the documents of each call."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.calls: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def before(self, texts: Sequence[str]) -> None:
        if "cat" in texts[0]:
            self.calls.append(len(texts))
            self.begun.set()
            self.go.wait(20)


def metric(gateway: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", call(gateway, "GET", "/_ttc/metrics").body.decode(), flags=re.MULTILINE)
    assert found is not None
    return float(found[1])


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_documents_of_concurrent_requests_are_encoded_together(
    servers: Servers, followed: Followed, encoder: Encoder
) -> None:
    index, held = followed(), Held(encoder)
    with gateway_of(servers.engine, held) as gateway, ThreadPoolExecutor(25) as threads:

        def write(number: int) -> str | None:
            return encoded(call(gateway, "PUT", f"/{index}/_doc/{number}", {"text": f"The cat {number}."}))

        first = threads.submit(write, 0)
        assert held.begun.wait(20)
        others = [threads.submit(write, number) for number in range(1, 25)]
        until(lambda: metric(gateway, "es_ttc_outstanding_documents") == 25)
        held.go.set()
        assert {one.result() for one in (first, *others)} == {"true"}
        assert held.calls == [1, 24]
        assert metric(gateway, "es_ttc_outstanding_documents") == 0
    assert set(states(servers.engine, index).values()) == {"ready"}


@pytest.mark.parametrize("count", [1, 2000])
def test_a_client_that_leaves_takes_its_documents_along(
    servers: Servers, followed: Followed, encoder: Encoder, count: int
) -> None:
    index, held = followed(), Held(encoder)
    body = b"".join(b'{"index":{"_id":"%d"}}\n{"text":"The cat %d."}\n' % (one, one) for one in range(count))
    with gateway_of(servers.engine, held) as gateway:
        parts = urlsplit(gateway)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as connection:
            head = f"POST /{index}/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
            connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
            assert held.begun.wait(20)
        until(lambda: metric(gateway, "es_ttc_outstanding_documents") == 0)
        held.go.set()
        assert encoded(call(gateway, "PUT", f"/{index}/_doc/x", {"text": "The cat."})) == "true"
    assert states(servers.engine, index).keys() <= {"x"}


@on_both
def test_bulks_of_every_kind(servers: Servers, followed: Followed) -> None:
    index, direct = followed(), followed("later", suffix="-direct")

    def body(name: str) -> bytes:
        return b"".join(
            line + b"\n"
            for line in (
                b'{"index":{"_index":"%b","_id":"1"}}' % name.encode(),
                b'{"text":"The cat drinks milk.","a":1.50,"b":9007199254740993}\r',
                b"",
                b'{ "create" : { "_index" : "%b", "_id" : "2", "routing": "r" } }' % name.encode(),
                b'{"text":""}',
                b'{"create":{"_index":"%b","_id":"1"}}' % name.encode(),
                b'{"text":"There is one."}',
                b'{"index":{"_index":"%b-plain","_id":"p"}}' % name.encode(),
                b'{"text":"The dog."}',
                b'{"index":{"_index":"%b","_id":"3","pipeline":"_none"}}' % name.encode(),
                b"{}",
                b'{"delete":{"_index":"%b","_id":"1"}}' % name.encode(),
                b'{"index":{"_index":"%b","_id":"4","if_seq_no":99,"if_primary_term":1}}' % name.encode(),
                b'{"text":"The owl."}',
                b'{"index":{"_index":"%b","_id":"5","require_alias":true}}' % name.encode(),
                b'{"text":"The bee."}',
            )
        )

    through = call(servers.gateway, "POST", "/_bulk?refresh=true", body(index), NDJSON)
    directly = call(servers.engine, "POST", "/_bulk?refresh=true", body(direct), NDJSON)
    assert encoded(through) == "true"
    assert _named(through.body, index) == _named(directly.body, direct)
    assert states(servers.engine, index) == {"2": "empty", "3": "empty"}
    assert stored(servers.engine, f"{index}-plain")["p"] == {"source": {"text": "The dog."}}


@on_both
def test_documents_that_are_left_to_workers(servers: Servers, followed: Followed, index_name: str) -> None:
    index = followed()
    call(
        servers.engine,
        "PUT",
        f"/_ingest/pipeline/{index_name}",
        {"processors": [{"set": {"field": "text", "value": "x"}}]},
    )
    try:
        own = {"state": "ready", "hash": "of another text", "key": "none"}
        items = [
            ({"index": {"_id": "own"}}, {"text": "The cat.", "ttc": own}),
            ({"index": {"_id": "dotted"}}, {"text": "The cat.", "ttc.hash": "of another text"}),
            ({"index": {"_id": "piped", "pipeline": index_name}}, {"text": "The cat."}),
            ({"update": {"_id": "upserted"}}, {"doc": {"text": "The cat."}, "doc_as_upsert": True}),
            ({"index": {"_id": "good"}}, {"text": "The cat."}),
        ]
        reply = call(servers.gateway, "POST", f"/{index}/_bulk", [line for item in items for line in item])
        assert (encoded(reply), reply.json()["errors"]) == ("false", False)
        piped = call(servers.gateway, "PUT", f"/{index}/_doc/p?pipeline={index_name}", {"text": "The cat."})
        update = {"doc": {"text": "The dog."}, "upsert": {"text": "The owl."}}
        updated = call(servers.gateway, "POST", f"/{index}/_update/u", update)
        assert (encoded(piped), encoded(updated)) == ("false", "true")  # an update is encoded right after it
        found = states(servers.engine, index)
        assert (found.pop("good"), found.pop("u")) == ("ready", "ready")
        assert set(found) == {"own", "dotted", "piped", "upserted", "p"}
        assert set(found.values()) == {"pending"}
        call(servers.engine, "PUT", f"/{index}/_settings", {"index.default_pipeline": index_name})
        call(servers.gateway, "PUT", f"/{index}/_settings", {"index.number_of_replicas": 0})  # so it is asked for again
        assert encoded(call(servers.gateway, "PUT", f"/{index}/_doc/d", {"text": "The cat."})) == "false"
        assert encoded(call(servers.gateway, "PUT", f"/{index}/_doc/n?pipeline=_none", {"text": "The cat."})) == "true"
        call(servers.gateway, "PUT", f"/{index}/_settings", {"index.default_pipeline": None})
        assert encoded(call(servers.gateway, "PUT", f"/{index}/_doc/d", {"text": "The cat."})) == "true"
        final = followed(suffix="-final", former=index_name)
        assert encoded(call(servers.gateway, "PUT", f"/{final}/_doc/d", {"text": "The cat."})) == "false"
        assert stored(servers.engine, final)["d"]["source"] == {"text": "x"}
    finally:
        for name in (index, f"{index}-final"):
            call(servers.engine, "DELETE", f"/{name}")
        call(servers.engine, "DELETE", f"/_ingest/pipeline/{index_name}")


@pytest.mark.parametrize("meta", ["text", {"writes": "text"}, {"writes": {"encode": "now"}}, {"encoder": 1}], ids=str)
def test_metadata_of_someone_elses_changes_nothing(
    servers: Servers, index_name: str, encoder: Encoder, meta: Any
) -> None:
    if isinstance(meta, dict) and "encoder" in meta:
        meta = meta | {"writes": {"encode": "now", "enrich": False, "key": "k"}}
    assert call(servers.gateway, "PUT", f"/{index_name}", {"mappings": {"_meta": {"ttc": meta}}}).status == 200
    one = call(servers.gateway, "PUT", f"/{index_name}/_doc/1", {"text": "The cat."})
    assert (one.status, encoded(one)) == (201, None)
    bulk = call(servers.gateway, "POST", f"/{index_name}/_bulk", lines_of(corpus()[:2]), NDJSON)
    assert (bulk.status, bulk.json()["errors"], encoded(bulk)) == (200, False, None)
    with gateway_of(servers.engine, encoder) as started:  # one that looks for the encoders of all indices
        assert call(started, "GET", "/_ttc/ready").status == 200


MALFORMED = [
    b'{"index":{"_id":"1"}}\n{"text":"The cat."}\n{"index":{"_id":"2"}}\n{broken\n{"index":{"_id":"3"}}\n{"text":""}\n',
    b'{"index":{"_id":"1"}}\n{"text":"a"}\nno action\n{"text":"b"}\n',
    b'{"index":{"_id":"1"}}\n{"text":"no newline at the end"}',
    b'{"index":{"_id":"1"}}\n{"text":"a","text":"twice"}\n',
    b'{"index":{"_id":"1"}}\n{"text":NaN}\n',
    b'{"index":{"_id":"1"}}\n[1]\n',
    b'{"index":{"_id":"1"}}\n\n{"index":{"_id":"2"}}\n{"text":"a"}\n',
    b'{"index":{"_id":"1","x":1}}\n{"text":"a"}\n',
    b'{"index":{"_id":"1"}}\n{"text":{"an":"object"},"n":1}\n',
    b"\n",
    b"",
]
BAD_DOCUMENTS = [b"{broken", b"", b'{"text":"a","text":"b"}', b"[]", b'{"text":"a"} x', b'{"text":"a","n":1e999}']


BAD_LINES = [
    b'{"text":NaN}',
    b'{"text":"a","text":"b"}',
    b'{"text":',
    b"[1]",
    b"",
    b"null",
    b'{"text":"\x01"}',
    b'{"text":"\xff"}',
    b'{"n":' + b"[" * 1100 + b"]" * 1100 + b"}",
    b'{"n":' + b"1" * 1001 + b"}",
    b'{"_routing":1}',
    b'{"_if_seq_no":"x"}',
]


@pytest.mark.parametrize("way", ["now", "later", "alias"])
def test_a_malformed_document_of_a_bulk_is_refused_alone(
    servers: Servers, followed: Followed, index_name: str, way: str
) -> None:
    target = index_name
    followed("later" if way == "later" else "now")
    if way == "alias":
        target = f"{index_name}-alias"
        call(servers.gateway, "PUT", f"/{index_name}/_alias/{target}")
    body = b""
    expected: dict[str, str] = {}
    for number, line in enumerate(BAD_LINES):
        body += b'{"index":{"_id":"good-%d"}}\n{"text":"The cat."}\n' % number
        body += b'{ "create" : {"_id":"bad-%d"}}\n%b\n' % (number, line)
        body += b'{"index":{"_id":"odd-%d"}}\n{"text":"The dog."/* a comment */}\n' % number
        expected |= {f"good-{number}": "The cat.", f"odd-{number}": "The dog."}
    for sent in (body, [body[at : at + 100] for at in range(0, len(body), 100)]):
        items = call(servers.gateway, "POST", f"/{target}/_bulk", sent, NDJSON).json()["items"]
        statuses = {item["_id"]: item["status"] for one in items for item in one.values()}
        assert {name for name, status in statuses.items() if status < 300} >= expected.keys()
        assert {status for name, status in statuses.items() if name in ("bad-0", "bad-1", "bad-2")} == {400}
    found = {
        name: one["source"]["text"] for name, one in stored(servers.engine, index_name).items() if name in expected
    }
    assert found == expected
    reply = call(servers.gateway, "POST", f"/{target}/_bulk", BAD_LINES[0].join((b'{"index":{}}\n', b"\n")), NDJSON)
    assert encoded(reply) != "true"


@on_both
def test_bad_bodies_are_answered_by_the_engine(servers: Servers, followed: Followed) -> None:
    index, direct = followed(), followed("later", suffix="-direct")
    requests = [("POST", "_bulk", body, NDJSON) for body in MALFORMED]
    requests += [("PUT", "_doc/1", body, JSON) for body in BAD_DOCUMENTS]
    if "opensearch" in call(servers.engine, "GET", "/").body.decode():
        # OpenSearch refuses the good documents beside a malformed one: the gateway isolates it.
        requests = [one for one in requests if one[2] not in (MALFORMED[0], MALFORMED[6])]
    for method, target, body, headers in requests:
        through = call(servers.gateway, method, f"/{index}/{target}", body, headers)
        directly = call(servers.engine, method, f"/{direct}/{target}", body, headers)
        assert through.status == directly.status
        assert _named(through.body, index) == _named(directly.body, direct)
    kept, same = stored(servers.engine, index), stored(servers.engine, direct)
    assert {name: one["source"] for name, one in kept.items()} == {name: one["source"] for name, one in same.items()}


@on_both
def test_bodies_in_other_forms(servers: Servers, followed: Followed) -> None:
    index = followed()
    body, target = lines_of(corpus()), f"/{index}/_bulk"
    zipped = call(servers.gateway, "POST", target, gzip.compress(body), NDJSON | {"content-encoding": "gzip"})
    assert (encoded(zipped), zipped.json()["errors"]) == ("true", False)
    call(servers.engine, "POST", f"/{index}/_delete_by_query?refresh=true", {"query": {"match_all": {}}})
    other = f"{index}-other"
    two = gzip.compress(b'{"index":{"_index":"%b"}}\n{}\n' % other.encode()) + gzip.compress(body)
    reply = call(servers.gateway, "POST", target, two, NDJSON | {"content-encoding": "gzip"})
    call(servers.engine, "DELETE", f"/{other}")
    assert (encoded(reply), len(reply.json()["items"])) == ("true", 61)
    unnamed = gzip.compress(b'{"index":{"_index":"%b"}}\n{}\n' % other.encode())
    named = gzip.compress(lines_of(corpus()[:1], _index=index))
    reply = call(servers.gateway, "POST", "/_bulk", unnamed + named, NDJSON | {"content-encoding": "gzip"})
    call(servers.engine, "DELETE", f"/{other}")
    assert encoded(reply) == "true"
    many = b"".join(gzip.compress(line) for line in lines_of(corpus()[:2] * 300).splitlines(keepends=True))
    reply = call(servers.gateway, "POST", target, many, NDJSON | {"content-encoding": "gzip"})
    assert (encoded(reply), reply.json()["errors"], len(reply.json()["items"])) == ("true", False, 600)
    marked = b"\xef\xbb\xbf" + lines_of(corpus()[:2]).replace(b"\n", b"\r\n")
    reply = call(servers.gateway, "POST", target, marked, NDJSON)
    assert (encoded(reply), reply.json()["errors"]) == ("true", False)
    chunked = call(servers.gateway, "POST", target, [body[at : at + 1000] for at in range(0, len(body), 1000)], NDJSON)
    assert (encoded(chunked), chunked.json()["errors"]) == ("true", False)
    assert sorted(states(servers.engine, index).values(), key=str) == ["empty"] + ["ready"] * 59
    one = call(
        servers.gateway,
        "PUT",
        f"/{index}/_doc/z",
        gzip.compress(b'{"text":"a cat"}'),
        JSON | {"content-encoding": "gzip"},
    )
    assert (one.status, encoded(one)) == (201, "true")
    binary = cbor2.dumps({"text": "a cat"})
    odd = call(servers.gateway, "PUT", f"/{index}/_doc/y", binary, {"content-type": "application/cbor"})
    assert (
        odd.status
        == call(servers.engine, "PUT", f"/{index}/_doc/w", binary, {"content-type": "application/cbor"}).status
    )
    assert encoded(odd) == ("false" if odd.status < 400 else None)
    broken = call(servers.gateway, "PUT", f"/{index}/_doc/x", b"no gzip", JSON | {"content-encoding": "gzip"})
    assert (
        broken.status
        == call(servers.engine, "PUT", f"/{index}/_doc/x", b"no gzip", JSON | {"content-encoding": "gzip"}).status
    )


def test_a_client_that_waits_for_100_continue(servers: Servers, followed: Followed) -> None:
    index, body = followed(), lines_of(corpus()[:3])
    parts = urlsplit(servers.gateway)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as connection:
        head = (
            f"POST /{index}/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
            f"content-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            assert b"x-ttc-encoded: true" in answer.read().lower()
    assert set(states(servers.engine, index).values()) == {"ready"}


def test_features_are_limited(
    servers: Servers, followed: Followed, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = followed()
    monkeypatch.setattr(answers, "MAX_ADDED_BYTES", 2**18)
    with gateway_of(servers.engine, encoder) as gateway:
        reply = call(gateway, "POST", f"/{index}/_bulk", lines_of(corpus()), NDJSON)
    assert (encoded(reply), reply.json()["errors"]) == ("false", False)
    found = list(states(servers.engine, index).values())
    assert len(found) == 60
    assert found.count("pending") > 10
    assert found.count("ready") > 10


def test_an_index_that_is_made_again_without_options(servers: Servers, followed: Followed, spec: IndexSpec) -> None:
    index = followed()
    assert encoded(call(servers.gateway, "PUT", f"/{index}/_doc/1", {"text": "a cat"})) == "true"
    call(servers.gateway, "DELETE", f"/{index}")
    call(servers.gateway, "PUT", f"/{index}")
    assert encoded(call(servers.gateway, "PUT", f"/{index}/_doc/1", {"text": "a cat"})) is None
    assert stored(servers.engine, index)["1"]["source"] == {"text": "a cat"}
