"""Who is let in: TLS with certificates that change, hosts, origins, and limits of one caller."""

import http.client
import itertools
import shutil
import ssl
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from es_ttc.errors import ConfigurationError, TooManyRequests
from es_ttc.playground import playground_routes
from es_ttc.serving.admission import AdminToken, Admission
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.server import running_gateway, server_certificate
from es_ttc.settings import GatewaySettings
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.serving.relay import relay
from tests.support.certificates import make_certificate

SECTION = {"query": {"match": {"text": "cat"}}, "rescore": {"window_size": 5, "ttc": {}}}


def shown_certificate(url: str) -> str:
    parts = urlsplit(url)
    return ssl.get_server_certificate((parts.hostname or "", parts.port or 0), timeout=10)


def test_https_with_a_certificate_that_is_replaced(opensearch_url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    certificate, key = make_certificate(first)
    later, later_key = make_certificate(second)
    settings = GatewaySettings(engine=opensearch_url, port=0, tls_cert=certificate, tls_key=key)
    with running_gateway(settings) as url:
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(certificate))
        with closing(http.client.HTTPSConnection(url.removeprefix("https://"), context=trusting, timeout=30)) as client:
            client.request("GET", "/_cat/health")
            assert client.getresponse().status == 200
        before = shown_certificate(url)
        shutil.copy(later, certificate)  # its key is not there yet
        time.sleep(1.5)
        assert shown_certificate(url) == before
        shutil.copy(later_key, key)
        end = time.monotonic() + 20
        while shown_certificate(url) != later.read_text():
            assert time.monotonic() < end
            time.sleep(0.2)


def test_wrong_certificates_are_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with pytest.raises(ConfigurationError, match=r"\[tls_key\] is missing"):
        server_certificate(GatewaySettings(tls_cert=certificate))
    with pytest.raises(ConfigurationError, match=r"\[tls_cert\] is missing"):
        server_certificate(GatewaySettings(tls_key=key))
    with pytest.raises(ConfigurationError, match="certificate"):
        server_certificate(GatewaySettings(tls_cert=key, tls_key=certificate))
    with pytest.raises(ConfigurationError, match="No such file"):
        server_certificate(GatewaySettings(tls_cert=certificate, tls_key=tmp_path / "none.pem"))
    assert server_certificate(GatewaySettings()) is None


def test_the_admin_token_is_asked_below_the_gateways_own_paths(opensearch_url: str) -> None:
    settings = GatewaySettings(
        engine=opensearch_url,
        port=0,
        encoder="minilm@onnx",
        admin_token=SecretStr("opens it"),
        model_token=SecretStr("scores"),
        admin_public=("health", "ready", "openapi.json"),
    )
    admin, model = {"Authorization": "Bearer opens it"}, {"Authorization": "Bearer scores"}
    tokens: list[dict[str, str]] = [{}, admin, model]
    texts = {"query": "cat", "documents": ["a cat"]}
    with running_gateway(settings) as url:
        for path in (
            "/_ttc/",
            "/_ttc/metrics",
            "/_ttc/jobs",
            "/_ttc/search.schema.json",
            "/_ttc/nosuch",
            "/_ttc/jobs/",
        ):
            refused = call(url, "GET", path)
            assert refused.status == 401, path
            assert dict(refused.headers)["www-authenticate"].startswith("Bearer")
            assert "admin_token" in refused.json()["error"]["reason"]
            assert call(url, "GET", path, headers=model).status == 401
        for headers in (admin, {"x-ttc-token": "opens it"}):
            assert call(url, "GET", "/_ttc/metrics", headers=headers).status == 200
            for path in ("/_ttc/jobs", "/_ttc/jobs/"):
                assert call(url, "GET", path, headers=headers).status == 200
        for path in ("/_ttc/health", "/_ttc/openapi.json", "/_ttc/ready/", "/_cat/health"):
            assert call(url, "GET", path).status == 200
        tokens.append({"x-ttc-token": "opens it"})
        for path in ("/_ttc/rerank", "/_ttc/v1/rerank", "/_ttc/v2/rerank"):
            assert [call(url, "POST", path, texts, headers=one).status for one in tokens] == [401, 200, 200, 200]
        embed = {"input": "cat", "model": "minilm@onnx"}
        answers = [call(url, "POST", "/_ttc/v1/embeddings", embed, headers=one).status for one in tokens]
        assert answers == [401, 200, 200, 200]
        assert call(url, "POST", "/_ttc/score", headers=admin).status == 401  # the plugin's own token


