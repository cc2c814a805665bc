"""Whether adapters are better: on queries that they have not learned from, and by clicks in a trial."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.text_files import byte_lines, parsed_json
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.metrics import NDCG_10
from es_ttc.lab.evaluation.tuning import FOLDS, compared, fold_of
from es_ttc.lab.learning.teachers import MIN_CLICKS, TeacherTarget, blend_scores
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.lab.ranking.weights import measure_weights, values_of_default
from es_ttc.vectors.tokens import Float32, Float64

FIRST = 10  # hits of a page, for the share that changes
_FOLLOWED = 2  # blend's first documents, which a dense ranking should have first where nothing is judged


@dataclass(frozen=True, slots=True)
class Change:
    """One query's first documents by blend, before and after."""

    query: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterEvaluation:
    """What adapters change on queries that they have not learned from; comparisons are of nDCG@10, after and before.

    `blend` and `dense` (vectors alone) are on judged queries, `clicked` on unjudged ones with clicked documents as the
    relevant ones (users click on what they are shown, so it favours what is before): None if there are too few.
    `agreement` is of vectors alone on all queries, with blend's first two documents before as the relevant ones.
    `new_hits` is the mean share of blend's first ten documents that were not among them before.
    """

    judged: int
    blend: Comparison | None
    dense: Comparison | None
    clicked: Comparison | None
    agreement: Comparison
    new_hits: float
    changes: tuple[Change, ...]

    @property
    def clear(self) -> bool:
        """Whether blend is better with its 95 % interval, by judgements, else by clicks.

        Agreement with blend proves nothing: on QMSum the vectors agree more, and blend ranks clearly worse.
        """
        decisive = self.blend or self.clicked
        return decisive is not None and decisive.interval.low > 0


FitAdapter = Callable[[Pools, Sequence[TeacherTarget]], Callable[[Pools], Pools]]
"""Returns, for the pools of some queries and what is taught about them, what scores the pools of others."""


def cross_fitted_pools(pools: Pools, targets: Sequence[TeacherTarget], fit: FitAdapter, *, seed: int) -> Pools:
    """Return the pools of all queries, in any order, scored with adapters that the other folds have taught."""
    fold = _folds(pools, targets, seed)
    scored: dict[str, Pool] = {}
    for number in range(FOLDS):
        others, own = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        score = fit(pools.some(others), [targets[place] for place in others.tolist()])
        scored |= {pool.query: pool for pool in score(pools.some(own)).pools}
    return replace(pools, pools=tuple(scored[pool.query] for pool in pools.pools))


def _folds(pools: Pools, targets: Sequence[TeacherTarget], seed: int) -> NDArray[np.intp]:
    """Return the fold of each query: that of the document which it teaches most.

    Later queries often ask for other documents than the log does. With folds of random queries the documents are known,
    and an adapter that is worse for all others passes (QMSum, 800 judged queries).
    """
    about = [
        pool.documents[int(one.shares.argmax())] if one.teacher else f"query {pool.query}"
        for pool, one in zip(pools.pools, targets, strict=True)
    ]
    places = {name: place for place, name in enumerate(dict.fromkeys(about))}
    if len({name for name, one in zip(about, targets, strict=True) if one.teacher}) < FOLDS:
        return fold_of(len(pools), FOLDS, seed)
    return fold_of(len(places), FOLDS, seed)[[places[name] for name in about]]


