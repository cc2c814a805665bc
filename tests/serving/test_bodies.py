"""Bodies as clients really send them: what the engine reads is read alike, what it refuses it refuses in its words."""

import gzip
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http import jsonio
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import EVERYTHING, ttc_rescore
from tests.serving.relay import Passed, relay
from tests.support.gateway import gateway_to

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
GZIP = {"content-encoding": "gzip"}
RESCORE = b'"rescore":' + orjson.dumps(ttc_rescore())
FILTERED = b'{"query":{"bool":{"filter":{"term":{"group":"g1"}},"filter":{"match_all":{}}}},"size":3,%b}' % RESCORE
UNREADABLE = [
    FILTERED,
    FILTERED.replace(b'"filter":{"match_all"', b'"fil\\u0074er":{"match_all"'),
    b'{"size":2,"size":50,"query":{"match":{"text":"a: b, {c: d} \\": e"}},%b}' % RESCORE,
    b'{"size":2,%b,%b}' % (RESCORE, RESCORE),
    b'{"size":2,/* all */%b}' % RESCORE,
    b'{"size":2,"query":{"match":{"text":"ttc"}},}',
    b'{"size":2,"min_score":NaN,%b}' % RESCORE,
    b'{"size":2,"min_score":1e999,%b}' % RESCORE,
    (b'{"size":2,%b}' % RESCORE).decode().encode("utf-16"),
]
UNREADABLE_LINES = [
    b"{}\n%b\n" % FILTERED,
    b'{"index":"absent-1","index":"absent-2"}\n%b\n' % orjson.dumps({"query": EVERYTHING, "rescore": ttc_rescore()}),
    b"{}\n%b" % orjson.dumps({"query": EVERYTHING, "rescore": ttc_rescore()}),
    b'{"routing":/*x*/"1",}\n%b\n' % orjson.dumps({"query": EVERYTHING, "rescore": ttc_rescore()}),
]


def as_of(reply: Reply) -> tuple[int, Any]:
    body = reply.json()
    return reply.status, {name: value for name, value in body.items() if name != "took"}


@pytest.mark.parametrize(
    ("api", "raw"), [*(("_search", raw) for raw in UNREADABLE), *(("_msearch", raw) for raw in UNREADABLE_LINES)]
)
def test_a_body_that_only_the_engine_can_read_is_answered_by_it(stack: SearchStack, api: str, raw: bytes) -> None:
    path, kind = f"/{stack.index}/{api}", JSON if api == "_search" else NDJSON
    direct = call(stack.engine, "POST", path, raw, kind)
    assert direct.status == 400
    assert as_of(call(stack.gateway, "POST", path, raw, kind)) == as_of(direct)


@pytest.mark.parametrize(
    ("end", "offset", "problem"),
    [
        (b"} {}", 3, 'at "{}": extra data'),
        (b"}}", 2, 'at "}": extra data'),
        (b",size:2}", 2, 'at "size:2}": expecting property name'),
        (b' "size":2}', 2, 'at "\\"size\\":2}": expecting \',\' delimiter'),
    ],
)
def test_a_section_in_a_body_that_is_no_json_is_an_error_that_says_where(
    stack: SearchStack, end: bytes, offset: int, problem: str
) -> None:
    raw = b'{"from":0,\n%b%b' % (RESCORE, end)
    reply = call(stack.gateway, "POST", f"/{stack.index}/_search", raw, JSON)
    assert reply.status == 400
    assert reply.reason.startswith(f"the body is no JSON: line 2, column {len(RESCORE) + offset}, {problem}")
    yaml = {"content-type": "application/yaml"}
    assert b"no JSON" not in call(stack.gateway, "POST", f"/{stack.index}/_search", raw, yaml).body


@pytest.mark.parametrize("missing", [1, 3, 4, 20])
@pytest.mark.parametrize("blank", [b"", b" \n"])
def test_a_body_that_ends_too_early_is_an_error_that_says_where(stack: SearchStack, missing: int, blank: bytes) -> None:
    raw = b'{"query":{"match":{"text":"owl"}},\n "rescore":{"ttc":{"query_text":"owl"}}}'[:-missing]
    reply = call(stack.gateway, "POST", f"/{stack.index}/_search", raw + blank, JSON)
    assert reply.status == 400
    column = len(raw) - raw.index(b"\n") - 1
    assert f"ends at line 2, column {column}" in reply.json()["error"]["reason"]


@pytest.mark.parametrize("end", [b"\n", b" \r\n", b"{}\n"])
def test_a_last_line_without_a_search_is_ignored(stack: SearchStack, end: bytes) -> None:
    lines = b"{}\n%b\n%b" % (orjson.dumps({"query": EVERYTHING, "size": 3, "rescore": ttc_rescore()}), end)
    reply = call(stack.gateway, "POST", f"/{stack.index}/_msearch", lines, NDJSON)
    assert [one["ttc"]["applied"] for one in reply.json()["responses"]] == [True]


