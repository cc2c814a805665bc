"""Learning from an index: pools of its queries, an adapter of them, its evaluation, the folder that is served."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from es_ttc import __version__
from es_ttc.common.private_files import make_private_folder
from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, only
from es_ttc.lab.evaluation.rankings import ReportStage
from es_ttc.lab.evaluation.tuning import FOLDS
from es_ttc.lab.learning.evaluation import AdapterEvaluation, cross_fitted_pools, evaluation_of
from es_ttc.lab.learning.teachers import RERANKED, Scores, Teacher, TeacherTarget, reranker_scores, targets
from es_ttc.lab.learning.training import MIN_QUERIES, Adapters, fit_adapters, loop_options
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.training import artefact
from es_ttc.lab.training.loop import TrainingProgress


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is learned from: queries by their texts with judgements, weighted clicks by query and document, teachers.

    `pairs` is the maximum number of documents that the reranker scores, all queries together.
    """

    queries: Collection
    clicks: Mapping[str, Mapping[str, float]]
    teachers: Sequence[Teacher]
    reranker: str | None
    pairs: int
    seed: int


@dataclass(frozen=True, slots=True)
class LearnedAdapter:
    """An adapter, and how it was evaluated."""

    adapters: Adapters
    evaluation: AdapterEvaluation
    pools: Pools
    data: TrainingData

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "queries": len(self.pools),
            "taught": dict(self.adapters.taught),
            "clear": self.evaluation.clear,
            "verdict": asdict(self.evaluation),
        }


def learn_from(
    data: TrainingData, source: IndexSource, base: EncoderIdentity, keep: Path, progress: ReportStage
) -> LearnedAdapter:
    """Collect the pools, train, and compare on queries that were not learned from.

    The folder `keep` has what was read and scored, without texts of queries, until the caller removes it. What it has
    of other queries, clicks or options is removed first.
    """
    if len(data.queries.queries) < MIN_QUERIES:
        raise InvalidRequest(
            f"too few distinct queries, {len(data.queries.queries)}: give {MIN_QUERIES} or more, better some hundreds"
        )
    _begin(keep, data, source, base)
    pools = collect_from_index(data.queries, source, progress=progress, keep=keep / "before")
    reranked = _reranked(pools, data, source, keep, progress)
    teacher_targets = targets(pools, data.clicks, reranked, allowed=data.teachers)
    count = sum(target.teacher is not None for target in teacher_targets)
    if count < MIN_QUERIES:
        raise InvalidRequest(
            f"[{'], ['.join(data.teachers)}] teach {count} of {len(teacher_targets)} queries: give judgements or "
            f"clicks on {MIN_QUERIES} or more, or allow another --teacher"
        )
    loop, folds = loop_options(data.seed), iter(range(FOLDS))

    def fit(number: int, some: Pools, labels: Sequence[TeacherTarget]) -> Adapters:
        def report(course: TrainingProgress, steps: int) -> None:
            done = number + min(1.0, (course.epoch * steps + course.step) / (steps * loop.epochs))
            progress("training", round(100 * done / (FOLDS + 1)), 100)

        return fit_adapters(some, labels, loop=loop, report=report)

    def fold(some: Pools, labels: Sequence[TeacherTarget]) -> Callable[[Pools], Pools]:
        number = next(folds)
        head = fit(number, some, labels).heads["query"]

        def scored(others: Pools) -> Pools:
            asked = only(data.queries, {pool.query for pool in others.pools})
            return collect_from_index(asked, source, head=head, progress=progress, keep=keep / f"fold-{number}")

        return scored

    after = cross_fitted_pools(pools, teacher_targets, fold, seed=data.seed)
    evaluation = evaluation_of(pools, after, data.clicks, least=MIN_QUERIES, seed=data.seed)
    return LearnedAdapter(fit(FOLDS, pools, teacher_targets), evaluation, pools, data)


def _begin(keep: Path, data: TrainingData, source: IndexSource, base: EncoderIdentity) -> None:
    """Remove what was kept for other training data."""
    options = (data.queries.qrels, data.clicks, data.teachers, data.reranker, data.pairs, data.seed)
    key = (__version__, source.settings.engine, source.name, base.key, source.settings.rerankers, *options)
    mark = hashlib.sha256(repr(key).encode()).hexdigest()
    file = keep / "lesson"
    if not file.exists() or file.read_text() != mark:
        shutil.rmtree(keep, ignore_errors=True)
        make_private_folder(keep)
        file.write_text(mark)


def _reranked(pools: Pools, data: TrainingData, source: IndexSource, keep: Path, progress: ReportStage) -> Scores:
    """Return a reranker's scores of the most frequent queries that no better teacher says anything about."""
    if data.reranker is None or "reranker" not in data.teachers:
        return {}
    better = [teacher for teacher in data.teachers if teacher in ("judgements", "clicks")]
    teacher_targets = targets(pools, data.clicks, allowed=better)
    left = [number for number, one in enumerate(teacher_targets) if one.teacher is None][: data.pairs // RERANKED]
    if not left:
        return {}
    file = keep / "reranker.jsonl"
    return reranker_scores(pools.some(left), source.name, source.settings, data.reranker, keep=file, progress=progress)


def write_adapter(
    folder: Path, learned: LearnedAdapter, *, base_name: str, base: EncoderIdentity, cache_dir: Path
) -> None:
    """Write the adapter's folder."""
    evaluation, course = learned.evaluation, learned.adapters.course
    compared = {
        "blend": evaluation.blend,
        "vectors alone": evaluation.dense,
        "blend, by clicks": evaluation.clicked,
        "agreement with blend": evaluation.agreement,
    }
    artefact.write_artefact(
        folder,
        kind="learn",
        base_name=base_name,
        base=base,
        heads=learned.adapters.heads,
        models=[],
        params={},
        about={
            "data": {
                "name": str(learned.pools.settings["index"]),
                "train_queries": len(learned.pools),
                "valid_queries": len(learned.pools),
                "valid": f"the same, in {FOLDS} folds",
            },
            "taught": dict(learned.adapters.taught),
            "reranker": learned.data.reranker,
            "loop": asdict(loop_options(learned.data.seed)),
            "course": course.course(),
            "metrics": {
                f"{what}, difference of nDCG@10": {
                    "mean": one.delta, "95 % from": one.interval.low, "95 % to": one.interval.high
                }
                for what, one in compared.items()
                if one is not None
            },
        },
        cache_dir=cache_dir,
    )  # fmt: skip
