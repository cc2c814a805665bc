"""What indices say of their features: the values in ``_meta.ttc`` of their mappings, and their documents' encoders.

A caller who may search an index may lack the right to read its mapping. So ``_meta.ttc`` is read with the caller's
credentials and then with the gateway's own: it contains nothing from a document.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EncoderMismatch, EngineError, EngineUnavailable
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.calibration import calibration_of
from es_ttc.index.mappings.spec import CALIBRATION, ENCODER, ROOT
from es_ttc.serving.answer_forms import Form
from es_ttc.serving.engine import EngineClient, IncompleteAnswer, NotForCaller
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.http.caller import Caller, CallerKeys
from es_ttc.vectors.moments import Moments

_META = {"*": {"mappings": {"_meta": {ROOT: dict}}}}
_SECONDS = 60.0
"""Time for which a value, or its absence, is used."""
_MAX_CALIBRATIONS = 256
_MAX_LENGTHS = 10_000
_COUNTED_SECONDS = 30.0
_MAX_COUNTED = 1024
_MAX_ENCODERS = 10


class IndexMeta:
    """Reads and caches calibrations and lengths, which the mappings of indices contain."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._keys = CallerKeys()
        self._unreadable: ExpiringCache[bytes, None] = ExpiringCache(_MAX_LENGTHS, _SECONDS)
        self._calibrations: ExpiringCache[tuple[str, str], Moments | None] = ExpiringCache(_MAX_CALIBRATIONS, _SECONDS)
        self._lengths: ExpiringCache[str, float] = ExpiringCache(_MAX_LENGTHS, _SECONDS)

    async def calibration(self, index: str, encoder: str, caller: Caller) -> Moments | None:
        """Return statistics of a sample of an index's queries, or None if it has none for this encoder."""
        cached = self._calibrations.get((index, encoder))
        if cached is not None:
            return cached.value
        values = await self._values(index, CALIBRATION, caller)
        if values is None:
            return None
        try:
            sample = calibration_of(values[0], encoder) if values else None
        except ValueError as error:
            raise EngineError(f"the calibration of index [{index}] is damaged: {error}") from error
        self._calibrations.put((index, encoder), sample)
        return sample

    async def max_tokens(self, index: str, caller: Caller) -> float:
        """Return the greatest number of token vectors of a document of an index; infinite if it cannot be known."""
        cached = self._lengths.get(index)
        if cached is not None:
            return cached.value
        try:
            values = await self._values(index, "max_tokens", caller)
        except EngineError:
            return math.inf
        except (LookupError, TypeError):  # someone else's metadata
            values = []
        if values is None:
            return math.inf
        allowed = values[0] if values and isinstance(values[0], int) else math.inf
        self._lengths.put(index, allowed)
        return allowed

    async def _values(self, index: str, key: str, caller: Caller) -> list[Any] | None:
        """Return the values of a key; None, remembered for this caller alone, if the mapping may not be read."""
        place = self._keys.of(caller.headers, f"{index}\n{key}".encode())
        if place in self._unreadable:
            return None
        async for values in meta_of(self._engine.as_caller(caller), index, key):
            return values
        self._unreadable.put(place, None)
        return None


async def meta_of(
    engine: EngineClient, index: str, key: str | None, *, ignore_missing: bool = False
) -> AsyncIterator[list[Any]]:
    """Yield the values of ``_meta.ttc.<key>``, read with the client's credentials and then with the gateway's own.

    An empty list is yielded if there is no value, and nothing for credentials that may not read the mapping. With
    ``ignore_missing`` some of several names may be of no index.
    """
    path_in_meta = ROOT if key is None else f"{ROOT}.{key}"
    params = {"filter_path": f"*.mappings._meta.{path_in_meta}"}
    query_string = urlencode(params | ({"ignore_unavailable": "true"} if ignore_missing else {})).encode()
    path = f"/{quote(index, safe='')}/_mapping".encode()
    for client in (engine, engine.as_gateway()):
        try:
            answer = await client.json("GET", path, query_string, failing="the mapping could not be read", form=_META)
        except EngineUnavailable:
            raise
        except EngineError:
            continue
        described = [mapping["mappings"]["_meta"][ROOT] for mapping in answer.values()]
        yield described if key is None else [meta[key] for meta in described]


class Described(NamedTuple):
    """The index with the features of an index, and its `_meta.ttc`."""

    holder: str
    meta: Mapping[str, Any]


