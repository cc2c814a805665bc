"""Follow the writes to an index: its pipeline, and the jobs that encode and enrich what is written."""

from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.encoding_service import EncodingStatus, start_encoding, stop_encoding
from es_ttc.index.attach.feature_locations import feature_locations
from es_ttc.index.attach.followed_writes import FollowedIndex, delete_pipeline, follow_writes, unfollow_writes
from es_ttc.index.mappings.write_options import Encode
from es_ttc.settings import Settings


@dataclass(frozen=True, slots=True)
class Followed:
    """An index whose writes are followed, with its jobs.

    Attributes:
        index: The index.
        encoding: The job that encodes.
    """

    index: FollowedIndex
    encoding: EncodingStatus

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "index": self.index.index,
            "pipeline": self.index.pipeline,
            "encode": self.index.options.encode,
            "enrich": self.index.options.enrich,
            "encoding": self.encoding.as_dict(),
            "enrichment": None,
        }


async def follow(engine: Engine, settings: Settings, name: str, encode: Encode, *, enrich: bool) -> list[Followed]:
    """Prepare every index behind a name so that what any client writes is encoded, and enriched if requested.

    Raises:
        InvalidRequest: One of them has no features, or the plugin's processor.
        EngineError: The engine returned an error.
    """
    found = []
    for held in await feature_locations(engine, name):
        followed = await follow_writes(engine, held, encode, enrich=enrich)
        found.append(Followed(followed, await start_encoding(engine, settings.jobs_index, followed.index)))
    return found


async def unfollow(engine: Engine, jobs_index: str, name: str) -> bool:
    """Undo :func:`follow`; return whether writes to an index of this name were followed."""
    found = False
    for held in await feature_locations(engine, name):
        found |= await stop_encoding(engine, jobs_index, held.source.index)
        found |= await unfollow_writes(engine, held)
    return found


async def forget(engine: Engine, jobs_index: str, index: str) -> None:
    """Remove the jobs and the pipeline of an index that was deleted."""
    await stop_encoding(engine, jobs_index, index)
    await delete_pipeline(engine, index)
