"""The bodies that the engine gets for one search: whole, bare, plain; and what the response hides of them.

The engine gets the caller's request without the section, from the first hit to the end of the last block of the page. A
native rescorer that matches nothing replaces the section: it changes no score, and so the engine itself applies the
rules of a native rescore (no `sort`, no `scroll`, `max_rescore_window`) with its own messages. Exceptions, sent without
that rescorer, are a sort by score and then by further keys, and a `retriever`, which allows no `rescore` beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.serving.features.keys import IDENTIFYING_FIELDS, SEQ_NO_FIELD
from es_ttc.serving.plan.highlights import Highlight
from es_ttc.serving.request.body import url_integer
from es_ttc.serving.request.query import PARAMS_OF_QUERY, query_of_url
from es_ttc.serving.request.section import KEY

NAMED_SCORES = "include_named_queries_score"
NO_STORED_FIELDS = "_none_"
_NEED_STORED_FIELDS = frozenset({"_source_excludes", "_source_includes", "fields", "highlight", "script_fields"})
OF_HITS = frozenset(
    {"_source", "docvalue_fields", "fields", "highlight", "script_fields", "seq_no_primary_term", "version"}
)
"""Parts of a body that affect only the contents of hits."""
AGGREGATIONS = frozenset({"aggregations", "aggs"})
OF_THE_SEARCH = AGGREGATIONS | {"min_score", "profile", "suggest", "terminate_after", "track_total_hits"}
"""Parts of a body that concern the whole search and no single hit."""
_SAFE_PARAMS = frozenset(
    {
        "allow_no_indices", "allow_partial_search_results", "batched_reduce_size", "cancel_after_time_interval",
        "ccs_minimize_roundtrips", "error_trace", "expand_wildcards", "human", "ignore_throttled", "ignore_unavailable",
        "include_named_queries_score", "max_concurrent_shard_requests", "phase_took", "pre_filter_shard_size",
        "preference", "request_cache", "rest_total_hits_as_int", "routing", "search_type", "stats", "timeout",
        "track_scores", "track_total_hits", "typed_keys",
    }
)  # fmt: skip
"""URL parameters with the same meaning in a second request for the same documents."""
_OF_MATCHING = frozenset({*PARAMS_OF_QUERY, "scroll", "search_pipeline", "sort", "terminate_after"})
_SAFE_VALUES: Mapping[str, tuple[str, ...]] = {
    "search_pipeline": ("_none",),
    "sort": ("_score", "_score:desc"),
}
"""URL parameters that mean nothing with these values."""
PARAMS_OF_SOURCE = frozenset({"_source", "_source_excludes", "_source_includes", "stored_fields"})
PARAMS_OF_HITS = PARAMS_OF_SOURCE | {"explain", "seq_no_primary_term", "version"}
"""URL parameters that affect only the contents of hits."""


def with_url(body: Mapping[str, Any], url: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a body with the URL parameters that say which documents are found, and their doc values; and the others.

    Further searches have other parameters, and OpenSearch gives doc values twice that two places ask for.
    """
    body, url = dict(body), dict(url)
    query = query_of_url(url)
    if query is not None:
        body["query"] = query
        url = {name: value for name, value in url.items() if name not in PARAMS_OF_QUERY}
    if url.get("sort") and not body.get("sort"):
        keys = [name.rpartition(":") for name in url["sort"].split(",")]
        if all(order in ("asc", "desc") for field, _, order in keys if field):
            body["sort"] = [{field: order} if field else order for field, _, order in keys]
            del url["sort"]
    ends = url_integer(url.get("terminate_after", ""))
    if ends is not None and ends >= 0:
        body["terminate_after"] = ends
        del url["terminate_after"]
    names = url.pop("docvalue_fields", "")
    if names:
        body["docvalue_fields"] = [*as_list(body.get("docvalue_fields", [])), *names.split(",")]
    return body, url


def hides_ids(body: Mapping[str, Any], url: Mapping[str, str]) -> bool:
    """Return whether the caller requests hits without `_id`, by `stored_fields: _none_`.

    Not a request with a part that needs stored fields, or that returns ids in any case.
    """
    source_wanted = url["_source"] != "false" if "_source" in url else body.get("_source", False) is not False
    if source_wanted or not _NEED_STORED_FIELDS.isdisjoint(body.keys() | url.keys()):
        return False
    return url.get("stored_fields", body.get("stored_fields")) in (NO_STORED_FIELDS, [NO_STORED_FIELDS])