def test_the_engine_does_not_get_the_admin_token_of_a_search(opensearch_url: str) -> None:
    token = SecretStr("opens it")
    with relay(opensearch_url) as seen:
        settings = GatewaySettings(engine=seen.url, port=0, encoder="minilm@onnx", admin_token=token)
        with running_gateway(settings) as url:
            for headers in ({"x-ttc-token": "opens it"}, {"Authorization": "Bearer opens it"}):
                assert call(url, "GET", "/_cat/indices", headers=headers).status == 200
            assert call(url, "GET", "/_cat/indices", headers={"Authorization": "Basic eA=="}).status == 200
    passed = [one.headers.get("authorization") for one in seen.passed if "_cat" in one.target]
    assert passed == [None, None, "Basic eA=="]
    assert not [one for one in seen.passed if "x-ttc-token" in one.headers]


def test_admin_token_is_read_from_its_header_and_removed() -> None:
    admin = AdminToken(SecretStr("opens it"), frozenset({"/_ttc/health"}))
    own = [(b"authorization", b"Basic eA=="), (b"x-ttc-token", b"opens it")]
    assert admin.admits("/_ttc/jobs", own)
    assert admin.without(own) == own[:1]
    assert admin.without([(b"authorization", b"Bearer opens it")]) == []
    assert not admin.admits("/_ttc/jobs", [(b"x-ttc-token", b"opens i"), (b"authorization", b"opens it")])
    assert admin.admits("/_ttc/health", [])


def test_admission_of_probes_ignores_the_host_and_not_the_token() -> None:
    elsewhere = [(b"host", b"10.0.0.7:9280")]
    assert Admission(["search.example.org"], (), None).refusal("/_ttc/health", elsewhere) is None
    admin = AdminToken(SecretStr("opens it"), frozenset({"/_ttc/ready"}))
    refusals = [Admission((), (), admin).refusal(path, elsewhere) for path in ("/_ttc/ready", "/_ttc/health", "/shop")]
    assert [error and error.status for error in refusals] == [None, 401, None]


def test_hosts_and_origins(opensearch_url: str) -> None:
    settings = GatewaySettings(
        engine=opensearch_url,
        port=0,
        allowed_hosts=("search.example.org", "*.internal"),
        allowed_origins=("https://app.example.org",),
    )
    with running_gateway(settings) as url:

        def status(path: str = "/_cat/health", **headers: str) -> int:
            with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)) as client:
                client.request("GET", path, headers=headers)
                return client.getresponse().status

        assert status(host="search.example.org:9280") == 200
        assert status(host="Node1.INTERNAL") == 200
        assert status(host="internal") == 421
        assert status(host="evil.example.com") == 421
        assert status(host="[") == 421
        assert status("/_ttc/", host="evil.example.com") == 421
        assert status("/_ttc/health", host="10.0.0.7") == 200, "probes name an address"
        assert status(host="search.example.org", origin="https://app.example.org") == 200
        assert status(host="search.example.org", origin="https://evil.example.com") == 403
        assert status(host="search.example.org", origin="null") == 403
        refused = call(url, "GET", "/_cat/health")
        assert "[allowed_hosts]" in refused.reason
    with running_gateway(GatewaySettings(engine=opensearch_url, port=0, encoder="minilm@onnx")) as url:
        assert status("/_ttc/", host="search.example.org:443", origin="https://search.example.org") == 200
        assert status("/_ttc/", host="search.example.org", origin="https://search.example.org") == 200
        assert status("/_ttc/", host="search.example.org:9280", origin="https://search.example.org") == 403


