"""The field of enrichment: added to an index whose documents have features, and recorded in its mapping's ``_meta``.

It is a text field of its own: the user's fields keep their document frequencies and lengths, and it can be weighted,
ignored or removed. It has no Lucene norms: how much a model wrote about a document says nothing about the document.
Phrases are values of one array, so no phrase query matches across two of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import ENRICHMENT, ENRICHMENT_FIELDS, ROOT, IndexSpec
from es_ttc.index.mappings.write_options import WriteOptions

META = "ttc_enrichment"  # key of `_meta`, apart from the spec, on which no other feature depends


@dataclass(frozen=True, slots=True)
class EnrichmentTarget:
    """An index whose documents can be enriched."""

    index: str
    spec: IndexSpec
    analyzer: str
    key: str = ""  # the key with which the index's pipeline lets features pass; empty if it has none


async def add_enrichment(engine: Engine, name: str, analyzer: str | None = None) -> EnrichmentTarget:
    """Add the field of enrichment to an index; if it has one already, nothing changes."""
    index, mapping, spec = await _carrier(engine, name)
    present = mapping.get("_meta", {}).get(META)
    if present is not None:
        if analyzer not in (None, present["analyzer"]):
            raise InvalidRequest(
                f"index [{index}] has the field [{ENRICHMENT}] with the analyzer [{present['analyzer']}], which cannot "
                f"be changed to [{analyzer}]: leave --analyzer out, or make another index"
            )
        return EnrichmentTarget(index, spec, present["analyzer"])
    chosen = analyzer or _analyzer_of(mapping, spec.text_fields[0])
    ours: dict[str, Any] = {
        _leaf(ENRICHMENT): {"type": "text", "analyzer": chosen, "norms": False, "store": True},
        **{_leaf(name): {"type": "keyword"} for name in ENRICHMENT_FIELDS if name != ENRICHMENT},
    }
    body = {
        "_meta": {**mapping["_meta"], META: {"analyzer": chosen}},
        "properties": {ROOT: {"type": "object", "properties": ours}},
    }
    await engine.request("PUT", f"/{quote(index, safe='')}/_mapping", body=body)
    return EnrichmentTarget(index, spec, chosen)


async def enrichable(engine: Engine, name: str) -> EnrichmentTarget:
    """Return an index that has the field of enrichment, with its spec."""
    index, mapping, spec = await _carrier(engine, name)
    found = mapping.get("_meta", {}).get(META)
    if found is None:
        raise MissingFeature(
            f"index [{index}] has no field [{ENRICHMENT}] to write phrases to: add it with "
            f"`es-ttc index enrichment {name}`"
        )
    followed = WriteOptions.of(mapping)
    return EnrichmentTarget(index, spec, found["analyzer"], "" if followed is None else followed.key)


async def _carrier(engine: Engine, name: str) -> tuple[str, Mapping[str, Any], IndexSpec]:
    """Return an index whose documents have features: name, mapping, spec."""
    found = await Index.only(engine, name)
    if not found.meta or found.side_of is not None:
        raise InvalidRequest(
            f"the documents of index [{found.index}] contain no features of es-ttc, and phrases must be in the "
            "documents that they are to find, because BM25 sums over the fields of one document: create a new index "
            "with `es-ttc index create` (features in a side index do not suffice)"
        )
    return found.index, found.mapping, found.spec


def _analyzer_of(mapping: Mapping[str, Any], field: str) -> str:
    found: Mapping[str, Any] = mapping
    for part in field.split("."):
        found = found.get("properties", {}).get(part, {})
    analyzer: str = found.get("analyzer", "standard")
    return analyzer


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
