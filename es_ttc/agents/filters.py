"""Fields of an index to filter by and the languages of its texts; the check that a filter names existing fields."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, Field

from es_ttc.common.validation import did_you_mean
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.proposal import languages
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.answer_forms import FIELD_CAPS
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.field_types import NUMERIC_TYPES
from es_ttc.serving.request.body import fields_of

_FILTERED_TYPES = NUMERIC_TYPES | {
    "boolean", "constant_keyword", "date", "date_nanos", "ip", "keyword", "version", "wildcard",
}  # fmt: skip
_WITH_UNMAPPED_KEYS = frozenset({"flattened", "flat_object"})
"""Types of objects whose keys are searched as fields and are not in the mapping."""
_BY_FIELD = frozenset(
    {
        "fuzzy", "match", "match_bool_prefix", "match_phrase", "match_phrase_prefix", "prefix", "range", "regexp",
        "term", "terms", "terms_set", "wildcard",
    }
)  # fmt: skip
"""Queries that are an object whose key is the field."""
_BY_NAMES = frozenset({"combined_fields", "multi_match", "query_string", "simple_query_string"})
_COMPOUND = {
    "bool": ("must", "filter", "should", "must_not"),
    "boosting": ("positive", "negative"),
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "nested": ("query",),
}
_OPTIONS = frozenset({"_name", "boost"})
_MAX_FIELDS = 30
_MAX_EXAMPLES = 3
_SAMPLED = 200  # documents of each shard
_SAMPLED_TEXTS = 5  # documents whose texts are read


class FilterField(BaseModel):
    """A field to filter by."""

    name: str
    type: str
    examples: list[str] = Field(description="Frequent values in a sample.")


class Sample(NamedTuple):
    """What a sample of an index's documents has."""

    filter_fields: list[FilterField]
    languages: list[str]


async def sample_of(gateway: EngineClient, index: str, text_fields: Sequence[str]) -> Sample:
    """Return fields of an index to filter by, not those with the whole of a text, and the languages of its texts."""
    whole_texts = tuple(f"{name}." for name in text_fields)
    types = {
        name: min(kinds)
        for name, kinds in sorted((await _fields(gateway, index)).items())
        if kinds.keys() <= _FILTERED_TYPES
        and name.partition(".")[0] != ROOT
        and name not in text_fields
        and not name.startswith(("_", *whole_texts))
    }
    shown = dict(list(types.items())[:_MAX_FIELDS])
    terms = {"size": _MAX_EXAMPLES, "execution_hint": "map"}
    values = {str(place): {"terms": {"field": name, **terms}} for place, name in enumerate(shown)}
    body = {
        "size": _SAMPLED_TEXTS,
        "_source": [*text_fields],
        "aggs": {"sample": {"sampler": {"shard_size": _SAMPLED}, "aggs": values}},
    }
    path = f"/{quote(index, safe='')}/_search".encode()
    answer = await gateway.json("POST", path, body=body, failing=f"values of [{index}] could not be read")
    sample = (answer.get("aggregations") or {}).get("sample", {})
    fields = [
        FilterField(name=name, type=kind, examples=[value for value, _ in value_counts(sample.get(str(place), {}))])
        for place, (name, kind) in enumerate(shown.items())
    ]
    texts = [hit.get("_source", {}) for hit in answer["hits"]["hits"]]
    return Sample(fields, [*languages(texts, text_fields)])


async def require_fields(gateway: EngineClient, index: str, filters: Any, **fields: Sequence[str]) -> None:
    """Refuse a field of a filter or of another argument that the index does not have: nothing would be found by it."""
    named = [("filter", name) for name in _named(filters)]
    named += [(argument, name) for argument, names in fields.items() for name in names]
    if not named:
        return
    known = await _fields(gateway, index)
    loose = {name for name, kinds in known.items() if not _WITH_UNMAPPED_KEYS.isdisjoint(kinds)}
    for argument, name in named:
        if name in known or name.startswith("_") or any(name.startswith(f"{parent}.") for parent in loose):
            continue
        usable = [each for each in known if not each.startswith("_") and each.partition(".")[0] != ROOT]
        raise InvalidRequest(f"[{argument}] index [{index}] has no field [{name}]{did_you_mean(name, usable)}")


def value_counts(terms: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the values in an aggregation `terms` with their numbers of documents, most frequent first."""
    for bucket in terms.get("buckets", ()):
        yield str(bucket.get("key_as_string", bucket["key"])), bucket["doc_count"]


async def _fields(gateway: EngineClient, index: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of an index, an alias or a pattern, with what the engine knows of each by type."""
    path, failing = f"/{quote(index, safe=',*')}/_field_caps".encode(), f"the fields of [{index}] could not be read"
    answer = await gateway.json("GET", path, b"fields=*", failing=failing, in_own_words=True, form=FIELD_CAPS)
    found: Mapping[str, Mapping[str, Any]] = answer["fields"]
    return found


def _named(query: Any) -> Iterator[str]:
    """Yield the fields that a query names."""
    if not isinstance(query, Mapping):
        return
    for kind, clause in query.items():
        if not isinstance(clause, Mapping):
            continue
        if kind in _BY_FIELD:
            yield from (name for name in clause if name not in _OPTIONS)
        elif kind in _BY_NAMES:
            yield from fields_of(clause) or ()
        elif kind == "exists" and isinstance(clause.get("field"), str):
            yield clause["field"]
        for part in _COMPOUND.get(kind, ()):
            inner = clause.get(part)
            for one in inner if isinstance(inner, list) else [inner]:
                yield from _named(one)
