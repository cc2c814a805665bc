"""Search templates whose rendered body holds our section, on a real engine that renders."""

from typing import Any

import orjson
import pytest

from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING, ttc_rescore
from tests.serving.relay import relay
from tests.support.gateway import gateway_to

BODY = {"query": EVERYTHING, "size": 7, "rescore": ttc_rescore()}
SECTION = {"method": "spectral", "query_text": CATS}
PARAMS = {"word": "animal", "size": 7, "window": 100, "text": CATS, "section": SECTION}
SOURCE = {
    "query": {"match": {"kind": "{{word}}"}},
    "size": "{{size}}",
    "rescore": {"window_size": "{{window}}", "ttc": {"method": "spectral", "query_text": "{{text}}"}},
}
AS_TEXT = (
    '{"query": {"match": {"kind": "{{word}}"}}, "size": {{size}}, '
    '"rescore": {"window_size": 100, "ttc": {{#toJson}}section{{/toJson}}}}'
)


@pytest.fixture
def renders(stack: SearchStack) -> bool:
    """Whether this engine has templates at all: the tests' Elasticsearch comes without its mustache module."""
    return call(stack.engine, "POST", "/_render/template", {"source": {}}).status == 200


def templated(stack: SearchStack, body: dict[str, Any], url: str = "") -> Reply:
    return call(stack.gateway, "POST", f"/{stack.index}/_search/template{url}", body)


def stored(stack: SearchStack, name: str) -> str:
    script = {"script": {"lang": "mustache", "source": AS_TEXT}}
    assert call(stack.engine, "PUT", f"/_scripts/{name}", script).status == 200
    return name


def test_a_template_is_answered_as_the_search_it_stands_for(stack: SearchStack, renders: bool, index_name: str) -> None:
    if not renders:
        direct = call(stack.engine, "POST", f"/{stack.index}/_search/template", {"source": AS_TEXT, "params": PARAMS})
        reply = templated(stack, {"source": AS_TEXT, "params": PARAMS})
        assert (reply.status, reply.json()) == (direct.status, direct.json())
        assert reply.status >= 400
        return
    expected = search(stack.gateway, stack.index, BODY)
    assert len(expected.ids) == 7
    for source in (AS_TEXT, SOURCE):
        reply = templated(stack, {"source": source, "params": PARAMS})
        assert reply.status == 200, reply.body
        assert (reply.ids, reply.scores) == (expected.ids, expected.scores)
        assert reply.headers["x-ttc-applied"] == "true"
    explained = templated(stack, {"source": AS_TEXT, "params": PARAMS, "explain": True, "profile": True}).json()
    assert all(hit["_explanation"]["value"] == hit["_score"] for hit in explained["hits"]["hits"])
    assert "profile" in explained
    wrong = templated(stack, {"source": AS_TEXT, "params": PARAMS | {"section": {"metod": "spectral"}}})
    assert wrong.status == 400
    assert "[method]" in wrong.reason


def test_stored_template_is_rescored(stack: SearchStack, renders: bool, index_name: str) -> None:
    if not renders:
        unknown = {"id": index_name, "params": PARAMS}
        direct = call(stack.engine, "POST", f"/{stack.index}/_search/template", unknown)
        assert templated(stack, unknown).status == direct.status >= 400
        return
    template_id = stored(stack, index_name)
    try:
        expected = search(stack.gateway, stack.index, BODY)
        only = {"bool": {"must": [EVERYTHING], "filter": [{"term": {"_index": "{{index}}"}}]}}
        params = PARAMS | {"index": stack.index}
        everywhere = {"source": {**SOURCE, "query": only, "size": 7}, "params": params}
        for reply in (
            templated(stack, {"id": template_id, "params": PARAMS}),
            call(stack.gateway, "GET", "/_search/template", everywhere),
        ):
            assert reply.status == 200, reply.body
            assert reply.ids == expected.ids
        url = "?filter_path=hits.hits._id&track_total_hits=false"
        assert templated(stack, {"id": template_id, "params": PARAMS}, url).ids == expected.ids
    finally:
        call(stack.engine, "DELETE", f"/_scripts/{template_id}")
    gone = templated(stack, {"id": template_id})
    assert gone.status == 404


