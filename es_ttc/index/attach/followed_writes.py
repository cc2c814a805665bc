"""Follow the writes of any client to an index: its pipeline, the mapping of its key, and the options in its mapping.

The pipeline consists of the engine's own processors, so no plugin is needed, or of the plugin's if that is requested
(:mod:`es_ttc.index.mappings.ingest_pipeline`). It is the index's final pipeline, so every write that runs pipelines
passes it last. It drops whatever a client sends below ``ttc`` and marks the document as pending. Writes with the key
keep their features: es-ttc's own writers send it. A side index needs no pipeline.

A partial update in a `_bulk` runs no pipeline. It drops all fields below ``ttc``, which are outside `_source`.
"""

import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import FeatureLocation
from es_ttc.index.mappings import ingest_pipeline
from es_ttc.index.mappings.attached import PENDING
from es_ttc.index.mappings.indices import Index, put_own_meta
from es_ttc.index.mappings.ingest_pipeline import FINAL_PIPELINE, NO_PIPELINE
from es_ttc.index.mappings.spec import ROOT
from es_ttc.index.mappings.write_options import WRITE_KEY, WRITES, Encode, WriteOptions

_KEY_BYTES = 16
_KEY_MAPPING = {"type": "keyword", "index": False, "doc_values": False}
_PREFIX = "ttc-writes-"
FORMER = "former_pipeline"  # key of `_meta.ttc.writes` with the final pipeline that the index had before

_MARK_PENDING = f"""
def sent = ctx.{ROOT} instanceof Map ? ctx.{ROOT}.remove('key') : null;
ctx.keySet().removeIf(name -> name.startsWith('{ROOT}.'));
if (!params.key.equals(sent)) {{ ctx.{ROOT} = ['state': params.state]; }}
"""


@dataclass(frozen=True, slots=True)
class FollowedWrites:
    """An index whose writes are followed, the one with its features, and its final pipeline, if it has one."""

    index: str
    holder: str
    pipeline: str | None
    options: WriteOptions


def follow_pipeline_name(index: str) -> str:
    """Return the name of the pipeline of an index that es-ttc created."""
    return f"{_PREFIX}{index}"


async def check_plugin(
    engine: Engine, held: FeatureLocation, encode: Encode, plugin_timeout: str, *, enrich: bool
) -> None:
    """Check that the plugin's processor can run on the writes to an index; nothing is changed."""
    if held.side:
        raise InvalidRequest(
            f"the plugin's processor is for indices made by es-ttc, and features were attached to [{held.source.index}]"
            ": leave out --plugin"
        )
    options = WriteOptions(encode, enrich, _new_key(), plugin_timeout)
    await ingest_pipeline.check_processor(engine, ingest_pipeline.following_processor(held.spec, options))


async def follow_writes(
    engine: Engine, held: FeatureLocation, encode: Encode, *, enrich: bool, plugin_timeout: str | None = None
) -> FollowedWrites:
    """Prepare an index so that workers find what any client writes to it; every step may be repeated."""
    source = held.source
    if source.settings.get(FINAL_PIPELINE) == ingest_pipeline.pipeline_name(source.index):
        raise InvalidRequest(
            f"the plugin's processor runs on all writes to [{source.index}], and --encode makes another pipeline: "
            f"remove the former with `es-ttc index pipeline {source.index} --remove`"
        )
    present = WriteOptions.of(held.holder.mapping)
    if held.side:
        options = WriteOptions(encode, enrich, key="")
        await put_own_meta(engine, held.index, WRITES, options.as_meta())
        return FollowedWrites(source.index, held.index, None, options)
    options = WriteOptions(encode, enrich, present.key if present else _new_key(), plugin_timeout)
    former = former_pipeline(source)
    key = {ROOT: {"type": "object", "properties": {WRITE_KEY.partition(".")[2]: _KEY_MAPPING}}}
    await engine.request("PUT", f"/{quote(source.index, safe='')}/_mapping", body={"properties": key})
    await put_own_meta(engine, source.index, WRITES, options.as_meta() | {FORMER: former})
    pipeline = follow_pipeline_name(source.index)
    body = _pipeline(held, former, options)
    await engine.request("PUT", ingest_pipeline.pipeline_path(pipeline), body=body)
    await ingest_pipeline.set_final_pipeline(engine, source.index, pipeline)
    return FollowedWrites(source.index, held.index, pipeline, options)


def is_followed(held: FeatureLocation) -> bool:
    """Return whether the index's own pipeline follows its writes; a template may carry over that of another index."""
    if WriteOptions.of(held.holder.mapping) is None:
        return False
    source = held.source
    return held.side or source.settings.get(FINAL_PIPELINE) == follow_pipeline_name(source.index)


async def unfollow_writes(engine: Engine, held: FeatureLocation) -> bool:
    """Undo :func:`follow_writes`, keep the features, and return whether writes were followed.

    ``ttc.key`` stays mapped, so that a late write with the key succeeds.
    """
    source = held.source
    if WriteOptions.of(held.holder.mapping) is None:
        return False
    if not held.side:
        former = former_pipeline(source)
        # First the setting: a write fails if the pipeline that it names does not exist.
        if source.settings.get(FINAL_PIPELINE) == follow_pipeline_name(source.index):
            await ingest_pipeline.set_final_pipeline(engine, source.index, None if former == NO_PIPELINE else former)
        await delete_follow_pipeline(engine, source.index)
    await put_own_meta(engine, held.index, WRITES, None)
    return True


async def delete_follow_pipeline(engine: Engine, index: str) -> None:
    """Delete the pipeline of an index that is not set any more, or that was deleted, if there is one."""
    await ingest_pipeline.delete_pipeline(engine, follow_pipeline_name(index))


def former_pipeline(source: Index) -> str:
    """Return the final pipeline that an index had before those of es-ttc; ``_none`` for none."""
    present: str = source.settings.get(FINAL_PIPELINE, NO_PIPELINE)
    if not present.startswith(_PREFIX):  # an index template may have carried over that of an earlier index
        return present
    kept: str = source.meta.get(WRITES, {}).get(FORMER, NO_PIPELINE)
    return kept


def _pipeline(held: FeatureLocation, former: str, options: WriteOptions) -> dict[str, Any]:
    before = [] if former == NO_PIPELINE else [{"pipeline": {"name": former}}]
    if options.plugin:
        step = ingest_pipeline.following_processor(held.spec, options)
    else:
        step = {"script": _marking_script(options.key)}
    return {
        "description": f"es-ttc: marks documents written to {held.source.index}, which workers then encode",
        "processors": [*before, step],
    }


def _marking_script(key: str) -> dict[str, Any]:
    return {
        "lang": "painless",
        "source": _MARK_PENDING,
        "params": {"key": key, "state": PENDING},
        # Without features and without a state, the document is pending too; a rejected one would be lost.
        "on_failure": [{"remove": {"field": ROOT, "ignore_missing": True, "ignore_failure": True}}],
    }


def _new_key() -> str:
    return secrets.token_hex(_KEY_BYTES)
