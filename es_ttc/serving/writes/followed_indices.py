"""The indices whose documents are encoded on their way: what their mappings say, kept for a few seconds.

An index is followed if its own name is written to, es-ttc created it, and ``es-ttc index pipeline NAME --encode now``
was run. Documents written by an alias or a data stream are sent as they come, because such a name may stand for another
index at any moment, one without the pipeline, which would keep the features in the user's document; see `afterwards`.
Of other indices with a pipeline of es-ttc only its name is needed; see `bulk`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from es_ttc.common.caches import ExpiringCache, Fresh
from es_ttc.errors import EngineError, EngineUnavailable, InvalidRequest
from es_ttc.index.attach.followed_writes import FORMER, follow_pipeline_name
from es_ttc.index.mappings.spec import ROOT, IndexSpec, own_meta, spec_of_own
from es_ttc.index.mappings.write_options import WRITES, WriteOptions
from es_ttc.serving.engine import EngineClient, NotForCaller, NotThere
from es_ttc.serving.http.caller import Caller, CallerKeys, RawHeaders
from es_ttc.serving.logs import log

NO_PIPELINE = "_none"

_SECONDS = 5.0
"""Time for which the answer for a name is used."""
_MAX_CACHED = 4096
_TIMEOUT_SECONDS = 2.0
_META = f"filter_path=*.mappings._meta.{ROOT}".encode()
_PIPELINES = ("index.default_pipeline", "index.final_pipeline")
_OWN_PIPELINES = ("ttc-writes-", "ttc-ingest-")
_NOT_A_NAME = frozenset("*,<:")
_NO_BEGINNING = ("_", "-", "+")
_NO_NAMES = ("", ".", "..")


@dataclass(frozen=True, slots=True, eq=False)
class PipelineIndex:
    """An index whose documents pass a pipeline of es-ttc."""

    name: str
    pipeline: str


@dataclass(frozen=True, slots=True, eq=False)
class FollowedIndex(PipelineIndex):
    """An index whose documents are encoded on their way."""

    spec: IndexSpec
    key: str
    own_pipeline: bool
    final_pipeline: bool


class FollowedIndices:
    """Finds out which pipeline of es-ttc an index has, with the caller's credentials then with the gateway's own."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._keys = CallerKeys()
        self._cache: ExpiringCache[bytes, PipelineIndex | None] = ExpiringCache(_MAX_CACHED, _SECONDS)
        self._reading: dict[bytes, asyncio.Task[PipelineIndex | None]] = {}
        self._generation = 0

    def forget(self) -> None:
        """Ask again for every name: a request may have changed what indices are."""
        self._cache = ExpiringCache(_MAX_CACHED, _SECONDS)
        self._reading = {}
        self._generation += 1

    def refused(self, name: str, headers: RawHeaders) -> None:
        """Encode nothing for a caller whose write the engine has just refused, until the answer is asked for again."""
        self._cache.put(self._key_of(name, headers), None)

    async def of(self, name: str, headers: RawHeaders) -> PipelineIndex | None:
        """Return the index of a name if documents that this caller writes to it pass a pipeline of es-ttc."""
        if not is_a_name(name):
            return None
        key = self._key_of(name, headers)
        cached: Fresh[PipelineIndex | None] | None = self._cache.get(key)
        if cached is not None:
            return cached.value
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read_and_keep(key, name, headers))
        return await asyncio.shield(task)

    def _key_of(self, name: str, headers: RawHeaders) -> bytes:
        return self._keys.of(headers, name.encode("utf-8", "surrogatepass"))

    async def _read_and_keep(self, key: bytes, name: str, headers: RawHeaders) -> PipelineIndex | None:
        generation = self._generation
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                found = await self._read(name, Caller(headers))
        except (EngineUnavailable, TimeoutError):  # the write itself finds out, in the engine's words
            return None
        except (EngineError, InvalidRequest):
            found = None
        except Exception as error:  # noqa: BLE001 - whatever someone has put into `_meta`, the write is forwarded
            _warn(name, f"its mapping cannot be read: {type(error).__name__}: {error}")
            found = None
        finally:
            if self._generation == generation:
                self._reading.pop(key, None)
        if self._generation == generation:
            self._cache.put(key, found)
        return found

    async def _read(self, name: str, caller: Caller) -> PipelineIndex | None:
        path = f"/{quote(name, safe='')}"
        mappings = await self._json(f"{path}/_mapping", _META, caller)
        if not mappings or len(mappings) > 1:
            return None
        [(index, answered)] = mappings.items()
        mapping: Mapping[str, Any] = answered["mappings"]
        options = WriteOptions.of(mapping)
        follows = name == index and options is not None
        key = options.key if options is not None and options.encode == "now" and follows else ""
        settings = await self._json(f"{path}/_settings/{','.join(_PIPELINES)}", b"flat_settings=true", caller)
        if settings is None:
            if key:
                _warn(name, "its settings cannot be read, by the caller or by the gateway's own account")
            return None
        default, final = (settings.get(index, {}).get("settings", {}).get(one, NO_PIPELINE) for one in _PIPELINES)
        if key and final == follow_pipeline_name(name):
            former = own_meta(mapping)[WRITES].get(FORMER, NO_PIPELINE)
            spec = spec_of_own(name, mapping)
            return FollowedIndex(name, final, spec, key, default != NO_PIPELINE, former != NO_PIPELINE)
        if key:
            _warn(name, f"its final pipeline is [{final}]: run `es-ttc index pipeline {name}` again")
        return PipelineIndex(index, final) if final.startswith(_OWN_PIPELINES) else None

    async def _json(self, path: str, query_string: bytes, caller: Caller) -> Any:
        """Return the engine's answer; None if there is none for the caller and for the gateway."""
        for engine in (self._engine.as_caller(caller), self._engine.as_gateway()):
            try:
                return await engine.json("GET", path.encode(), query_string, failing="it could not be read")
            except NotThere:
                return None
            except NotForCaller as error:
                if error.upstream_status == 401:  # nothing is encoded for someone unknown
                    return None
        return None


def is_a_name(name: str) -> bool:
    """Return whether a name may be that of one index, alias or data stream."""
    return not name.startswith(_NO_BEGINNING) and _NOT_A_NAME.isdisjoint(name) and name not in _NO_NAMES


def _warn(name: str, problem: str) -> None:
    log.warning("documents are not encoded on their way", index=name, problem=problem)
