"""Everything that is known of the judgements of an index: one grade a document, agreement of judges, standing.

Agreement is the share of equal grades, and Cohen's kappa with linear weights (Cohen, *Weighted kappa*, 1968): a
difference of two grades counts twice as much as one of one. It is 1 where judges agree throughout, and 0 where they
agree as often as by chance.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from es_ttc.errors import EngineError, InvalidRequest, NotAllowed
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.judging.records import GRADES, Judgement, JudgementSource, PooledQuery
from es_ttc.lab.judging.standing import Standing, TunedWeights, standing, tuned_weights
from es_ttc.lab.judging.store import SIGNALS_INDEX, JudgementStore


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
    for judgement in judgements:
        by_judge[judgement.judge][judgement.query, judgement.document] = judgement.grade
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

    The lower of two middle grades counts. A language model's grades count only `with_llm`.
    """
    all_grades: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for judgement in judgements:
        if with_llm or judgement.source is not JudgementSource.LLM:
            all_grades[judgement.query][judgement.document].append(judgement.grade)
    return {
        query: {document: int(np.median(grades)) for document, grades in documents.items()}
        for query, documents in all_grades.items()
    }


def counts_by_judge(judgements: Iterable[Judgement]) -> Mapping[str, tuple[JudgementSource, int]]:
    """Return each judge's source and number of judgements."""
    counts: dict[str, tuple[JudgementSource, int]] = {}
    for judgement in judgements:
        counts[judgement.judge] = (judgement.source, counts.get(judgement.judge, (judgement.source, 0))[1] + 1)
    return dict(sorted(counts.items()))


SPLIT = "judgements"  # the split of queries that an index's judgements judge, in results and files


@dataclass(frozen=True)
class Overview:
    """The pools and judgements of an index; if the reader may not read signals, the reason.

    Records with the ids `unreadable` are left out.
    """

    index: str
    queries: Sequence[PooledQuery]
    judgements: Sequence[Judgement]
    with_llm: bool = False
    no_signals: str = ""
    unreadable: Sequence[str] = ()

    @cached_property
    def qrels(self) -> dict[str, dict[str, int]]:
        """One grade for each judged document, by query and document; queries without a text are left out."""
        known = {query.id for query in self.queries}
        found = median_grades(self.judgements, with_llm=self.with_llm)
        return {query: grades for query, grades in found.items() if query in known}

    @cached_property
    def agreement(self) -> list[PairAgreement]:
        """How far each two judges agree."""
        return agreement(self.judgements)

    @cached_property
    def judges(self) -> Mapping[str, tuple[JudgementSource, int]]:
        """Each judge's kind and number of judgements."""
        return counts_by_judge(self.judgements)

    @property
    def pooled(self) -> int:
        """Number of pooled documents, over all queries."""
        return sum(len(query.documents) for query in self.queries)

    @property
    def unjudged(self) -> int:
        """Number of pooled documents without a grade that counts."""
        return sum(self._unjudged(query) for query in self.queries)

    def _unjudged(self, query: PooledQuery) -> int:
        judged = self.qrels.get(query.id, {})
        return sum(document not in judged for document in query.documents)

    def of_judge(self, name: str) -> dict[str, dict[str, int]]:
        """Return one judge's grades by query and document."""
        if name not in self.judges:
            known = ", ".join(f"[{judge}]" for judge in self.judges) or "none"
            raise InvalidRequest(f"no judge [{name}] has judged index [{self.index}]: judges are {known}")
        return median_grades([judgement for judgement in self.judgements if judgement.judge == name], with_llm=True)

    def collection(self) -> Collection:
        """Return the judged queries as a collection without documents."""
        if not self.qrels:
            fix = (
                f"its {len(self.queries)} pools can be judged with `es-ttc ui {self.index}` or `es-ttc judge import`"
                if self.queries
                else f"`es-ttc judge pool {self.index} QUERIES` makes pools to judge"
            )
            raise InvalidRequest(f"index [{self.index}] has no judgements that count: {fix}")
        texts = {query.id: query.text for query in self.queries if query.id in self.qrels}
        return Collection(self.index, SPLIT, (), texts, {query: self.qrels[query] for query in texts})

    def standing(self) -> Standing:
        """Return how the pooled methods stand."""
        return standing(self.queries, self.qrels)

    def tuned(self) -> TunedWeights | str:
        """Return the weights of blend that the judgements choose, or why there are none."""
        return self.no_signals or tuned_weights(self.index, self.queries, self.qrels)

    def as_dict(self) -> dict[str, Any]:
        """Return counts and agreement as JSON."""
        return {
            "index": self.index,
            "pooled": self.pooled,
            "unjudged": self.unjudged,
            "unreadable": self.unreadable,
            "queries": [self._query(query) for query in self.queries],
            "judges": {name: {"source": source, "judgements": count} for name, (source, count) in self.judges.items()},
            "agreement": {"pairs": [asdict(pair) for pair in self.agreement]},
        }

    def _query(self, query: PooledQuery) -> dict[str, Any]:
        pooled, unjudged = len(query.documents), self._unjudged(query)
        return {
            "id": query.id,
            "text": query.text,
            "methods": [method.name for method in query.methods],
            "depth": query.depth,
            "pooled": pooled,
            "judged": pooled - unjudged,
            "unjudged": unjudged,
            "by": self._by_judge.get(query.id, {}),
        }

    @cached_property
    def _by_judge(self) -> dict[str, dict[str, int]]:
        pooled = {query.id: set(query.documents) for query in self.queries}
        counts: dict[str, dict[str, int]] = {}
        for judgement in self.judgements:
            if judgement.document in pooled.get(judgement.query, ()):
                of_query = counts.setdefault(judgement.query, {})
                of_query[judgement.judge] = of_query.get(judgement.judge, 0) + 1
        return counts


async def read_overview(store: JudgementStore, *, with_llm: bool = False, signals: bool = True) -> Overview:
    """Read the pools and judgements of an index, and the pools' signals if they are asked for and may be read."""
    await store.require_index()
    pools, judgements = await store.pools(), await store.judgements()
    reason = ""
    if signals:
        try:
            logged = await store.signals()
        except EngineError as error:
            if error.upstream_status != NotAllowed.status:
                raise
            reason = f"weights are chosen from the pools' signals, and you may not read index [{SIGNALS_INDEX}]"
        else:
            pools = [replace(pool, signals=logged.get(pool.id)) for pool in pools]
    return Overview(store.index, pools, judgements, with_llm, reason, sorted(store.unreadable))
