"""The plugin's ingest processor for one index: its options, its pipeline, and the setting that applies it to writes.

It is the index's final pipeline, so every write passes it, whatever pipeline a request names. The processor is
configured with the fields that are encoded. So it computes the same content hash as `es-ttc ingest`, and recognises
documents that es-ttc itself writes with their features; it does not change those. In an index whose writes are followed
it has the index's key instead, as the pipeline of the engine's own processors has.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote

from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, EngineError, InvalidRequest
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.index.mappings.write_options import WRITE_KEY, WriteOptions

PROCESSOR = "ttc"
OnError = Literal["pending", "fail"]

FINAL_PIPELINE = "index.final_pipeline"
NO_PIPELINE = "_none"
_UNKNOWN = "No processor type exists with name"


@dataclass(frozen=True, slots=True)
class EncodeMode:
    """Options of encoding at index time."""

    on_error: OnError = "pending"
    timeout: str = "30s"


def processor(spec: IndexSpec, waiting: EncodeMode | None = None) -> dict[str, Any]:
    """Return the processor for documents of a spec; without encoding it only adds the hash."""
    options = {"wait": waiting is not None, **(asdict(waiting) if waiting else {})}
    return {PROCESSOR: {**options, "content": _content(spec)}}


def following_processor(spec: IndexSpec, options: WriteOptions) -> dict[str, Any]:
    """Return the processor for an index whose writes are followed."""
    timeout = {"timeout": options.plugin_timeout} if options.encode == "now" else {}
    step = {"encode": options.encode, **timeout, "enrich": options.enrich, "key": options.key}
    return {PROCESSOR: {**step, "content": _content(spec)}}


async def check_processor(engine: Engine, step: Mapping[str, Any]) -> None:
    """Check that the engine has the processor and accepts its options; it has a key, so the gateway is not asked."""
    document = {"_source": {ROOT: {WRITE_KEY.removeprefix(f"{ROOT}."): step[PROCESSOR]["key"]}}}
    body = {"pipeline": {"processors": [step]}, "docs": [document]}
    try:
        await engine.request("POST", "/_ingest/pipeline/_simulate", body=body)
    except EngineError as error:
        raise _without_plugin(engine, error) from error


def _content(spec: IndexSpec) -> dict[str, Any]:
    return {
        "encoder": spec.encoder.key,
        "text_fields": list(spec.text_fields),
        "storage": spec.storage.hex(),
        "layout": spec.layout,
    }


def pipeline_name(index: str) -> str:
    """Return the name of an index's pipeline."""
    return f"ttc-ingest-{index}"


async def add_pipeline(engine: Engine, name: str, waiting: EncodeMode | None = None) -> dict[str, Any]:
    """Add the processor to every write to an index, or replace its options; return index, pipeline and processor."""
    own = await Index.own(engine, name)
    index, pipeline = own.index, pipeline_name(own.index)
    present = await _final_pipeline(engine, index)
    if present not in (NO_PIPELINE, pipeline):
        raise InvalidRequest(
            f"index [{index}] has the final pipeline [{present}], and there can be one: take it away, or call it in "
            "the index's default pipeline"
        )
    step = processor(own.spec, waiting)
    body = {"description": f"es-ttc: features of documents written to {index}", "processors": [step]}
    try:
        await engine.request("PUT", pipeline_path(pipeline), body=body)
    except EngineError as error:
        raise _without_plugin(engine, error) from error
    await set_final_pipeline(engine, index, pipeline)
    return {"index": index, "pipeline": pipeline, "processor": step}


async def remove_pipeline(engine: Engine, name: str) -> bool:
    """Remove the processor from an index; return whether there was one."""
    index = (await Index.own(engine, name)).index
    pipeline = pipeline_name(index)
    if await _final_pipeline(engine, index) == pipeline:
        # First the setting: a write fails if the pipeline that it names does not exist.
        await set_final_pipeline(engine, index, None)
    return await delete_pipeline(engine, pipeline)


async def set_final_pipeline(engine: Engine, index: str, pipeline: str | None) -> None:
    """Set the final pipeline of an index; None removes the setting."""
    await engine.request("PUT", f"/{quote(index, safe='')}/_settings", body={FINAL_PIPELINE: pipeline})


async def delete_pipeline(engine: Engine, pipeline: str) -> bool:
    """Delete a pipeline that no index runs any more; return whether there was one."""
    try:
        await engine.request("DELETE", pipeline_path(pipeline))
    except EngineError as error:
        if error.upstream_status in (403, 404):  # an account that may not manage pipelines has created none
            return False
        raise
    return True


def _without_plugin(engine: Engine, error: EngineError) -> Exception:
    """Return the error for an engine without the processor, or the engine's own error."""
    if _UNKNOWN not in str(error):
        return error
    return ConfigurationError(
        f"{engine.name} has no ingest processor [{PROCESSOR}]: install the es-ttc plugin on its nodes "
        "(docs/how-to/use-the-plugin.md)"
    )


async def _final_pipeline(engine: Engine, index: str) -> str:
    answer = await engine.request("GET", f"/{quote(index, safe='')}/_settings", params={"flat_settings": "true"})
    found: str = answer[index]["settings"].get(FINAL_PIPELINE, NO_PIPELINE)
    return found


def pipeline_path(pipeline: str) -> str:
    """Return the path of a pipeline."""
    return f"/_ingest/pipeline/{quote(pipeline, safe='')}"
