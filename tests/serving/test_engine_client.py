"""The gateway's own requests: in whose name they go out, and what a refusal becomes."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.serving.engine import EngineClient, NotForCaller, NotThere
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.settings import GatewaySettings
from tests.support.servers import server_of


class Engine:
    """A server that answers with a status, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[tuple[str, str, bytes]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path_qs, request.headers.get("Authorization", ""), await request.read()))
        error = {"error": {"type": "t", "reason": "why"}, "status": self.status}
        return web.json_response(NO_HITS if self.status == 200 else error, status=self.status)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def requests(engine: Engine) -> AsyncIterator[EngineClient]:
    async with server_of(engine.answer) as url:
        settings = GatewaySettings(engine=url.replace("//", "//own:secret@"))
        async with Upstream(settings) as upstream:
            yield EngineClient(upstream)


NO_HITS = {"_shards": {"total": 1, "failed": 0}, "hits": {"hits": []}}
ANN = Caller([(b"authorization", b"ApiKey ann"), (b"accept", b"text/plain")], "shop", (("routing", "a"),))


async def test_nothing_is_sent_without_a_request_context(engine: Engine, requests: EngineClient) -> None:
    with pytest.raises(RuntimeError, match="needs a request context"):
        await requests.json("GET", b"/", failing="nothing")
    assert not engine.asked


async def test_a_search_carries_the_callers_credentials_names_and_point_in_time(
    engine: Engine, requests: EngineClient
) -> None:
    assert await requests.as_caller(ANN).search(["shop-1"], {}, failing="nothing") == NO_HITS
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
    engine: Engine, requests: EngineClient, status: int, kind: type[EngineError]
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
            await EngineClient(upstream).as_gateway().read("GET", b"/", failing="it failed")


async def test_product_and_version_take_one_request_together() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"version": {"number": "9.4.3"}, "tagline": "You Know, for Search"})

    async with server_of(answer) as url, Upstream(GatewaySettings(engine=url)) as upstream:
        assert await upstream.reachable(5)
        assert await upstream.product() == "elasticsearch"
        assert str(await upstream.version([])) == "Elasticsearch 9.4.3"
    assert asked == ["/"]