def test_other_templates_reach_the_engine_as_they_came(stack: SearchStack) -> None:
    native = {"source": {"query": {"match": {"kind": "{{word}}"}}}, "params": PARAMS}
    credentials = {"authorization": "Basic dGVzdA==", "content-type": "application/json"}
    simulated = {"source": AS_TEXT, "params": PARAMS, "simulate": True}
    broken = {"source": '{"query": {{{', "params": {"x": "ttc"}}
    with relay(stack.engine) as between, gateway_to(between.url) as gateway:
        for body, rendered in ((native, 0), (simulated, 0), (broken, 1)):
            between.passed.clear()
            direct = call(stack.engine, "POST", f"/{stack.index}/_search/template", body)
            reply = call(gateway, "POST", f"/{stack.index}/_search/template", orjson.dumps(body), credentials)
            assert reply.status == direct.status
            *before, last = (request for request in between.passed if request.target != "/")  # the version
            assert [request.target for request in before] == ["/_render/template"] * rendered
            assert last.body == orjson.dumps(body)
            assert all(request.headers["authorization"] == credentials["authorization"] for request in before)


def multi(url: str, index: str, items: list[dict[str, Any]], query: str = "") -> Reply:
    lines = [line for item in items for line in ({"index": index}, item)]
    return call(url, "POST", f"/_msearch/template{query}", lines)


def test_every_item_of_several_templates_stands_alone(stack: SearchStack, renders: bool, index_name: str) -> None:
    native = {"source": {"query": {"match": {"kind": "{{word}}"}}, "size": 2}, "params": PARAMS}
    inline: dict[str, Any] = {"source": AS_TEXT, "params": PARAMS}
    if not renders:
        direct, reply = (multi(url, stack.index, [native, inline]) for url in (stack.engine, stack.gateway))
        assert (reply.status, reply.json()) == (direct.status, direct.json())
        return
    template_id = stored(stack, index_name)
    wrong = inline | {"params": PARAMS | {"section": {"metod": "spectral"}}}
    broken = {"source": '{"query": {{{', "params": {"x": "ttc"}}
    items = [inline, native, wrong, {"id": template_id, "params": PARAMS}, {"id": "no-such"}, broken]
    collapsing = {"source": BODY | {"collapse": {"field": "number"}, "rescore": ttc_rescore() | {"window_size": 3}}}
    try:
        reply = multi(stack.gateway, stack.index, [*items, collapsing])
        natives = multi(stack.engine, stack.index, items).json()["responses"]
    finally:
        call(stack.engine, "DELETE", f"/_scripts/{template_id}")
    assert reply.status == 200, reply.body
    assert reply.headers["x-ttc-applied"] == "true"
    first, second, third, fourth, *refused, last = reply.json()["responses"]
    expected = search(stack.gateway, stack.index, BODY).json()
    assert first["hits"] == fourth["hits"] == expected["hits"]
    assert second | {"took": 0} == natives[1] | {"took": 0}
    assert (third["status"], third["error"]["type"]) == (400, "illegal_argument_exception")
    assert "did you mean [method]?" in third["error"]["reason"]
    assert refused == natives[4:]
    assert len(last["hits"]["hits"]) == 7
    only = multi(stack.gateway, stack.index, [inline], "?filter_path=responses.hits.hits._id&rest_total_hits_as_int")
    assert [hit["_id"] for hit in only.json()["responses"][0]["hits"]["hits"]] == [
        hit["_id"] for hit in expected["hits"]["hits"]
    ]


def test_other_templates_of_several_reach_the_engine_as_they_came(stack: SearchStack) -> None:
    native = {"source": {"query": {"match": {"kind": "{{word}}"}}}, "params": PARAMS}
    for items in ([native, native], [], [{"id": "no-such"}]):
        direct, reply = (multi(url, stack.index, items) for url in (stack.engine, stack.gateway))
        assert reply.status == direct.status
        assert _timeless(reply) == _timeless(direct)


def _timeless(reply: Reply) -> Any:
    answer = reply.json()
    for one in [answer, *answer.get("responses", ())]:
        one.pop("took", None)
    return answer
