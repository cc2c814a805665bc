"""Requests in the shapes that tools send, through the gateway and to the engine alone: the same answers."""

import gzip
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
CAT = {"match": {"text": {"query": "a cat that drinks milk", "operator": "or"}}}
OF_A_RUN = frozenset(
    {"completion_time_in_millis", "expiration_time_in_millis", "id", "ingest_took", "start_time_in_millis", "took"}
)
"""What differs between two answers of one engine."""

DISCOVER = {
    "sort": [{"number": {"order": "desc", "unmapped_type": "boolean"}}],
    "fields": [{"field": "*"}],
    "size": 5,
    "version": True,
    "script_fields": {},
    "stored_fields": ["*"],
    "_source": False,
    "query": {"bool": {"must": [], "filter": [CAT], "should": [], "must_not": []}},
    "highlight": {
        "pre_tags": ["@kibana-highlighted-field@"],
        "post_tags": ["@/kibana-highlighted-field@"],
        "fields": {"*": {}},
        "fragment_size": 2147483647,
    },
}
SEARCHES: dict[str, tuple[str, Any]] = {
    "Kibana's Discover asks for fields, an unmapped sort and highlights, in a search that may go on": (
        "/{index}/_async_search?batched_reduce_size=64&ccs_minimize_roundtrips=true&ignore_unavailable=true"
        "&keep_alive=60000ms&keep_on_completion=false&preference=1795&wait_for_completion_timeout=200ms",
        DISCOVER,
    ),
    "Where the engine has no such search, it is an ordinary one": (
        "/{index}/_search?batched_reduce_size=64&ccs_minimize_roundtrips=true&preference=1795",
        DISCOVER,
    ),
    "Kibana and Dashboards draw panels by _msearch, one line with indices and preference, one with aggregations": (
        "/_msearch?max_concurrent_shard_requests=5&rest_total_hits_as_int=true",
        [
            {"index": ["{index}"], "ignore_unavailable": True, "preference": 1795},
            {"aggs": {"2": {"terms": {"field": "group.keyword", "order": {"_count": "desc"}, "size": 5}}}, "size": 0,
             "stored_fields": ["*"], "script_fields": {}, "docvalue_fields": [], "_source": {"excludes": []},
             "query": {"bool": {"must": [], "filter": [{"match_all": {}}], "should": [], "must_not": []}}},
        ],
    ),
    "Grafana sends a histogram of each panel in one _msearch": (
        "/_msearch",
        [
            {"search_type": "query_then_fetch", "ignore_unavailable": True, "index": "{index}"},
            {"size": 0, "query": {"bool": {"filter": [{"query_string": {"analyze_wildcard": True, "query": "cat"}}]}},
             "aggs": {"2": {"histogram": {"interval": 10, "field": "number", "min_doc_count": 0,
                                          "extended_bounds": {"min": 0, "max": 60}}}}},
            {"index": "{index}-none"},
            {"query": {"match_all": {}}},
        ],
    ),
    "Kibana's data views ask which fields there are, within a filter": (
        "/{index}/_field_caps?fields=*&ignore_unavailable=true&allow_no_indices=false",
        {"index_filter": {"range": {"number": {"gte": 0}}}},
    ),
    "Searchkick adds a fuzzy match with less weight to the plain one, and reads ids only": (
        "/{index}/_search",
        {"query": {"bool": {"should": [
            {"dis_max": {"queries": [
                {"multi_match": {"query": "cat milk", "boost": 10, "operator": "and", "fields": ["text", "title^2"],
                                 "type": "best_fields"}},
                {"multi_match": {"query": "cat milk", "boost": 1, "operator": "and", "fields": ["text", "title^2"],
                                 "fuzziness": 1, "prefix_length": 0, "max_expansions": 3,
                                 "fuzzy_transpositions": True}}]}}]}},
         "timeout": "11000ms", "_source": False, "size": 10},
    ),
    "ElasticPress lets matches decay with age and filters facets after them": (
        "/{index}/_search",
        {"from": 0, "size": 10, "sort": [{"_score": {"order": "desc"}}], "track_total_hits": True,
         "query": {"function_score": {
             "query": {"bool": {"should": [
                 {"multi_match": {"query": "drinks milk", "type": "phrase", "fields": ["title", "text"], "boost": 3}},
                 {"multi_match": {"query": "cat milk", "fields": ["title", "text"], "type": "cross_fields",
                                  "analyzer": "standard", "operator": "and"}}]}},
             "functions": [{"exp": {"number": {"origin": 30, "scale": 14, "decay": 0.25, "offset": 7}}}],
             "score_mode": "avg", "boost_mode": "sum"}},
         "post_filter": {"bool": {"must": [{"terms": {"group.keyword": ["g1", "g2"]}}]}},
         "aggs": {"terms": {"filter": {"match_all": {}}, "aggs": {"group": {"terms": {"field": "group.keyword"}}}}}},
    ),
    "ElasticSuite sorts by score and then by an id that some indices lack": (
        "/{index}/_search?track_total_hits=2147483647",
        {"query": {"bool": {"filter": {"bool": {"must": [{"terms": {"group.keyword": ["g1", "g3"], "boost": 1}}],
                                                "must_not": [], "should": [], "boost": 1}},
                            "must": {"bool": {"must": [], "should": [CAT], "minimum_should_match": 1}}}},
         "sort": [{"_score": {"order": "desc"}},
                  {"entity_id": {"order": "desc", "missing": "_first", "unmapped_type": "keyword"}}],
         "size": 3},
    ),
    "CirrusSearch rescores twice and asks for a suggestion": (
        "/{index}/_search?timeout=20s&search_type=dfs_query_then_fetch",
        {"_source": ["title"], "stored_fields": ["number"], "stats": ["full_text"], "size": 5,
         "query": {"bool": {"minimum_should_match": 1, "should": [
             {"query_string": {"query": "cat milk", "fields": ["text^0.5", "title^3"], "default_operator": "AND",
                               "auto_generate_synonyms_phrase_query": False, "phrase_slop": 0}}]}},
         "highlight": {"pre_tags": ["\ue000"], "post_tags": ["\ue001"], "fields": {"text": {"number_of_fragments": 1}}},
         "suggest": {"text": "cat mlk", "suggest": {"phrase": {"field": "text", "size": 1, "max_errors": 2}}},
         "rescore": [
             {"window_size": 512, "query": {"query_weight": 1, "rescore_query_weight": 10, "rescore_query": {
                 "match_phrase": {"text": {"query": "cat milk", "slop": 1}}}}},
             {"window_size": 8192, "query": {"rescore_query": {"function_score": {"functions": [
                 {"field_value_factor": {"field": "number", "modifier": "log2p", "missing": 0}}]}},
                 "score_mode": "multiply"}}]},
    ),
    "RAGFlow weighs a query string by field and asks for highlights and a page": (
        "/{index}/_search?track_total_hits=true&timeout=600s",
        {"query": {"bool": {"filter": [{"terms": {"group.keyword": ["g1", "g2"]}}],
                            "must": {"query_string": {"fields": ["title^10", "text^5"], "type": "best_fields",
                                                      "query": '((cat)^0.7 (milk)^0.3 "cat milk"~2)',
                                                      "minimum_should_match": "30%", "boost": 0.05}}}},
         "highlight": {"fields": {"text": {}, "title": {}}}, "from": 0, "size": 6},
    ),
    "Dify's full-text search names the documents that may be found": (
        "/{index}/_search?size=4",
        {"query": {"bool": {"must": CAT, "filter": [{"terms": {"group.keyword": ["g0", "g1", "g2"]}}]}}},
    ),
    "Open WebUI filters by an exact value and reads parts of the documents": (
        "/{index}/_search",
        {"query": {"bool": {"filter": [{"match": {"group": "g1"}}]}}, "size": 10, "_source": ["text", "title"]},
    ),
}  # fmt: skip