def members(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


@pytest.mark.parametrize("cuts", [[0.5], [0.0], [1.0], [0.1, 0.3, 0.7]])
@pytest.mark.parametrize("size", [1, 3000])
def test_a_gzip_body_of_several_members_is_read_whole(stack: SearchStack, cuts: Sequence[float], size: int) -> None:
    searches = b"".join(
        b"{}\n%b\n"
        % orjson.dumps({"query": EVERYTHING, "size": one, "rescore": ttc_rescore(), "stats": ["x" * size] * 50})
        for one in (2, 3)
    )
    places = [round(cut * len(searches)) for cut in (0.0, *cuts, 1.0)]
    body = members(*(searches[start:end] for start, end in pairwise(places)))
    reply = call(stack.gateway, "POST", f"/{stack.index}/_msearch", body, NDJSON | GZIP)
    assert [len(one["hits"]["hits"]) for one in reply.json()["responses"]] == [2, 3]
    assert all(one["ttc"]["applied"] for one in reply.json()["responses"])
    plain = members(*(b"{}\n{}\n",) * 3)
    reply = call(stack.gateway, "POST", f"/{stack.index}/_msearch", plain, NDJSON | GZIP)
    assert [one["status"] for one in reply.json()["responses"]] == [200, 200, 200]


@pytest.mark.parametrize(
    ("asked", "size", "compressed"),
    [("deflate, GZIP;q=0.5", 30, True), ("gzip;q=0.0, br", 30, False), ("", 30, False), ("gzip", 0, False)],
)
def test_a_response_is_compressed_where_the_client_asks_for_it(
    stack: SearchStack, asked: str, size: int, compressed: bool
) -> None:
    body = {"query": {"match": {"text": "cat"}}, "size": size, "rescore": {"ttc": {"method": "spectral"}}}
    plain = search(stack.gateway, stack.index, body)
    headers = {"content-type": "application/json", "accept-encoding": asked}
    reply = call(stack.gateway, "POST", f"/{stack.index}/_search", orjson.dumps(body), headers)
    assert reply.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert len(reply.body) == int(reply.headers["content-length"])
    assert reply.json()["hits"] == plain.json()["hits"]


def test_many_small_gzip_members_are_the_engines_to_read(stack: SearchStack) -> None:
    body = members(*(b" ",) * 1500, b'{"size":3}')
    for url in (stack.gateway, stack.engine):
        assert len(call(url, "POST", f"/{stack.index}/_search", body, JSON | GZIP).ids) == 3


@pytest.mark.parametrize("rest", [b"xyz", b"\x1f", members(b"{}")[:-3]])
def test_gzip_body_with_trailing_bytes_is_refused(stack: SearchStack, rest: bytes) -> None:
    body = members(orjson.dumps({"query": EVERYTHING, "rescore": ttc_rescore()})) + rest
    reply = call(stack.gateway, "POST", f"/{stack.index}/_search", body, JSON | GZIP)
    assert reply.status == 400
    assert "gzip" in reply.reason


@pytest.mark.parametrize("limit", ["max_buffered_mb", "max_answer_mb"])
def test_long_answers_are_bounded_as_bodies_are_and_decoded_on_a_thread(
    engine_url: str, index_name: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    documents = [{"_id": f"d{number}", "text": "a cat", "long": "x" * 60_000} for number in range(30)]
    make_index(engine_url, index_name, encoder, documents=documents, shards=1)
    decoding: set[str] = set()
    decode = jsonio.loads_json

    def loads(raw: bytes) -> Any:
        if len(raw) > 2**19:
            decoding.add(threading.current_thread().name)
        return decode(raw)

    monkeypatch.setattr(jsonio, "loads_json", loads)
    settings: dict[str, Any] = {limit: 1}
    with gateway_to(engine_url, encoder, **settings) as gateway:

        def asked(size: int, **more: Any) -> Reply:
            return search(gateway, index_name, {"query": {"match": {"text": "cat"}}, "size": size, **more})

        whole = asked(30)
        sizes = (30, 10, 10, 10, 30)
        section = {**ttc_rescore(), "window_size": 30}
        streamed = [asked(size, rescore=section | {"window_size": size}) for size in sizes]
        for size, reply in zip(sizes, streamed, strict=True):
            applied = "true" if size == 10 else "false"
            assert (reply.status, reply.headers["x-ttc-applied"]) == (200, applied)
            assert ("ttc" in reply.json()) is (size == 10)
        assert streamed[0].json()["hits"] == whole.json()["hits"]
        refused = asked(30, rescore=section | {"ttc": section["ttc"] | {"on_error": "fail"}})
        assert (refused.status, refused.json()["error"]["type"]) == (413, "content_too_long_exception")
        assert limit in refused.reason
    assert decoding
    assert "es-ttc-gateway" not in decoding


@pytest.mark.parametrize("kind", ["application/yaml", "APPLICATION/yaml; charset=utf-8"])
@pytest.mark.parametrize("raw", [b'{"size":2,%b}' % RESCORE, b"size: 2\nrescore: " + RESCORE[10:], b"size: 2\n"])
def test_a_body_in_yaml(stack: SearchStack, kind: str, raw: bytes) -> None:
    path, headers = f"/{stack.index}/_search", {"content-type": kind}
    direct = call(stack.engine, "POST", path, raw, headers)
    assert call(stack.gateway, "POST", path, raw, headers).status == direct.status


@pytest.mark.parametrize(
    ("changes", "url", "window"),
    [
        ({"size": 10.0}, "", 50),
        ({"size": "10"}, "", "50"),
        ({"size": "1e1", "from": "0"}, "", 50.0),
        ({"size": 10.9, "from": -0.5}, "", "50.7"),
        ({}, "?size=%2B0010", " 5e1 "),
        ({}, "?size=%D9%A1%D9%A0&version", 50),
        ({"version": "true", "explain": "true"}, "", 50),
        ({"version": True, "explain": True}, "?version&explain", 50),
        ({"version": "false"}, "", 50),
    ],
)
def test_values_are_read_as_the_engine_reads_them(
    stack: SearchStack, changes: dict[str, Any], url: str, window: Any
) -> None:
    native = {"window_size": window, "query": {"rescore_query": {"match_all": {}}}}
    direct = search(stack.engine, stack.index, {"query": EVERYTHING, "rescore": native, **changes}, url)
    ranked = {"query": EVERYTHING, "rescore": ttc_rescore() | {"window_size": window}, **changes}
    reply = search(stack.gateway, stack.index, ranked, url)
    assert (reply.status, len(reply.ids), reply.json()["ttc"]["window"]) == (direct.status, len(direct.ids), 50)
    for name in ("_version", "_explanation"):
        assert [name in hit for hit in reply.json()["hits"]["hits"]] == [
            name in hit for hit in direct.json()["hits"]["hits"]
        ]


KNN = {"knn": {"field": "ttc.vector", "query_text": "a cat", "k": 5, "ttc": {"method": "nnn"}}}


@pytest.mark.parametrize("body", [{"query": EVERYTHING, "rescore": ttc_rescore()}, KNN])
@pytest.mark.parametrize(
    "url", ["?size=%C2%B2", f"?size={'9' * 5000}", "?size=3000000000", "?size=", "?size=1_0", "?size=2.0", "?version=1"]
)
def test_values_that_the_engine_refuses_are_refused(stack: SearchStack, body: dict[str, Any], url: str) -> None:
    assert search(stack.engine, stack.index, {"query": EVERYTHING}, url).status == 400
    assert search(stack.gateway, stack.index, body, url).status == 400


@pytest.mark.parametrize("change", [{"k": "5"}, {"k": 5.0, "boost": "1.0"}, {"similarity": "-1"}])
def test_numbers_of_a_knn_clause(stack: SearchStack, change: dict[str, Any]) -> None:
    expected = search(stack.gateway, stack.index, {**KNN, "size": 5})
    reply = search(stack.gateway, stack.index, {"knn": {**KNN["knn"], **change}, "size": "5"})
    assert reply.ids == expected.ids
    assert len(reply.ids) == 5


def test_a_media_type_with_a_version_of_many_digits(stack: SearchStack) -> None:
    kind = f"application/vnd.elasticsearch+json;compatible-with={'9' * 5000}"
    path = f"/{stack.index}/_search"
    reply = call(stack.gateway, "POST", path, b"{}", {"content-type": kind, "accept": kind})
    assert reply.status == 200, "a newer version than the engine's"


PAGE = b"<html><body>upstream</body></html>"


@pytest.mark.parametrize(
    ("status", "body"), [(200, PAGE), (200, b""), (200, b"[1]"), (200, b'{"message":"busy"}'), (502, PAGE)]
)
def test_an_answer_of_a_proxy_before_the_engine_is_passed_on(
    stack: SearchStack, encoder: Encoder, status: int, body: bytes
) -> None:
    wanted: set[str] = set()

    def before(request: Passed) -> Reply | None:
        path = request.target.partition("?")[0]
        kind = next((one for one in ("_search", "_msearch") if path.endswith(f"/{one}")), "")
        kind = "" if request.reads_features else kind
        return Reply(status, {"content-type": "text/html"}, body) if kind in wanted else None

    settings = GatewaySettings(engine="http://placeholder", port=0, scoring_timeout_ms=20_000)
    with relay(stack.engine) as between:
        between.before = before
        of_relay = settings.model_copy(update={"engine": between.url})
        with running_gateway(of_relay, load=lambda _name, _folder: encoder) as gateway:
            asked = {"query": EVERYTHING, "size": 5, "rescore": ttc_rescore()}
            assert search(gateway, stack.index, asked).json()["ttc"]["applied"] is True
            wanted.add("_search")
            one = search(gateway, stack.index, asked)
            assert (one.status, one.body) == (status, body)
            wanted.add("_msearch")
            lines = b"{}\n%b\n" % orjson.dumps(asked)
            several = call(gateway, "POST", f"/{stack.index}/_msearch", lines, NDJSON)
            assert (several.status, several.body) == (status, body)
        wanted.clear()
        with running_gateway(of_relay, load=lambda _name, _folder: encoder) as gateway:
            wanted.add("")  # features, mappings
            plain = search(gateway, stack.index, asked)
            assert plain.status == 200, plain.body
            assert plain.json()["ttc"]["applied"] is False
