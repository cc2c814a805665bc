"""IAM: every request is signed as it is sent, and nobody borrows the gateway's credentials who was not given them."""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensearchpy.helpers.signer import AWSV4Signer
from yarl import URL

from es_ttc.encoders.base import Encoder
from es_ttc.engine.aws import canonical_query, signer_of
from es_ttc.engine.connect import connect, connected
from es_ttc.errors import ConfigurationError, EngineError
from es_ttc.serving.http import raw_request
from es_ttc.serving.http.signing import gateway_signer
from es_ttc.settings import EngineSettings, GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.relay import Passed, Relay, relay
from tests.support.gateway import gateway_to

ALGORITHM = "AWS4-HMAC-SHA256"


def is_signed(method: str, target: str, headers: Mapping[str, str], body: bytes, *, secret: str, region: str) -> bool:
    """Return whether a request's signature is that of its method, target, headers and body.

    Args:
        method: The HTTP method.
        target: Path and query string as received.
        headers: Names in lower case.
        body: The body as received.
        secret: The secret key.
        region: The region that must be signed for.
    """
    algorithm, _, rest = headers.get("authorization", "").partition(" ")
    if algorithm != ALGORITHM:
        return False
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    _, day, *scope = parts["Credential"].split("/")
    if scope != [region, "es", "aws4_request"] or not headers["x-amz-date"].startswith(day):
        return False
    given = hashlib.sha256(body).hexdigest()
    if headers.get("x-amz-content-sha256", given) != given:
        return False
    signed = parts["SignedHeaders"].split(";")
    if "host" not in signed or any(name.startswith("x-amz-") and name not in signed for name in headers):
        return False
    found = signature(method, target, {name: headers[name] for name in signed}, given, secret, [day, *scope])
    return hmac.compare_digest(found, parts["Signature"])


