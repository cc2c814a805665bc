"""Searches as the terminal asks them: the engine's own rankings, and a method's, all through the gateway."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from es_ttc.cli.views import Hit, Ranking, Span
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.queries import matching, nearest
from es_ttc.index.mappings.spec import VECTOR, IndexSpec
from es_ttc.lab.evaluation.methods import KNN, resolve_one
from es_ttc.rewriters import registry as rewriters

_REWRITING = "60s"
COMPARED = ("bm25", "hybrid")
"""Rankings that a method's is compared with."""
WINDOW = 100
"""Documents that a method rescores, and over which rankings are compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is searched.

    Attributes:
        client: Speaks to the gateway.
        index: The index's name.
        spec: What the index carries.
        fields: The text fields that are searched and shown.
        encoder: The index's own; None where there is none here, and dense search is not to be had.
        vectors: Whether the index has a vector field that the engine can search.
        beside: Whether its vectors are in a side index, which the gateway searches.
    """

    client: Engine
    index: str
    spec: IndexSpec
    fields: Sequence[str]
    encoder: Encoder | None = None
    vectors: bool = True
    beside: bool = False


@dataclass(frozen=True, slots=True)
class CliQuery:
    """A query and how it is to be ranked.

    Attributes:
        text: The query.
        method: ``bm25``, ``dense``, a rescorer of the first pass's best, a rewriter of the query, or a retriever behind
            ``knn:``.
        size: Hits wanted.
        params: The method's own parameters.
        first_pass: ``bm25`` or ``dense``: what finds the documents that a rescorer puts into order.
    """

    text: str
    method: str
    size: int = 10
    params: Mapping[str, Any] | None = None
    first_pass: str = "bm25"


async def search(target: Target, asked: CliQuery) -> Ranking:
    """Rank by one method.

    Raises:
        InvalidRequest: The method is unknown, its parameters do not fit, or the index lacks what it needs.
        ConfigurationError: Dense search without an encoder.
    """
    method = resolve_one(asked.method, asked.params)
    match asked.method:
        case "bm25":
            hits = await _hits(target, match_body(target.fields, asked))
        case "dense":
            hits = await _hits(target, await _dense_body(target, asked))
        case _ if method.retriever is not None:
            hits = await _hits(target, knn_body(target.fields, asked))
        case _ if method.rewriter is not None:
            answer = await target.client.search(target.index, query_body(target.fields, asked))
            return Ranking(asked.method, hits_of(answer, target.fields), expansion_of(answer))
        case _:
            first = (
                None if asked.first_pass == "bm25" else await _dense_body(target, replace(asked, size=_window(asked)))
            )
            hits = await _hits(target, rescore_body(target.fields, asked, first))
    return Ranking(asked.method, hits)


async def compare(target: Target, asked: CliQuery) -> list[Ranking]:
    """Return the engine's bm25 ranking, hybrid's, and the method's, each of at least a window's depth.

    A method that is one of the two stands there once.
    """
    depth = max(asked.size, WINDOW)
    questions = [CliQuery(asked.text, name, depth) for name in COMPARED if name != asked.method]
    questions.append(replace(asked, size=depth))
    return list(await asyncio.gather(*(search(target, question) for question in questions)))


def match_body(fields: Sequence[str], asked: CliQuery) -> dict[str, Any]:
    """Return a plain search for a text in some fields."""
    return {"query": matching(asked.text, fields), "size": asked.size, "_source": [*fields]}


