"""One lesson from an index: pools of its queries, an adapter of them, the verdict, the folder that is served."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, only
from es_ttc.lab.evaluation.rankings import Progress
from es_ttc.lab.learning.teachers import Teacher, targets
from es_ttc.lab.learning.training import MIN_QUERIES, Adapters, fit_adapters, loop_options
from es_ttc.lab.learning.verdict import FOLDS, Verdict, cross_fitted, verdict_of
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.training import artefact
from es_ttc.lab.training.loop import TrainingProgress


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learned from.

    Attributes:
        queries: The queries by their texts, with their judgements.
        clicks: By query and document, weighted clicks.
        teachers: Who may be asked.
        seed: Of folds, the training and the bootstrap.
    """

    queries: Collection
    clicks: Mapping[str, Mapping[str, float]]
    teachers: Sequence[Teacher]
    seed: int


@dataclass(frozen=True, slots=True)
class Learned:
    """What a lesson came to."""

    adapters: Adapters
    verdict: Verdict
    pools: Pools
    lesson: Lesson

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(self.pools)

    @property
    def taught(self) -> Mapping[Teacher, int]:
        """Number of queries by teacher."""
        return self.adapters.taught

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        verdict = asdict(self.verdict)
        return {"queries": self.queries, "taught": dict(self.taught), "clear": self.verdict.clear, "verdict": verdict}


def learn_from(lesson: Lesson, source: IndexSource, progress: Progress) -> Learned:
    """Collect the pools, train, and compare on queries that were not learned from.

    Raises:
        InvalidRequest: There are too few queries.
    """
    if len(lesson.queries.queries) < MIN_QUERIES:
        raise InvalidRequest(
            f"{len(lesson.queries.queries)} queries are too few: give {MIN_QUERIES} or more, better some hundreds"
        )
    pools = collect_from_index(lesson.queries, source, progress=progress)
    rounds = iter(range(FOLDS + 1))

    def fit(some: Pools) -> Adapters:
        number = next(rounds)

        def report(course: TrainingProgress, steps: int) -> None:
            done = number + min(1.0, (course.epoch * steps + course.step) / (steps * loop.epochs))
            progress("training", round(100 * done / (FOLDS + 1)), 100)

        loop = loop_options(lesson.seed)
        said = targets(some, lesson.clicks, allowed=lesson.teachers)
        return fit_adapters(some, said, loop=loop, report=report)

    def fold(some: Pools) -> Callable[[Pools], Pools]:
        head = fit(some).heads["query"]

        def scored(others: Pools) -> Pools:
            asked = only(lesson.queries, {pool.query for pool in others.pools})
            return collect_from_index(asked, source, head=head, progress=progress)

        return scored

    after = cross_fitted(pools, fold, seed=lesson.seed)
    verdict = verdict_of(pools, after, lesson.clicks, least=MIN_QUERIES, seed=lesson.seed)
    return Learned(fit(pools), verdict, pools, lesson)


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
                "train_queries": learned.queries,
                "valid_queries": learned.queries,
                "valid": f"the same, in {FOLDS} folds",
            },
            "taught": dict(learned.taught),
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
