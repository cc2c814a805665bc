"""One lesson from an index: pools of its queries, an adapter of them, the verdict, the folder that is served."""

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
from es_ttc.lab.learning.teachers import RERANKED, Scores, Teacher, TeacherTarget, rerank, targets
from es_ttc.lab.learning.training import MIN_QUERIES, Adapters, fit_adapters, loop_options
from es_ttc.lab.learning.verdict import FOLDS, Verdict, cross_fitted, verdict_of
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.training import artefact
from es_ttc.lab.training.loop import TrainingProgress


@dataclass(frozen=True, slots=True)
class Lesson:
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
class Learned:
    """What a lesson came to."""

    adapters: Adapters
    verdict: Verdict
    pools: Pools
    lesson: Lesson

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "queries": len(self.pools),
            "taught": dict(self.adapters.taught),
            "clear": self.verdict.clear,
            "verdict": asdict(self.verdict),
        }


def learn_from(
    lesson: Lesson, source: IndexSource, base: EncoderIdentity, keep: Path, progress: ReportStage
) -> Learned:
    """Collect the pools, train, and compare on queries that were not learned from.

    The folder `keep` has what was read and scored, without texts of queries, until the caller removes it. What it has
    of other queries, clicks or options is removed first.
    """
    if len(lesson.queries.queries) < MIN_QUERIES:
        raise InvalidRequest(
            f"too few distinct queries, {len(lesson.queries.queries)}: give {MIN_QUERIES} or more, better some hundreds"
        )
    _begin(keep, lesson, source, base)
    pools = collect_from_index(lesson.queries, source, progress=progress, keep=keep / "before")
    reranked = _reranked(pools, lesson, source, keep, progress)
    said = targets(pools, lesson.clicks, reranked, allowed=lesson.teachers)
    count = sum(one.teacher is not None for one in said)
    if count < MIN_QUERIES:
        raise InvalidRequest(
            f"[{'], ['.join(lesson.teachers)}] teach {count} of {len(said)} queries: give judgements or clicks on "
            f"{MIN_QUERIES} or more, or allow another --teacher"
        )
    loop, folds = loop_options(lesson.seed), iter(range(FOLDS))

    def fit(number: int, some: Pools, taught: Sequence[TeacherTarget]) -> Adapters:
        def report(course: TrainingProgress, steps: int) -> None:
            done = number + min(1.0, (course.epoch * steps + course.step) / (steps * loop.epochs))
            progress("training", round(100 * done / (FOLDS + 1)), 100)

        return fit_adapters(some, taught, loop=loop, report=report)

    def fold(some: Pools, taught: Sequence[TeacherTarget]) -> Callable[[Pools], Pools]:
        number = next(folds)
        head = fit(number, some, taught).heads["query"]

        def scored(others: Pools) -> Pools:
            asked = only(lesson.queries, {pool.query for pool in others.pools})
            return collect_from_index(asked, source, head=head, progress=progress, keep=keep / f"fold-{number}")

        return scored

    after = cross_fitted(pools, said, fold, seed=lesson.seed)
    verdict = verdict_of(pools, after, lesson.clicks, least=MIN_QUERIES, seed=lesson.seed)
    return Learned(fit(FOLDS, pools, said), verdict, pools, lesson)


def _begin(keep: Path, lesson: Lesson, source: IndexSource, base: EncoderIdentity) -> None:
    """Remove what was kept for anything else than this lesson."""
    asked = (lesson.queries.qrels, lesson.clicks, lesson.teachers, lesson.reranker, lesson.pairs, lesson.seed)
    said = (__version__, source.settings.engine, source.name, base.key, source.settings.rerankers, *asked)
    mark = hashlib.sha256(repr(said).encode()).hexdigest()
    file = keep / "lesson"
    if not file.exists() or file.read_text() != mark:
        shutil.rmtree(keep, ignore_errors=True)
        make_private_folder(keep)
        file.write_text(mark)


def _reranked(pools: Pools, lesson: Lesson, source: IndexSource, keep: Path, progress: ReportStage) -> Scores:
    """Return a reranker's scores of the most frequent queries that no better teacher says anything about."""
    if lesson.reranker is None or "reranker" not in lesson.teachers:
        return {}
    better = [one for one in lesson.teachers if one in ("judgements", "clicks")]
    said = targets(pools, lesson.clicks, allowed=better)
    left = [number for number, one in enumerate(said) if one.teacher is None][: lesson.pairs // RERANKED]
    if not left:
        return {}
    file = keep / "reranker.jsonl"
    return rerank(pools.some(left), source.name, source.settings, lesson.reranker, keep=file, progress=progress)


def write(folder: Path, learned: Learned, *, base_name: str, base: EncoderIdentity, cache_dir: Path) -> None:
    """Write the adapter's folder."""
    verdict, course = learned.verdict, learned.adapters.course
    compared = {
        "blend": verdict.blend,
        "vectors alone": verdict.dense,
        "blend, by clicks": verdict.clicked,
        "agreement with blend": verdict.agreement,
    }
    artefact.write(
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
            "reranker": learned.lesson.reranker,
            "loop": asdict(loop_options(learned.lesson.seed)),
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