ACTION = b'{"create":{"_index":"%s"}}'
DOCUMENTS = b'{"message":"one"}', b'{"message":"two"}'
JOINED = b"".join(ACTION + b"\n" + one + b"\n" for one in DOCUMENTS)
WRITES: dict[str, tuple[str, list[bytes], dict[str, str]]] = {
    "Logstash compresses, and reads only the errors": ("?filter_path=errors,items.*.error,items.*.status", [JOINED],
                                                      {"content-encoding": "gzip"}),
    "Filebeat's batches are several members of gzip": ("", [JOINED, JOINED], {"content-encoding": "gzip"}),
    "Fluent Bit's body may lack its last line break": ("", [JOINED.rstrip()], {}),
    "Vector on Windows ends lines with CR and LF": ("", [JOINED.replace(b"\n", b"\r\n")], {}),
    "A file of another editor begins with a byte order mark": ("", [b"\xef\xbb\xbf" + JOINED], {}),
    "A body that a proxy cut is a member of gzip without its end": ("", [JOINED], {"content-encoding": "gzip, cut"}),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SEARCHES)
def test_searches_in_the_form_of_tools_are_rescored(stack: SearchStack, sentence: str) -> None:
    target, body = SEARCHES[sentence]
    lines = isinstance(body, list)
    sent = b"".join(orjson.dumps(one) + b"\n" for one in body) if lines else orjson.dumps(body)
    sent, path = sent.replace(b"{index}", stack.index.encode()), target.replace("{index}", stack.index)
    through, direct = (call(url, "POST", path, sent, LINES if lines else JSON) for url in (stack.gateway, stack.engine))
    assert answer(through) == answer(direct)


