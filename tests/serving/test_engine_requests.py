"""The gateway's own requests: in whose name they go out, and what a refusal becomes."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.serving.engine_requests import EngineRequests, NotForCaller, NotThere
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import GatewaySettings


class Engine:
    """A server that answers with a status, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[tuple[str, str, bytes]] = []

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.asked.append((request.path_qs, request.headers.get("Authorization", ""), await request.read()))
        error = {"error": {"type": "t", "reason": "why"}, "status": self.status}
        return web.json_response({"hits": 1} if self.status == 200 else error, status=self.status)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def requests(engine: Engine) -> AsyncIterator[EngineRequests]:
    runner = web.ServerRunner(web.Server(engine))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = GatewaySettings(engine=f"http://own:secret@127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with Upstream(settings) as upstream:
            yield EngineRequests(upstream)
    finally:
        await runner.cleanup()


ANN = Caller([(b"authorization", b"ApiKey ann"), (b"accept", b"text/plain")], "shop", (("routing", "a"),))


async def test_nothing_is_sent_without_a_request_context(engine: Engine, requests: EngineRequests) -> None:
    with pytest.raises(RuntimeError, match="needs a request context"):
        await requests.json("GET", b"/", failing="nothing")
    assert not engine.asked


async def test_a_search_carries_the_callers_credentials_names_and_point_in_time(
    engine: Engine, requests: EngineRequests
) -> None:
    assert await requests.as_caller(ANN).search(["shop-1"], {}, failing="nothing") == {"hits": 1}
    inside = Caller(ANN.headers, "", (), {"id": "p"})
    await requests.as_caller(inside).search(["shop-1"], {"size": 0}, failing="nothing")
    await requests.as_gateway().search(["shop-1"], {}, b"", failing="nothing")
    assert engine.asked == [
        ("/shop/_search?ignore_unavailable=true&routing=a", "ApiKey ann", b"{}"),
        ("/_search", "ApiKey ann", b'{"size":0,"pit":{"id":"p"}}'),
        ("/shop-1/_search", "Basic b3duOnNlY3JldA==", b"{}"),
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineError),
        (401, NotForCaller),
        (403, NotForCaller),
        (404, NotThere),
        (429, EngineError),
        (500, EngineError),
        (503, EngineError),
    ],
)
async def test_a_refusal_becomes_an_error_of_its_kind(
    engine: Engine, requests: EngineRequests, status: int, kind: type[EngineError]
) -> None:
    engine.status = status
    with pytest.raises(EngineError, match=rf"^it failed: the engine answered {status}$") as refused:
        await requests.as_caller(ANN).json("GET", b"/_x", failing="it failed")
    assert type(refused.value) is kind
    assert (refused.value.upstream_status, refused.value.upstream) == (status, None)
    with pytest.raises(kind, match=r"^it failed: why$") as told:
        await requests.as_caller(ANN).json("GET", b"/_x", failing="it failed", in_own_words=True)
    assert told.value.upstream["error"]["type"] == "t"


async def test_no_answer_is_an_unavailable_engine() -> None:
    async with Upstream(GatewaySettings(engine="http://127.0.0.1:1")) as upstream:
        with pytest.raises(EngineUnavailable):
            await EngineRequests(upstream).as_gateway().read("GET", b"/", failing="it failed")


async def test_product_and_version_take_one_request_together() -> None:
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.json_response({"version": {"number": "9.4.3"}, "tagline": "You Know, for Search"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Upstream(GatewaySettings(engine=f"http://127.0.0.1:{runner.addresses[0][1]}")) as upstream:
            assert await upstream.reachable(5)
            assert await upstream.product() == "elasticsearch"
            assert str(await upstream.version([])) == "Elasticsearch 9.4.3"
    finally:
        await runner.cleanup()
    assert asked == ["/"]
