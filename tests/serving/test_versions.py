"""Engines of other versions than clients or es-ttc expect: media types, and engines that are too old."""

from contextlib import AbstractContextManager
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http.caller import older_types
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.support.gateway import gateway_to
from tests.support.servers import server_beside

NEWER = dict.fromkeys(("accept", "content-type"), "application/vnd.elasticsearch+json;compatible-with={}")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"json; compatible-with=9", b"json; compatible-with=8"),
        (b"x-ndjson;compatible-with=10", b"x-ndjson;compatible-with=8"),
        (b"json", b"json"),
    ],
)
def test_media_types_name_the_older_version(sent: bytes, expected: bytes) -> None:
    vendor = b"application/vnd.elasticsearch+"
    headers = [(name, vendor + sent) for name in (b"accept", b"content-type", b"x-other")]
    assert older_types(headers, 8) == [*((name, vendor + expected) for name, _ in headers[:2]), headers[2]]


def test_a_client_of_a_newer_elasticsearch_is_answered_by_this_one(stack: SearchStack) -> None:
    major = int(call(stack.engine, "GET", "/").json()["version"]["number"].partition(".")[0])
    headers = {name: value.format(major + 1) for name, value in NEWER.items()}
    body: dict[str, Any] = {"query": {"match": {"text": "cat"}}, "size": 3}
    plain = call(stack.gateway, "POST", f"/{stack.index}/_search", body, headers)
    rescored = body | {"rescore": {"ttc": {"query_text": "cat"}}}
    ours = call(stack.gateway, "POST", f"/{stack.index}/_search", rescored, headers)
    assert (plain.status, ours.status) == (200, 200), ours.body
    assert ours.json()["ttc"]["applied"] is True
    told = "x-ttc-compatible-with"
    if stack.product == "elasticsearch":
        assert call(stack.engine, "POST", f"/{stack.index}/_search", body, headers).status == 400
        assert (plain.headers[told], ours.headers[told]) == (str(major), str(major))
        same = {name: value.format(major) for name, value in NEWER.items()}
        assert told not in call(stack.gateway, "POST", f"/{stack.index}/_search", body, same).headers
    else:
        assert told not in plain.headers


def engine_of(version: dict[str, str], tagline: str) -> AbstractContextManager[str]:
    """Run an engine that is too old, which no package registry has with what a test needs: it echoes searches."""

    def answer(path: str, body: bytes) -> tuple[int, Any]:
        if body:
            return 200, {"sent": orjson.loads(body), "hits": {"hits": []}}
        return 200, {"version": version, "tagline": tagline} if path == "/" else {}

    return server_beside(answer)


@pytest.mark.parametrize(
    ("version", "tagline", "name"),
    [
        ({"number": "2.11.0", "distribution": "opensearch"}, "The OpenSearch Project", "OpenSearch 2.11.0"),
        ({"number": "7.17.15"}, "You Know, for Search", "Elasticsearch 7.17.15"),
    ],
)
def test_an_engine_that_is_too_old_is_passed_through_to_and_sections_are_refused(
    version: dict[str, str], tagline: str, name: str, encoder: Encoder
) -> None:
    with engine_of(version, tagline) as engine, gateway_to(engine, encoder) as gateway:
        told = call(gateway, "GET", "/_ttc/").json()["engine"]
        assert (told["version"], told["supported"]) == (version["number"], False)
        plain = {"query": {"match": {"text": "a ttc section"}}}
        assert search(gateway, "index", plain).json()["sent"] == plain
        for body in (
            plain | {"rescore": {"ttc": {"query_text": "cat"}}},
            {"knn": {"field": "ttc.vector", "query_text": "cat", "k": 3, "ttc": {"method": "nnn"}}},
        ):
            refused = search(gateway, "index", body)
            assert refused.status == 400
            assert refused.json()["error"]["type"] == "ttc_unsupported_engine_exception"
            assert name in refused.reason
