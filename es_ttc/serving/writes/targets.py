"""What the names are to which documents are written, kept for a few seconds.

The documents of an index are encoded inline, before the engine gets them, if its own name is written to, es-ttc created
it, and ``es-ttc index pipeline NAME --encode now`` was run. An alias or a data stream may stand for another index at
any moment, one without the pipeline, which would keep the features in the user's document. Documents behind such a
name, of an attached index, and of an `_update` are encoded after the engine has written them; see `post_write`. Of
other indices with a pipeline of es-ttc only its name is needed; see `bulk`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError, InvalidRequest
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices
from es_ttc.index.attach.followed_writes import FORMER, follow_pipeline_name
from es_ttc.index.mappings.ingest_pipeline import NO_PIPELINE
from es_ttc.index.mappings.spec import ROOT, IndexSpec, own_meta, spec_of_own
from es_ttc.index.mappings.write_options import WRITES, WriteOptions
from es_ttc.serving.engine import EngineClient, NotForCaller, NotThere
from es_ttc.serving.http.caller import Caller, CallerKeys, RawHeaders
from es_ttc.serving.logs import log

Locations = Mapping[str, FeatureLocation]
"""By concrete index, where its features are stored."""

_SECONDS = 5.0
"""Time for which the answer for a name is used."""
_MAX_CACHED = 4096
_TIMEOUT_SECONDS = 2.0
_OPTIONS = (
    f"filter_path=*.mappings._meta.{ROOT},*.settings.index.default_pipeline,*.settings.index.final_pipeline".encode()
)
_OWN_PIPELINES = ("ttc-writes-", "ttc-ingest-")
_NOT_A_NAME = frozenset("*,<:")
_NO_BEGINNING = ("_", "-", "+")
_NO_NAMES = ("", ".", "..")


@dataclass(frozen=True, slots=True, eq=False)
class InlineIndex:
    """An index whose documents are encoded inline; `key` is what its pipeline accepts features by."""

    name: str
    spec: IndexSpec
    key: str
    own_pipeline: bool
    final_pipeline: bool


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """What a name is to which documents are written.

    Attributes:
        pipeline: The pipeline of es-ttc that its documents pass; empty for none.
        inline: The index of this name, if documents are encoded inline.
        post_write: The indices behind the name whose documents can be encoded after their write.
    """

    pipeline: str = ""
    inline: InlineIndex | None = None
    post_write: Locations = field(default_factory=dict)


class WriteTargets:
    """Finds out what names are, with the caller's credentials and with the gateway's own."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._keys = CallerKeys()
        self._generation = 0
        self.forget()

    def forget(self) -> None:
        """Ask again for every name: a request may have changed what indices are."""
        self._known: ExpiringCache[bytes, WriteTarget] = ExpiringCache(_MAX_CACHED, _SECONDS)
        self._locations: ExpiringCache[str, Locations] = ExpiringCache(_MAX_CACHED, _SECONDS)  # for all callers
        self._reading: dict[bytes, asyncio.Task[WriteTarget]] = {}
        self._generation += 1

    def refused(self, name: str, headers: RawHeaders) -> None:
        """Encode nothing inline for a caller whose write the engine has just refused, until the name is read again."""
        self._known.put(self._key_of(name, headers), WriteTarget())

    async def of(self, name: str, headers: RawHeaders, *, inline: bool = True) -> WriteTarget:
        """Return what a name is to a caller; ``post_write`` is empty for an index whose documents go `inline`."""
        if name.startswith(_NO_BEGINNING) or not _NOT_A_NAME.isdisjoint(name) or name in _NO_NAMES:
            return WriteTarget()  # not that of one index, alias or data stream
        key = self._key_of(name, headers)
        known = self._known.get(key)
        if known is None:
            task = self._reading.get(key)
            if task is None:
                task = self._reading[key] = asyncio.create_task(self._read(key, name, Caller(headers)))
            target = await asyncio.shield(task)
        else:
            target = known.value
        if inline and target.inline is not None:
            return target
        return replace(target, post_write=await self._located(name))

    def _key_of(self, name: str, headers: RawHeaders) -> bytes:
        return self._keys.of(headers, name.encode("utf-8", "surrogatepass"))

    async def _read(self, key: bytes, name: str, caller: Caller) -> WriteTarget:
        """Read pipeline and inline encoding of a name, and keep them, unless the engine has not answered."""
        generation = self._generation
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                described = await self._options(name, caller)
            own = [(index, entry) for index, entry in described.items() if "mappings" in entry]
            target = _target_of(name, *own[0]) if len(own) == 1 else WriteTarget()
        except (EngineUnavailable, TimeoutError):  # the write itself finds out, in the engine's words
            return WriteTarget()
        except (EngineError, InvalidRequest):
            target = WriteTarget()
        except Exception as error:  # noqa: BLE001 - whatever someone has put into `_meta`, the write is forwarded
            _warn(name, f"its mapping cannot be read: {type(error).__name__}: {error}")
            target = WriteTarget()
        finally:
            if self._generation == generation:
                self._reading.pop(key, None)
        if self._generation == generation:
            self._known.put(key, target)
        return target

    async def _options(self, name: str, caller: Caller) -> dict[str, Any]:
        """Return options and pipelines of the indices behind a name, read as the caller or else as the gateway."""
        path = f"/{quote(name, safe='')}".encode()
        for engine in (self._engine.as_caller(caller), self._engine.as_gateway()):
            try:
                answer: dict[str, Any] = await engine.json("GET", path, _OPTIONS, failing="it could not be read")
            except NotThere:
                break
            except NotForCaller as error:
                if error.upstream_status == 401:  # nothing is encoded for someone unknown
                    break
            else:
                return answer
        return {}

    async def _located(self, name: str) -> Locations:
        """Return the indices behind a name whose documents are encoded now; none if the gateway may not know."""
        known = self._locations.get(name)
        if known is not None:
            return known.value
        cache, located = self._locations, {}
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                indices = await Indices.behind(self._engine.as_gateway().protocol(), name)
            located = {held.source.index: held for held in indices.present if _encodes_now(held)}
        except (EsTtcError, TimeoutError):  # the write itself finds out, in the engine's words
            pass
        except Exception as error:  # noqa: BLE001 - whatever someone has put into `_meta`, the write is forwarded
            _warn(name, f"a mapping cannot be read: {type(error).__name__}: {error}")
        cache.put(name, located)
        return located


def _target_of(name: str, index: str, described: Mapping[str, Any]) -> WriteTarget:
    """Return what a name is to which one index belongs."""
    mapping: Mapping[str, Any] = described["mappings"]
    pipelines = described.get("settings", {}).get("index", {})
    default, final = (pipelines.get(f"{kind}_pipeline", NO_PIPELINE) for kind in ("default", "final"))
    options = WriteOptions.of(mapping)
    if name == index and options is not None and options.encode == "now" and options.key:
        if final == follow_pipeline_name(name):
            former = own_meta(mapping)[WRITES].get(FORMER, NO_PIPELINE)
            spec = spec_of_own(name, mapping)
            own, others = default != NO_PIPELINE, former != NO_PIPELINE
            return WriteTarget(final, InlineIndex(name, spec, options.key, own, others))
        _warn(name, f"its final pipeline is [{final}]: run `es-ttc index pipeline {name}` again")
    return WriteTarget(final if final.startswith(_OWN_PIPELINES) else "")


def _encodes_now(held: FeatureLocation) -> bool:
    options = WriteOptions.of(held.holder.mapping)
    return options is not None and options.encode == "now"


def _warn(name: str, problem: str) -> None:
    log.warning("documents are not encoded by the gateway", index=name, problem=problem)
