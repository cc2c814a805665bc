"""What a query's documents should score: targets from judgements, clicks, a reranker (within a budget) and blend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.common.private_files import open_private
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.lab.evaluation.rankings import ReportStage
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.lab.ranking.weights import by_default_weights, normalised
from es_ttc.reranking.rerankers import Passage, PointwiseCalls
from es_ttc.reranking.strategies.base import PartialScores
from es_ttc.rescorers.blend.normalise import z_scores
from es_ttc.rescorers.blend.rescorer import RERANKER_WEIGHT
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.serving.gateway import rerankers_of
from es_ttc.serving.strategies.walk import passage_of
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.tokens import Float32, Float64

Teacher = Literal["judgements", "clicks", "reranker", "blend"]
TEACHERS: tuple[Teacher, ...] = ("judgements", "clicks", "reranker", "blend")
"""In the order of their worth: a query takes the first that says something about it."""
BLEND_TEMPERATURE = 1.0  # of blend's scores, weighted z-scores; chosen as docs/results/learning.md says
RERANKED = 10  # blend's first documents of a query, which a reranker scores
MIN_CLICKS = 2.0  # least weight of a query's clicks: one click on the first hit says little


def blend_scores(pools: Pools) -> list[Float32]:
    """Return blend's scores of each pool's documents, by its default signals and weights."""
    default_signals = pools.of(DEFAULT_SIGNALS)
    scores = by_default_weights(default_signals, normalised(default_signals, "z"))
    return [row[: len(pool.documents)] for row, pool in zip(scores, pools.pools, strict=True)]


def softened(scores: Float32, temperature: float) -> Float64:
    """Return ``exp(scores / temperature)``, scaled to sum 1."""
    raised = np.exp((scores.astype(np.float64) - scores.max(initial=0.0)) / temperature)
    found: Float64 = raised / raised.sum()
    return found


@dataclass(frozen=True, slots=True)
class TeacherTarget:
    """What share of 1 each document of a pool should get, ``(k,)``, and who says so; zeros if nobody does."""

    shares: Float64
    teacher: Teacher | None


def targets(
    pools: Pools,
    clicks: Mapping[str, Mapping[str, float]],
    reranked: Mapping[str, Mapping[str, float]] | None = None,
    *,
    allowed: Sequence[Teacher] = TEACHERS,
) -> list[TeacherTarget]:
    """Return the target of each pool, by the first allowed teacher that says something about it.

    Clicks are weights, `reranked` scores of a reranker, both by query and document.
    """
    return [
        _target(pool, scores, clicks.get(pool.query, {}), (reranked or {}).get(pool.query, {}), allowed)
        for pool, scores in zip(pools.pools, blend_scores(pools), strict=True)
    ]


def _target(
    pool: Pool, scores: Float32, clicks: Mapping[str, float], reranked: Mapping[str, float], allowed: Sequence[Teacher]
) -> TeacherTarget:
    gains = np.exp2(np.maximum(pool.grades, 0)) - 1.0
    clicked = np.array([clicks.get(document, 0.0) for document in pool.documents])
    if "judgements" in allowed and gains.any():
        return TeacherTarget(gains / gains.sum(), "judgements")
    if "clicks" in allowed and clicked.sum() >= MIN_CLICKS:
        return TeacherTarget(clicked / clicked.sum(), "clicks")
    if "reranker" in allowed and reranked:
        return TeacherTarget(softened(_with_reranker(pool, scores, reranked), BLEND_TEMPERATURE), "reranker")
    if "blend" in allowed and len(pool.documents):
        return TeacherTarget(softened(scores, BLEND_TEMPERATURE), "blend")
    return TeacherTarget(np.zeros(len(pool.documents)), None)


def _with_reranker(pool: Pool, scores: Float32, reranked: Mapping[str, float]) -> Float32:
    places = [place for place, name in enumerate(pool.documents) if name in reranked]
    found = np.array([reranked[pool.documents[place]] for place in places], np.float32)
    with_reranker = scores.copy()
    with_reranker[places] += RERANKER_WEIGHT * z_scores(found, np.ones(len(found), np.bool_))
    return with_reranker


Scores = Mapping[str, Mapping[str, float]]  # by query and document


def reranker_scores(
    pools: Pools, index: str, settings: GatewaySettings, reranker: str, *, keep: Path, progress: ReportStage
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
    pools: Pools, index: str, settings: GatewaySettings, name: str, keep: Path, progress: ReportStage
) -> Scores:
    scored = _read(keep)
    firsts = first_documents(pools)
    rerankers = rerankers_of(settings)
    try:
        calls = rerankers.named(name)
        assert isinstance(calls, PointwiseCalls)  # noqa: S101 - require_scoring
        async with connected(settings) as engine:
            fields = (await Indices.behind(engine, index)).shared_spec().text_fields
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
