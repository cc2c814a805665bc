"""Small requests that are expensive to read are refused before they cost anything, and keep nobody else waiting."""

import gzip
import threading
import time
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.http import limits
from es_ttc.serving.http.filter_path import glob_matches, with_filter_path
from es_ttc.serving.http.limits import admits_items, count_values, deeper_than
from tests.serving.client import call
from tests.serving.conftest import SearchStack
from tests.support.encoders import Counting
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
GZIP = JSON | {"content-encoding": "gzip"}
PATIENCE = 1.0  # seconds that another client may wait meanwhile, on a machine that does much else
SECTION = {"window_size": 10, "ttc": {"method": "spectral", "query_text": "cat"}}


def _search(**section: Any) -> bytes:
    ttc = {**SECTION["ttc"], **section}  # type: ignore[dict-item]
    return orjson.dumps({"query": {"match": {"text": "cat"}}, "rescore": {"window_size": 10, "ttc": ttc}})


def _with(rest: bytes) -> bytes:
    return b'{"rescore":{"ttc":{"method":"spectral","query_text":"cat"}},"x":%b}' % rest


EXPENSIVE: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "nested empty arrays": ("_search", gzip.compress(_with(b"[" + b"[]," * 2_500_000 + b"[]]")), GZIP, "objects"),
    "a long gzip bomb": ("_search", gzip.compress(_with(b'"' + b" " * 30_000_000 + b'"')), GZIP, "10 MiB"),
    "a million keys": ("_search", _search(params={f"k{n}": 1 for n in range(100_000)}), JSON, "objects"),
    "many params": ("_search", _search(params={f"k{n}": 1 for n in range(20_000)}), JSON, "[ttc.params]"),
    "many scales": ("_search", _search(params={"scales": list(range(1, 100_000))}), JSON, "[ttc.params]"),
    "some scales": ("_search", _search(params={"scales": list(range(1, 4000))}), JSON, "scales"),
    "a long text": ("_search", _search(query_text="cat " * 250_000), JSON, "32,768"),
    "long texts": ("_search", _search(query_text=None, query_texts=["cat " * 1000] * 60), JSON, "32,768"),
    "a long text of the query": (
        "_search",
        orjson.dumps(
            {
                "query": {"match": {"text": "cat " * 20_000}},
                "rescore": {"window_size": 10, "ttc": {"method": "spectral"}},
            }
        ),
        JSON,
        "32,768",
    ),
    "deep": ("_search", _with(b"[" * 300 + b"]" * 300), JSON, "levels deep"),
    "a long number": ("_search", _with(b"1" * 900_000), JSON, "digits"),
    "many values": ("_search", _with(b"[" + b"1," * 900_000 + b"1]"), JSON, "500,000 values"),
    "many items": ("_msearch", b"{}\n" + b'{"rescore":{"ttc":{}}}\n{}\n' * 2000, NDJSON, "1,000 items"),
    "many clauses": (
        "_search",
        orjson.dumps(
            {"query": {"bool": {"should": [{"knn": {"field": "ttc.vector", "query_text": "a"}}] * 500}}, "ttc": 1}
        ),
        JSON,
        "64 [knn] clauses",
    ),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_an_expensive_request_is_refused_while_others_are_answered(stack: SearchStack, name: str) -> None:
    api, body, headers, word = EXPENSIVE[name]
    with victim(stack) as waits:
        replies = [call(stack.gateway, "POST", f"/{stack.index}/{api}", body, headers) for _ in range(2)]
    for reply in replies:
        assert reply.status in (400, 413), reply.body[:300]
        assert word in reply.reason
        assert len(reply.body) < 2000
    assert max(waits) < PATIENCE


def test_large_searches_without_a_section_pass_as_they_are(stack: SearchStack) -> None:
    """No limit of ours holds for a search that is the engine's own, whatever texts stand in it."""
    terms = [f"t{number}" for number in range(60_000)] + ["ttc", "query_text"]
    body = {"query": {"bool": {"filter": [{"terms": {"group": terms}}] * 10}}, "size": 1}
    direct, through = (call(url, "POST", f"/{stack.index}/_search", body) for url in (stack.engine, stack.gateway))
    assert through.status == direct.status == 200
    lines = b'{}\n{"query":{"term":{"group":"ttc"}},"size":0}\n' * 1200
    direct, through = (
        call(url, "POST", f"/{stack.index}/_msearch", lines, NDJSON) for url in (stack.engine, stack.gateway)
    )
    assert through.status == direct.status == 200
    assert len(through.json()["responses"]) == 1200


