"""Searches from the command line: the engine's own rankings, and a method's, all through the gateway."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote

import orjson

from es_ttc.cli.views import ShownHit, ShownRanking, ShownSpan
from es_ttc.common.validation import nearest, shown
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.indices import NUMBER_TYPES
from es_ttc.index.mappings.queries import matching
from es_ttc.index.mappings.spec import VECTOR, IndexSpec
from es_ttc.lab.evaluation.methods import KNN, resolve_one
from es_ttc.rewriters import registry as rewriters

_REWRITING = "60s"
COMPARED = ("bm25", "hybrid")  # rankings that a method's is compared with
CLI_WINDOW = 100  # number of documents that a method rescores, and over which rankings are compared


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """The searched index."""

    client: Engine  # a client of a gateway
    index: str
    spec: IndexSpec
    fields: Sequence[str]

    @classmethod
    async def of(cls, client: Engine, index: str, fields: Sequence[str] | None = None) -> Self:
        """Return an index as it is found; without fields those that it encodes."""
        spec = (await Indices.behind(client, index)).shared_spec()
        return cls(client, index, spec, fields or spec.text_fields)


@dataclass(frozen=True, slots=True)
class CliQuery:
    """A query and its ranking method; every hit must match `among`."""

    text: str
    method: str
    size: int = 10
    params: Mapping[str, Any] | None = None
    first_pass: str = "bm25"
    among: Mapping[str, Any] | None = None

    @property
    def window(self) -> int:
        """Number of documents that the method rescores."""
        return max(self.size, CLI_WINDOW)

    def section(self) -> dict[str, Any]:
        """Return the method's section of a request."""
        method = self.method.removeprefix(KNN)
        section: dict[str, Any] = {"method": method, "detail": True, "on_error": "fail"}
        return section | ({"params": dict(self.params)} if self.params else {})

    def filtered(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a query of which every hit matches `among`."""
        return query if self.among is None else {"bool": {"must": [query], "filter": [self.among]}}


async def require_compared_fields(target: SearchTarget, query: CliQuery) -> None:
    """Refuse a filter that compares a field which the index lacks, or a field of numbers with something else."""
    clauses: Any = [query.among]
    match query.among:
        case {"bool": {"filter": [*clauses]}}:
            pass
    found = (clause[kind] for clause in clauses for kind in ("match", "range") if kind in (clause or ()))
    compared = [(field, value) for one in found if isinstance(one, Mapping) for field, value in one.items()]
    if not compared:
        return
    answer = await target.client.request("GET", f"/{quote(target.index)}/_field_caps", params={"fields": "*"})
    for field, value in compared:
        if field not in answer["fields"]:
            near = nearest(field, [name for name in answer["fields"] if not name.startswith(("_", "ttc."))])
            fix = f": did you mean [{near}]?" if near else ", which --filter compares"
            raise InvalidRequest(f"index [{target.index}] has no field [{field}]{fix}")
        wrong = [one for one in (value.values() if isinstance(value, Mapping) else [value]) if not _is_number(one)]
        if wrong and answer["fields"][field].keys() <= NUMBER_TYPES:
            raise InvalidRequest(
                f"[{field}] of index [{target.index}] is a number, and --filter compares it with {shown(wrong[0])}: "
                f"give a number, as in '{field}<=100'"
            )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


async def search_by_method(target: SearchTarget, query: CliQuery) -> ShownRanking:
    """Rank by one method."""
    answer = await target.client.search(target.index, _body(target, query))
    return ShownRanking(query.method, hits_of(answer, target.fields), expansion_of(answer))


async def compare_methods(target: SearchTarget, query: CliQuery) -> list[ShownRanking]:
    """Return the engine's bm25 ranking, hybrid's, and the method's, each of at least a window's depth.

    A method that is one of the two stands there once.
    """
    others = [CliQuery(query.text, name, query.window, among=query.among) for name in COMPARED if name != query.method]
    queries = [*others, replace(query, size=query.window)]
    return list(await asyncio.gather(*(search_by_method(target, one) for one in queries)))


async def facets_of(target: SearchTarget, query: CliQuery, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the most frequent values of fields, or the least and the greatest number, over what a search finds."""
    params = {"fields": ",".join(part for name in names for part in (name, f"{name}.keyword"))}
    found = (await target.client.request("POST", f"/{quote(target.index)}/_field_caps", params=params))["fields"]
    aggregations: dict[str, Any] = {}
    for name in names:
        field = name if f"{name}.keyword" not in found else f"{name}.keyword"
        kinds = found.get(field, {})
        if not all(kind["aggregatable"] for kind in kinds.values()) or not kinds:
            raise InvalidRequest(
                f"the values of field [{name}] of index [{target.index}] cannot be counted: name another"
            )
        counted = {"terms": {"field": field, "size": 10}}
        aggregations[name] = {"stats": {"field": field}} if set(kinds) <= NUMBER_TYPES else counted
    answer = await target.client.search(target.index, {**_body(target, query), "aggs": aggregations})
    return {
        name: {bucket.get("key_as_string", bucket["key"]): bucket["doc_count"] for bucket in facet["buckets"]}
        if "buckets" in facet
        else {key: facet[key] for key in ("count", "min", "max") if facet[key] is not None}
        for name, facet in answer["aggregations"].items()
    }


def _body(target: SearchTarget, query: CliQuery) -> dict[str, Any]:
    resolve_one(query.method, query.params)
    return body_of(target.fields, query)


def body_of(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return the search of a query by its method."""
    if query.method == "bm25":
        return match_body(fields, query)
    if query.method == "dense" or query.method.startswith(KNN):
        return _knn_body(fields, query)
    if query.method in rewriters.names():
        return _rewritten_body(fields, query)
    section = query.section()
    if query.first_pass == "bm25":
        first = match_body(fields, query)
    else:
        first = _knn_body(fields, CliQuery(query.text, "dense", query.window, among=query.among))
        section["query_text"] = query.text  # the first pass has no text in its query
    return {**first, "size": query.size, "rescore": {"window_size": query.window, "ttc": section}}


def match_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a plain search for a text in some fields."""
    return {"query": query.filtered(matching(query.text, fields)), "size": query.size, "_source": [*fields]}


def _knn_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a search with a retriever in its kNN clause, in Elasticsearch's form, which the gateway always accepts."""
    clause = {"field": VECTOR, "query_text": query.text, "k": query.size, "ttc": query.section()}
    clause |= {} if query.among is None else {"filter": query.among}
    return {"knn": clause, "size": query.size, "_source": [*fields]}


def _rewritten_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a search whose query a rewriter builds, over the displayed text fields."""
    section = {"query_text": query.text, **query.section(), "timeout": _REWRITING}
    section["params"] = {"text_fields": [*fields], **section.get("params", {})}
    return {"query": query.filtered({"ttc": section}), "size": query.size, "_source": [*fields]}


def expansion_of(answer: Mapping[str, Any]) -> str:
    """Return the terms that a rewriter added to the text, for display; empty if there are none."""
    summary = answer.get("ttc", {})
    terms = [f"{one['term']} ({one.get('documents', '?')})" for one in summary.get("expansion", ())]
    return f"searched for beside it: {', '.join(terms)}" if terms else ""


def curl(url: str, index: str, fields: Sequence[str], query: CliQuery) -> str:
    """Return the command line of the same request to the gateway, on one line, so that it can be copied."""
    data = shlex.quote(orjson.dumps(body_of(fields, query)).decode())
    return f"curl -s {shlex.quote(f'{url}/{index}/_search?pretty')} -H 'content-type: application/json' -d {data}"


def hits_of(response: Mapping[str, Any], fields: Sequence[str]) -> list[ShownHit]:
    """Return a response's hits: their texts as ingest composes them, and the position in a method's detail."""
    hits = []
    for hit in response["hits"]["hits"]:
        texts = {name: compose(hit.get("_source") or {}, [name])[0] for name in fields}
        detail = hit.get("_ttc") or {}
        span = ShownSpan(detail["field"], detail["start"], detail["end"]) if "field" in detail else None
        shown = {name: text for name, text in texts.items() if text}
        hits.append(ShownHit(str(hit.get("_id", "")), hit.get("_score"), shown, span))
    return hits
