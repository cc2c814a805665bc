"""A reranker as the teacher: its scores of the first documents of blend, within a budget of pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.common.private_files import open_private
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import alike_locations
from es_ttc.lab.evaluation.rankings import Progress
from es_ttc.lab.learning.teachers import RERANKED, blend_scores
from es_ttc.lab.ranking.pools import Pools
from es_ttc.reranking.rerankers import Passage, PointwiseCalls
from es_ttc.reranking.strategies.base import PartialScores
from es_ttc.serving.adaptive.walk import passage_of
from es_ttc.serving.gateway import rerankers_of
from es_ttc.settings import GatewaySettings

Scores = Mapping[str, Mapping[str, float]]
"""By query and document."""


def rerank(
    pools: Pools, index: str, settings: GatewaySettings, reranker: str, *, keep: Path, progress: Progress
) -> Scores:
    """Return a reranker's scores of the first documents of each pool; those in the file `keep` are not asked again."""
    with InterruptibleRunner() as runner:
        return runner.run(_rerank(pools, index, settings, reranker, keep, progress))


def first_documents(pools: Pools) -> list[list[str]]:
    """Return the documents of each pool that a reranker scores."""
    return [
        [pool.documents[place] for place in np.argsort(-row, kind="stable")[:RERANKED]]
        for pool, row in zip(pools.pools, blend_scores(pools), strict=True)
    ]


def require_scoring(settings: GatewaySettings, reranker: str) -> None:
    """Raise an InvalidRequest for a reranker that is unknown, or that returns an order without scores."""
    if not isinstance(rerankers_of(settings).named(reranker), PointwiseCalls):
        raise InvalidRequest(f"reranker [{reranker}] returns an order: a teacher must return scores")


async def _rerank(
    pools: Pools, index: str, settings: GatewaySettings, name: str, keep: Path, progress: Progress
) -> Scores:
    scored = _read(keep)
    firsts = first_documents(pools)
    rerankers = rerankers_of(settings)
    try:
        calls = rerankers.named(name)
        assert isinstance(calls, PointwiseCalls)  # noqa: S101 - require_scoring
        async with connected(settings) as engine:
            fields = (await alike_locations(engine, index))[0].spec.text_fields
            with open_private(keep, "ab") as file:
                for done, (pool, first) in enumerate(zip(pools.pools, firsts, strict=True), 1):
                    if done > len(scored):
                        passages = await _passages(engine, index, first, fields)
                        scores = await calls.scores(pool.query, passages)
                        scored.append(dict(zip(first, scores, strict=True)))
                        file.write(orjson.dumps(scored[-1]) + b"\n")
                        file.flush()
                    progress(f"asking {name}", done, len(firsts))
    except PartialScores as partial:
        raise partial.cause from partial
    finally:
        await rerankers.close()
    return {pool.query: scores for pool, scores in zip(pools.pools, scored, strict=True)}


async def _passages(engine: Engine, index: str, names: Sequence[str], fields: Sequence[str]) -> list[Passage]:
    """Return the text fields of documents."""
    body = {"query": {"ids": {"values": [*names]}}, "size": len(names), "_source": [*fields]}
    found = {hit["_id"]: hit.get("_source", {}) for hit in (await engine.search(index, body))["hits"]["hits"]}
    return [passage_of(found.get(name, {}), fields) for name in names]


def _read(file: Path) -> list[dict[str, float]]:
    """Return the scores in a file, and cut off a line that was not finished."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(lines):
        file.write_bytes(b"".join(whole))
    return [orjson.loads(line) for line in whole]
