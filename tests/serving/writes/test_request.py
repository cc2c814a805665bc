"""Which requests write documents, and which may change what an index's name stands for."""

import pytest

from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.writes.answers import is_json, may_change_indices, pipeline_of, write_in


async def nothing() -> dict[str, object]:
    return {}


def request(line: str, **headers: str) -> RawRequest:
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    return RawRequest(scope | {"headers": sent}, nothing)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("POST /_bulk", ("_bulk", None)),
        ("PUT //a//_bulk/?refresh", ("_bulk", "a")),
        ("PUT /%E4%B8%AD/_doc/a%2Fb", ("_doc", "中")),
        ("POST /a/_doc", ("_doc", "a")),
        ("PUT /a/_create/_doc", ("_create", "a")),
        ("POST /a/_update/1", ("_update", "a")),
        ("GET /a/_doc/1", None),
        ("DELETE /a/_doc/1", None),
        ("PUT /a", None),
        ("POST /a/_search", None),
        ("POST /a/_update_by_query", None),
        ("POST /_reindex", None),
    ],
)
def test_requests_that_write(line: str, expected: tuple[str, str | None] | None) -> None:
    assert write_in(request(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("DELETE /a", True),
        ("DELETE /a/_alias/b", True),
        ("DELETE /a/_doc/1", False),
        ("PUT /a/_settings", True),
        ("PUT /_ingest/pipeline/p", True),
        ("POST /_aliases", True),
        ("POST /a/_rollover/b", True),
        ("POST /_snapshot/r/s/_restore", True),
        ("POST /a/_search", False),
        ("POST /a/_delete_by_query", False),
        ("GET /a", False),
    ],
)
def test_requests_after_which_indices_may_be_others(line: str, expected: bool) -> None:
    assert may_change_indices(request(line)) is expected


def test_write_request_reads_pipelines_and_media_types() -> None:
    assert pipeline_of(request("PUT /a/_doc/1?refresh&pipeline=p%20q")) == "p q"
    assert pipeline_of(request("PUT /a/_doc/1?pipeline")) == ""
    assert pipeline_of(request("PUT /a/_doc/1?x=pipeline")) is None
    for media, one, several in (
        ("application/json", True, True),
        ("Application/JSON; charset=UTF-8", True, True),
        ("application/vnd.elasticsearch+json; compatible-with=9", True, True),
        ("application/vnd.elasticsearch+x-ndjson;compatible-with=8", False, True),
        ("application/x-ndjson", False, True),
        ("application/json; charset=latin-1", False, False),
        ("application/cbor", False, False),
        ("text/plain", False, False),
        ("", False, False),
    ):
        sent = request("POST /a/_bulk", content_type=media)
        assert (is_json(sent, "_doc"), is_json(sent, "_bulk")) == (one, several)
