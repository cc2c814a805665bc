"""A search in two requests: a window without stored fields, then the hits of the page.

If the engine reads one stored field of a hit, also its `_id`, it decompresses all of them, including token vectors.
Ranks, scores, content hashes and sequence numbers come from doc values. So a wide window is requested bare, without
stored fields, and only the hits of the page are requested as in the caller's request. So are the hits of documents that
join a window, which the search for them returns bare. The hits of an attached index have ids too, by which features are
located. If hashes and sequence numbers do not tell which document is which, or a document has changed in between, the
caller's request is sent as one.

Where documents join, aggregations are requested over the union of what the query matches and what joins.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from es_ttc.index.mappings.spec import HASH
from es_ttc.serving.features.keys import SEQ_NO_FIELD, ContentId, content_ids, content_of
from es_ttc.serving.plan.bodies import OF_HITS, OF_THE_SEARCH, has_top_hits, unsafe_params
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.query import has_objects, without_inner_hits
from es_ttc.serving.request.request import shared_parts

_MIN_PAGES = 3
"""Minimum ratio of the window's size to the number of complete hits; measured in benchmarks/gateway.py."""

_OF_HITS_IN_AGGREGATIONS = frozenset({"fields", "seq_no_primary_term"})
"""Parts of the search that Elasticsearch's `top_hits` aggregation uses too."""

_OF_BOTH = frozenset(
    {"derived", "ext", "indices_boost", "pit", "post_filter", "query", "runtime_mappings", "stats", "timeout"}
)
_OURS_OF_A_HIT = frozenset({"_explanation", "_score", "_ttc"})
_OURS = frozenset({"from", "rescore", "size"})
_NOT_OF_THE_UNION = OF_HITS | _OURS | {"explain", "profile", "stored_fields", "suggest"}


def can_split(plan: SearchPlan) -> bool:
    """Return whether a search can be sent in two requests, and is faster so."""
    query = plan.body.get("query", {})
    return (
        plan.page.fetch >= _MIN_PAGES * plan.completed > 0
        and plan.body.keys() <= OF_HITS | OF_THE_SEARCH | _OF_BOTH | _OURS
        and isinstance(query, dict)
        and "hybrid" not in query
        and not _has_completion(plan.body.get("suggest"))
        and not has_inner_hits([query, plan.body.get("post_filter")])
        and len(plan.body.get("rescore", [])) == 1
        and not unsafe_params(plan.params)
        and not plan.hide_ids
        and not plan.explain
        and not (plan.body.keys() & _OF_HITS_IN_AGGREGATIONS and has_top_hits(plan.body))
    )


def _has_completion(suggest: Any) -> bool:
    """Return whether a suggester returns documents, which then lack their stored fields too."""
    named = suggest.values() if isinstance(suggest, dict) else ()
    return any(isinstance(one, dict) and "completion" in one for one in named)


def has_inner_hits(part: Any) -> bool:
    """Return whether a query asks for inner hits, which the engines cannot read without stored fields."""
    if isinstance(part, list):
        return has_objects(part) and any(map(has_inner_hits, part))
    return isinstance(part, dict) and ("inner_hits" in part or any(map(has_inner_hits, part.values())))