async def features_of(engine: EngineClient, target: str, *, failing: str) -> dict[str, Described]:
    """Return where each index behind a target has its features, by its name: in itself, or in the side index in use.

    The target is quoted for a path. A caller without rights on side indices sees none.
    """

    async def read(path: str, query: Mapping[str, str], form: Form) -> Any:
        encoded = urlencode(query).encode()
        return await engine.json("GET", path.encode(), encoded, failing=failing, in_own_words=True, form=form)

    async def mappings(names: str, **options: str) -> Any:
        return await read(f"/{names}/_mapping", {"filter_path": f"*.mappings._meta.{ROOT}", **options}, _META)

    async def permitted(names: str, **options: str) -> Any:
        try:
            return await mappings(names, **options)
        except NotForCaller:  # OpenSearch refuses a pattern that also names indices without a right
            return None

    searched, own, sides = await asyncio.gather(
        read(f"/{target}/_field_caps", {"fields": "_id"}, {"indices": [str]}),
        permitted(target),
        permitted(side_alias("*"), expand_wildcards="open,hidden", allow_no_indices="true"),
    )
    names = searched["indices"]
    if own is None:
        own = await mappings(quote(",".join(names), safe=",")) if names else {}
    described = [Described(name, mapping["mappings"]["_meta"][ROOT]) for name, mapping in (own | (sides or {})).items()]
    by_source = {one.meta.get("source", one.holder): one for one in described}
    return {name: by_source[name] for name in names if name in by_source}


async def encoded_fields(places: Iterable[tuple[str, EngineClient]]) -> tuple[str, ...]:
    """Return the text fields that were encoded, by the first of some indices, each with its client, that name any."""
    for index, engine in places:
        async for fields in meta_of(engine, index, "text_fields", ignore_missing=True):
            if fields:
                return tuple(dict.fromkeys(name for names in fields for name in names))
    return ()


class IndexEncoderLookup:
    """Finds the encoders of indices.

    The encoder of an index is that of most of its documents, of ``preferred`` if two have the same number. The engine
    is asked only if the documents of a window have several, or one that this gateway does not have.
    """

    def __init__(self, engine: EngineClient, preferred: Callable[[], Sequence[str]]) -> None:
        self._engine = engine
        self._preferred = preferred
        self._keys = CallerKeys()
        self._cache: ExpiringCache[bytes, Mapping[str, int]] = ExpiringCache(_MAX_COUNTED, _COUNTED_SECONDS)

    async def agreed(self, keys: Sequence[DocumentKey], caller: Caller) -> str:
        """Return the encoder of a window's documents, which are one or more."""
        if len({key.encoder for key in keys}) == 1:
            return keys[0].encoder
        (index, encoder), *others = (await self._by_index(keys, caller)).items()
        other = next((one for one in others if one[1] != encoder), None)
        if other is not None:
            raise EncoderMismatch(
                f"the window holds documents of two encoders, [{encoder}] in index [{index}] and [{other[1]}] in index "
                f"[{other[0]}]: search one of them at a time, or ingest one of them again"
            )
        return encoder

    async def is_encoder_of_all(self, encoder: str, keys: Sequence[DocumentKey], caller: Caller) -> bool:
        """Return whether an encoder is that of every index of some documents."""
        return set((await self._by_index(keys, caller)).values()) == {encoder}

    async def _by_index(self, keys: Sequence[DocumentKey], caller: Caller) -> dict[str, str]:
        """Return the encoder of each index of some documents."""
        in_window: dict[str, Counter[str]] = defaultdict(Counter)
        sides = {key.index for key in keys if key.side}
        for key in keys:
            in_window[key.index][key.encoder] += 1
        counts = await asyncio.gather(*(self._counts(index, caller, side=index in sides) for index in in_window))
        return {
            index: most_frequent(in_index, window_counts, self._preferred())
            for (index, window_counts), in_index in zip(in_window.items(), counts, strict=True)
        }

    async def _counts(self, index: str, caller: Caller, *, side: bool) -> Mapping[str, int]:
        """Return the number of documents per encoder of an index, among those that the caller may read.

        They are cached, unless the engine does not answer for now: then the window's counts decide.
        """
        target = str((index, caller.indices, caller.params, caller.pit))
        place = self._keys.of(caller.headers, target.encode(errors="replace"))
        cached = self._cache.get(place)
        if cached is not None:
            return cached.value
        engine = self._engine.as_side_reader(caller) if side else self._engine.as_caller(caller)
        body: dict[str, Any] = {
            "size": 0,
            "track_total_hits": False,
            "query": {"bool": {"filter": [{"term": {"_index": index}}]}},
            "aggs": {"encoders": {"terms": {"field": ENCODER, "size": _MAX_ENCODERS}}},
        }
        counts = {}
        try:
            answer = await engine.search([index], body, failing="encoders could not be counted")
            counts = {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["encoders"]["buckets"]}
        except (EngineUnavailable, IncompleteAnswer):
            return {}
        except (EngineError, ValueError, LookupError, TypeError):
            pass  # the counts of the window decide
        self._cache.put(place, counts)
        return counts


def most_frequent(in_index: Mapping[str, int], in_window: Mapping[str, int], preferred: Sequence[str]) -> str:
    """Return the encoder of most documents of an index."""

    def rank(encoder: str) -> tuple[int, int, int, str]:
        place = preferred.index(encoder) if encoder in preferred else len(preferred)
        return -in_index.get(encoder, 0), -in_window.get(encoder, 0), place, encoder

    return min(in_index or in_window, key=rank)
