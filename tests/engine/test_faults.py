"""What an engine at its worst does to a client: refused, slow, busy, gone, not an engine; and how we sign in.

A small real server stands for the engine: real ones cannot be made to fail on demand.
"""

import asyncio
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import stamina
from aiohttp import web
from pydantic import SecretStr

from es_ttc.engine.connect import connect, connected, engine_info
from es_ttc.engine.elasticsearch import ElasticsearchEngine
from es_ttc.engine.exchange import ATTEMPTS, is_no_engine
from es_ttc.engine.opensearch import OpenSearchEngine
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.settings import EngineSettings
from tests.support.certificates import make_certificate
from tests.support.dropping import dropping_node
from tests.support.servers import server_of

ELASTICSEARCH = {"version": {"number": "9.4.3"}, "tagline": "You Know, for Search"}
OPENSEARCH = {"version": {"number": "3.5.0", "distribution": "opensearch"}}


class Server:
    """A server that answers from a list, the last answer again and again, and keeps what it was asked."""

    def __init__(self, *answers: Callable[[], web.Response]) -> None:
        self.requests: list[web.Request] = []
        self._answers = answers

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.requests.append(request)
        return self._answers[min(len(self.requests), len(self._answers)) - 1]()

    def running(self, context: ssl.SSLContext | None = None) -> AbstractAsyncContextManager[str]:
        return server_of(self.answer, context)


def answer(body: Any, status: int = 200) -> Callable[[], web.Response]:
    return lambda: web.json_response(body, status=status, headers={"X-Elastic-Product": "Elasticsearch"})


