"""Index bodies for both products, and the spec read from an index or an alias."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import Capabilities, Engine
from es_ttc.engine.versions import VECTORS_OUTSIDE_SOURCE
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.fields import field_mapping, fields, kept_in_source
from es_ttc.index.mappings.readers import MAX_NESTED_OBJECTS
from es_ttc.index.mappings.spec import ENRICHMENT_FIELDS, ROOT, IndexSpec

ANALYZERS: Mapping[str, str] = {
    "ar": "arabic", "bg": "bulgarian", "bn": "bengali", "ca": "catalan", "ckb": "sorani", "cs": "czech", "da": "danish",
    "de": "german", "el": "greek", "en": "english", "es": "spanish", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "gl": "galician", "hi": "hindi", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "ja": "cjk", "ko": "cjk", "lt": "lithuanian", "lv": "latvian", "nl": "dutch",
    "no": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sv": "swedish", "th": "thai",
    "tr": "turkish", "zh": "cjk",
}  # fmt: skip
"""The analyzer of each language, by ISO 639 code, that both engines have without a plugin."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options that are fixed when the index is created."""

    # Of the text fields. `english` (stemming, stop words) is common for BM25 baselines on these engines, including
    # BEIR's; `standard` for text in other languages without an analyzer of their own.
    analyzer: str = "english"
    shards: int | None = None
    replicas: int | None = None  # copies of each shard; None for one as soon as there is a second node


def analyzer_of(language: str | None) -> str:
    """Return the analyzer of a language's ISO 639 code; that of English for None."""
    analyzer = ANALYZERS.get((language or "en").lower().partition("-")[0])
    if analyzer is None:
        raise InvalidRequest(
            f"[language] is [{language}]: take one of {', '.join(ANALYZERS)}, or name an analyzer by --analyzer "
            "(`standard` for any language)"
        )
    return analyzer


def index_body(spec: IndexSpec, capabilities: Capabilities, options: IndexOptions | None = None) -> dict[str, Any]:
    """Return settings and mappings of an index with this spec; the user's own fields stay dynamic."""
    options = options or IndexOptions()
    ours = feature_properties(spec, capabilities)
    text = _text_properties(spec.text_fields, {"type": "text", "analyzer": options.analyzer})
    return {
        "settings": {"index": _settings(spec, capabilities, options)},
        "mappings": {
            "_meta": {ROOT: spec.as_meta()},
            "_source": {"excludes": source_excludes(spec)},
            "properties": {**text, ROOT: {"type": "object", "dynamic": "strict", "properties": ours}},
        },
    }


def feature_properties(spec: IndexSpec, capabilities: Capabilities) -> dict[str, Any]:
    """Return the mappings of the fields below ``ttc``, by their names inside it."""
    _check_nested_objects(spec)
    return {field.leaf: field_mapping(field, spec, capabilities) for field in fields(spec)}


def source_excludes(spec: IndexSpec) -> list[str]:
    """Return the fields excluded from ``_source``: all below ``ttc`` that engines return otherwise."""
    included = kept_in_source(spec)
    if not included:
        return [ROOT]
    return [*(field.name for field in fields(spec) if field not in included), *ENRICHMENT_FIELDS]


def vector_settings(spec: IndexSpec, capabilities: Capabilities) -> dict[str, Any]:
    """Return the settings below ``index`` for an index with vectors."""
    settings: dict[str, Any] = inner_hits_settings(spec)
    if capabilities.product == "opensearch":
        settings["knn"] = True
    elif capabilities.has(VECTORS_OUTSIDE_SOURCE):
        # Vectors in `_source` are not returned with every hit, nor stored twice. If there are none, `_update` must not
        # restore the pooled vector alone: it belongs to a text that may just have changed.
        settings["mapping"] = {"exclude_source_vectors": bool(kept_in_source(spec))}
    return settings


def inner_hits_settings(spec: IndexSpec) -> dict[str, Any]:
    """Return the settings below ``index`` with which nested token vectors can be read: all of a document at once."""
    return {"max_inner_result_window": MAX_NESTED_OBJECTS} if spec.layout == "nested_vectors" else {}


async def create_index(engine: Engine, name: str, spec: IndexSpec, options: IndexOptions | None = None) -> None:
    """Create an index with this spec."""
    await engine.create_index(name, index_body(spec, await engine.capabilities(), options))


def _settings(spec: IndexSpec, capabilities: Capabilities, options: IndexOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if options.shards is not None:
        settings["number_of_shards"] = options.shards
    if options.replicas is None:
        settings["auto_expand_replicas"] = "0-1"
    else:
        settings["number_of_replicas"] = options.replicas
    return settings | vector_settings(spec, capabilities)


def _check_nested_objects(spec: IndexSpec) -> None:
    objects = sum(math.ceil(spec.max_tokens / grid.stride) for grid in spec.spans)
    objects += spec.max_tokens if spec.tokens == "nested" else 0
    if objects > MAX_NESTED_OBJECTS:
        raise InvalidRequest(
            f"a document of {spec.max_tokens:,} tokens would have {objects:,} nested vectors, and engines take up to "
            f"{MAX_NESTED_OBJECTS:,} nested objects a document: use fewer --max-tokens, or a larger stride of spans"
        )


def _text_properties(names: tuple[str, ...], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted names as the engines' mappings do."""
    if not names:
        raise InvalidRequest("an index needs at least one text field: name them with --text-fields")
    root: dict[str, Any] = {}
    for name in names:
        *parents, leaf = name.split(".")
        if not leaf or not all(parents) or name.startswith("_") or name.split(".")[0] == ROOT:
            raise InvalidRequest(f"text field [{name}] cannot be used: its name is empty, starts with _ or is [{ROOT}]")
        level = root
        for parent in parents:
            level = level.setdefault(parent, {"properties": {}}).get("properties")
            if level is None:
                raise InvalidRequest(f"text field [{name}] lies inside another text field [{parent}]: name one of them")
        if leaf in level:
            raise InvalidRequest(f"text field [{name}] is named twice, or holds another text field: name one of them")
        level[leaf] = dict(mapping)
    return root