@pytest.mark.parametrize("sentence", WRITES)
def test_writes_in_the_form_of_tools_are_forwarded(stack: SearchStack, pair: tuple[str, str], sentence: str) -> None:
    query, parts, headers = WRITES[sentence]
    answers = []
    for url, index in zip((stack.gateway, stack.engine), pair, strict=True):
        named = [part.replace(b"%s", index.encode()) for part in parts]
        if headers:
            named = [gzip.compress(part, mtime=0) for part in named]
        body = b"".join(named)[: -8 if "cut" in str(headers) else None]
        sent = LINES | ({"content-encoding": "gzip"} if headers else {})
        written = call(url, "POST", f"/_bulk{query}", body, sent)
        call(url, "POST", f"/{index}/_refresh")
        found = call(url, "GET", f"/{index}/_search?sort=message.keyword&filter_path=hits.hits._source,hits.total")
        answers.append([answer(one, index) for one in (written, found)])
    assert answers[0] == answers[1]


@pytest.fixture
def pair(stack: SearchStack) -> Iterator[tuple[str, str]]:
    """Two empty indices, one to write to through the gateway and one without."""
    names = tuple(f"shapes-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in names:
        mapping = {"message": {"type": "text", "fields": {"keyword": {"type": "keyword"}}}}
        call(stack.engine, "PUT", f"/{name}", {"mappings": {"properties": mapping}})
    yield names[0], names[1]
    call(stack.engine, "DELETE", f"/{','.join(names)}")


def answer(reply: Reply, index: str = "-") -> Any:
    """Return status, type and body of a reply without what differs between two answers."""
    body = without(orjson.loads(reply.body.replace(index.encode(), b"-")))
    return reply.status, reply.headers["content-type"], body


def without(part: Any) -> Any:
    if isinstance(part, list):
        return [without(one) for one in part]
    if isinstance(part, dict):
        own = "_id" if "_version" in part and "result" in part else ""  # an id that the engine has given
        return {key: without(value) for key, value in part.items() if key not in OF_A_RUN and key != own}
    return part