def error(status: int, kind: str = "busy_exception") -> Callable[[], web.Response]:
    body = {"error": {"root_cause": [{"type": kind, "reason": "no"}], "type": kind, "reason": "no"}, "status": status}
    return answer(body, status)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Retries happen as often as in earnest, but at once."""
    with stamina.set_testing(True, attempts=ATTEMPTS, cap=True):
        yield


@pytest.fixture(params=[ElasticsearchEngine, OpenSearchEngine])
def adapter(request: pytest.FixtureRequest) -> type[Engine]:
    chosen: type[Engine] = request.param
    return chosen


@asynccontextmanager
async def opened(adapter: type[Engine], url: str, **settings: Any) -> AsyncIterator[Engine]:
    engine = adapter(EngineSettings(engine=url, **settings))
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_engine_is_asked_again_for_reads(adapter: type[Engine], status: int) -> None:
    server = Server(error(status), error(status), answer({"count": 3, "_shards": {"failed": 0}}))
    async with server.running() as url, opened(adapter, url) as engine:
        assert await engine.count("index") == 3
    assert [request.path for request in server.requests] == ["/index/_count"] * 3


async def test_a_busy_engine_is_given_up_after_four_attempts(adapter: type[Engine]) -> None:
    server = Server(error(503))
    async with server.running() as url, opened(adapter, url) as engine:
        with pytest.raises(EngineUnavailable, match="busy_exception: no") as gone:
            await engine.count("index")
    assert gone.value.upstream_status == 503
    assert len(server.requests) == 4


async def test_a_write_goes_to_another_node_where_one_cannot_be_reached(adapter: type[Engine]) -> None:
    server = Server(answer({"acknowledged": True}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"  # bound, so that no one else listens there
        async with server.running() as url, opened(adapter, f"{dead},{url}") as engine:
            for number in range(3):
                await engine.create_index(f"index{number}", {})
        async with opened(adapter, dead) as engine:
            with pytest.raises(EngineUnavailable, match=r"nothing listens on port \d+ \(connection refused\)"):
                await engine.create_index("index", {})
    assert [request.path for request in server.requests] == ["/index0", "/index1", "/index2"]


@pytest.mark.parametrize("dropped_first", [True, False])
async def test_a_node_that_drops_packets_is_left_for_another(
    adapter: type[Engine], dropped_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_ttc.engine.http._CONNECT_SECONDS", 0.2)
    info = ELASTICSEARCH if adapter is ElasticsearchEngine else OPENSEARCH
    server = Server(answer(info))
    with dropping_node() as dropped:
        async with server.running() as url:
            engine = f"{dropped},{url}" if dropped_first else f"{url},{dropped}"
            async with opened(adapter, engine) as client:
                for number in range(3):
                    await client.create_index(f"index{number}", {})
            for _ in range(2):
                await (await connect(EngineSettings(engine=engine))).close()
        async with opened(adapter, dropped, request_timeout=0.2) as client:
            with pytest.raises(EngineUnavailable, match=r"no (connection|answer) within 0\.2 seconds"):
                await client.create_index("index", {})
    assert [request.path for request in server.requests] == ["/index0", "/index1", "/index2", "/", "/"]


async def test_writes_are_never_sent_twice(adapter: type[Engine]) -> None:
    server = Server(error(429))
    async with server.running() as url, opened(adapter, url) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.bulk("index", [b'{"delete":{"_id":"1"}}'])
        with pytest.raises(EngineUnavailable):
            await engine.create_index("index", {})
    assert [request.method for request in server.requests] == ["POST", "PUT"]


async def test_a_refusal_is_not_asked_again(adapter: type[Engine]) -> None:
    server = Server(error(403, "security_exception"))
    async with server.running() as url, opened(adapter, url) as engine:
        with pytest.raises(EngineError, match="security_exception: no") as refused:
            await engine.count("index")
    assert not isinstance(refused.value, EngineUnavailable)
    assert len(server.requests) == 1


async def test_a_slow_engine_is_given_up_after_the_timeout(adapter: type[Engine]) -> None:
    enough = asyncio.Event()

    async def sleep(_: web.Request) -> web.Response:
        await enough.wait()
        return web.json_response({})

    async with server_of(sleep) as url, opened(adapter, url, request_timeout=0.2) as engine:
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.2 seconds"):
            await engine.count("index")
        enough.set()


async def test_a_broken_connection_is_tried_again_for_reads(adapter: type[Engine]) -> None:
    attempts = 0

    async def reset_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await reader.readuntil(b"\r\n\r\n")
        if attempts < 3:
            writer.transport.abort()
            return
        body = b'{"count": 1}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(reset_twice, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with opened(adapter, f"http://127.0.0.1:{port}") as engine:
            assert await engine.count("index") == 1
    assert attempts == 3


async def test_nobody_listening_is_said_with_the_address_and_without_credentials(adapter: type[Engine]) -> None:
    server = Server(answer({}))
    async with server.running() as url:
        pass
    secret = url.replace("://", "://user:secret@")
    async with opened(adapter, secret) as engine:
        with pytest.raises(EngineUnavailable, match=f"the engine at {url} cannot be reached") as gone:
            await engine.count("index")
    assert "secret" not in str(gone.value)


async def test_an_answer_that_is_not_json_is_an_error_of_its_own(adapter: type[Engine]) -> None:
    server = Server(lambda: web.Response(text="<html>", content_type="application/json"))
    async with server.running() as url, opened(adapter, url) as engine:
        with pytest.raises(EngineError, match="not JSON"):
            await engine.count("index")


async def test_an_error_page_of_a_proxy_keeps_its_status(adapter: type[Engine]) -> None:
    server = Server(lambda: web.Response(text="<html>forbidden</html>", content_type="text/html", status=403))
    async with server.running() as url, opened(adapter, url) as engine:
        with pytest.raises(EngineError, match="403") as refused:
            await engine.count("index")
    assert refused.value.upstream_status == 403


SIGN_IN: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "api key": ({"api_key": SecretStr("a2V5")}, "", "ApiKey a2V5"),
    "bearer token": ({"bearer_token": SecretStr("token")}, "", "Bearer token"),
    "basic": ({"username": "user", "password": SecretStr("pa:ss")}, "", "Basic dXNlcjpwYTpzcw=="),
    "basic in the address": ({}, "us%40er:p%2Fw@", "Basic dXNAZXI6cC93"),
    "none": ({}, "", None),
}


@pytest.mark.parametrize("way", SIGN_IN)
@pytest.mark.parametrize("info", [ELASTICSEARCH, OPENSEARCH], ids=["elasticsearch", "opensearch"])
async def test_credentials_are_sent_with_every_request(info: dict[str, Any], way: str) -> None:
    settings, in_address, header = SIGN_IN[way]
    server = Server(answer(info), answer({"count": 1}))
    async with server.running() as url:
        engine = await connect(EngineSettings(engine=url.replace("://", f"://{in_address}"), **settings))
        await engine.count("index")
        await engine.close()
        assert engine.url == url
    assert [request.headers.get("Authorization") for request in server.requests] == [header, header]


@pytest.mark.parametrize(("info", "adapter"), [(ELASTICSEARCH, ElasticsearchEngine), (OPENSEARCH, OpenSearchEngine)])
async def test_the_product_is_detected_behind_a_path(info: dict[str, Any], adapter: type[Engine]) -> None:
    server = Server(answer(info), answer({"count": 1}))
    async with server.running() as url:
        engine = await connect(EngineSettings(engine=f"{url}/search/"))
        assert isinstance(engine, adapter)
        await engine.count("index")
        await engine.close()
    assert [request.path for request in server.requests] == ["/search/", "/search/index/_count"]


async def test_capabilities_are_modest_where_the_user_may_see_nothing(adapter: type[Engine]) -> None:
    info = ELASTICSEARCH if adapter is ElasticsearchEngine else OPENSEARCH
    server = Server(answer(info), error(403, "security_exception"))
    async with server.running() as url, opened(adapter, url) as engine:
        found = await engine.capabilities()
    assert (found.max_content_length, found.nodes) == (100 * 2**20, 1)
    assert found.licence == ("unknown" if adapter is ElasticsearchEngine else "apache-2.0")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only itself vouches for, with its key in the same file."""
    path, key = make_certificate(tmp_path_factory.mktemp("tls"))
    path.write_text(path.read_text() + key.read_text())
    return path


