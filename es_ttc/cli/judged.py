"""Pools of judged queries for the commands that learn from them: of BEIR folders in memory, or from an index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from es_ttc.cli.common import adapted, engine_flag, given
from es_ttc.cli.evaluating import cached_encoder, stages
from es_ttc.cli.judge_options import load_judged
from es_ttc.cli.search import check_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection, load_queries, sample
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pools, collect, merged
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.settings import EngineSettings, GatewaySettings, Settings

F = TypeVar("F", bound=Callable[..., Any])

SEED = 20_241
"""Seed of samples, folds and bootstraps."""


def index_options(command: F) -> F:
    """Add the options that take documents from an index."""
    index = click.option(
        "--index",
        metavar="NAME",
        help="Index with the judged documents and their features, in place of corpus.jsonl; signals are logged from "
        "it as a gateway would score them.",
    )
    return index(engine_flag(command))


@dataclass(frozen=True, slots=True)
class JudgedQueries:
    """Which queries are read, and where their documents are.

    Attributes:
        queries: Number of queries of each collection, sampled at random; None for all.
        window: Documents of the first pass; ``all`` for the whole corpus.
        index: The index with the documents; None for those of the folder.
        judgements: The index whose judgements in the engine are taken, in place of a folder's; it is ``index`` too.
    """

    split: str
    queries: int | None
    window: int | str
    index: str | None
    engine: str | None
    encoder: str | None
    adapter: str | None
    judgements: str | None = None
    with_llm: bool = False

    def __post_init__(self) -> None:
        if self.engine is not None and self.index is None:
            raise click.UsageError("--engine is for --index NAME: without an index documents are those of DATA")
        if self.index is not None and isinstance(self.window, str):
            raise InvalidRequest(f"[window] {self.window} is for documents in memory: give a number with --index")

    def load(self, folder: Path | None) -> Collection:
        """Read a folder: queries and judgements alone if the documents are in an index; or an index's judgements."""
        if self.judgements is not None:
            engine = EngineSettings(**given(engine=self.engine))
            collection = load_judged(engine, self.judgements, with_llm=self.with_llm)
        elif folder is None:
            raise click.UsageError("name a folder DATA")
        else:
            collection = (load_collection if self.index is None else load_queries)(folder, self.split)
        return collection if self.queries is None else sample(collection, self.queries, SEED)

    def pools(
        self, collections: Sequence[Collection], signals: Sequence[SignalName], fields: Sequence[str] = ()
    ) -> Pools:
        """Score every signal once for each query's candidates."""
        score = self._in_memory(signals, fields) if self.index is None else self._from_index(signals, fields)
        return merged([score(collection) for collection in collections])

    def _in_memory(self, signals: Sequence[SignalName], fields: Sequence[str]) -> Callable[[Collection], Pools]:
        encoder = cached_encoder(adapted(Settings(**given(encoder=self.encoder)), self.adapter))
        window = None if isinstance(self.window, str) else self.window

        def score(collection: Collection) -> Pools:
            with stages(collection.name) as progress:
                return collect(collection, encoder, signals, window=window, fields=fields, progress=progress)

        return score

    def _from_index(self, signals: Sequence[SignalName], fields: Sequence[str]) -> Callable[[Collection], Pools]:
        index = str(self.index)
        settings = adapted(GatewaySettings(**given(engine=self.engine, encoder=self.encoder)), self.adapter)

        def load(spec: IndexSpec) -> Encoder:
            encoder = load_encoder_for(spec.encoder, settings.encoder, cache_dir=settings.cache_dir)
            check_encoder(index, spec, encoder)
            return encoder

        source = IndexSource(index, settings, load, int(self.window))

        def score(collection: Collection) -> Pools:
            with stages(collection.name) as progress:
                return collect_from_index(collection, source, signals, fields=fields, progress=progress)

        return score
