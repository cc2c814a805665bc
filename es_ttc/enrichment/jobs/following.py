"""Follow the writes to an index: its pipeline, and the jobs that encode and enrich what is written."""

from dataclasses import dataclass, field
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.followed_jobs import start_encoding, stop_encoding, stop_enrichment
from es_ttc.enrichment.jobs.progress import ENCODED
from es_ttc.enrichment.jobs.record import Budget, EncodingJob, Job, JobStatus, enrichment_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.submission import JobRequest, submit_continuous
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.followed_writes import (
    FollowedWrites,
    check_plugin,
    delete_follow_pipeline,
    follow_writes,
    unfollow_writes,
)
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.write_options import Encode
from es_ttc.settings import Settings

REFRESH = 0.5
"""Phrases are chosen by shares of documents, which change as the corpus grows. With this growth between two refreshes a
document is written three times on average while the corpus grows, however large it becomes."""
_PRIORITY = 0  # of the job that enriches: jobs that a person submits for the same index go first


@dataclass(frozen=True, slots=True)
class EnrichmentOptions:
    """How the documents written to an index are enriched."""

    prompt: str | None = None
    budget: Budget = field(default_factory=lambda: Budget(tokens=None, cost=None))

    @property
    def named(self) -> frozenset[str]:
        """The options that are not left at their defaults."""
        budget = (self.budget.tokens, self.budget.cost) != (None, None)
        named = {"prompt": self.prompt is not None, "budget": budget}
        return frozenset(option for option, is_named in named.items() if is_named)

    def request(self, index: str) -> JobRequest:
        """Return the request for the job of one index.

        Only encoded documents are enriched: before, a document would be written twice, and lose its phrases in between.
        """
        return JobRequest(
            index=index,
            prompt=self.prompt,
            query=ENCODED,
            continuous=True,
            priority=_PRIORITY,
            budget=self.budget,
            refresh=REFRESH,
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """An index whose writes are followed, with its jobs."""

    index: FollowedWrites
    encoding: JobStatus[EncodingJob]
    enrichment: JobStatus[Job] | None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "index": self.index.index,
            "pipeline": self.index.pipeline,
            "encode": self.index.options.encode,
            "enrich": self.index.options.enrich,
            "plugin": self.index.options.plugin,
            "encoding": self.encoding.as_dict(),
            "enrichment": None if self.enrichment is None else self.enrichment.as_dict(),
        }


async def follow(
    engine: Engine,
    settings: Settings,
    name: str,
    encode: Encode,
    enrichment: EnrichmentOptions | None = None,
    *,
    plugin_timeout: str | None = None,
) -> list[Followed]:
    """Prepare every index behind a name so that what any client writes is encoded, and enriched if requested."""
    locations = (await Indices.behind(engine, name)).features()
    if plugin_timeout is not None:
        for held in locations:
            await check_plugin(engine, held, encode, plugin_timeout, enrich=enrichment is not None)
    for held in locations:
        if enrichment is not None:
            if held.side:
                raise InvalidRequest(
                    f"the features of [{held.source.index}] are in a side index, and phrases must be in the documents "
                    "that they are to find, because BM25 sums over the fields of one document: leave out --enrich, or "
                    "make an index with `es-ttc index create`"
                )
            await add_enrichment(engine, held.source.index)
    found = []
    for held in locations:
        followed = await follow_writes(
            engine, held, encode, enrich=enrichment is not None, plugin_timeout=plugin_timeout
        )
        encoding = await start_encoding(
            engine, settings.jobs_index, followed.index, "" if name == followed.index else name
        )
        enriching = None
        if enrichment is not None:
            enriching = await submit_continuous(
                engine,
                settings,
                enrichment.request(followed.index),
                enrichment_job_id(followed.index),
                enrichment.named,
            )
        else:
            await stop_enrichment(JobStore(engine, settings.jobs_index), followed.index)
        found.append(Followed(followed, encoding, enriching))
    return found


async def unfollow(engine: Engine, jobs_index: str, name: str) -> bool:
    """Undo :func:`follow`; return whether writes to an index of this name were followed."""
    found = False
    store = JobStore(engine, jobs_index)
    for held in (await Indices.behind(engine, name)).features():
        found |= await stop_encoding(store, held.source.index)
        await stop_enrichment(store, held.source.index)
        found |= await unfollow_writes(engine, held)
    return found


async def forget(engine: Engine, jobs_index: str, index: str) -> None:
    """Cancel an index's jobs and delete its pipeline; jobs that this account cannot read pause by themselves."""
    store = JobStore(engine, jobs_index)
    try:
        await stop_encoding(store, index)
        await stop_enrichment(store, index)
    except EngineError as error:
        if error.upstream_status != 403:
            raise
    await delete_follow_pipeline(engine, index)