async def test_certificates_are_checked(adapter: type[Engine], certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = Server(answer({"count": 1}))
    async with server.running(context) as url:
        async with opened(adapter, url, ca_certs=certificate) as engine:
            assert await engine.count("index") == 1
        async with opened(adapter, url, verify_certs=False) as engine:
            assert await engine.count("index") == 1
        async with opened(adapter, url) as engine:
            with pytest.raises(EngineUnavailable, match="ES_TTC_CA_CERTS") as refused:
                await engine.count("index")
            assert not is_no_engine(refused.value)
        with pytest.raises(EngineUnavailable, match=r"ES_TTC_CA_CERTS"):
            await engine_info(EngineSettings(engine=url))
    assert len(server.requests) == 2


async def test_warnings_of_the_engine_are_not_printed(adapter: type[Engine]) -> None:
    header = {"X-Elastic-Product": "Elasticsearch", "Warning": '299 OpenSearch-3.5.0 "accesses system indices"'}
    server = Server(lambda: web.json_response({"count": 1}, headers=header))
    async with server.running() as url, opened(adapter, url) as engine:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert await engine.count("index") == 1


async def test_a_part_of_the_shards_is_no_count_and_no_scan() -> None:
    """Documents of the others would be taken for done, or for deleted."""
    lost = {"_shards": {"total": 3, "successful": 2, "failed": 1}, "count": 2, "hits": {"hits": []}, "nodes": {}}
    server = Server(answer(ELASTICSEARCH), answer({**lost, "id": "p", "pit_id": "p", "license": {"type": "basic"}}))
    async with server.running() as url, connected(EngineSettings(engine=url)) as engine:
        with pytest.raises(EngineUnavailable, match="shards"):
            await engine.count("some")
        with pytest.raises(EngineUnavailable, match="shards"):
            [hit async for hit in engine.scan("some", {"match_all": {}}, source=False)]
