"""Clients that send slowly, or nothing at all, keep nobody else out."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from es_ttc.serving.http import protocol
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.support.gateway import gateway_to
from tests.support.raw_http import connect, is_closed, receive, status_of

ON_ONE_ENGINE = True

AT_ONCE = 8


@pytest.fixture(scope="module")
def gateway(stack: SearchStack) -> Iterator[str]:
    limits: dict[str, Any] = {"max_concurrent_requests": AT_ONCE, "max_connections": 40, "idle_timeout": 2}
    with pytest.MonkeyPatch.context() as patch, gateway_to(stack.engine, **limits) as url:
        patch.setattr(protocol, "_BODY_SECONDS", 2)
        patch.setattr(protocol, "_HEADER_SECONDS", 1)
        patch.setattr(protocol, "_SEND_SECONDS", 2)
        yield url


@pytest.mark.parametrize("path", ["_search", "_bulk"])
def test_bodies_that_do_not_come_take_no_place(stack: SearchStack, gateway: str, path: str) -> None:
    head = f"POST /{stack.index}/{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with ExitStack() as exits:
        stuck = [exits.enter_context(connect(gateway)) for _ in range(3 * AT_ONCE)]
        for connection in stuck:
            connection.sendall(f"{head}content-length: 1000\r\n\r\n{{".encode())
        assert call(gateway, "GET", f"/{stack.index}/_count").status == 200
        answers = [receive(connection) for connection in stuck]
    assert {status_of(answer) for answer in answers} == {408}
    assert all(b"ttc_request_timeout_exception" in answer for answer in answers)


def test_long_bodies_that_do_not_come_leave_room_for_others(stack: SearchStack, gateway: str) -> None:
    """Beyond what is read ahead a body is passed on as it comes, and holds a place; but not every place."""
    head = f"POST /{stack.index}/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
    with ExitStack() as exits:
        stuck = [exits.enter_context(connect(gateway)) for _ in range(2 * AT_ONCE)]
        for connection in stuck:
            connection.sendall(f"{head}content-length: 1000000\r\n\r\n".encode() + b"\n" * 100_000)
        time.sleep(0.3)
        assert call(gateway, "GET", f"/{stack.index}/_count").status == 200
        statuses = [status_of(receive(connection)) for connection in stuck]
    assert statuses.count(429) == len(stuck) - AT_ONCE // 2
    assert statuses.count(408) == AT_ONCE // 2


def test_rerank_bodies_that_do_not_come_take_no_place(gateway: str) -> None:
    head = "POST /_ttc/rerank HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    with ExitStack() as exits:
        for _ in range(20):
            exits.enter_context(connect(gateway)).sendall(head.encode())
        time.sleep(0.2)
        reply = call(gateway, "POST", "/_ttc/rerank", {"query": "cat", "documents": ["cat"], "model": "spectrl"})
        assert reply.status == 400, reply.body


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nx-a: "])
def test_connections_without_a_whole_request_end(gateway: str, sent: bytes) -> None:
    with connect(gateway) as connection:
        connection.sendall(sent)
        for _ in range(3):  # more bytes do not start the clock anew
            time.sleep(0.3)
            connection.sendall(b"\r\n" if sent == b"\r\n" else b"a" if sent else b"")
        assert is_closed(connection, 10)


def test_a_connection_that_is_used_no_more_ends(gateway: str) -> None:
    with connect(gateway) as connection:
        connection.sendall(b"GET /_ttc/health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert is_closed(connection, 10)


def test_more_connections_than_allowed_are_refused(gateway: str) -> None:
    with ExitStack() as exits:
        for _ in range(40):
            exits.enter_context(connect(gateway))
        refused = exits.enter_context(connect(gateway))
        assert status_of(receive(refused)) == 503
    assert _answers(gateway)


def test_a_client_that_does_not_take_its_answer_is_left(gateway: str, index_name: str) -> None:
    assert call(gateway, "PUT", f"/{index_name}/_doc/1?refresh=true", {"text": "a" * 100_000}).status == 201
    body = orjson.dumps({"ids": ["1"] * 300})  # an answer longer than all buffers between the two
    head = f"POST /{index_name}/_mget HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    parts = urlsplit(gateway)
    with socket.socket() as connection:
        connection.settimeout(10)
        connection.connect((parts.hostname, parts.port))
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(3)
        received = receive(connection)
    assert len(received) < 300 * 100_000


def test_a_slow_body_that_keeps_coming_is_read(stack: SearchStack, gateway: str, index_name: str) -> None:
    body = b'{"index":{"_id":"1"}}\n{"number":1}\n' * 100
    head = f"POST /{index_name}/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
    with connect(gateway) as connection:
        connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        for start in range(0, len(body), 1000):
            connection.sendall(body[start : start + 1000])
            time.sleep(0.3)
        assert status_of(receive(connection)) == 200


def _answers(gateway: str) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if call(gateway, "GET", "/_ttc/health").status == 200:
                return True
        except OSError:
            time.sleep(0.1)
    return False
