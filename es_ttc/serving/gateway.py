"""What the parts of one gateway share."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from es_ttc.common.processors import processor_count
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.encoders.query_adapters import QueryAdapters
from es_ttc.reranking.rerankers import Rerankers
from es_ttc.reranking.rerankers.cross_encoder import built_in as cross_encoders
from es_ttc.reranking.rerankers.llm import of_the_gateway as llm_rerankers
from es_ttc.rescorers import compiled
from es_ttc.rescorers.learned.model import read_models
from es_ttc.rescorers.programs.promoted import SERVED_AS, PromotedRescorer, read_programs
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.cache import FeatureCache
from es_ttc.serving.features.encoding import Encoders, Loader
from es_ttc.serving.features.field_types import FieldTypes
from es_ttc.serving.features.index_meta import IndexMeta
from es_ttc.serving.features.on_demand import OnDemandQueue
from es_ttc.serving.features.read_budget import ReadBudget
from es_ttc.serving.features.reader import FeatureReader
from es_ttc.serving.features.scorer import WindowScorer
from es_ttc.serving.features.side_index import FeatureLocator
from es_ttc.serving.features.window import WindowReader
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.raw_request import BodyMemory
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.load import Load
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.pool import BoundedPool, Offload
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.shared_model import SharedModel
from es_ttc.serving.warm_up import WarmUp
from es_ttc.settings import GatewaySettings

_CALLS_A_REQUEST = 2
"""Calls of each kind that may wait for a thread, for each request that may be answered at a time."""
_ENCODING_THREADS = 2
_IDLE_PROGRAMS = 4
"""Maximum number of idle processes of promoted programs, of all worker processes together."""


class Gateway:
    """What the parts of one gateway share: settings, connections, caches, encoders, threads."""

    def __init__(self, settings: GatewaySettings, load: Loader | None, process: OnlyProcess) -> None:
        self.settings = settings
        threads = max(1, processor_count() // process.count)
        log.info("scoring", loops="compiled" if compiled.enabled() else "numpy")
        self.metrics = Metrics()
        self.upstream = Upstream(settings)
        self.engine = EngineClient(self.upstream)
        self.bodies = BodyMemory(settings.max_buffered_mb * 2**20)
        self.callers = CallerLimits(settings.max_caller_requests, settings.max_caller_windows_per_second)
        self.offload = Offload()
        queue = _CALLS_A_REQUEST * settings.max_concurrent_requests
        self.encoding = BoundedPool("encoding", threads=_ENCODING_THREADS, queue=queue)
        self.scoring = BoundedPool("scoring", threads=threads, queue=queue)
        self.load = Load()
        names = (settings.encoder, *settings.encoders)
        on_trial = settings.trial_log is not None
        adapters = QueryAdapters.read(settings.query_adapters, settings.cache_dir, on_trial=on_trial)
        self.encoders = Encoders(
            names,
            settings.cache_dir,
            load or partial(_load_encoder, threads),
            partial(_load_variant, threads),
            self.encoding,
            adapters,
        )
        self.warm_up = WarmUp(self.encoders, self.engine)
        self.attached = FeatureLocator(self.engine)
        reads = ReadBudget(self.engine, settings.feature_reads_mb, process.count)
        cache = FeatureCache(settings.feature_cache_mb * 2**20)
        meta = IndexMeta(self.engine)
        self.features = FeatureReader(self.engine, cache, self.scoring, reads, meta)
        self.numbers = FieldTypes(self.engine)
        self.on_demand = OnDemandQueue(self.engine, settings.on_demand_queue if settings.on_demand_share else 0)
        windows = WindowReader(self.engine, self.features, self.attached, self.encoders, meta, self.on_demand)
        self.scorer = WindowScorer(windows, self.encoders, self.scoring, self.numbers)
        self.programs, programs = promoted_programs(settings)
        self.served: Mapping[str, Mapping[str, Any]] = {**read_models(settings.ranking_models), **programs}
        self.tuned = TunedDefaults.read(settings.tuned, self.served)
        self.rerankers = rerankers_of(settings)
        self.model = SharedModel(settings)
        self.metrics.watch_cache(cache)
        turns = reads.turns
        self.metrics.watch(
            {
                "model_breaker_open": lambda: self.model.breaker_open,
                "on_demand_queue": lambda: len(self.on_demand),
                "on_demand_windows": lambda: self.on_demand.recent_windows,
                "on_demand_complete_windows": lambda: self.on_demand.complete_windows,
                "feature_reads_bytes": lambda: turns.in_flight,
                "feature_reads_capacity_bytes": lambda: turns.capacity,
                "feature_reads_waiting": lambda: turns.waiting,
            }
        )

    async def close(self) -> None:
        """Close threads, processes and connections."""
        await self.rerankers.close()
        self.offload.close()
        self.encoding.close()
        self.scoring.close()
        self.programs.close()


def rerankers_of(settings: GatewaySettings) -> Rerankers:
    """Return the rerankers of the settings, and the built-in ones."""
    return Rerankers(settings.rerankers, {**llm_rerankers(settings), **cross_encoders()})


def promoted_programs(
    settings: GatewaySettings,
) -> tuple[ProgramProcessPool, dict[str, dict[str, PromotedRescorer]]]:
    """Return the promoted programs of the settings, and the pool that runs them; no process is started yet."""
    host = ProgramProcessPool(ProgramLimits(processes=_IDLE_PROGRAMS // settings.workers))
    programs = read_programs(settings.programs, host.program)
    if programs[SERVED_AS]:
        host.require()
    return host, programs


def _load_encoder(threads: int, name: str, cache_dir: Path) -> Encoder:
    from es_ttc.encoders import load_encoder  # imports the backends

    encoder: Encoder = load_encoder(name, cache_dir=cache_dir, threads=threads)
    return encoder


def _load_variant(threads: int, identity: EncoderIdentity, name: str, cache_dir: Path) -> Encoder:
    from es_ttc.index.mappings.encoder import load_encoder_for

    return load_encoder_for(identity, name, cache_dir=cache_dir, threads=threads)
