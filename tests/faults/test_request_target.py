"""A request's target can never choose where the gateway sends it."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from es_ttc.engine.addresses import EngineAddress, engine_addresses
from es_ttc.errors import InvalidRequest
from es_ttc.settings import EngineSettings
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.support.raw_http import Trap, exchange, status_of, trap

ON_ONE_ENGINE = True

ADDRESS = EngineAddress("http", "127.0.0.1", 9200)
BELOW = EngineAddress("https", "search.example", 443, "/behind")
_HOST = "127.0.0.1:{port}"
FORMS = [
    "*@{host}/secret",
    "@{host}/secret",
    ":@{host}/secret",
    "x@{host}/secret",
    "//{host}/secret",
    "///{host}/secret",
    "/\\@{host}/secret",
    "/@{host}/secret",
    "/..@{host}/",
    ".{host}/secret",
    "?@{host}/secret",
    "#@{host}/secret",
    "http://{host}/secret",
    "HTTP://{host}/secret",
    "http:{host}/secret",
    "http:///{host}/secret",
    "http://user:pass@{host}/secret",
    "https://{host}",
    "ftp://{host}/secret",
    "{host}",
    "*",
    "/%40{host}/",
    "/a?x=http://{host}/#@{host}",
]

_pieces = st.sampled_from(
    ["*", "@", ":", "//", "/", "\\", "?", "#", "http://", "127.0.0.1:{port}", "..", "%2e", "%0d%0a", "a", "[::1]", ";"]
)
_targets = st.lists(_pieces, min_size=1, max_size=8).map("".join)


@given(path=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"/" + rest), query=st.binary(max_size=30))
def test_a_target_never_changes_scheme_host_or_port(path: bytes, query: bytes) -> None:
    for address in (ADDRESS, BELOW):
        try:
            url = address.target(path, query)
        except InvalidRequest:
            continue
        assert (url.scheme, url.host, url.port) == (address.scheme, address.host, address.port)
        again = URL(str(url), encoded=True)
        assert (again.scheme, again.host, again.port) == (address.scheme, address.host, address.port)
        assert url.raw_path_qs.startswith(f"{address.prefix}/")
        assert not re.search(r"[\x00-\x20\x7f]", url.raw_path_qs)


@pytest.mark.parametrize("path", [b"/../secret", b"/a/..", b"/%2e%2E/secret", b"/a/.%2e/b", b"/."])
def test_a_prefix_is_not_left_by_dot_segments(path: bytes) -> None:
    with pytest.raises(InvalidRequest, match="dot segment"):
        BELOW.target(path, b"")


def test_several_addresses_and_a_cloud_id() -> None:
    several = EngineSettings(engine="http://u:a,b@one:9200, https://two/x/,http://one:9200")
    assert [address.url for address in engine_addresses(several)] == ["http://one:9200", "https://two/x"]
    cloud = EngineSettings(engine="mine:ZXUuZXhhbXBsZS5jb206OTI0MyRhYmMkZGVm")
    assert [address.url for address in engine_addresses(cloud)] == ["https://abc.eu.example.com:9243"]


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_target_reaches_another_server(stack: SearchStack, form: str) -> None:
    before = call(stack.gateway, "GET", "/_ttc/").json()["engine"]
    with trap() as other:
        target = form.replace("{host}", _HOST).replace("{port}", str(other.port))
        for method in ("GET", "OPTIONS", "POST"):
            request = f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            answer = exchange(stack.gateway, request.encode())
            assert status_of(answer), answer
            assert status_of(answer) != 503, answer
        assert other.reached == []
    assert call(stack.gateway, "GET", "/_ttc/").json()["engine"] == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=_targets)
def test_no_made_up_target_reaches_another_server(stack: SearchStack, listening: Trap, target: str) -> None:
    target = target.replace("{port}", str(listening.port))
    exchange(stack.gateway, f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert listening.reached == []


@pytest.fixture(scope="module")
def listening() -> object:
    with trap() as other:
        yield other


def test_an_absolute_target_is_the_engines_path(stack: SearchStack) -> None:
    target = f"http://somewhere.else:81/{stack.index}/_count"
    assert call(stack.gateway, "GET", target).json() == call(stack.engine, "GET", f"/{stack.index}/_count").json()


def test_options_of_the_server_are_the_engines(stack: SearchStack) -> None:
    request = b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    through, direct = exchange(stack.gateway, request), exchange(stack.engine, request)
    assert status_of(through) == 200
    allow = [sorted(re.findall(rb"[A-Z]+", re.search(rb"(?i)allow: (.*)\r\n", one)[1])) for one in (through, direct)]  # type: ignore[index]
    assert allow[0] == allow[1]


def test_a_refused_target_is_an_error_in_the_engines_shape(stack: SearchStack) -> None:
    answer = exchange(stack.gateway, b"GET *@127.0.0.1:9/secret HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert status_of(answer) == 400
    assert b'"root_cause"' in answer
    assert b"it must begin with [/]" in answer
