"""The `ttc` sections of a search body as JSON Schema (draft 2020-12), for editors.

The schema describes what is es-ttc's own. All other keys of a search body are the engine's, and any value is valid.
A few rules are not part of it: units of a timeout, conditions between two parameters of a method, the gateway's limits.
"""

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry as rescorers
from es_ttc.retrievers import registry as retrievers
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.plan.items import ExtSection
from es_ttc.serving.request.section import DEFAULT_METHOD, KEY, MAX_PARTS, OF_RESCORE, Section

SearchSchema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ONE_TEXT = "query_texts"
"""A key that a query does not take: it has one text."""
_PARTS = {
    "required": [_ONE_TEXT],
    "properties": {_ONE_TEXT: {"minItems": 2, "maxItems": MAX_PARTS}, "method": {"not": {"enum": sorted(STRATEGIES)}}},
}
"""What the parts of a question need."""


@cache
def search_body_schema() -> SearchSchema:
    """Return the schema of a search body, with the parameters of every installed method."""
    strategies = {name: strategy.Params for name, strategy in STRATEGIES.items()}
    rescoring = _params_in(rescorers) | strategies
    by_hook = {
        "rescore": rescoring,
        "ext": rescoring,
        "knn": _params_in(retrievers),
        "query": _params_in(rewriters),
    }
    models = {model for params in by_hook.values() for model in params.values()} | {Section, ExtSection}
    references, defined = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: (model.__module__, model.__name__))],
        ref_template="#/$defs/{model}",
    )
    own = {model: references[model, "validation"] for model in models}
    definitions: SearchSchema = defined["$defs"]
    whole = {hook: _resolved(own[ExtSection if hook == "ext" else Section], definitions) for hook in by_hook}
    sections = {
        f"{hook}_section": _section(whole[hook], hook, {name: own[model] for name, model in params.items()})
        for hook, params in by_hook.items()
    }
    return {
        "$schema": _DIALECT,
        "title": "Search body with ttc sections",
        "type": "object",
        "properties": {
            "rescore": _one_or_several("rescore_clause"),
            "knn": _one_or_several("knn_clause"),
            "query": {"$ref": "#/$defs/query_clause"},
            "retriever": {"$ref": "#/$defs/query_clause"},
            "ext": _with_section("ext_section"),
        },
        "dependentSchemas": {"retriever": {"properties": {"rescore": False}}},
        "$defs": {
            **{name: one for name, one in definitions.items() if name not in (Section.__name__, ExtSection.__name__)},
            **sections,
            "rescore_clause": _with_section("rescore_section"),
            "knn_clause": _with_section("knn_section"),
            "query_clause": _query_clause(),
        },
    }


def _params_in(registry: ModuleType) -> dict[str, type[BaseModel]]:
    """Return the parameters of every method of a registry."""
    return {name: registry.load(name).Params for name in registry.names()}


def _section(section: SearchSchema, hook: str, params: Mapping[str, SearchSchema]) -> SearchSchema:
    """Return the schema of one hook's section: its keys, its methods, and the parameters of each."""
    left_out = {"knn": OF_RESCORE, "query": (*OF_RESCORE, _ONE_TEXT)}.get(hook, ())
    keys = {name: one for name, one in section["properties"].items() if name not in left_out}
    required = {"knn": ["method"], "query": ["method", "query_text"]}.get(hook, [])
    cases = [_params_if(_named(name), one) for name, one in params.items()]
    if hook in ("rescore", "ext"):
        keys["method"] = keys["method"] | {"default": DEFAULT_METHOD}
        cases.append(_params_if({"not": {"required": ["method"]}}, params[DEFAULT_METHOD]))
        cases.append({"if": {"required": ["parts"], "properties": {"parts": {"const": "each"}}}, "then": _PARTS})
    else:
        keys["detail"] = {**{key: one for key, one in keys["detail"].items() if key != "anyOf"}, "type": "boolean"}
    return {
        **section,
        "title": f"The ttc section of [{hook}]",
        "properties": {**keys, "method": {**keys["method"], "enum": sorted(params)}},
        "required": required,
        "not": {"required": ["query_text", _ONE_TEXT]},
        "allOf": cases,
    }


def _named(method: str) -> SearchSchema:
    return {"properties": {"method": {"const": method}}, "required": ["method"]}


def _params_if(condition: SearchSchema, params: SearchSchema) -> SearchSchema:
    return {"if": condition, "then": {"properties": {"params": params}}}


def _with_section(section: str) -> SearchSchema:
    return {"type": "object", "properties": {KEY: {"$ref": f"#/$defs/{section}"}}}


def _one_or_several(clause: str) -> SearchSchema:
    """Return the schema of a clause, or a list of them; one that is not es-ttc's has no section."""
    reference = {"$ref": f"#/$defs/{clause}"}
    return {"if": {"type": "array"}, "then": {"items": reference}, "else": reference}


def _query_clause() -> SearchSchema:
    """Return the schema of a query: at any depth, a section that names a method is es-ttc's."""
    inner = {"$ref": "#/$defs/query_clause"}
    own = {"required": [KEY], "properties": {KEY: {"type": "object", "required": ["method"]}}}
    return {
        "if": {"type": "object", **own},
        "then": {"properties": {KEY: {"$ref": "#/$defs/query_section"}}, "additionalProperties": False},
        "else": {"items": inner, "properties": {"knn": True}, "additionalProperties": inner},
    }


def _resolved(schema: SearchSchema, definitions: SearchSchema) -> SearchSchema:
    definition: SearchSchema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    return definition