def test_object_limit_does_not_hold_for_queries_of_the_gateway(
    stack: SearchStack, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retrievals of hundreds of documents become queries that are far longer than the caller's request."""
    monkeypatch.setattr(limits, "MAX_OBJECTS", 100)
    with gateway_to(stack.engine, encoder) as gateway:
        knn = {"field": "ttc.vector", "query_text": "cat", "k": 50, "ttc": {"method": "dense"}}
        body = {"query": {"knn": knn}, "rescore": SECTION}
        reply = call(gateway, "POST", f"/{stack.index}/_search", body)
        assert reply.status == 200, reply.body
        assert reply.json()["ttc"]["applied"] is True


def test_the_header_of_an_item_that_is_no_object_is_a_400(stack: SearchStack) -> None:
    for line in (
        {"query": {"ttc": {"method": "rm3", "query_text": "cat"}}},
        {"query": {"match_all": {}}, "rescore": SECTION},
    ):
        for header in (b"1", b"[]", b'"x"'):
            reply = call(stack.gateway, "POST", "/_msearch", header + b"\n" + orjson.dumps(line) + b"\n", NDJSON)
            answer = reply.json()
            assert answer.get("status") == 400 or answer["responses"][0]["status"] == 400


@pytest.mark.parametrize("pattern", ["**." * 90 + "_id", "*a*a*a*a*a*a*a*a*a*a*b." * 40 + "x", "a," * 1500 + "**.b"])
def test_a_filter_path_takes_no_time_to_speak_of(stack: SearchStack, pattern: str) -> None:
    body = {"query": {"match_all": {}}, "size": 50, "rescore": SECTION}
    with victim(stack) as waits:
        reply = call(stack.gateway, "POST", f"/{stack.index}/_search?filter_path={pattern}", body)
    assert reply.status == 200
    assert max(waits) < PATIENCE


def test_many_states_of_a_filter_path_are_one_set() -> None:
    data: Any = {"b": 1}
    for _ in range(60):
        data = {"a": data, "c": 2}
    kept = with_filter_path(data, "**.a.**.a.**.a.**.a.**.b," * 20, keep_empty=False)
    for _ in range(60):
        assert list(kept) == ["a"]
        kept = kept["a"]
    assert kept == {"b": 1}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "", True), ("*", "abc", True), ("a*", "abc", True), ("*c", "abc", True), ("a*c", "abc", True),
        ("a*b*c", "aXbXc", True), ("a*a", "a", False), ("ab*bc", "abc", False), ("abc", "abc", True),
        ("abc", "abcd", False), ("*b*", "abc", True), ("*x*", "abc", False), ("?bc", "abc", False), ("[a]", "a", False),
        ("[a]", "[a]", True), ("a**c", "abc", True),
    ],
)  # fmt: skip
def test_patterns_match_as_the_engines_have_it(pattern: str, name: str, matches: bool) -> None:
    assert glob_matches(pattern, name) is matches


def test_count_values_and_deeper_than(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_values({"a": [1, 2, {"b": 3}]}, 100) == 6
    assert count_values([0] * 1000, 10) > 10
    assert deeper_than([[[]]], 2)
    assert not deeper_than([[[]]], 3)
    monkeypatch.setattr(limits, "MAX_SEARCHES", 1)
    assert admits_items(b'{}\n{"size":1}\n' * 5) is False


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"match": {"text": "cat"}}, "rescore": SECTION},
        {"query": {"knn": {"field": "ttc.vector", "query_text": "cat", "k": 3, "ttc": {"method": "dense"}}}},
        {"query": {"bool": {"must": [{"match": {"text": "cat"}}], "no_such_key": 1}}, "rescore": SECTION},
    ],
    ids=["missing index", "missing index, by kNN", "refused query"],
)
def test_nothing_is_encoded_for_a_search_that_the_engine_refuses(
    stack: SearchStack, encoder: Encoder, body: dict[str, Any]
) -> None:
    counting = Counting(encoder)

    index = stack.index if "bool" in body["query"] else "there-is-no-such-index"
    with gateway_to(stack.engine, counting) as gateway:
        counting.seen.clear()  # those of warming up
        reply = call(gateway, "POST", f"/{index}/_search", body)
        assert reply.status in (400, 404)
        assert counting.seen == []
        good = {"query": {"match": {"text": "cat"}}, "rescore": SECTION}
        assert call(gateway, "POST", f"/{stack.index}/_search", good).json()["ttc"]["applied"] is True
        assert counting.seen == ["cat"]


class victim:  # noqa: N801 - used as a function
    """Counts something every few milliseconds while others do their worst, and keeps how long each answer took."""

    def __init__(self, stack: SearchStack) -> None:
        self._stack = stack
        self._done = threading.Event()
        self._waits: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> list[float]:
        self._thread.start()
        return self._waits

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(60)

    def _ask(self) -> None:
        while not self._done.is_set():
            started = time.monotonic()
            reply = call(self._stack.gateway, "GET", "/_ttc/health")
            assert reply.status == 200
            self._waits.append(time.monotonic() - started)
            self._done.wait(0.01)