def test_a_page_of_another_address_changes_nothing_below_the_gateways_own_paths(stack: SearchStack) -> None:
    own = urlsplit(stack.gateway).netloc
    body = b'{"judge":"a","judgements":[{"query":"q","document":"d","grade":3}]}'
    paths = ("/_ttc/jobs", "/_ttc/rerank", "/_ttc/v1/embeddings", f"/_ttc/judgements/{stack.index}")
    with running_gateway(GatewaySettings(engine=stack.engine, port=0, ui=True), further=playground_routes) as url:
        for path in paths:
            for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp", "text/json"):
                refused = call(url, "POST", path, body, {"content-type": kind} if kind else {})
                assert (refused.status, refused.json()["error"]["type"]) == (415, "media_type_header_exception"), path
            for kind in ("application/json; charset=utf-8", "application/vnd.elasticsearch+json;compatible-with=9"):
                assert call(url, "POST", path, b"{}", {"content-type": kind}).status != 415, path
    for method, path in (("POST", "/_ttc/jobs/x/_pause"), ("GET", "/_ttc/jobs"), ("GET", "/_ttc/"), ("GET", "/_ttc")):
        for origin in ("https://evil.example.com", "null", "file://", f"http://{own}.evil.example.com", "http://["):
            assert call(stack.gateway, method, path, headers={"origin": origin}).status == 403, (path, origin)
        for origin in (f"http://{own}", f"https://{own.upper()}"):
            assert call(stack.gateway, method, path, headers={"origin": origin}).status in (200, 400, 404)
    foreign = {"origin": "https://evil.example.com"}
    assert call(stack.gateway, "GET", "/_cat/health", headers=foreign).status == 200, "as the engine alone"


def test_gateway_errors_carry_the_product_header_of_the_engine(stack: SearchStack) -> None:
    of_engine = call(stack.engine, "GET", "/").headers.get("x-elastic-product")
    wrong = {"rescore": {"ttc": {"metod": "spectral"}}}
    replies = [
        call(stack.gateway, "POST", f"/{stack.index}/_search", wrong),
        call(stack.gateway, "POST", f"/{stack.index}/_search", {"size": -1, "rescore": {"ttc": {}}}),
        call(stack.gateway, "GET", "/_ttc/nosuch"),
        call(stack.gateway, "GET", "/_ttc/"),
        call(stack.gateway, "POST", "/_ttc/rerank", {}),
    ]
    assert [one.headers.get("x-elastic-product") for one in replies] == [of_engine] * len(replies)
    assert [one.status for one in replies[2:]] == [404, 200, 400]


def test_errors_of_jobs_do_not_tell_the_engines_address(stack: SearchStack) -> None:
    texts = [
        call(stack.gateway, "POST", "/_ttc/jobs", {"index": "no-such-index"}).body,
        call(stack.gateway, "POST", "/_ttc/jobs", {"index": stack.index, "prompt": "claims"}).body,
        call(stack.gateway, "GET", "/_ttc/jobs/nosuch").body,
        call(stack.gateway, "POST", "/_ttc/jobs/nosuch/_pause").body,
    ]
    assert b"no-such-index" in texts[0]
    assert not [text for text in texts if urlsplit(stack.engine).netloc.encode() in text]


def request_of(client: str = "10.0.0.1", **headers: str) -> RawRequest:
    scope = {
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 1),
    }
    return RawRequest(scope, None)  # type: ignore[arg-type]


def test_a_caller_is_who_sends_the_same_credentials() -> None:
    limits = CallerLimits(requests=1, windows=0)
    with limits.request(request_of(authorization="a")):
        with pytest.raises(TooManyRequests, match="1 requests"):
            limits.request(request_of("10.0.0.2", authorization="a")).__enter__()
        for other in (request_of(authorization="b"), request_of(), request_of("10.0.0.2")):
            with limits.request(other):
                pass
    with limits.request(request_of(authorization="a")):
        pass
    assert not limits._in_flight


def test_windows_are_given_back_with_time() -> None:
    now = itertools.count(0, 0.25)
    limits = CallerLimits(requests=0, windows=2, clock=lambda: next(now))
    outcomes = []
    for _ in range(9):
        try:
            limits.windows(request_of())
        except TooManyRequests as error:
            outcomes.append(error.retry_after)
        else:
            outcomes.append(0)
    assert outcomes == [0, 0, 0, 1, 0, 1, 0, 1, 0], "two at once, then two a second"
    limits.windows(request_of("10.0.0.2"))


def test_too_many_windows_are_refused_with_retry_after(stack: SearchStack) -> None:
    settings = GatewaySettings(engine=stack.engine, port=0, max_caller_windows_per_second=0.01)
    with running_gateway(settings) as url:
        path = f"/{stack.index}/_search"
        assert call(url, "POST", path, SECTION).status == 200
        late = call(url, "POST", path, SECTION)
        assert late.status == 429
        assert 90 <= int(late.headers["retry-after"]) <= 100
        assert "max_caller_windows_per_second" in late.reason
        assert call(url, "POST", path, {"query": {"match_all": {}}}).status == 200, "other searches are not counted"