def signature(
    method: str, target: str, headers: Mapping[str, str], body_hash: str, secret: str, scope: list[str]
) -> str:
    """Return the signature of a request by its signed headers, with the day first in the scope."""
    path, _, query = target.partition("?")
    pairs = [part.partition("=") for part in query.split("&") if part]
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/-_.~"),
            "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs)),
            *(f"{name}:{' '.join(headers[name].split())}" for name in sorted(headers)),
            "",
            ";".join(sorted(headers)),
            body_hash,
        )
    )
    to_sign = "\n".join(
        (ALGORITHM, headers["x-amz-date"], "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")


KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a/session+token=="
REGION = "eu-central-1"
on_opensearch = pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
CATS: dict[str, Any] = {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {"query_text": "cat"}}}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let botocore find these credentials and no others."""
    for name in ("AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)


@contextmanager
def domain(engine: str) -> Iterator[Relay]:
    """Run what stands before an engine at AWS: it refuses each request that is not signed."""

    def refusal(passed: Passed) -> Reply | None:
        if is_signed(passed.method, passed.target, passed.headers, passed.body, secret=SECRET, region=REGION):
            return None
        body = {"message": "The request signature we calculated does not match the signature you provided."}
        return Reply(403, {"content-type": "application/json"}, orjson.dumps(body))

    with relay(engine) as running:
        running.before = refusal
        yield running


def test_the_check_knows_the_signature_of_the_specification() -> None:
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "host": "iam.amazonaws.com",
        "x-amz-date": "20150830T123600Z",
    }
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    scope = ["20150830", "us-east-1", "iam", "aws4_request"]
    found = signature("GET", "/?Action=ListUsers&Version=2010-05-08", headers, empty, SECRET, scope)
    assert found == "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"


@pytest.mark.parametrize(("name", "service"), [("es", "es"), ("aoss", "aoss")])
async def test_the_address_names_the_service_of_a_signature(name: str, service: str) -> None:
    url = f"https://shop.{REGION}.{name}.amazonaws.com"
    signer = signer_of(EngineSettings(engine=url, aws_region=REGION))
    assert signer is not None
    signed = await signer.headers("GET", URL(url), b"")
    assert f"/{REGION}/{service}/aws4_request" in signed["Authorization"]


@on_opensearch
async def test_every_request_of_ours_is_signed(engine_url: str, index_name: str) -> None:
    with domain(engine_url) as aws:
        async with connected(EngineSettings(engine=aws.url, aws_region=REGION)) as engine:
            assert (await engine.capabilities()).nodes == 1
            await engine.create_index(index_name, {"mappings": {"properties": {"n": {"type": "integer"}}}})
            long = "ü" * 2**20
            lines = [line for n in range(3) for line in (b'{"index":{}}', orjson.dumps({"n": n, "text": long}))]
            assert all(item.ok for item in await engine.bulk(index_name, lines))
            await engine.refresh(index_name)
            assert await engine.exists(index_name)
            assert not await engine.exists(f"{index_name}-none")
            assert [hit async for hit in engine.scan(index_name, {"match_all": {}}, source=False, batch=2)]
            found = await engine.search(f"{index_name}*,{index_name}", {"size": 0}, filter_path="hits.total.*,took")
            assert found["hits"]["total"]["value"] == 3
            await engine.delete_index(index_name)
        assert {passed.headers["x-amz-security-token"] for passed in aws.passed} == {TOKEN}
        with pytest.raises(EngineError, match="403"):
            await engine_of_another(aws.url)


async def engine_of_another(url: str) -> None:
    """Sign for another region."""
    engine = await connect(EngineSettings(engine=url, aws_region="eu-west-1"))
    await engine.close()


@on_opensearch
def test_a_gateway_signs_its_own_requests_and_forwards_callers_as_they_are(
    stack: SearchStack, encoder: Encoder
) -> None:
    with (
        domain(stack.engine) as aws,
        gateway_to(aws.url, encoder, aws_region=REGION, side_index_auth="gateway") as gateway,
    ):
        assert call(gateway, "GET", "/_ttc/ready").status == 200
        assert {passed.target for passed in aws.passed} >= {"/"}
        # A caller without a signature is refused, also one who claims to be the gateway.
        aws.passed.clear()
        mark = {"authorization": "gateway 00000000000000000000000000000000"}
        for headers in ({}, mark):
            assert call(gateway, "GET", f"/{stack.index}/_count", headers=headers).status == 403
        assert search(gateway, stack.index, CATS).status == 403
        assert "x-amz-date" not in {name for passed in aws.passed for name in passed.headers}
        # opensearch-py's own signature, for the domain's address, is still right behind the gateway.
        body = b'{"query":{"match_all":{}}}'
        signed = signed_by_opensearch_py(aws.url, f"/{stack.index}/_count", body)
        assert call(gateway, "POST", f"/{stack.index}/_count", body, signed).json()["count"] == 60
        body = orjson.dumps(CATS)
        signed = signed_by_opensearch_py(aws.url, f"/{stack.index}/_search", body)
        refused = call(gateway, "POST", f"/{stack.index}/_search", body, signed)
        assert refused.status == 400
        assert "[aws_sign_callers]" in refused.reason


def signed_by_opensearch_py(url: str, path: str, body: bytes) -> dict[str, str]:
    """Return the headers that opensearch-py sends with a request to the domain."""
    from botocore.credentials import Credentials

    signer = AWSV4Signer(Credentials(KEY, SECRET, TOKEN), REGION, "es")
    signed = signer.sign("POST", f"{url}{path}", body, {"content-type": "application/json"})
    return {name.lower(): value for name, value in signed.items()}


@on_opensearch
def test_a_gateway_signs_for_its_callers_where_it_is_told_to(
    stack: SearchStack, encoder: Encoder, index_name: str
) -> None:
    with (
        domain(stack.engine) as aws,
        gateway_to(aws.url, encoder, aws_region=REGION, aws_sign_callers=True) as gateway,
    ):
        own = {"authorization": "Basic YW5uOnBhc3N3b3Jk", "x-amz-date": "20150830T123600Z"}
        reply = call(gateway, "POST", f"/{stack.index}/_search?pretty&filter_path=hits,ttc", CATS, own)
        assert (reply.status, reply.json()["ttc"]["applied"]) == (200, True), reply.body
        assert (
            search(gateway, f"{stack.index}*,{stack.index}", CATS, "?preference=a+b").json()["ttc"]["applied"] is True
        )
        # A long body arrives in parts, and is signed as a whole.
        action = orjson.dumps({"index": {}}) + b"\n" + orjson.dumps({"text": "x" * 2**15}) + b"\n"
        ndjson = {"content-type": "application/x-ndjson"}
        written = call(gateway, "POST", f"/{index_name}/_bulk?refresh=true", iter([action] * 20), ndjson)
        assert (written.status, len(written.json()["items"])) == (200, 20)
        assert call(gateway, "GET", f"/{index_name}/_count").json()["count"] == 20
        assert call(gateway, "DELETE", f"/{index_name}").status == 200
        assert not any(passed.headers["authorization"].startswith("Basic") for passed in aws.passed)


@on_opensearch
def test_a_body_that_is_too_long_to_be_signed_is_refused(
    stack: SearchStack, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_request, "MAX_BODY", 2**20)
    with (
        domain(stack.engine) as aws,
        gateway_to(aws.url, encoder, aws_region=REGION, aws_sign_callers=True) as gateway,
    ):
        ndjson = {"content-type": "application/x-ndjson"}
        reply = call(gateway, "POST", "/_bulk", b"x" * (2**20 + 2**18), ndjson)
        assert (reply.status, "too" in reply.reason or "longer" in reply.reason) == (413, True)


@pytest.mark.parametrize("engine_url", ["elasticsearch"], indirect=True)
async def test_elasticsearch_has_no_such_signatures(engine_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[aws_region\]"):
        await connect(EngineSettings(engine=engine_url, aws_region=REGION))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"aws_region": REGION, "api_key": "abc"}, "[aws_region] signs requests, and [api_key] has other credentials"),
        ({"aws_region": REGION, "engine": "https://me:pw@search"}, "and [engine] has other credentials"),
        ({"aws_region": REGION, "engine": "https://a,https://b"}, "[engine] must be one address"),
        ({"aws_sign_callers": True}, "[aws_sign_callers] needs [aws_region]"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        gateway_signer(GatewaySettings(**settings))


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match="AWS_PROFILE"):
        signer_of(EngineSettings(aws_region=REGION))


@given(st.lists(st.tuples(st.text("aä &=;+%*,~/", min_size=1), st.text("aä &=;+%*,~/")), max_size=4))
def test_a_query_string_keeps_its_meaning(pairs: list[tuple[str, str]]) -> None:
    from urllib.parse import parse_qsl, urlencode

    found = canonical_query(urlencode(pairs))
    assert parse_qsl(found, keep_blank_values=True) == pairs
    assert re.fullmatch(r"[A-Za-z0-9\-_.~%=&]*", found)
    assert canonical_query(found) == found
