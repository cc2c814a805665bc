"""A search in two requests: a window without stored fields, then the hits of the page.

If the engine reads one stored field of a hit, also its `_id`, it decompresses all of them, including token vectors.
Ranks, scores and content hashes come from doc values. So a wide window is requested bare, without stored fields, and
only the hits of the page are requested as in the caller's request, by the same query and their hashes. Documents with
equal content are identified by their order among each other, which is the same in both answers. If that is not certain,
or a document has changed in between, the caller's request is sent as one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.serving.features.keys import Mark, identity_mark, marks_of
from es_ttc.serving.rescore.demands import has_objects
from es_ttc.serving.rescore.plan import OF_HITS, OF_THE_SEARCH, SearchPlan, has_top_hits, unsafe_params

_MIN_PAGES = 3
"""Minimum ratio of the window's size to the number of complete hits; measured in benchmarks/gateway.py."""

_OF_HITS_IN_AGGREGATIONS = frozenset({"fields", "seq_no_primary_term"})
"""Parts of the search that Elasticsearch's `top_hits` aggregation uses too."""

_OF_BOTH = frozenset(
    {
        "derived",
        "ext",
        "indices_boost",
        "min_score",
        "pit",
        "post_filter",
        "query",
        "runtime_mappings",
        "stats",
        "timeout",
    }
)
_OURS_OF_A_HIT = frozenset({"_explanation", "_score", "_ttc"})
_OURS = frozenset({"from", "rescore", "size"})


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
        and not unsafe_params(plan.params, of_hits=False)
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


def bare_window(plan: SearchPlan) -> dict[str, Any]:
    """Return the request for ranks, scores and content hashes, with the parts that concern the whole search."""
    rest = {key: value for key, value in plan.body.items() if key not in OF_HITS}
    groups = [] if plan.collapse is None else [plan.collapse.field]
    asked = [HASH, ENCODER, VERSION, *plan.numbers, *groups]
    return rest | {"stored_fields": "_none_", "docvalue_fields": asked, "version": True}


def page_hits(
    body: Mapping[str, Any], marks: Iterable[Mark], alike: int, filters: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Return the request for the hits of a page.

    Args:
        body: The caller's whole request.
        marks: The marks of the page's documents.
        alike: Number of documents of the window with a hash of the page. The answer has the window's order, so as many
            hits are requested.
        filters: The queries that every document must match, if the page contains candidates, which may not match the
            query's text; None if all documents match the query.
    """
    hashes = {content for _, content, _ in marks}
    rest = {key: value for key, value in body.items() if key in OF_HITS | _OF_BOTH}
    query = body.get("query") or {"match_all": {}}
    these = {"terms": {HASH: sorted(hashes)}}
    matching = {"must": [query], "filter": [these]}
    if filters is not None:
        matching = {"should": [query], "filter": [these, *filters]}
    return rest | {
        "query": {"bool": matching},
        "from": 0,
        "size": alike,
        "track_total_hits": False,
    }


def filled(
    bare: Sequence[Mapping[str, Any]], marks: Sequence[Mark], full: Sequence[Any]
) -> list[dict[str, Any]] | None:
    """Return the page's hits with the caller's fields and the bare hits' scores; None if a document has changed."""
    found = {mark: hit for mark, hit in zip(marks_of(full), full, strict=True) if mark is not None}
    hits = []
    for thin, mark in zip(bare, marks, strict=True):
        if mark not in found:
            return None
        ours = {key: thin[key] for key in ("_score", "_ttc") if key in thin}
        hits.append({**found[mark], **ours})
    return hits


def joined_hits(
    body: Mapping[str, Any], joined: Sequence[Mapping[str, Any]], filters: Sequence[Any], size: int, *, named: bool
) -> dict[str, Any]:
    """Return the request for the hits of candidates, with the caller's fields.

    Args:
        body: The caller's whole request.
        joined: The candidates' bare hits.
        filters: Queries that every document must match, apart from the query's text.
        size: Maximum number of hits, one that the engine has accepted: documents of equal content are all returned.
        named: Whether documents are identified by their ids, or by their content.
    """
    rest = {key: value for key, value in body.items() if key not in OF_THE_SEARCH | _OURS}
    these = (
        {"ids": {"values": sorted({str(hit["_id"]) for hit in joined})}}
        if named
        else {"terms": {HASH: sorted({str(hit["fields"][HASH][0]) for hit in joined})}}
    )
    query = body.get("query") or {"match_all": {}}
    return rest | {
        "query": {"bool": {"should": [query], "filter": [these, *filters]}},
        "from": 0,
        "size": size,
        "track_total_hits": False,
    }


def with_joined(
    page: Sequence[dict[str, Any]], joined: Sequence[dict[str, Any]], full: Sequence[dict[str, Any]], *, named: bool
) -> list[dict[str, Any]]:
    """Return a page with complete hits in place of bare ones; a document that was deleted in between is left out."""
    whole = {identity_mark(hit, named=named): hit for hit in reversed(full)}
    bare = {id(hit) for hit in joined}
    hits = []
    for hit in page:
        if id(hit) not in bare:
            hits.append(hit)
        elif (found := whole.get(identity_mark(hit, named=named))) is not None:
            hits.append({**found, **{key: value for key, value in hit.items() if key in _OURS_OF_A_HIT}})
    return hits
