"""Pools of `es-ttc judge pool`: searches through the gateway, blend's signals, and grades of a language model."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from es_ttc.cli.common import progress_bar, with_engine
from es_ttc.cli.evaluating import stages
from es_ttc.cli.search import GatewayOptions, encoder_of_index
from es_ttc.cli.searching import CliQuery, SearchTarget, search_by_method
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.judging.llm_judge import JUDGE_PREFIX, llm_grades
from es_ttc.lab.judging.records import (
    MAX_POOL_DEPTH,
    Judgement,
    JudgementSource,
    LoggedSignals,
    PooledMethod,
    PooledQuery,
)
from es_ttc.lab.judging.store import JudgementStore
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.llm import model_for_jobs
from es_ttc.settings import GatewaySettings, Settings

_GRADED_TOGETHER = 20  # documents whose grades are written together, so that an interrupted run loses few


def make_pools(
    index: str,
    queries: Sequence[tuple[str, str]],
    methods: Sequence[PooledMethod],
    depth: int,
    through: GatewayOptions,
) -> tuple[list[PooledQuery], str]:
    """Search, log the signals of blend, and write the pools.

    Returns:
        The pools, and one sentence that says why they have no signals, if they have none.
    """
    settings = through.settings
    encoder = encoder_of_index(settings, index)

    async def searched(client: Engine) -> list[PooledQuery]:
        target, pooled = await SearchTarget.of(client, index), []
        with progress_bar() as bar:
            for name, text in bar.track(queries, description="searching"):
                rankings = await asyncio.gather(
                    *(
                        search_by_method(target, CliQuery(text, method.method, MAX_POOL_DEPTH, method.params))
                        for method in methods
                    )
                )
                runs = tuple(tuple(hit.id for hit in ranking.hits) for ranking in rankings)
                pooled.append(PooledQuery(name, text, tuple(methods), runs, depth))
        return pooled

    async def write(client: Engine) -> None:
        store = JudgementStore(client, index)
        await store.put_pools(logged)
        await store.put_signals(logged)

    pooled = through.run(lambda _settings: encoder, searched)
    logged, note = _with_signals(pooled, index, settings, encoder)
    with_engine(settings, write)
    return logged, note


def _with_signals(
    pooled: Sequence[PooledQuery], index: str, settings: GatewaySettings, encoder: Encoder
) -> tuple[list[PooledQuery], str]:
    queries = Collection(index, "pool", (), {one.id: one.text for one in pooled}, {one.id: {} for one in pooled})
    try:
        with stages(index) as progress:
            pools = collect_from_index(queries, IndexSource(index, settings, lambda _: encoder), progress=progress)
    except (MissingFeature, InvalidRequest) as error:
        return list(pooled), f"the pools have no signals, so no weights of blend can be chosen from them: {error}"
    signals = {pool.query: LoggedSignals.of(pool, pools) for pool in pools.pools}
    return [replace(one, signals=signals[one.id]) for one in pooled], ""


async def grade_by_llm(settings: Settings, index: str) -> tuple[str, int, int]:
    """Let the configured language model grade the pooled documents that it has not graded yet.

    What it has graded is kept if it fails.

    Returns:
        The model's name as a judge, the number of new grades, and the number of answers without a grade.
    """
    async with model_for_jobs(settings) as model, connected(settings) as client:
        store = JudgementStore(client, index)
        name = f"{JUDGE_PREFIX}{await model.model()}"[:100]
        fields = (await Indices.behind(client, index)).shared_spec().text_fields
        left = await _ungraded(store, name)
        done = unreadable = 0
        with progress_bar() as bar:
            task = bar.add_task("grading", total=len(left))
            for start in range(0, len(left), _GRADED_TOGETHER):
                some = left[start : start + _GRADED_TOGETHER]
                sources = await store.documents(list(dict.fromkeys(document for _, document in some)))
                texts = {document: compose(source, fields)[0].strip() for document, source in sources.items()}
                known = [(query, document) for query, document in some if texts.get(document)]
                grades = await llm_grades(model, [(query.text, texts[document]) for query, document in known])
                judgements = [
                    Judgement(query.id, document, name, grade, JudgementSource.LLM)
                    for (query, document), grade in zip(known, grades, strict=True)
                    if grade is not None
                ]
                await store.put(judgements)
                done += len(judgements)
                unreadable += len(known) - len(judgements)
                bar.update(task, advance=len(some))
    return name, done, unreadable


async def _ungraded(store: JudgementStore, judge: str) -> list[tuple[PooledQuery, str]]:
    queries = await store.pools()
    if not any(query.documents for query in queries):
        raise InvalidRequest(f"index [{store.index}] has no pools: name queries to pool")
    before = {
        (judgement.query, judgement.document) for judgement in await store.judgements() if judgement.judge == judge
    }
    return [
        (query, document) for query in queries for document in query.documents if (query.id, document) not in before
    ]
