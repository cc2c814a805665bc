"""The indices that a caller can search by meaning: their names, sizes and fields."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from es_ttc.agents.filters import FilterField, Sample, sample_of
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.spec import STATE
from es_ttc.serving.engine import EngineClient, NotForCaller
from es_ttc.serving.features.index_meta import features_of

MAX_WITH_FIELDS = 20
"""Listed indices up to which each is listed with its fields to filter by."""
_COUNTED_AT_ONCE = 20
_FAILING = "the indices could not be listed"


class IndexInfo(BaseModel):
    """An index that the gateway can rank."""

    name: str
    aliases: list[str] = Field(description="Further names of it, perhaps together with other indices.")
    documents: int = Field(description="Number of documents.")
    encoded: float = Field(
        description="Share of the documents that have vectors, 0 to 1; the others rank by words. Too great if the user "
        "may not see all documents."
    )
    text_fields: list[str] = Field(description="Fields that a search looks into.")
    filter_fields: list[FilterField] | None = Field(
        description=f"Fields to filter by; null if more than {MAX_WITH_FIELDS} indices are listed (name an index), or "
        "if the engine cannot count their values."
    )
    languages: list[str] | None = Field(
        description="Languages of some of its texts, or their scripts; null where `filter_fields` is."
    )


async def indices_with_features(gateway: EngineClient, target: str) -> list[IndexInfo]:
    """Return the indices behind a name, an alias or a pattern that have features, of their own or in a side index."""
    path = quote(target, safe=",*")
    try:
        features = await features_of(gateway, path, failing=_FAILING)
    except NotForCaller as error:
        if "*" not in target:
            raise
        raise NotForCaller(f"{error}: name an [index] that you may read") from error
    aliases = await _aliases(gateway, path)
    names = sorted(features)
    with_fields = names if len(names) <= MAX_WITH_FIELDS else []
    counts, samples = await asyncio.gather(
        _counts(gateway, sorted({*names, *(one.holder for one in features.values())})),
        asyncio.gather(*(_sample_of(gateway, name, features[name].meta) for name in with_fields)),
    )
    sample_by_name = dict(zip(with_fields, samples, strict=True))
    listed = []
    for name in names:
        holder, meta = features[name]
        documents, encoded = counts[name][0], counts[holder][1]
        sample = sample_by_name.get(name)
        listed.append(
            IndexInfo(
                name=name,
                aliases=sorted(aliases.get(name, {}).get("aliases", {})),
                documents=documents,
                encoded=round(min(1, encoded / documents), 3) if documents else 1,
                text_fields=meta.get("text_fields", []),
                filter_fields=None if sample is None else sample.filter_fields,
                languages=None if sample is None else sample.languages,
            )
        )
    return listed


async def _aliases(gateway: EngineClient, path: str) -> Mapping[str, Any]:
    """Return the aliases of indices; none if the caller may not read them."""
    try:
        aliases: Mapping[str, Any] = await gateway.json("GET", f"/{path}/_alias".encode(), failing=_FAILING)
    except NotForCaller:
        return {}
    return aliases


async def text_fields_of(gateway: EngineClient, index: str) -> list[str]:
    """Return the text fields of an index; those that have features, of an alias."""
    features = await features_of(gateway, quote(index, safe=",*"), failing=f"index [{index}] could not be read")
    names = dict.fromkeys(name for one in features.values() for name in one.meta.get("text_fields", ()))
    if not names:
        raise InvalidRequest(f"index [{index}] has no features: name the text [fields] to search")
    return [*names]


async def _sample_of(gateway: EngineClient, index: str, meta: Mapping[str, Any]) -> Sample | None:
    """Return what a sample of an index has; None if it is gone by now, or its values cannot be counted."""
    try:
        return await sample_of(gateway, index, meta.get("text_fields", ()))
    except EngineError:
        return None


async def _counts(gateway: EngineClient, indices: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of documents of indices that the caller may read, and of those that need no encoding."""
    done = {"filter": {"terms": {STATE: [READY, EMPTY]}}}
    aggregated = {"indices": {"terms": {"field": "_index", "size": _COUNTED_AT_ONCE}, "aggs": {"done": done}}}
    counts = dict.fromkeys(indices, (0, 0))
    for first in range(0, len(indices), _COUNTED_AT_ONCE):  # all in one URL may be too many
        path = f"/{quote(','.join(indices[first : first + _COUNTED_AT_ONCE]), safe=',')}/_search".encode()
        body = {"size": 0, "aggs": aggregated}
        answer = await gateway.json("POST", path, b"ignore_unavailable=true", body, failing=_FAILING)
        buckets = (answer.get("aggregations") or {}).get("indices", {}).get("buckets", ())
        counts |= {bucket["key"]: (bucket["doc_count"], bucket["done"]["doc_count"]) for bucket in buckets}
    return counts