def rescore_body(fields: Sequence[str], asked: CliQuery, first_pass: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a search with a section that asks for a method and for its detail.

    Args:
        fields: The text fields that are searched and shown.
        asked: The query.
        first_pass: A search body that finds the window; that of ``match_body`` where it is None.
    """
    section = _section(asked)
    if first_pass is not None:  # it has no text of its own
        section["query_text"] = asked.text
    body = {**(first_pass or match_body(fields, asked)), "size": asked.size}
    return body | {"rescore": {"window_size": _window(asked), "ttc": section}}


def knn_body(fields: Sequence[str], asked: CliQuery) -> dict[str, Any]:
    """Return a search whose kNN clause a retriever answers; Elasticsearch's form, which the gateway takes for both."""
    section = _section(replace(asked, method=asked.method.removeprefix(KNN)))
    clause = {"field": VECTOR, "query_text": asked.text, "k": asked.size, "ttc": section}
    return {"knn": clause, "size": asked.size, "_source": [*fields]}


def query_body(fields: Sequence[str], asked: CliQuery) -> dict[str, Any]:
    """Return a search whose query a rewriter makes, over the text fields that are shown."""
    section = {"query_text": asked.text, **_section(asked), "timeout": _REWRITING}
    section["params"] = {"text_fields": [*fields], **section.get("params", {})}
    return {"query": {"ttc": section}, "size": asked.size, "_source": [*fields]}


def expansion_of(answer: Mapping[str, Any]) -> str:
    """Return what a rewriter searched for beside the text, for people; empty where it found nothing."""
    told = answer.get("ttc", {})
    terms = [f"{one['term']} ({one.get('documents', '?')})" for one in told.get("expansion", ())]
    return f"searched for beside it: {', '.join(terms)}" if terms else ""


def _section(asked: CliQuery) -> dict[str, Any]:
    section: dict[str, Any] = {"method": asked.method, "detail": True, "on_error": "fail"}
    return section | ({"params": dict(asked.params)} if asked.params else {})


def _window(asked: CliQuery) -> int:
    return max(asked.size, WINDOW)


def curl(url: str, index: str, fields: Sequence[str], asked: CliQuery) -> str:
    """Return the command line that asks the gateway the same; on one line, so that it can be copied.

    Dense search, for which a body would need a vector, is asked as bm25.
    """
    if asked.method.startswith(KNN):
        body = knn_body(fields, asked)
    elif asked.method in rewriters.names():
        body = query_body(fields, asked)
    else:
        body = match_body(fields, asked) if asked.method in ("bm25", "dense") else rescore_body(fields, asked)
    data = shlex.quote(orjson.dumps(body).decode())
    return f"curl -s {shlex.quote(f'{url}/{index}/_search?pretty')} -H 'content-type: application/json' -d {data}"


def hits_of(response: Mapping[str, Any], fields: Sequence[str]) -> list[Hit]:
    """Read a response's hits: their texts as ingest composes them, and the place that a method's detail points at."""
    return [
        Hit(
            id=str(hit.get("_id", "")),
            score=hit.get("_score"),
            fields={name: text for name in fields if (text := compose(hit.get("_source") or {}, [name])[0])},
            span=_span(hit.get("_ttc") or {}),
        )
        for hit in response["hits"]["hits"]
    ]


async def _hits(target: Target, body: Mapping[str, Any]) -> list[Hit]:
    return hits_of(await target.client.search(target.index, body), target.fields)


async def _dense_body(target: Target, asked: CliQuery) -> dict[str, Any]:
    if target.beside:
        clause = {"field": VECTOR, "query_text": asked.text, "k": asked.size}
        return {"size": asked.size, "_source": [*target.fields], "knn": clause}
    if not target.vectors:
        raise InvalidRequest(
            f"index [{target.index}] has no vector field: its features stand inside it, and it was made without "
            "index.knn. Let bm25 find the documents (--first-pass bm25), and a rescorer put them into order"
        )
    if target.encoder is None:
        raise ConfigurationError(
            f"dense search needs the encoder of index [{target.index}], [{target.spec.encoder.key}], and it is not "
            "here: name it with ES_TTC_ENCODER"
        )
    encodings = await asyncio.to_thread(target.encoder.encode, [asked.text], role="query", tokens=False)
    product = (await target.client.capabilities()).product
    return {"size": asked.size, "_source": [*target.fields], **nearest(encodings.pooled[0], asked.size, product)}


def _span(detail: Mapping[str, Any]) -> Span | None:
    if "field" not in detail:
        return None
    return Span(str(detail["field"]), int(detail["start"]), int(detail["end"]))