def whole_body(
    body: Mapping[str, Any],
    fetch: int,
    rescorers: Sequence[Any],
    fields: Sequence[str],
    texts: Sequence[str],
    group: str | None,
) -> dict[str, Any]:
    """Return the request for the first ``fetch`` hits, with doc values and texts that the caller did not ask for.

    Args:
        body: The caller's search without `rescore` and `collapse`.
        fetch: The number of hits.
        rescorers: The native rescorers, and that in place of the sections; none for a search without `rescore`.
        fields: Doc values to add.
        texts: Fields to add to the hits' `fields`.
        group: The field by which the caller collapses, or None.
    """
    asked = [*as_list(body.get("docvalue_fields", [])), *fields]
    if group is not None and not any(matches(entry, group) for entry in asked):
        asked.append(group)  # not hidden: the engines return it too
    whole = {**body, "docvalue_fields": asked, "from": 0, "size": fetch}
    if texts:
        whole["fields"] = [*body.get("fields", []), *texts]
    return whole | ({"rescore": [*rescorers]} if rescorers else {})


def guard(window: int) -> dict[str, Any]:
    """Return the native rescorer that replaces the section: it matches nothing."""
    return {"window_size": window, "query": {"rescore_query": {"match_none": {}}}}


def doc_values_to_ask(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the doc values that identify a document's features and that the caller did not request."""
    missing = not_asked(body, (HASH, ENCODER))
    # no pattern matches it; `seq_no_primary_term` would also affect `top_hits`
    return missing if SEQ_NO_FIELD in map(_field_name, _fields_of_hits(body)) else (*missing, SEQ_NO_FIELD)


def texts_to_ask(body: Mapping[str, Any], highlights: Sequence[Highlight]) -> tuple[str, ...]:
    """Return the highlighted fields whose texts the caller did not request in `fields`."""
    if not highlights:
        return ()
    if has_top_hits(body):
        raise InvalidRequest(
            f"[highlight] with type [{KEY}] cannot be used with an aggregation [top_hits]: send them in two searches"
        )
    asked = body.get("fields", [])
    if not isinstance(asked, list):
        return ()  # the engine returns the error
    names = dict.fromkeys(highlight.field for highlight in highlights)
    return tuple(name for name in names if not any(matches(entry, name) for entry in asked))


def bare_body(body: Mapping[str, Any], fields: Iterable[str], *, with_ids: bool) -> dict[str, Any]:
    """Return a request for ranks, scores, doc values and perhaps ids, with the parts that concern the whole search."""
    rest = {key: value for key, value in body.items() if key not in OF_HITS}
    stored: dict[str, Any] = {"_source": False} if with_ids else {"stored_fields": NO_STORED_FIELDS}
    return rest | {**stored, "docvalue_fields": [*IDENTIFYING_FIELDS, *fields]}


def params_of_matching(params: Sequence[tuple[str, str]]) -> list[str]:
    """Return the URL parameters that decide which documents are found or how they are scored."""
    return [name for name, value in params if name in _OF_MATCHING and value not in _SAFE_VALUES.get(name, ())]


def unsafe_params(params: Sequence[tuple[str, str]]) -> list[str]:
    """Return the URL parameters by which a further request may find other documents, or other contents of hits."""
    return [name for name, value in params if name not in _SAFE_PARAMS and value not in _SAFE_VALUES.get(name, ())]


def has_top_hits(part: Any) -> bool:
    """Return whether one of the aggregations of a body, or of an aggregation, is `top_hits`."""
    if not isinstance(part, dict):
        return False
    named = [one for key in AGGREGATIONS if isinstance(part.get(key), dict) for one in part[key].values()]
    return "top_hits" in part or any(map(has_top_hits, named))


def not_asked(body: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return those fields that the hits of a search do not contain."""
    asked = _fields_of_hits(body)
    return tuple(name for name in names if not any(matches(entry, name) for entry in asked))


def matches(entry: Any, name: str) -> bool:
    """Return whether an entry of `docvalue_fields`, or of `fields`, names a field, by a pattern or in full."""
    return fnmatchcase(name, _field_name(entry))


def as_list(value: Any) -> list[Any]:
    """Return the entries of a key that takes one or several."""
    return value if isinstance(value, list) else [value]


def _fields_of_hits(body: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a body that name fields of hits, or patterns of them."""
    fields = body.get("fields")
    return [*as_list(body.get("docvalue_fields", [])), *(fields if isinstance(fields, list) else [])]


def _field_name(entry: Any) -> str:
    return str(entry.get("field", "")) if isinstance(entry, dict) else str(entry)
