"""Everything that is not ours goes through as it is: compared byte for byte with the engine's own answers."""

import gzip
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from es_ttc.serving.http import raw_request
from es_ttc.serving.request import request
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack
from tests.support.gateway import gateway_to

_TIMES = re.compile(rb'"took":\d+')
_OURS = {"x-request-id"}
NDJSON = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}

REQUESTS: list[tuple[str, str, Any, dict[str, str]]] = [
    ("GET", "/", None, {}),
    ("HEAD", "/", None, {}),
    ("GET", "/?pretty=true&human", None, {}),
    ("GET", "/", None, {"accept": "application/yaml"}),
    ("GET", "/", None, {"accept": "application/cbor"}),
    ("GET", "/_cat/aliases/{index}*?v&format=yaml", None, {}),
    ("GET", "/{index}/_mapping", None, {"accept-encoding": "gzip"}),
    ("GET", "/{index}/_doc/d1", None, {"x-opaque-id": "mine"}),
    ("HEAD", "/{index}/_doc/d1", None, {}),
    ("HEAD", "/{index}/_doc/absent", None, {}),
    ("GET", "/{index}/_doc/a%2Fb%20c%C3%A9%2B?routing=x%2By", None, {}),
    ("GET", "/%3C{index}-%7Bnow%2Fd%7D%3E/_doc/1", None, {}),
    ("GET", "/{index}/_search?q=cat&size=2&filter_path=hits.hits._id", None, {}),
    ("GET", "/{index}/_search?q=%22drinks%20milk%22&size=1&df=text&track_total_hits=false", None, {}),
    ("POST", "/{index}/_search", {"query": {"match": {"text": "cat"}}, "size": 3, "_source": ["ttc", "number"]}, {}),
    ("POST", "/{index}/_search", {"query": {"match": {"text": '"ttc"'}}}, {}),
    ("POST", "/{index}/_search", b'{"query": {"match_all": {}}, "size": 1}', JSON | {"accept-encoding": "gzip"}),
    ("POST", "/{index}/_search", gzip.compress(b'{"size":1}', mtime=0), JSON | {"content-encoding": "gzip"}),
    ("POST", "/{index}/_search", b"{broken", JSON),
    ("POST", "/{index}/_search", b"{}", {"content-type": "text/plain"}),
    ("POST", "/{index}/_search", b"source=%7B%22rescore%22%3A%7B%22ttc%22%3A%7B%7D%7D%7D", FORM),
    ("POST", "/{index}/_search", b'{"rescore":{"ttc":{}}}', FORM),
    ("POST", "/{index}/_search", {"unknown": 1}, {}),
    ("POST", "/{index}/_search/", {"size": 1}, {}),
    ("PUT", "/{index}/_search", {"size": 1}, {}),
    ("POST", "/{index}/_msearch", b'{}\n{"size":1}\n{}\n{"size":0}\n', NDJSON),
    ("POST", "/{index}/_msearch", b"{}\n", NDJSON),
    ("POST", "/{index}/_count", None, {}),
    ("POST", "/{index}/_analyze", {"field": "text", "text": "Caf\u00e9 \u732b"}, {}),
    ("GET", "/absent-index/_search", None, {}),
    ("GET", "/_no_such_api", None, {}),
    ("OPTIONS", "/{index}", None, {}),
    ("POST", "/_bulk", b"not a bulk\n", NDJSON),
    ("GET", "//{index}//_count", None, {}),
]


@pytest.mark.parametrize(("method", "target", "body", "headers"), REQUESTS)
def test_an_answer_is_the_engines_byte_for_byte(
    stack: SearchStack, method: str, target: str, body: Any, headers: dict[str, str]
) -> None:
    target = target.replace("{index}", stack.index)
    direct = call(stack.engine, method, target, body, headers)
    through = call(stack.gateway, method, target, body, headers)
    assert through.status == direct.status
    assert _body(through) == _body(direct)
    framing = {"content-length", "transfer-encoding"} if _TIMES.search(direct.body) or _gzipped(direct) else set()
    assert _kept(through, framing) == _kept(direct, framing)


def _gzipped(reply: Reply) -> bool:
    return reply.headers.get("content-encoding") == "gzip"


def _body(reply: Reply) -> bytes:
    body = gzip.decompress(reply.body) if _gzipped(reply) else reply.body
    return _TIMES.sub(b"", body)


def _kept(reply: Reply, framing: set[str]) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name not in framing | _OURS}


def test_writing_in_chunks_and_compressed(stack: SearchStack, index_name: str) -> None:
    lines = b"".join(b'{"index":{"_id":"%d"}}\n{"number":%d}\n' % (number, number) for number in range(500))
    target = f"/{index_name}/_bulk?refresh=true"
    chunks = [lines[start : start + 1000] for start in range(0, len(lines), 1000)]
    chunked = call(stack.gateway, "POST", target, chunks, NDJSON)
    assert chunked.json()["errors"] is False
    zipped = call(stack.gateway, "POST", target, gzip.compress(lines), NDJSON | {"content-encoding": "gzip"})
    assert zipped.json()["errors"] is False
    assert call(stack.engine, "GET", f"/{index_name}/_count").json()["count"] == 500
    assert call(stack.gateway, "DELETE", f"/{index_name}").json() == {"acknowledged": True}
    assert call(stack.engine, "HEAD", f"/{index_name}").status == 404


