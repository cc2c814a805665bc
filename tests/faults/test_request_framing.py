"""Where a request ends: with an upgrade that is not taken, with trailers, with headers that servers read apart."""

import time
from io import BufferedIOBase

import orjson
import pytest

from tests.serving.conftest import SearchStack
from tests.serving.relay import relay
from tests.support.gateway import gateway_to
from tests.support.raw_http import connect, exchange, status_of

BODY = b'{"query":{"range":{"number":{"lt":10}}}}'
CHUNKS = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
FORMS = [  # method, the rest of the headers, the body, and the number of documents that match it
    (b"GET", b"", b"", 60),
    (b"POST", b"content-length: %d\r\n" % len(BODY), BODY, 10),
    (b"POST", b"transfer-encoding: chunked\r\n", CHUNKS + b"\r\n", 10),
    (b"GET", b"transfer-encoding: chunked\r\n", CHUNKS + b"x-trailer: a\r\n\r\n", 10),
]
UPGRADES = [
    b"",
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n",
    b"Upgrade: TLS/1.2, HTTP/1.1\r\nConnection: Upgrade\r\n",
    b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAA\r\n",
    b"upgrade: foo\r\nupgrade: bar/1\r\nconnection: upgrade\r\n",
]


def read_count(answers: BufferedIOBase) -> int:
    """Read one answer to a `_count`."""
    head = iter(answers.readline, b"\r\n")
    assert status_of(next(head)) == 200
    length = next(int(line.split(b":")[1]) for line in [*head] if line.lower().startswith(b"content-length:"))
    count: int = orjson.loads(answers.read(length))["count"]
    return count


@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.partition(b"pgrade: ")[2][:5].decode())
def test_an_upgrade_that_is_not_taken_changes_no_request(stack: SearchStack, upgrade: bytes) -> None:
    common = b" /%b/_count HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % stack.index.encode()
    requests = [(method + common + upgrade + framing + b"\r\n", body) for method, framing, body, _ in FORMS]
    counts = [count for *_, count in FORMS]
    with connect(stack.gateway) as connection, connection.makefile("rb") as answers:
        for (head, body), count in zip(requests, counts, strict=True):
            middle = len(head) - 20
            for parts in ([head + body], [head, body], [head[:middle], head[middle:] + body[:7], body[7:]]):
                for part in filter(None, parts):
                    connection.sendall(part)
                    time.sleep(0.01)
                assert read_count(answers) == count
        connection.sendall(b"".join(head + body for head, body in requests))
        assert [read_count(answers) for _ in requests] == counts


def test_trailers_are_no_headers(stack: SearchStack) -> None:
    trailers = b"x-proxy-user: root\r\nauthorization: Basic eA==\r\nconnection: authorization\r\ncontent-type: x/y\r\n"
    head = b"POST /%b/_count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n" % stack.index.encode()
    own = b"content-type: application/json\r\nauthorization: Basic b3du\r\n\r\n"
    last = b"GET /%b/_count HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % stack.index.encode()
    with relay(stack.engine) as seen, gateway_to(seen.url) as gateway:
        exchange(gateway, head + own + CHUNKS + trailers + b"\r\n" + last)
    first, second = (one.headers for one in seen.passed if one.target.endswith("/_count"))
    assert (first["content-type"], first["authorization"]) == ("application/json", "Basic b3du")
    assert not {"x-proxy-user", "authorization"} & second.keys()
    assert "x-proxy-user" not in first


REFUSED = [
    (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n", 501, b"[gzip, chunked]"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 501, b"alone"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", 400, b"invalid HTTP"),
    (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n", 400, b"[Host]"),
    (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nupgrade: h2c\r\nconnection: upgrade\r\n", 400, b"[Host]"),
    (b"CONNECT http://x/ HTTP/1.1\r\nhost: x\r\n", 400, b"is not a path"),
]


def test_headers_that_servers_may_read_differently_are_refused(stack: SearchStack) -> None:
    for head, status, words in REFUSED:
        answer = exchange(stack.gateway, head + b"\r\n0\r\n\r\n")
        assert (status_of(answer), words in answer, b'"root_cause"' in answer) == (status, True, True), head
