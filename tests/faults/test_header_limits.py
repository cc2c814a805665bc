"""Headers that the engine would not read are refused, and no connection that it has not read to the end is reused."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack
from tests.support.gateway import gateway_to

OTHERS = 24


def test_too_many_headers_are_refused_as_the_engine_refuses_them(stack: SearchStack) -> None:
    for headers in ({"x-long": "a" * 17_000}, {f"x-{number}": "a" * 100 for number in range(200)}):
        reply = call(stack.gateway, "GET", f"/{stack.index}/_count", headers=headers)
        direct = call(stack.engine, "GET", f"/{stack.index}/_count", headers=headers)
        assert reply.status == direct.status == 400
        assert reply.json()["error"]["type"] == "too_long_http_header_exception"
        assert "max_header_kb" in reply.reason
        assert reply.headers.get("x-elastic-product") == direct.headers.get("x-elastic-product")


def test_too_long_a_target_is_refused_as_the_engine_refuses_it(stack: SearchStack) -> None:
    target = f"/{stack.index}/_search?q={'a' * 5000}"
    reply, direct = call(stack.gateway, "GET", target), call(stack.engine, "GET", target)
    assert reply.status == direct.status == 400
    assert reply.json()["error"]["type"] == direct.json()["error"]["type"] == "too_long_http_line_exception"
    assert "max_target_kb" in reply.reason


def test_headers_below_the_limit_pass(stack: SearchStack) -> None:
    assert call(stack.gateway, "GET", f"/{stack.index}/_count", headers={"x-long": "a" * 15_000}).status == 200


@pytest.mark.parametrize("rest", [{"headers": {"x-long": "a" * 17_000}}, {"target": "/_search?q=" + "a" * 5000}])
def test_a_connection_that_the_engine_has_not_read_is_not_used_again(
    stack: SearchStack, rest: dict[str, object]
) -> None:
    """The engine's limits may be lower than ours: it answers 400, leaves the connection open and drops what follows."""
    headers = rest.get("headers", {})
    target = str(rest.get("target", f"/{stack.index}/_count"))
    assert isinstance(headers, dict)
    with (
        gateway_to(stack.engine, max_header_kb=64, max_target_kb=16, request_timeout=30) as gateway,
        ThreadPoolExecutor(8) as threads,
    ):

        def count(_: int) -> Reply:
            return call(gateway, "GET", f"/{stack.index}/_count")

        for _ in range(3):
            assert call(gateway, "GET", target, headers=headers).status == 400
            assert [reply.status for reply in threads.map(count, range(OTHERS))] == [200] * OTHERS
