"""Searches from the command line: the engine's own rankings, and a method's, all through the gateway."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote

import orjson

from es_ttc.cli.views import Hit, Ranking, Span
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import alike_locations
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.queries import matching
from es_ttc.index.mappings.spec import VECTOR, IndexSpec
from es_ttc.lab.evaluation.methods import KNN, resolve_one
from es_ttc.rewriters import registry as rewriters

_REWRITING = "60s"
_NUMBERS = {"byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "scaled_float", "double"}
COMPARED = ("bm25", "hybrid")
"""Rankings that a method's is compared with."""
WINDOW = 100
"""Number of documents that a method rescores, and over which rankings are compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """The searched index.

    Attributes:
        client: A client of a gateway.
        vectors: Whether the engine can search its vectors, which may be in a side index.
    """

    client: Engine
    index: str
    spec: IndexSpec
    fields: Sequence[str]
    vectors: bool = True

    @classmethod
    async def of(cls, client: Engine, index: str, fields: Sequence[str] | None = None) -> Self:
        """Return an index as it is found; without fields those that it encodes."""
        located = await alike_locations(client, index)
        spec, vectors = located[0].spec, all(one.has_vectors or one.side for one in located)
        return cls(client, index, spec, fields or spec.text_fields, vectors)


@dataclass(frozen=True, slots=True)
class CliQuery:
    """A query and its ranking method."""

    text: str
    method: str
    size: int = 10
    params: Mapping[str, Any] | None = None
    first_pass: str = "bm25"
    among: Mapping[str, Any] | None = None


async def search(target: Target, query: CliQuery) -> Ranking:
    """Rank by one method."""
    answer = await target.client.search(target.index, _body(target, query))
    return Ranking(query.method, hits_of(answer, target.fields), expansion_of(answer))


def _body(target: Target, query: CliQuery) -> dict[str, Any]:
    """Return the search of a query by its method."""
    method = resolve_one(query.method, query.params)
    if query.method == "bm25":
        return match_body(target.fields, query)
    if query.method == "dense":
        return _dense_body(target, query)
    if method.retriever is not None:
        return knn_body(target.fields, query)
    if method.rewriter is not None:
        return query_body(target.fields, query)
    by_words = query.first_pass == "bm25"
    first = None if by_words else _dense_body(target, replace(query, size=_window(query)))
    return rescore_body(target.fields, query, first)


async def compare(target: Target, query: CliQuery) -> list[Ranking]:
    """Return the engine's bm25 ranking, hybrid's, and the method's, each of at least a window's depth.

    A method that is one of the two stands there once.
    """
    depth = max(query.size, WINDOW)
    questions = [CliQuery(query.text, name, depth, among=query.among) for name in COMPARED if name != query.method]
    questions.append(replace(query, size=depth))
    return list(await asyncio.gather(*(search(target, question) for question in questions)))


def match_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a plain search for a text in some fields."""
    return {"query": _filtered(matching(query.text, fields), query), "size": query.size, "_source": [*fields]}


async def facets_of(target: Target, query: CliQuery, names: Sequence[str]) -> dict[str, dict[str, Any]]:
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
        aggregations[name] = {"stats": {"field": field}} if set(kinds) <= _NUMBERS else counted
    answer = await target.client.search(target.index, {**_body(target, query), "aggs": aggregations})
    return {
        name: {one.get("key_as_string", one["key"]): one["doc_count"] for one in facet["buckets"]}
        if "buckets" in facet
        else {key: facet[key] for key in ("count", "min", "max") if facet[key] is not None}
        for name, facet in answer["aggregations"].items()
    }


def rescore_body(fields: Sequence[str], query: CliQuery, first_pass: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a search with a section for a method and its detail."""
    section = _section(query)
    if first_pass is not None:  # it has no query text of its own
        section["query_text"] = query.text
    body = {**(first_pass or match_body(fields, query)), "size": query.size}
    return body | {"rescore": {"window_size": _window(query), "ttc": section}}


def knn_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a search with a retriever in its kNN clause, in Elasticsearch's form, which the gateway always accepts."""
    section = _section(replace(query, method=query.method.removeprefix(KNN)))
    clause = {"field": VECTOR, "query_text": query.text, "k": query.size, "ttc": section, **_filter_of(query)}
    return {"knn": clause, "size": query.size, "_source": [*fields]}


def query_body(fields: Sequence[str], query: CliQuery) -> dict[str, Any]:
    """Return a search whose query a rewriter builds, over the displayed text fields."""
    section = {"query_text": query.text, **_section(query), "timeout": _REWRITING}
    section["params"] = {"text_fields": [*fields], **section.get("params", {})}
    return {"query": _filtered({"ttc": section}, query), "size": query.size, "_source": [*fields]}


def expansion_of(answer: Mapping[str, Any]) -> str:
    """Return the terms that a rewriter added to the text, for display; empty if there are none."""
    summary = answer.get("ttc", {})
    terms = [f"{one['term']} ({one.get('documents', '?')})" for one in summary.get("expansion", ())]
    return f"searched for beside it: {', '.join(terms)}" if terms else ""


def _filtered(ranking: Mapping[str, Any], query: CliQuery) -> Mapping[str, Any]:
    return ranking if query.among is None else {"bool": {"must": [ranking], "filter": [query.among]}}


def _filter_of(query: CliQuery) -> dict[str, Any]:
    """Return the filter of a kNN clause."""
    return {} if query.among is None else {"filter": query.among}


def _section(query: CliQuery) -> dict[str, Any]:
    section: dict[str, Any] = {"method": query.method, "detail": True, "on_error": "fail"}
    return section | ({"params": dict(query.params)} if query.params else {})


def _window(query: CliQuery) -> int:
    return max(query.size, WINDOW)


def curl(url: str, index: str, fields: Sequence[str], query: CliQuery) -> str:
    """Return the command line of the same request to the gateway, on one line, so that it can be copied.

    Dense search, for which the body would need a vector, becomes bm25.
    """
    if query.method.startswith(KNN):
        body = knn_body(fields, query)
    elif query.method in rewriters.names():
        body = query_body(fields, query)
    else:
        body = match_body(fields, query) if query.method in ("bm25", "dense") else rescore_body(fields, query)
    data = shlex.quote(orjson.dumps(body).decode())
    return f"curl -s {shlex.quote(f'{url}/{index}/_search?pretty')} -H 'content-type: application/json' -d {data}"


def hits_of(response: Mapping[str, Any], fields: Sequence[str]) -> list[Hit]:
    """Return a response's hits: their texts as ingest composes them, and the position in a method's detail."""
    return [
        Hit(
            id=str(hit.get("_id", "")),
            score=hit.get("_score"),
            fields={name: text for name in fields if (text := compose(hit.get("_source") or {}, [name])[0])},
            span=_span(hit.get("_ttc") or {}),
        )
        for hit in response["hits"]["hits"]
    ]


def _dense_body(target: Target, query: CliQuery) -> dict[str, Any]:
    if not target.vectors:
        raise InvalidRequest(
            f"index [{target.index}] has no vector field: its features stand inside it, and it was made without "
            "index.knn. Let bm25 find the documents (--first-pass bm25), and a rescorer put them into order"
        )
    return knn_body(target.fields, replace(query, method="dense", params=None))


def _span(detail: Mapping[str, Any]) -> Span | None:
    if "field" not in detail:
        return None
    return Span(str(detail["field"]), int(detail["start"]), int(detail["end"]))
