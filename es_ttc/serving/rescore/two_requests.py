"""Two requests in place of one: a window without stored fields, then the page's own hits.

Reading one stored field of a hit, its `_id` included, makes the engine decompress all of them, token vectors too.
Ranks, scores and content hashes come from doc values alone; so a wide window is asked for bare, and only the hits that
are shown are asked for as the caller wants them, by the same query and their hashes. Documents of equal content are
told apart by their order among themselves, which is the same in both answers. Wherever that cannot hold, or a document
has changed in between, the caller's request is asked in one piece.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.serving.features.keys import Mark, identity_mark, marks_of
from es_ttc.serving.rescore.plan import SearchPlan

_MOST_JOINED = 1000
"""Hits that are read of documents which joined a window: those of equal content come together."""
_WORTH_IT = 3
"""How many times wider than the page a window must be; measured in benchmarks/gateway.py."""

OF_HITS = frozenset(
    {"_source", "docvalue_fields", "fields", "highlight", "script_fields", "seq_no_primary_term", "version"}
)
_OF_HITS_IN_AGGREGATIONS = frozenset({"fields", "seq_no_primary_term"})
"""What Elasticsearch's `top_hits` takes over from the search."""

OF_THE_SEARCH = frozenset({"aggregations", "aggs", "profile", "suggest", "track_total_hits"})
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
SAFE_PARAMS = frozenset(
    {
        "allow_no_indices", "allow_partial_search_results", "batched_reduce_size", "ccs_minimize_roundtrips",
        "error_trace", "expand_wildcards", "human", "ignore_unavailable", "max_concurrent_shard_requests",
        "pre_filter_shard_size", "preference", "request_cache", "rest_total_hits_as_int", "routing", "search_type",
        "timeout", "track_total_hits", "typed_keys",
    }
)  # fmt: skip


def can_split(plan: SearchPlan) -> bool:
    """Whether a search may be asked in two steps, and gains by it."""
    query = plan.body.get("query", {})
    return (
        plan.page.fetch >= _WORTH_IT * plan.page.size > 0
        and plan.body.keys() <= OF_HITS | OF_THE_SEARCH | _OF_BOTH | _OURS
        and isinstance(query, dict)
        and "hybrid" not in query
        and len(plan.body.get("rescore", [])) == 1
        and all(name in SAFE_PARAMS for name, _ in plan.params)
        and not plan.hide_ids
        and not plan.explain
        and not plan.section.detail  # which may name any document of the window, by its id
        and not (plan.body.keys() & _OF_HITS_IN_AGGREGATIONS and _shows_hits(plan.body))
    )


def _shows_hits(part: Any) -> bool:
    """Whether one of the aggregations shows hits of its own."""
    if not isinstance(part, dict):
        return False
    named = [one for key in ("aggs", "aggregations") if isinstance(part.get(key), dict) for one in part[key].values()]
    return "top_hits" in part or any(map(_shows_hits, named))


def bare_window(plan: SearchPlan) -> dict[str, Any]:
    """Return the request for ranks, scores and content hashes, with everything that belongs to the whole search."""
    rest = {key: value for key, value in plan.body.items() if key not in OF_HITS}
    groups = [] if plan.collapse is None else [plan.collapse.field]
    asked = [HASH, ENCODER, VERSION, *groups]
    return rest | {"stored_fields": "_none_", "docvalue_fields": asked, "version": True}


def page_hits(
    body: Mapping[str, Any], marks: Iterable[Mark], window: Iterable[Mark], demands: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Return the request for the hits of a page.

    Args:
        body: The caller's whole request.
        marks: The page's documents.
        window: All documents of the window. Those with a hash of the page's come first in the answer, since it has
            the window's order; so their number is enough.
        demands: What the query demands of every document beside its words, where the page holds documents that do not
            match the words; None where all match the query.
    """
    hashes = {content for _, content, _ in marks}
    rest = {key: value for key, value in body.items() if key in OF_HITS | _OF_BOTH}
    query = body.get("query") or {"match_all": {}}
    these = {"terms": {HASH: sorted(hashes)}}
    matching = {"must": [query], "filter": [these]}
    if demands is not None:
        matching = {"should": [query], "filter": [these, *demands]}
    return rest | {
        "query": {"bool": matching},
        "from": 0,
        "size": sum(content in hashes for _, content, _ in window),
        "track_total_hits": False,
    }


def filled(
    bare: Sequence[Mapping[str, Any]], marks: Sequence[Mark], full: Sequence[Any]
) -> list[dict[str, Any]] | None:
    """Return the page's hits as the caller wants them, with the scores and marks of the bare ones.

    Args:
        bare: The page's hits, in order.
        marks: Their marks.
        full: The hits of :func:`page_hits`.

    Returns:
        The hits, or None where one has gone: it changed, or was deleted.
    """
    found = {mark: hit for mark, hit in zip(marks_of(full), full, strict=True) if mark is not None}
    hits = []
    for thin, mark in zip(bare, marks, strict=True):
        if mark not in found:
            return None
        ours = {key: thin[key] for key in ("_score", "_ttc") if key in thin}
        hits.append({**found[mark], **ours})
    return hits


def joined_hits(
    body: Mapping[str, Any], joined: Sequence[Mapping[str, Any]], demands: Sequence[Any], *, named: bool
) -> dict[str, Any]:
    """Return the request for hits of documents that joined a window, as the caller wants his hits.

    Args:
        body: The caller's whole request.
        joined: Their bare hits.
        demands: What the query demands of every document beside its words.
        named: Whether they are told apart by their ids, in place of their content.
    """
    rest = {key: value for key, value in body.items() if key not in OF_THE_SEARCH | _OURS}
    these = (
        {"ids": {"values": sorted({str(hit["_id"]) for hit in joined})}}
        if named
        else {"terms": {HASH: sorted({str(hit["fields"][HASH][0]) for hit in joined})}}
    )
    query = body.get("query") or {"match_all": {}}
    return rest | {
        "query": {"bool": {"should": [query], "filter": [these, *demands]}},
        "from": 0,
        "size": _MOST_JOINED,
        "track_total_hits": False,
    }


def with_joined(
    page: Sequence[dict[str, Any]], joined: Sequence[dict[str, Any]], full: Sequence[dict[str, Any]], *, named: bool
) -> list[dict[str, Any]]:
    """Return a page with whole hits in place of bare ones; a document that has gone meanwhile is left out.

    Args:
        page: The page's hits.
        joined: Those of them that are bare.
        full: The hits of :func:`joined_hits`.
        named: Whether documents are told apart by their ids, in place of their content.
    """
    whole = {identity_mark(hit, named=named): hit for hit in full}
    bare = {id(hit) for hit in joined}
    hits = []
    for hit in page:
        if id(hit) not in bare:
            hits.append(hit)
        elif (found := whole.get(identity_mark(hit, named=named))) is not None:
            hits.append({**found, **{key: value for key, value in hit.items() if key in _OURS_OF_A_HIT}})
    return hits
