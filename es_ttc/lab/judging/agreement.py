"""How far two judges agree, and the one grade of several judges.

Agreement is the share of equal grades, and Cohen's kappa with linear weights (Cohen, *Weighted kappa*, 1968): a
difference of two grades counts twice as much as one of one. It is 1 where judges agree throughout, and 0 where they
agree as often as by chance.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from es_ttc.lab.judging.records import GRADES, Judgement, Source


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Agreement of two judges on the documents that both have graded."""

    judges: tuple[str, str]
    both: int
    equal: float
    kappa: float | None


def agreement(judgements: Iterable[Judgement]) -> list[PairAgreement]:
    """Return how far each two judges agree who have graded the same documents."""
    by_judge: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
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
    return pairs


def weighted_kappa(ours: Sequence[int], theirs: Sequence[int]) -> float | None:
    """Return Cohen's kappa with linear weights, at most 1; None where chance alone would make two judges agree."""
    observed = np.zeros((len(GRADES), len(GRADES)))
    np.add.at(observed, (np.array(ours), np.array(theirs)), 1)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / len(ours)
    weights = np.abs(np.subtract.outer(np.array(GRADES), np.array(GRADES)))
    by_chance = float((weights * expected).sum())
    return None if by_chance == 0 else 1 - float((weights * observed).sum()) / by_chance


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