def these(hits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a query for the documents of hits: by content and sequence number, or by id if they have no content."""
    contents = sorted({content for hit in hits if (content := content_of(hit)) is not None})
    numbers = sorted(
        {hit["fields"][SEQ_NO_FIELD][0] for hit in hits if content_of(hit) and SEQ_NO_FIELD in hit["fields"]}
    )
    ids = sorted({str(hit["_id"]) for hit in hits if content_of(hit) is None})
    numbered = [{"terms": {SEQ_NO_FIELD: numbers}}] if numbers else []  # an index may keep none
    by_content = {"bool": {"filter": [{"terms": {HASH: contents}}, *numbered]}}
    by_id = {"ids": {"values": ids}}
    if contents and ids:
        return {"bool": {"should": [by_content, by_id]}}
    return by_content if contents else by_id


def full_hits(
    body: Mapping[str, Any], hits: Sequence[Mapping[str, Any]], filters: Sequence[Any], size: int
) -> dict[str, Any]:
    """Return the request for bare hits with the fields of the caller's whole request.

    A document that the caller's query does not match must match the filters. ``size`` is one that the engine has
    accepted: :func:`these` may find more documents than hits.
    """
    rest = {key: value for key, value in body.items() if key not in OF_THE_SEARCH | _OURS}
    of_hits = these(hits)  # also beside the filters, whose scripts then run over few documents
    matching = [body.get("query") or {"match_all": {}}, {"bool": {"filter": [of_hits, *filters]}}]
    query = {"bool": {"should": matching, "filter": [of_hits], "minimum_should_match": 1}}
    return rest | {"query": query, "from": 0, "size": size, "track_total_hits": False}


def named_hits(body: Mapping[str, Any], hits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the request for the ids of bare hits, in indices of one shard each, by their sequence numbers."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for hit in hits:
        numbers[hit["_index"]] += hit.get("fields", {}).get(SEQ_NO_FIELD, ())
    writes = {index: {"terms": {SEQ_NO_FIELD: of_index}} for index, of_index in numbers.items()}
    return _of_documents(body, writes, len(hits)) | {"docvalue_fields": [SEQ_NO_FIELD]}


def hits_with_texts(
    body: Mapping[str, Any], hits: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> dict[str, Any]:
    """Return the request for text fields of hits with ids."""
    ids: dict[str, list[str]] = defaultdict(list)
    for hit in hits:
        ids[hit["_index"]].append(hit["_id"])
    named = {index: {"ids": {"values": of_index}} for index, of_index in ids.items()}
    return _of_documents(body, named, len(hits)) | {"docvalue_fields": [HASH, SEQ_NO_FIELD], "fields": [*fields]}


def _of_documents(body: Mapping[str, Any], by_index: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the request for documents that match the query of their index."""
    documents = [{"bool": {"filter": [{"term": {"_index": index}}, query]}} for index, query in by_index.items()]
    asked = {"_source": False, "size": size, "track_total_hits": False}
    return {**shared_parts(body), **asked, "query": {"bool": {"filter": [{"bool": {"should": documents}}]}}}


def by_further_keys(plan: SearchPlan, hits: Sequence[Mapping[str, Any]], filters: Sequence[Any]) -> dict[str, Any]:
    """Return the request for the order of hits by the keys of `sort` after the score, which is the same for all.

    The score stays the first key: engines search shards in another order if a field is.
    """
    body = {key: value for key, value in plan.body.items() if key not in OF_HITS}
    asked = {"_source": False, "docvalue_fields": [HASH, SEQ_NO_FIELD]}
    request = full_hits(body | asked, hits, filters, max(len(hits), plan.page.fetch))
    return request | {"query": {"bool": {"filter": [request["query"]]}}}


def places_in(ordered: Sequence[Mapping[str, Any]], hits: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the place of each hit's document among complete hits; the last place if it is gone."""
    named = {(hit["_index"], hit["_id"]) for hit in hits if "_id" in hit}
    places: dict[Any, list[int]] = {}
    for place, (hit, identity) in enumerate(zip(ordered, content_ids(ordered), strict=True)):
        key = hit["_index"], hit.get("_id")
        places.setdefault(key if key in named else identity, []).append(place)
    keys = [
        (hit["_index"], hit["_id"]) if "_id" in hit else identity
        for hit, identity in zip(hits, content_ids(hits), strict=True)
    ]
    return [places[key].pop(0) if places.get(key) else len(ordered) for key in keys]


def filled(
    page: Sequence[dict[str, Any]],
    bare: Sequence[dict[str, Any]],
    full: Sequence[dict[str, Any]],
    others: Sequence[Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]] | None:
    """Return a page with complete hits in place of bare ones, without documents that are gone.

    ``full`` may contain further documents of the same identity. ``others`` are complete hits of all documents that may
    have it and are not among those of the bare hits; without them, None if only ids tell which documents are meant.
    """
    named = {(hit["_index"], hit["_id"]) for hit in others or () if "_id" in hit}
    complete: dict[ContentId, list[dict[str, Any]]] = {}
    for hit, identity in zip(full, content_ids(full), strict=True):
        if (hit["_index"], hit.get("_id")) not in named:
            complete.setdefault(identity, []).append(hit)
    if others is None and any(len(hits) > 1 for hits in complete.values()):
        return None
    of_bare = {id(hit): complete.get(identity, []) for hit, identity in zip(bare, content_ids(bare), strict=True)}
    whole = []
    for hit in page:
        if id(hit) not in of_bare:
            whole.append(hit)
        elif of_bare[id(hit)]:
            ours = {key: value for key, value in hit.items() if key in _OURS_OF_A_HIT}
            whole.append({**of_bare[id(hit)].pop(0), **ours})
    return whole


def union(query: Any, joined: Sequence[Mapping[str, Any]], filters: Sequence[Any]) -> Any:
    """Return a query for what another one matches, and for documents that joined, with a score of 0."""
    query = without_inner_hits(query) or {"match_all": {}}
    if not joined:
        return query
    return {"bool": {"should": [query, {"bool": {"filter": [these(joined), *filters]}}]}}


def aggregated(body: Mapping[str, Any], joined: Sequence[Mapping[str, Any]], filters: Sequence[Any]) -> dict[str, Any]:
    """Return the request for the aggregations of the union, without hits."""
    rest = {key: value for key, value in body.items() if key not in _NOT_OF_THE_UNION}
    return rest | {"query": union(body.get("query"), joined, filters), "size": 0, "track_total_hits": False}
