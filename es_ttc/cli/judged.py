"""Judged queries for the commands that measure by them or learn from them: of BEIR folders, or of an index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field

from es_ttc.cli.common import EncoderOptions, EngineUrl, provided, stderr, with_engine
from es_ttc.cli.evaluating import cached_encoder, stages, window_option
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.encoder import check_encoder, load_encoder_for
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bootstrap import SEED, Comparison
from es_ttc.lab.evaluation.datasets import Collection, load_collection, load_queries, sample
from es_ttc.lab.evaluation.report import signed
from es_ttc.lab.evaluation.tuning import FOLDS
from es_ttc.lab.judging.overview import Overview, read_overview
from es_ttc.lab.judging.store import JUDGEMENTS_INDEX, SIGNALS_INDEX, JudgementStore
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pools, collect, merged_pools
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.settings import EngineSettings, GatewaySettings, Settings

with_llm_flag = click.option(
    "--with-llm", is_flag=True, help="Count judgements of language models too. Default: those of people and imports."
)


def judgements_option(help: str) -> Callable[..., Any]:  # noqa: A002 - click's own name
    """Return the option for an index with judgements."""
    return click.option("--judgements", metavar="INDEX", help=help)


def require_one_source(data: Sequence[Path], judgements: str | None, *, with_llm: bool) -> None:
    """Raise an error unless queries come from folders, which must exist, or from an index."""
    if bool(data) == (judgements is not None):
        raise click.UsageError("name a folder DATA, or an index with judgements: --judgements INDEX")
    if with_llm and judgements is None:
        raise click.UsageError("--with-llm goes with --judgements INDEX")
    for folder in data:
        if not folder.exists():
            raise InvalidRequest(
                f"data folder [{folder}] does not exist; for an index and its judged queries give --judgements "
                f"{folder.name} in its place"
            )


def load_judged(settings: EngineSettings, index: str, *, with_llm: bool) -> Collection:
    """Read an index's judged queries."""
    return read_judged(settings, index, with_llm=with_llm, signals=False).collection()


def read_judged(settings: EngineSettings, index: str, *, with_llm: bool, signals: bool = True) -> Overview:
    """Read an index's pools and judgements."""
    overview = with_engine(
        settings,
        lambda client: read_overview(JudgementStore(client, index), with_llm=with_llm, signals=signals),
    )
    if overview.unreadable:
        click.echo(
            f"note: {len(overview.unreadable):,} records of [{JUDGEMENTS_INDEX}] and [{SIGNALS_INDEX}] are none of "
            f"es-ttc and are left out, such as [{overview.unreadable[0]}]: delete them",
            err=True,
        )
    return overview


@dataclass(frozen=True, kw_only=True)
class JudgedQueries(EncoderOptions):
    """Options that say which queries are read, and where their documents are."""

    split: Annotated[
        str,
        "--split NAME",
        "Split of the queries: train, valid...; test only with --folds, if there is no other split.",
    ] = "train"
    sample: Annotated[
        int | None, "--sample N", Field(ge=2), "Number of queries of each collection, sampled at random. Default: all."
    ] = None
    window: Annotated[int | str, window_option]  # `all` for the whole corpus
    index: Annotated[
        str | None,
        "--index NAME",
        "Index with the judged documents and their features, in place of corpus.jsonl; signals are logged from it as a "
        "gateway would score them.",
    ] = None
    engine: EngineUrl = None
    # The index whose judgements in the engine are taken, in place of a folder's; its documents are taken too
    judgements: str | None = None
    with_llm: bool = False

    @property
    def searched_index(self) -> str | None:
        """The index with the documents; None for those of the folder."""
        return self.judgements or self.index

    def load(self, folder: Path | None) -> Collection:
        """Read a folder: queries and judgements alone if the documents are in an index; or an index's judgements."""
        if self.engine is not None and self.searched_index is None:
            raise click.UsageError("--engine is for --index NAME: without an index documents are those of DATA")
        if self.searched_index is not None and isinstance(self.window, str):
            raise InvalidRequest(f"[window] {self.window} is for documents in memory: give a number with --index")
        if self.judgements is not None:
            engine = EngineSettings(**provided(engine=self.engine))
            collection = load_judged(engine, self.judgements, with_llm=self.with_llm)
        elif folder is None:
            raise click.UsageError("name a folder DATA")
        else:
            collection = (load_collection if self.index is None else load_queries)(folder, self.split)
        return collection if self.sample is None else sample(collection, self.sample, SEED)

    def pools(
        self, collections: Sequence[Collection], signals: Sequence[SignalName], fields: Sequence[str] = ()
    ) -> Pools:
        """Score every signal once for each query's candidates."""
        if self.searched_index is None:
            encoder = cached_encoder(self.settings(Settings))
            window = None if isinstance(self.window, str) else self.window
            score: Callable[..., Pools] = partial(collect, encoder=encoder, signals=signals, window=window)
        else:
            score = partial(collect_from_index, source=self._source(self.searched_index), signals=signals)
        found = []
        for collection in collections:
            with stages(collection.name) as progress:
                found.append(score(collection, fields=fields, progress=progress))
        return merged_pools(found)

    def _source(self, index: str) -> IndexSource:
        settings = self.settings(GatewaySettings, engine=self.engine)

        def load(spec: IndexSpec) -> Encoder:
            encoder = load_encoder_for(spec.encoder, settings.chosen_encoder, cache_dir=settings.cache_dir)
            check_encoder(index, spec, encoder)
            return encoder

        return IndexSource(index, settings, load, int(self.window))


def folds_of(given: int | None, queries: int) -> int:
    """Return the number of folds."""
    folds = FOLDS if given is None else given
    if folds > queries:
        raise InvalidRequest(f"[folds] is {folds}, and there are {queries} queries: give fewer folds or more queries")
    return folds


def report_written(out: Path, *, clear: bool, force: bool, what: str, default: str) -> None:
    """Say whether a file was written; without a clear gain and --force the command fails.

    Raises:
        click.exceptions.Exit: Nothing was written.
    """
    if clear or force:
        click.echo(f"{what}: {out}", err=True)
        if not clear:
            stderr.print(f"note: written by --force, without a clear gain over {default}")
        return
    click.echo(
        f"not written: {out}: the gain over {default} is not clear. Keep the default, judge "
        "more queries, or write the file all the same with --force",
        err=True,
    )
    raise click.exceptions.Exit(1)


def interval_text(one: Comparison) -> str:
    """Return a difference with its interval; bold where it is clear."""
    text = f"{signed(one.delta)} ({signed(one.interval.low)} to {signed(one.interval.high)})"
    return f"[bold]{text}[/]" if one.interval.low > 0 or one.interval.high < 0 else text
