"""How far judges agree, and the one grade of several judges.

Pairs of judges: the share of equal grades, and Cohen's kappa with linear weights (Cohen, *Weighted kappa*, 1968): a
difference of two grades counts twice as much as one of one. All judges together: Krippendorff's alpha for ordinal data
(*Computing Krippendorff's alpha-reliability*, 2011); not everyone needs to judge everything. Both are 1 where judges
agree throughout, and 0 where they agree as often as by chance.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.judging.records import GRADES, Judgement, Source

Pair = tuple[str, str]
"""Ids of a query and of a document."""


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Agreement of two judges."""

    judges: tuple[str, str]
    both: int
    equal: float
    kappa: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of all judges."""

    pairs: tuple[PairAgreement, ...]
    documents: int
    alpha: float | None


def agreement(judgements: Iterable[Judgement]) -> Agreement:
    """Return how far judges agree."""
    by_judge: dict[str, dict[Pair, int]] = defaultdict(dict)
    for one in judgements:
        by_judge[one.judge][one.query, one.document] = one.grade
    pairs = []
    for first, second in combinations(sorted(by_judge), 2):
        common = by_judge[first].keys() & by_judge[second].keys()
        if common:
            ours = [by_judge[first][pair] for pair in common]
            theirs = [by_judge[second][pair] for pair in common]
            equal = float(np.mean(np.array(ours) == np.array(theirs)))
            pairs.append(PairAgreement((first, second), len(common), equal, weighted_kappa(ours, theirs)))
    units: dict[Pair, list[int]] = defaultdict(list)
    for grades in by_judge.values():
        for pair, grade in grades.items():
            units[pair].append(grade)
    several = [grades for grades in units.values() if len(grades) > 1]
    return Agreement(tuple(pairs), len(several), ordinal_alpha(several))


def weighted_kappa(ours: Sequence[int], theirs: Sequence[int]) -> float | None:
    """Return Cohen's kappa with linear weights, at most 1; None where chance alone would make two judges agree."""
    observed = np.zeros((len(GRADES), len(GRADES)))
    np.add.at(observed, (np.array(ours), np.array(theirs)), 1)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / len(ours)
    weights = np.abs(np.subtract.outer(np.array(GRADES), np.array(GRADES)))
    by_chance = float((weights * expected).sum())
    return None if by_chance == 0 else 1 - float((weights * observed).sum()) / by_chance


def ordinal_alpha(units: Sequence[Sequence[int]]) -> float | None:
    """Return Krippendorff's alpha for ordinal data, at most 1, from the grades of each document, whoever gave them.

    Documents with fewer than two grades are left out. None where nothing can be compared, or no grade differs.
    """
    values = sorted({grade for unit in units if len(unit) > 1 for grade in unit})
    place = {grade: number for number, grade in enumerate(values)}
    together = np.zeros((len(values), len(values)))
    for unit in units:
        if len(unit) > 1:
            counts = np.bincount([place[grade] for grade in unit], minlength=len(values)).astype(np.float64)
            together += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = together.sum(axis=0)
    distances = _ordinal_distances(totals)
    by_chance = float((distances * (np.outer(totals, totals) - np.diag(totals))).sum())
    if by_chance == 0:
        return None
    return 1 - (float(totals.sum()) - 1) * float((distances * together).sum()) / by_chance


def _ordinal_distances(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distances of grades: the number of values between them, their own counted half."""
    below = np.cumsum(totals) - totals / 2
    return np.subtract.outer(below, below) ** 2


def median_grades(judgements: Iterable[Judgement], *, with_llm: bool = False) -> dict[str, dict[str, int]]:
    """Return the median of its judges for each judged document, by query and document.

    Two judges who differ by one grade give the lower one. A language model's grades count only `with_llm`.
    """
    given: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in judgements:
        if with_llm or one.source is not Source.LLM:
            given[one.query][one.document].append(one.grade)
    return {
        query: {document: int(np.median(grades)) for document, grades in documents.items()}
        for query, documents in given.items()
    }


def counts_by_judge(judgements: Iterable[Judgement]) -> Mapping[str, tuple[Source, int]]:
    """Return each judge's source and number of judgements."""
    counts: dict[str, tuple[Source, int]] = {}
    for one in judgements:
        counts[one.judge] = (one.source, counts.get(one.judge, (one.source, 0))[1] + 1)
    return dict(sorted(counts.items()))