def test_a_client_may_wait_for_100_continue(stack: SearchStack) -> None:
    parts = urlsplit(stack.gateway)
    body = b'{"size":1}'
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as connection:
        head = (
            f"POST /{stack.index}/_search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 200")


def test_request_ids_are_passed_on_or_made(stack: SearchStack) -> None:
    assert call(stack.gateway, "GET", "/", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    opaque = call(stack.gateway, "GET", "/", headers={"x-opaque-id": "op"})
    assert opaque.headers["x-request-id"] == opaque.headers["x-opaque-id"] == "op"
    assert len(call(stack.gateway, "GET", "/").headers["x-request-id"]) == 32


@contextmanager
def obedient(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does to its first connection whatever the test wants: no engine can be made to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            connection, _ = listening.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def test_an_answer_is_streamed_as_it_comes() -> None:
    seen = threading.Event()

    def slowly(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert seen.wait(10)
        connection.sendall(b"4\r\nlast\r\n0\r\n\r\n")

    with obedient(slowly) as engine, gateway_to(engine) as gateway:
        parts = urlsplit(gateway)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as connection:
            connection.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            received = b""
            while b"first" not in received:
                received += connection.recv(1000)
            assert b"last" not in received
            seen.set()
            with connection.makefile("rb") as rest:
                assert b"last" in rest.read()


@pytest.mark.parametrize("target", ["/_some_task", "/index/_search"])
def test_a_client_that_leaves_takes_its_request_along(target: str) -> None:
    asked, closed = threading.Event(), threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.settimeout(10)
        while connection.recv(65536):
            asked.set()
        closed.set()

    with obedient(wait) as engine, gateway_to(engine) as gateway:
        parts = urlsplit(gateway)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert asked.wait(10)
        assert closed.wait(10)


def test_an_engine_that_breaks_off_breaks_the_answer_off() -> None:
    def breaks(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    with obedient(breaks) as engine, gateway_to(engine) as gateway, pytest.raises(Exception, match="IncompleteRead"):
        call(gateway, "GET", "/half")


def test_no_engine_is_a_503_in_the_engines_shape() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with gateway_to(nobody) as gateway:
        reply = call(gateway, "GET", "/_cat/indices")
        assert reply.status == 503
        assert nobody.removeprefix("http://").encode() not in reply.body
        assert reply.json()["error"]["type"] == "ttc_engine_unavailable_exception"
        head = call(gateway, "HEAD", "/index")
        assert (head.status, head.body) == (503, b"")
        assert call(gateway, "GET", "/_ttc/health").status == 200
        ready = call(gateway, "GET", "/_ttc/ready")
        assert ready.status == 503
        assert ready.json() == {"ready": False, "engine": False, "encoder": False}


def test_too_many_at_once_are_refused() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(65536)
        asked.set()
        answered.wait(10)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with obedient(wait) as engine, gateway_to(engine, max_concurrent_requests=1) as gateway:
        first = threading.Thread(target=call, args=(gateway, "GET", "/slow"))
        first.start()
        assert asked.wait(10)
        reply = call(gateway, "GET", "/other")
        assert reply.status == 429
        assert reply.json()["error"]["type"] == "rejected_execution_exception"
        assert call(gateway, "GET", "/_ttc/health").status == 200
        answered.set()
        first.join(10)


def test_a_search_body_beyond_the_limit_is_a_413(stack: SearchStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (raw_request, request):
        monkeypatch.setattr(module, "MAX_BODY", 2**20)
    with gateway_to(stack.engine) as gateway:
        body = b'{"query":{"match":{"text":"' + b"cat " * 300_000 + b'"}},"rescore":{"ttc":{}}}'
        for headers, sent in ((JSON, body), (JSON | {"content-encoding": "gzip"}, gzip.compress(body))):
            reply = call(gateway, "POST", f"/{stack.index}/_search", sent, headers)
            assert reply.status == 413
            assert "1048576 bytes" in reply.reason


def test_gateway_pages_are_served(stack: SearchStack) -> None:
    info = call(stack.gateway, "GET", "/_ttc/").json()
    for target in ("/_ttc", "/_ttc/?pretty=false", "/_ttc/?pretty"):
        reply = call(stack.gateway, "GET", target)
        assert (reply.json(), b"\n" in reply.body) == (info, target.endswith("pretty"))
    version = call(stack.engine, "GET", "/").json()["version"]["number"]
    assert info["engine"] == {"product": stack.product, "version": version, "supported": True}  # not its address
    assert "spectral" in info["methods"]
    ready = call(stack.gateway, "GET", "/_ttc/ready").json()
    assert ready.items() >= {"ready": True, "engine": True, "encoder": True}.items()
    metrics = call(stack.gateway, "GET", "/_ttc/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    for name in (b"es_ttc_requests_total", b"TYPE es_ttc_stage_seconds histogram", b"es_ttc_feature_cache_bytes"):
        assert name in metrics.body
    for method, target, status in (("GET", "/_ttc/nothing", 404), ("PUT", "/_ttc/health", 405)):
        nothing = call(stack.gateway, method, target)
        assert nothing.status == nothing.json()["status"] == status
        assert nothing.json()["error"]["root_cause"]