def evaluation_of(
    before: Pools, after: Pools, clicks: Mapping[str, Mapping[str, float]] | None = None, *, least: int, seed: int
) -> AdapterEvaluation:
    """Compare the pools of the same queries; `least` judged queries, or ones with clicks, decide."""
    places = np.array([number for number, pool in enumerate(before.pools) if (pool.grades > 0).any()], np.intp)
    blend = dense = None
    if len(places) >= least:
        one, other = before.some(places), after.some(places)
        blend = compared(values_of_default(other, NDCG_10), values_of_default(one, NDCG_10), seed)
        dense = compared(by_dense(other), by_dense(one), seed)
    clicks_by_query = [(clicks or {}).get(pool.query, {}) for pool in before.pools]
    sure = [sum(of_query.values()) >= MIN_CLICKS for of_query in clicks_by_query]
    clicked = None
    rest = [number for number, pool in enumerate(before.pools) if sure[number] and not (pool.grades > 0).any()]
    if len(rest) >= least:
        wanted = [tuple(clicks_by_query[number]) for number in rest]
        one, other = _judged_by(before.some(rest), wanted), _judged_by(after.some(rest), wanted)
        clicked = compared(values_of_default(other, NDCG_10), values_of_default(one, NDCG_10), seed)
    scores, new_scores = blend_scores(before), blend_scores(after)
    followed = [_first(pool, row, _FOLLOWED) for pool, row in zip(before.pools, scores, strict=True)]
    agreement = compared(by_dense(_judged_by(after, followed)), by_dense(_judged_by(before, followed)), seed)
    changes = tuple(
        Change(pool.query, _first(pool, row, FIRST), _first(new_pool, new_row, FIRST))
        for pool, row, new_pool, new_row in zip(before.pools, scores, after.pools, new_scores, strict=True)
    )
    shares = [len({*change.after} - {*change.before}) / max(1, len(change.after)) for change in changes]
    return AdapterEvaluation(len(places), blend, dense, clicked, agreement, float(np.mean(shares)), changes)


def by_dense(pools: Pools) -> Float64:
    """Return nDCG of the pools ranked by cosine, ``(q,)``; documents without a vector last."""
    column = pools.signals.index("dense")
    scores = np.full((len(pools), max(len(pool.documents) for pool in pools.pools)), -np.inf, np.float32)
    for row, pool in zip(scores, pools.pools, strict=True):
        row[: len(pool.documents)] = np.nan_to_num(pool.scores[:, column], nan=-2.0)
    return measure_weights(pools, NDCG_10)(scores)


def _judged_by(pools: Pools, relevant: Sequence[tuple[str, ...]]) -> Pools:
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


MIN_CLICKED = 20  # clicked queries below which there is no verdict


@dataclass(frozen=True, slots=True)
class TrialEvaluation:
    """What clicks say of a trial: numbers of searches, of distinct queries, and of those with a click on its documents.

    `shares` compares the share of each clicked query's clicks on documents that the ranking with the adapter has put
    there with the share on the others; None with fewer than :data:`MIN_CLICKED` clicked queries.
    """

    adapter: str
    searches: int
    queries: int
    clicked: int
    shares: Comparison | None


def evaluation_of_trial(file: Path, index: str, clicks: Mapping[str, Mapping[str, float]]) -> TrialEvaluation:
    """Return the evaluation of an index's latest adapter, from the file of the setting `trial_log` and clicks by query.

    Its unit is the query: the same one is always drawn alike.
    """
    try:
        lines: list[dict[str, Any]] = []
        for _, line in byte_lines(file):
            with suppress(ValueError):  # a full disk cuts lines, also inside a character
                lines.append(parsed_json(line))
        own = [line for line in lines if line["index"] == index]
        adapter = own[-1]["adapter"] if own else ""
        own = [line for line in own if line["adapter"] == adapter]
        teams = {(line["query"], name): team for line in own for name, team in line["hits"]}
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"[{file}] is no file of a trial: give that of the setting trial_log") from error
    if not own:
        named = ", ".join(sorted({line["index"] for line in lines}))
        raise InvalidRequest(f"[{file}] has no search of [{index}]" + (f": it has [{named}]" if named else ""))
    counts: dict[str, dict[str, float]] = {}
    for (query, document), team in teams.items():
        if number := clicks.get(query, {}).get(document, 0.0):
            of_query = counts.setdefault(query, {"learned": 0.0, "frozen": 0.0})
            of_query[team] += number
    learned = np.array([count["learned"] / (count["learned"] + count["frozen"]) for count in counts.values()])
    shares = compared(learned, 1 - learned) if len(counts) >= MIN_CLICKED else None
    return TrialEvaluation(adapter, len(own), len({line["query"] for line in own}), len(counts), shares)
