"""Whether adapters are better, on queries that they have not learned from."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.metrics import Float64
from es_ttc.lab.evaluation.tuning import fold_of
from es_ttc.lab.learning.teachers import MIN_CLICKS, blend_scores
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.lab.ranking.weights import compared, values_of_default, values_of_scores
from es_ttc.vectors.tokens import Float32

METRIC = "ndcg@10"
FOLDS = 5
FIRST = 10
"""Hits of a page, for the share that changes."""
_FOLLOWED = 2
"""Blend's first documents, which a dense ranking should have first where nothing is judged."""


@dataclass(frozen=True, slots=True)
class Change:
    """One query's first documents by blend, before and after."""

    query: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What adapters change on queries that they have not learned from.

    Attributes:
        judged: Number of queries with a relevant document among their candidates.
        blend: nDCG@10 of blend after and before, on those queries; None if there are too few.
        dense: The same of the pooled vectors alone.
        clicked: nDCG@10 of blend after and before, with clicked documents as the relevant ones, on unjudged queries
            with clicks; None if there are too few. Users click on what they are shown, so it favours what is before.
        reranked: The same with a reranker's first two documents as the relevant ones, on queries that it scored.
        agreement: nDCG@10 of the pooled vectors alone, with blend's first two documents before as the relevant ones, on
            all queries.
        beyond_frequent: The same after, against the documents that blend has first for most other queries. Where the
            order hardly depends on the query, as in a language that the encoder does not read, it is not above 0.
        new_hits: Mean share of blend's first ten documents that were not among them before.
        changes: Each query's first documents.
    """

    judged: int
    blend: Comparison | None
    dense: Comparison | None
    clicked: Comparison | None
    reranked: Comparison | None
    agreement: Comparison
    beyond_frequent: Comparison
    new_hits: float
    changes: tuple[Change, ...]

    @property
    def clear(self) -> bool:
        """Whether the first of judgements, clicks, reranker and blend that decides says a difference above 0."""
        by_relevance = self.blend or self.clicked or self.reranked
        decisive = (by_relevance,) if by_relevance else (self.agreement, self.beyond_frequent)
        return all(one.interval.low > 0 for one in decisive)


def cross_fitted(pools: Pools, fit: Callable[[Pools], Callable[[Pools], Pools]], *, seed: int) -> Pools:
    """Return the pools of all queries, each scored with adapters that the other folds have taught.

    Args:
        pools: The pools before.
        fit: Returns, for the pools of some queries, what scores the pools of others, in any order.
        seed: Of the folds.
    """
    fold = fold_of(len(pools), FOLDS, seed)
    scored: dict[str, Pool] = {}
    for number in range(FOLDS):
        score = fit(pools.some(np.flatnonzero(fold != number)))
        scored |= {pool.query: pool for pool in score(pools.some(np.flatnonzero(fold == number))).pools}
    return replace(pools, pools=tuple(scored[pool.query] for pool in pools.pools))


def verdict_of(
    before: Pools,
    after: Pools,
    clicks: Mapping[str, Mapping[str, float]] | None = None,
    reranked: Mapping[str, Mapping[str, float]] | None = None,
    *,
    least: int,
    seed: int,
) -> Verdict:
    """Compare the pools of the same queries.

    Args:
        before: Scored as the index is now.
        after: Scored with adapters.
        clicks: By query id and document, weighted clicks.
        reranked: By query id and document, a reranker's scores.
        least: Number of judged queries, or of those with clicks or scores, from which they decide.
        seed: Of the bootstrap.
    """
    places = np.array([number for number, pool in enumerate(before.pools) if (pool.grades > 0).any()], np.intp)
    blend = dense = None
    if len(places) >= least:
        one, other = before.some(places), after.some(places)
        blend = compared(values_of_default(other, METRIC), values_of_default(one, METRIC), seed)
        dense = compared(by_dense(other), by_dense(one), seed)

    def by(relevant: Mapping[str, Sequence[str]]) -> Comparison | None:
        rest = [
            number for number, pool in enumerate(before.pools) if pool.query in relevant and not (pool.grades > 0).any()
        ]
        if len(rest) < least:
            return None
        wanted = [relevant[before.pools[number].query] for number in rest]
        one, other = _judged_by(before.some(rest), wanted), _judged_by(after.some(rest), wanted)
        return compared(values_of_default(other, METRIC), values_of_default(one, METRIC), seed)

    clicked = by({query: [*one] for query, one in (clicks or {}).items() if sum(one.values()) >= MIN_CLICKS})
    best = by({query: sorted(one, key=lambda name: -one[name])[:_FOLLOWED] for query, one in (reranked or {}).items()})
    scores, new_scores = blend_scores(before), blend_scores(after)
    followed = [_first(pool, row, _FOLLOWED) for pool, row in zip(before.pools, scores, strict=True)]
    agreed = by_dense(_judged_by(after, followed))
    agreement = compared(agreed, by_dense(_judged_by(before, followed)), seed)
    beyond_frequent = compared(agreed, _by_frequency(before, followed), seed)
    changes = tuple(
        Change(pool.query, _first(pool, row, FIRST), _first(new_pool, new_row, FIRST))
        for pool, row, new_pool, new_row in zip(before.pools, scores, after.pools, new_scores, strict=True)
    )
    shares = [len({*one.after} - {*one.before}) / max(1, len(one.after)) for one in changes]
    return Verdict(
        len(places), blend, dense, clicked, best, agreement, beyond_frequent, float(np.mean(shares)), changes
    )


def by_dense(pools: Pools) -> Float64:
    """Return nDCG of the pools ranked by cosine, ``(q,)``; documents without a vector last."""
    column = pools.signals.index("dense")
    return _by_scores(pools, [np.nan_to_num(pool.scores[:, column], nan=-2.0) for pool in pools.pools])


def _by_frequency(pools: Pools, followed: Sequence[Sequence[str]]) -> Float64:
    """Return nDCG of the pools ranked by how many other queries each document is followed for, ``(q,)``."""
    counts = Counter(chain.from_iterable(followed))
    scores = [
        np.array([counts[name] - (name in own) for name in pool.documents], np.float32)
        for pool, own in zip(pools.pools, followed, strict=True)
    ]
    return _by_scores(_judged_by(pools, followed), scores)


def _by_scores(pools: Pools, given: Sequence[Float32]) -> Float64:
    scores = np.full((len(pools), max(map(len, given))), -np.inf, np.float32)
    for row, own in zip(scores, given, strict=True):
        row[: len(own)] = own
    return values_of_scores(pools, scores, METRIC)


def _judged_by(pools: Pools, relevant: Sequence[Sequence[str]]) -> Pools:
    """Return the pools with other documents as the relevant ones."""
    judged = tuple(
        replace(
            pool,
            grades=np.array([name in names for name in pool.documents], np.int64),
            judged=np.ones(len(names), np.int64),
        )
        for pool, names in zip(pools.pools, relevant, strict=True)
    )
    return replace(pools, pools=judged)


def _first(pool: Pool, scores: Float32, count: int) -> tuple[str, ...]:
    return tuple(pool.documents[place] for place in np.argsort(-scores, kind="stable")[:count])
